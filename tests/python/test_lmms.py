"""Tests the clients of the LMMS-Eval server with evalq-gateway: the public dialect, several jobs at
once, and errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import unittest
from typing import Any, Dict, List

from lmms_client import EvalServerBackend, HttpError, exchange, metrics_of
from lmms_scene import KEY, LmmsScene
from scene import BIN, DEADLINE, until

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}")


class LmmsTest(LmmsScene):
    def test_evaluate_gives_results_where_the_client_looks(self) -> None:
        path = self.save("plain/checkpoint-500", 1234)
        wanted = os.path.join(self.scene.out, "wanted")
        job = self.client.evaluate("qwen_vl", ["size", "count"], {"pretrained": path, "dtype": "bfloat16"}, num_fewshot=0,
                                   batch_size=4, limit=8, output_dir=wanted, gen_kwargs=None)
        self.assertEqual(set(job), {"job_id", "status", "position_in_queue", "message"})
        self.assertRegex(job["job_id"], UUID4)
        self.assertEqual(job["status"], "queued")
        self.assertEqual(job["message"], f"Job queued successfully. Position in queue: {job['position_in_queue']}")
        done = self.client.wait_for_job(job["job_id"], timeout=DEADLINE)
        self.assertEqual(set(done), {"job_id", "status", "created_at", "started_at", "completed_at", "request", "result", "error",
                                     "position_in_queue"})
        for field in ("created_at", "started_at", "completed_at"):
            self.assertRegex(done[field], TIME)
        self.assertIsNone(done["error"])
        self.assertIsNone(done["position_in_queue"])
        self.assertEqual(done["request"], {
            "model": "qwen_vl", "tasks": ["size", "count"], "model_args": {"pretrained": path, "dtype": "bfloat16"},
            "num_fewshot": 0, "batch_size": 4, "device": None, "limit": 8, "gen_kwargs": None, "log_samples": True,
            "predict_only": False, "num_gpus": 1, "output_dir": wanted})
        ((model, entry),) = done["result"].items()
        self.assertEqual(model, "plain__checkpoint-500")
        self.assertRegex(entry["results"], re.escape(os.path.join(wanted, model)) + r"/\d{8}_\d{6}_results\.json")
        self.assertEqual(sorted(re.sub(r".*_samples_", "", name) for name in entry["samples"]), ["count.jsonl", "size.jsonl"])
        size = os.path.getsize(os.path.join(path, "model.safetensors"))
        metrics = metrics_of(done)
        self.assertEqual(metrics, {"eval/size_bytes": size, "eval/size_largest": size, "eval/count_files": 1})
        self.assertEqual(entry["metrics"]["size"]["bytes,none"], size)
        with open(entry["results"], encoding="utf-8") as file:
            said = json.load(file)["config"]
        self.assertEqual((said["num_fewshot"], said["batch_size"], said["limit"], said["log_samples"]), ("0", "4", "8", True))

    def test_same_request_again_is_answered_from_what_is_there(self) -> None:
        path = self.save("twice/checkpoint-7", 77)
        first = self.client.evaluate("m", ["size"], {"pretrained": path})
        self.client.wait_for_job(first["job_id"], timeout=DEADLINE)
        second = self.client.evaluate("m", ["size"], {"pretrained": path}, output_dir=os.path.join(self.scene.out, "elsewhere"))
        done = self.client.wait_for_job(second["job_id"], timeout=DEADLINE)
        self.assertNotEqual(first["job_id"], second["job_id"])
        # The answer is not older than the question.
        self.assertEqual((done["created_at"], done["created_at"]), (done["started_at"], done["completed_at"]))
        entry = done["result"]["twice__checkpoint-7"]
        self.assertTrue(entry["results"].startswith(os.path.join(self.scene.out, "elsewhere")))
        self.assertEqual(metrics_of(done)["eval/size_bytes"], os.path.getsize(os.path.join(path, "model.safetensors")))
        # This is another question about the same checkpoint.
        other = self.client.evaluate("m", ["count"], {"pretrained": path})
        self.assertEqual(metrics_of(self.client.wait_for_job(other["job_id"], timeout=DEADLINE)), {"eval/count_files": 1})

    def test_model_args_may_be_text_and_hold_num_gpus_and_batch_size(self) -> None:
        path = self.save("guide/checkpoint-1")
        job = self.client.evaluate("qwen_vl", ["size"], f"pretrained={path},batch_size=256,num_gpus=1", num_gpus=None)
        done = self.client.wait_for_job(job["job_id"], timeout=DEADLINE)
        with open(done["result"]["guide__checkpoint-1"]["results"], encoding="utf-8") as file:
            said = json.load(file)["config"]
        self.assertEqual(said["batch_size"], "256")
        self.assertNotIn("num_gpus", said["model_args"])
        self.assertNotIn("batch_size", said["model_args"])

    def test_model_of_the_hub_needs_no_checkpoint(self) -> None:
        job = self.client.evaluate("qwen_vl", ["count"], {"pretrained": "Qwen/Qwen2-VL-7B-Instruct"})
        done = self.client.wait_for_job(job["job_id"], timeout=DEADLINE)
        self.assertEqual(list(done["result"]), ["Qwen__Qwen2-VL-7B-Instruct"])
        again = self.client.evaluate("qwen_vl", ["count"], {"pretrained": "Qwen/Qwen2-VL-7B-Instruct"})
        self.assertNotEqual(self.job_of(done), self.job_of(self.client.wait_for_job(again["job_id"], timeout=DEADLINE)))

    @staticmethod
    def job_of(done: Dict[str, Any]) -> str:
        return str(next(iter(done["result"].values()))["job"])

    def test_failure_says_why(self) -> None:
        path = self.save("bad/checkpoint-3")
        job = self.client.evaluate("m", ["crash"], {"pretrained": path})
        with self.assertRaisesRegex(RuntimeError, "(?s)Job failed: Evaluation failed: .*status 3"):
            self.dead(job["job_id"])
            self.client.wait_for_job(job["job_id"], timeout=DEADLINE)
        failed = self.client.get_job(job["job_id"])
        self.assertEqual((failed["status"], failed["result"]), ("failed", None))
        self.assertIn("lmms-eval ended with status 3", failed["error"])

    def test_a_final_failure_is_tried_once(self) -> None:
        job = self.client.evaluate("m", ["unknown"], {"pretrained": self.save("final/checkpoint-3")})
        # The test makes no further attempt due.
        until(lambda: self.client.get_job(job["job_id"])["status"] == "failed", "the job has failed")
        error = self.client.get_job(job["job_id"])["error"]
        self.assertIn("lmms-eval: Tasks not found: unknown (evaluator 'lmms-eval' failed for good, exit status 65)", error)

    def test_a_key_reaches_the_harness_and_no_log(self) -> None:
        job = self.client.evaluate("m", ["key"], {"pretrained": self.save("key/checkpoint-3")})
        done = self.client.wait_for_job(job["job_id"], timeout=DEADLINE)
        entry = next(iter(done["result"].values()))
        self.assertEqual(entry["metrics"]["key"]["letters,none"] if "key" in entry["metrics"] else entry["metrics"], len(KEY))
        log = self.scene.evalq("logs", entry["job"]).stdout
        self.assertIn("the key is ***, of ***", log)
        self.assertNotIn(KEY, log)
        self.assertNotIn("judge.example", log)

    def dead(self, job_id: str) -> None:
        """Uses up the job's attempts without the pauses between them: each retry is made due at
        once."""
        def ended() -> bool:
            waiting = self.scene.redis_call("ZRANGE", "evalq:{main}:delayed", "0", "-1").decode().split()
            for job in waiting:
                self.scene.redis_call("ZADD", "evalq:{main}:delayed", "XX", "0", job)
            return self.client.get_job(job_id)["status"] == "failed"

        until(ended, "the job has failed for good")

    def test_clean_exit_without_results_is_a_failure_and_old_files_are_no_result(self) -> None:
        path = self.save("silent/checkpoint-3")
        output = os.path.join(self.scene.out, "reused")
        stale = os.path.join(output, "silent__checkpoint-3")
        os.makedirs(stale)
        with open(os.path.join(stale, "29991231_235959_results.json"), "w", encoding="utf-8") as file:
            json.dump({"results": {"wrong": {"acc,none": 1.0}}}, file)
        job = self.client.evaluate("m", ["wrong"], {"pretrained": path}, output_dir=output)
        self.dead(job["job_id"])
        self.assertIn("left no results", self.client.get_job(job["job_id"])["error"])
        good = self.client.evaluate("m", ["size"], {"pretrained": path}, output_dir=output)
        done = self.client.wait_for_job(good["job_id"], timeout=DEADLINE)
        self.assertNotIn("29991231", done["result"]["silent__checkpoint-3"]["results"])

    def test_vanished_checkpoint_fails_so_that_nobody_waits_for_ever(self) -> None:
        path = os.path.join(self.scene.out, "gone", "checkpoint-9")
        job = self.client.evaluate("m", ["size"], {"pretrained": path})
        with self.assertRaisesRegex(RuntimeError, "checkpoint-9"):
            self.client.wait_for_job(job["job_id"], timeout=DEADLINE)

    # ---- cancelling, the queue, restarts

    def test_cancel_of_what_waits_and_of_what_runs(self) -> None:
        gate = self.gate("cancel-gate")
        running, waiting = [], []
        for number in range(6):
            path = self.save(f"cancel/checkpoint-{number}")
            job = self.client.evaluate("m", ["size"], {"pretrained": path}, gen_kwargs=f"until={gate}")
            (running if number < 4 else waiting).append(job["job_id"])
        until(lambda: all(self.client.get_job(job)["status"] == "running" for job in running), "four slots are busy")
        queue = self.client.get_queue_status()
        self.assertIn(queue["running_job"], running)
        self.assertEqual(queue["queued_jobs"], waiting)
        self.assertEqual(queue["queue_size"], 2)
        self.assertEqual(self.client.health()["queue_size"], 2)
        self.assertEqual([self.client.get_job(job)["position_in_queue"] for job in waiting], [0, 1])
        self.assertEqual(self.client.cancel_job(waiting[0]), {"message": f"Job {waiting[0]} cancelled"})
        cancelled = self.client.get_job(waiting[0])
        self.assertEqual((cancelled["status"], cancelled["result"], cancelled["error"]), ("cancelled", None, None))
        # The real client does not know this final state either.
        with self.assertRaises(TimeoutError):
            self.client.wait_for_job(waiting[0], timeout=0.2)
        self.assertEqual(self.client.get_job(waiting[1])["position_in_queue"], 0)
        self.assertEqual(self.refused(400, self.client.cancel_job, waiting[0])["detail"], "Job already finished or cancelled")
        self.assertEqual(self.refused(400, self.client.cancel_job, running[0])["detail"], "Cannot cancel a running job")
        before = self.client.get_queue_status()["completed_jobs"]
        with open(gate, "w", encoding="utf-8"):
            pass
        for job_id in running + waiting[1:]:
            self.client.wait_for_job(job_id, timeout=DEADLINE)
        self.assertEqual(self.client.get_queue_status()["completed_jobs"], before + 5)
        self.assertEqual(self.refused(400, self.client.cancel_job, running[0])["detail"], "Job already finished or cancelled")
        again = self.client.evaluate("m", ["size"], {"pretrained": os.path.join(self.scene.out, "cancel/checkpoint-4")},
                                     gen_kwargs=f"until={gate}")
        # A cancelled request may be repeated.
        self.client.wait_for_job(again["job_id"], timeout=DEADLINE)
        self.assertEqual(self.client.get_job(waiting[0])["status"], "cancelled")

    def test_gateway_restarts_in_mid_job_and_nothing_is_lost(self) -> None:
        gate = self.gate("restart-gate")
        path = self.save("restart/checkpoint-8", 888)
        job = self.client.evaluate("m", ["size"], {"pretrained": path}, gen_kwargs=f"until={gate}")
        until(lambda: self.client.get_job(job["job_id"])["status"] == "running", "the job runs")
        before = self.client.get_job(job["job_id"])
        self.gateway.kill()
        self.gateway.wait()
        self.assertFalse(self.client.is_healthy())
        address = self.url[len("http://"):]
        self.start_gateway(address)
        self.assertEqual(self.client.get_job(job["job_id"]), before)
        with open(gate, "w", encoding="utf-8"):
            pass
        done = self.client.wait_for_job(job["job_id"], timeout=DEADLINE)
        self.assertEqual(metrics_of(done)["eval/size_bytes"], os.path.getsize(os.path.join(path, "model.safetensors")))

    def test_engine_loses_nothing_while_redis_is_away(self) -> None:
        """LMMs-Engine forgets a job after the first failed poll, and an evaluation that cannot be
        submitted. It must not notice the outage in either case."""
        gate = self.gate("away-gate")
        backend = EvalServerBackend(self.url, "qwen_vl", ["size"], gen_kwargs=f"until={gate}")
        job = backend.submit(self.save("away/checkpoint-1"), 1)
        until(lambda: self.client.get_job(job)["status"] == "running", "the job runs")
        self.scene.stop_redis()
        path = self.save("away/checkpoint-2")
        submit = threading.Thread(target=backend.submit, args=(path, 2))
        submit.start()
        polled = threading.Thread(target=self.client.get_job, args=(job,))
        polled.start()
        until(lambda: self.client.is_healthy() is False, "the gateway says that Redis is away")
        self.assertEqual((backend.lost, submit.is_alive(), polled.is_alive()), ([], True, True))
        self.scene.start_redis()
        submit.join(60)
        polled.join(60)
        with open(gate, "w", encoding="utf-8"):
            pass
        backend.wait(until)
        self.assertEqual((backend.lost, sorted(backend.logged)), ([], [1, 2]))

    def test_polls_wait_behind_others_while_redis_stands_still(self) -> None:
        """Each call then takes its whole time limit, also in the polls before this one."""
        assert self.scene.redis is not None
        gateway, client = self.another_gateway("--listen", "127.0.0.1:0", "--threads", "1")
        job = client.evaluate("m", ["size"], {"pretrained": self.save("still/checkpoint-1")})["job_id"]
        states: List[str] = []
        polls = [threading.Thread(target=lambda: states.append(client.get_job(job)["status"])) for _ in range(4)]
        self.scene.redis.send_signal(signal.SIGSTOP)
        try:
            for poll in polls:
                poll.start()
            # This request waits behind the polls.
            until(lambda: not client.is_healthy(), "the gateway says that Redis stands still")
        finally:
            self.scene.redis.send_signal(signal.SIGCONT)
        for poll in polls:
            poll.join(DEADLINE)
        self.assertEqual(len(states), 4)
        gateway.terminate()
        gateway.wait(DEADLINE)

    def test_two_distributed_evaluations_at_once_on_one_host(self) -> None:
        gate = self.gate("ranks-gate")
        jobs = []
        for number in range(2):
            path = self.save(f"ranks/checkpoint-{number}")
            jobs.append(self.client.evaluate("m", ["ranks"], {"pretrained": path}, gen_kwargs=f"until={gate}", num_gpus=3)["job_id"])
        until(lambda: all(self.client.get_job(job)["status"] == "running" for job in jobs), "both run")
        with open(gate, "w", encoding="utf-8"):
            pass
        for job in jobs:
            self.assertEqual(metrics_of(self.client.wait_for_job(job, timeout=DEADLINE)), {"eval/ranks_processes": 3})

    def test_num_gpus_are_what_the_job_needs(self) -> None:
        """num_gpus may also be inside model_args, as in the public guide."""
        config = os.path.join(self.scene.directory, "gpus.yaml")
        with open(self.scene.config, encoding="utf-8") as file, open(config, "w", encoding="utf-8") as out:
            out.write(file.read().replace("gpus_as_needs: false", "cancel_running: true"))
        gateway, client = self.another_gateway("--listen", "127.0.0.1:0", "--config", config)
        path = self.save("gpus/checkpoint-1")
        for given in ({"num_gpus": 8}, {"num_gpus": "8"}, {}):
            job = client.evaluate("m", ["size"], {"pretrained": path, **given}, num_gpus=None if given else 8)
            shown = subprocess.run([os.path.join(BIN, "evalq"), "show", self.queue_id(job["job_id"]), "--json"],
                                   env=self.scene.environment(), capture_output=True, check=True).stdout
            self.assertIn("needs 8 GPUs", json.loads(shown)["why"])
            client.cancel_job(job["job_id"])
        gate = self.gate("kill-gate")  # The FIFO is never opened, so the running program is killed.
        job = client.evaluate("m", ["size"], {"pretrained": path}, gen_kwargs=f"until={gate}")
        until(lambda: client.get_job(job["job_id"])["status"] == "running", "the job runs")
        client.cancel_job(job["job_id"])
        until(lambda: self.scene.redis_call("HGET", "evalq:{main}:job:" + self.queue_id(job["job_id"]), "state") == b"cancelled\n",
              "the job is ended")
        gateway.terminate()
        self.assertEqual(gateway.wait(DEADLINE), 0)

    def queue_id(self, job_id: str) -> str:
        return self.scene.redis_call("HGET", f"evalq:{{main}}:ticket:{job_id}", "job").decode().strip()

    # ---- answers to what is wrong

    def test_requests_that_are_not_understood(self) -> None:
        def detail(payload: Any) -> List[Dict[str, Any]]:
            raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            return list(self.refused(422, exchange, "POST", self.url + "/evaluate", raw)["detail"])

        self.assertEqual(detail({"tasks": ["size"]}), [
            {"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": {"tasks": ["size"]}}])
        self.assertEqual(detail({"model": None, "tasks": "size"}), [
            {"type": "string_type", "loc": ["body", "model"], "msg": "Input should be a valid string", "input": None},
            {"type": "list_type", "loc": ["body", "tasks"], "msg": "Input should be a valid list", "input": "size"}])
        faults = detail({"model": "m", "tasks": [1], "num_fewshot": 1.5, "batch_size": [], "limit": "x", "log_samples": "maybe",
                         "num_gpus": "two", "model_args": 3})
        self.assertEqual([(fault["type"], fault["loc"][1:]) for fault in faults], [
            ("string_type", ["tasks", 0]), ("dict_type", ["model_args"]), ("int_from_float", ["num_fewshot"]),
            ("int_type", ["batch_size", "int"]), ("string_type", ["batch_size", "str"]), ("int_parsing", ["limit", "int"]),
            ("float_parsing", ["limit", "float"]), ("bool_parsing", ["log_samples"]), ("int_parsing", ["num_gpus"])])
        self.assertEqual(detail(b"")[0]["type"], "missing")
        self.assertEqual(detail(b"{")[0]["type"], "json_invalid")
        # The quotation ends inside a character.
        self.assertEqual(detail(b"{\"model\": \"n\\\xcc\x9c0\"}")[0]["type"], "json_invalid")
        self.assertEqual(detail([1])[0]["type"], "model_attributes_type")
        merge = self.refused(422, exchange, "POST", self.url + "/merge", b'{"checkpoint_type": "best"}')["detail"]
        self.assertEqual([fault["type"] for fault in merge], ["missing", "literal_error"])
        self.assertEqual(merge[1]["ctx"], {"expected": "'regular' or 'ema'"})

    def test_answers_of_the_framework(self) -> None:
        unknown = "00000000-0000-4000-8000-000000000000"
        for call in (self.client.get_job, self.client.cancel_job):
            self.assertEqual(self.refused(404, call, unknown)["detail"], f"Job {unknown} not found")
            self.assertEqual(self.refused(404, call, "x")["detail"], "Job x not found")
        self.assertEqual(self.refused(404, exchange, "GET", self.url + "/nothing")["detail"], "Not Found")
        self.assertEqual(self.refused(405, exchange, "PUT", self.url + "/evaluate", b"{}")["detail"], "Method Not Allowed")
        self.refused(307, exchange, "GET", self.url + "/health/")
        self.assertEqual(self.client.list_tasks(), ["count", "size"])
        self.assertEqual(self.client.list_models(), ["qwen_vl"])
        self.assertTrue(self.client.is_healthy())
        self.assertRegex(self.client.health()["timestamp"], TIME)

    def test_only_these_endpoints_are_open(self) -> None:
        with self.assertRaises(HttpError) as caught:
            exchange("POST", self.url + "/v1/jobs", b"{}")
        self.assertEqual(caught.exception.code, 403)
        self.assertIn("lmms_open", self.scene.log("evalq-gateway"))

    def test_checkpoint_beneath_no_root_is_refused_with_what_to_do(self) -> None:
        with tempfile.TemporaryDirectory() as elsewhere:
            detail = self.refused(400, self.client.evaluate, "m", ["size"], {"pretrained": elsewhere + "/checkpoint-1"})["detail"]
        self.assertIn("no root contains", detail)

    def test_results_go_nowhere_that_the_configuration_does_not_name(self) -> None:
        path = self.save("escape/checkpoint-2")
        with tempfile.TemporaryDirectory() as elsewhere:
            for wanted in (elsewhere, self.scene.out + "/../escaped", path, path + "/eval", "relative"):
                job = self.client.evaluate("m", ["size"], {"pretrained": path, "wanted": len(wanted)}, output_dir=wanted)
                done = self.client.wait_for_job(job["job_id"], timeout=DEADLINE)
                for entry in done["result"].values():
                    self.assertTrue(entry["results"].startswith(os.path.join(self.scene.out, "results") + "/"), entry)
            self.assertEqual(os.listdir(elsewhere), [])
        self.assertEqual(os.listdir(path), ["model.safetensors"])


if __name__ == "__main__":
    unittest.main()
