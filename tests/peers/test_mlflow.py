"""The MLflow sink against a real MLflow server with its SQL store: every metric is there once, however often the logger
is killed; nothing is lost while the server is away; its run is made once."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from typing import Dict, List, Tuple

from peers import needs

needs("mlflow")
from publishing import Logger, Publisher, all_taken, behind, publish_and_kill, seed, status  # noqa: E402
from scene import Scene, free_port, until  # noqa: E402

COUNT, KILLS = 400, 50


class Server:
    """`mlflow server` on loopback with a SQLite store."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.store = "sqlite:///" + os.path.join(directory, "mlflow.db")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        log = open(os.path.join(self.directory, "mlflow.log"), "ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", self.store, "--host", "127.0.0.1"]
            + ["--port", str(self.port), "--workers", "1", "--artifacts-destination", self.directory],
            stdout=log,
            stderr=log,
            env=dict(os.environ, MLFLOW_DISABLE_TELEMETRY="true", MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"),
            start_new_session=True,
        )
        log.close()
        until(self.answers, "the MLflow server answers")

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        os.killpg(self.process.pid, 15)
        self.process.wait(60)


class MlflowTest(unittest.TestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        directory = tempfile.mkdtemp(prefix="evalq-mlflow-")
        cls.addClassCleanup(shutil.rmtree, directory, True)
        cls.server = Server(directory)
        cls.addClassCleanup(lambda: cls.server.stop())

    def setUp(self) -> None:
        self.scene = Scene()
        self.addCleanup(self.scene.close)
        self.experiment = "it's \"evalq\" & " + self._testMethodName
        self.write("uri: '%s', timeout_seconds: 20" % self.server.url)
        self.scene.start_redis()

    def write(self, options: str) -> None:
        name = self.experiment.replace("'", "''")
        self.scene.write_config(f"logger: {{sinks: [{{kind: mlflow, experiment: '{name}', {options}}}]}}\n")

    def logger(self) -> Logger:
        return Logger(self.scene, os.path.join(self.scene.directory, "results"))

    def runs(self) -> List[str]:
        """Of the experiment, by the server's own client; the deleted ones, too."""
        import mlflow

        client = mlflow.MlflowClient(self.server.url)
        experiment = client.get_experiment_by_name(self.experiment)
        view = mlflow.entities.ViewType.ALL
        return [run.info.run_id for run in client.search_runs([experiment.experiment_id], run_view_type=view)]

    def history(self, run: str, key: str) -> List[Tuple[int, float, int]]:
        import mlflow

        client = mlflow.MlflowClient(self.server.url)
        return [(point.step, point.value, point.timestamp) for point in client.get_metric_history(run, key)]

    def assert_complete(self, run: str, publisher: Publisher) -> None:
        for key, at in (("eval/digits/accuracy", 0), ("eval/digits/loss_none", 1)):
            points = self.history(run, key)
            found: Dict[int, float] = {step: value for step, value, _ in points}
            self.assertEqual(len(points), len(publisher.values), f"{key}: points are missing or doubled")
            for step, values in publisher.values.items():
                same = found[step] == values[at] or (math.isnan(found[step]) and math.isnan(values[at]))
                self.assertTrue(same, f"{key} at {step}: {found[step]}, published {values[at]}")

    def test_every_metric_is_there_once_when_the_logger_is_killed_at_50_random_points(self) -> None:
        number = seed()
        publisher = Publisher(self.scene, "digits", COUNT, number)
        logger = self.logger()
        publish_and_kill(publisher, logger, COUNT, KILLS, 0.25, number)
        publisher.close()
        all_taken(self.scene)
        logger.stop()
        runs = self.runs()
        with_metrics = [run for run in runs if self.history(run, "eval/digits/accuracy")]
        self.assertEqual(len(with_metrics), 1, runs)
        self.assert_complete(with_metrics[0], publisher)

    def test_results_go_into_the_run_of_the_training_when_it_says_which(self) -> None:
        import mlflow

        client = mlflow.MlflowClient(self.server.url)
        run = client.create_run("0").info.run_id
        client.set_terminated(run)
        publisher = Publisher(self.scene, "digits", 30, seed(), mlflow_run_id=run)
        logger = self.logger()
        publisher.publish(30)
        publisher.close()
        all_taken(self.scene)
        logger.stop()
        self.assert_complete(run, publisher)

    def test_nothing_is_lost_while_the_server_is_away(self) -> None:
        publisher = Publisher(self.scene, "digits", 60, seed())
        logger = self.logger()
        publisher.publish(20)
        all_taken(self.scene)
        self.server.stop()
        publisher.publish(40)
        publisher.close()
        until(lambda: behind(self.scene)["jsonl"] == 0, "the other sinks go on")
        sinks = {sink["name"]: sink for sink in status(self.scene)["stats"]["sinks"]}
        until(lambda: {sink["name"]: sink for sink in status(self.scene)["stats"]["sinks"]}["mlflow"]["error"], "it says so")
        self.assertGreater(sinks["mlflow"]["lag"] + sinks["mlflow"]["pending"], 0)
        self.server.start()
        all_taken(self.scene)
        logger.stop()
        self.assert_complete(self.runs()[0], publisher)
        errors = {sink["name"]: sink["error"] for sink in status(self.scene)["stats"]["sinks"]}
        self.assertEqual(errors, {"jsonl": "", "mlflow": "", "best": ""})

    def test_a_deleted_run_is_made_anew(self) -> None:
        import mlflow

        publisher = Publisher(self.scene, "digits", 20, seed())
        logger = self.logger()
        publisher.publish(10)
        all_taken(self.scene)
        first = self.runs()[0]
        mlflow.MlflowClient(self.server.url).delete_run(first)
        publisher.publish(10)
        publisher.close()
        all_taken(self.scene)
        logger.stop()
        second = [run for run in self.runs() if run != first]
        self.assertEqual(len(second), 1)
        self.assertEqual(len(self.history(second[0], "eval/digits/accuracy")), 10)

    def test_each_checkpoint_is_one_logged_model_with_its_metrics_despite_kills(self) -> None:
        """Each model is linked with the run once, and has the numbers that the run has at its step."""
        import mlflow

        number, count = seed(), 60
        self.write("uri: '%s', timeout_seconds: 20, logged_models: true" % self.server.url)
        publisher = Publisher(self.scene, "digits", count, number)
        logger = self.logger()
        publish_and_kill(publisher, logger, count, 12, 1.5, number)
        publisher.close()
        all_taken(self.scene)
        logger.stop()
        client = mlflow.MlflowClient(self.server.url)
        run = next(run for run in self.runs() if self.history(run, "eval/digits/accuracy"))
        self.assert_complete(run, publisher)
        experiment = client.get_experiment_by_name(self.experiment).experiment_id
        models = list(client.search_logged_models([experiment], max_results=1000))
        self.assertEqual(sorted(int(model.params["step"]) for model in models), sorted(publisher.values))
        outputs = [(output.model_id, output.step) for output in client.get_run(run).outputs.model_outputs]
        self.assertEqual(sorted(outputs), sorted((model.model_id, int(model.params["step"])) for model in models))
        for model in models:
            step = int(model.params["step"])
            self.assertEqual((model.name, str(model.status), model.source_run_id), (f"digits-{step}", "READY", run))
            self.assertEqual(model.tags["evalq.checkpoint"], f"main/digits/{step}/regular")
            found = {(metric.key, metric.step, metric.value, metric.run_id) for metric in model.metrics}
            self.assertEqual(len(model.metrics), len(found), f"a metric of {model.name} is there twice")
            names = zip(("eval/digits/accuracy", "eval/digits/loss_none"), publisher.values[step])
            self.assertEqual(found, {(key, step, value, run) for key, value in names if math.isfinite(value)})
        best = client.search_logged_models(
            [experiment], order_by=[{"field_name": "metrics.eval/digits/accuracy", "ascending": False}], max_results=1
        )
        want = max(publisher.values, key=lambda step: publisher.values[step][0])
        self.assertEqual(best[0].params["step"], str(want))

    def test_logged_models_are_in_the_experiment_of_the_training(self) -> None:
        import mlflow

        self.write("uri: '%s', logged_models: true" % self.server.url)
        client = mlflow.MlflowClient(self.server.url)
        run = client.create_run(client.create_experiment("training of " + self.experiment))
        publisher = Publisher(self.scene, "digits", 3, seed(), mlflow_run_id=run.info.run_id)
        logger = self.logger()
        publisher.publish(3)
        publisher.close()
        all_taken(self.scene)
        logger.stop()
        models = client.search_logged_models([run.info.experiment_id])
        self.assertEqual(sorted(model.name for model in models), [f"digits-{step}" for step in sorted(publisher.values)])

    def test_results_of_a_deleted_run_cost_no_other_when_there_are_logged_models(self) -> None:
        import mlflow

        self.write("uri: '%s', logged_models: true" % self.server.url)
        client = mlflow.MlflowClient(self.server.url)
        gone = client.create_run("0").info.run_id
        client.delete_run(gone)
        logger = self.logger()
        for name, trackers in (("a", {"mlflow_run_id": gone}), ("b", {})):
            publisher = Publisher(self.scene, name, 5, seed(), **trackers)
            publisher.publish(5)
            publisher.close()
        all_taken(self.scene)
        logger.stop()
        (run,) = self.runs()
        self.assertEqual(len(self.history(run, "eval/digits/accuracy")), 5)


if __name__ == "__main__":
    unittest.main(verbosity=2)
