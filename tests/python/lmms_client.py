"""Imitates two clients of the LMMS-Eval server: the EvalClient of lmms-eval, and LMMs-Engine's
trainer. It uses only the standard library, so the tests need no packages."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.error
import urllib.request
from typing import Any, Callable, Dict, List, Optional


class HttpError(Exception):
    def __init__(self, code: int, body: Any, headers: Any) -> None:
        super().__init__(f"{code}: {body}")
        self.code, self.body, self.headers = code, body, headers


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def exchange(method: str, url: str, payload: Optional[bytes] = None) -> Any:
    request = urllib.request.Request(url, data=payload, method=method)
    if payload is not None:
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.build_opener(NoRedirect).open(request, timeout=120) as reply:
            return json.loads(reply.read())
    except urllib.error.HTTPError as fault:
        body = fault.read()
        try:
            body = json.loads(body)
        except ValueError:
            pass
        raise HttpError(fault.code, body, fault.headers) from None


class EvalClient:
    """Like lmms-eval's client, it removes a slash at the end of the address. It leaves None out of
    /evaluate and sends it in /merge."""

    def __init__(self, base_url: str = "http://localhost:8000") -> None:
        self.base_url = base_url.rstrip("/")

    def _request(self, method: str, endpoint: str, payload: Any = None) -> Any:
        return exchange(method, self.base_url + endpoint, None if payload is None else json.dumps(payload).encode())

    def health(self) -> Dict[str, Any]:
        return self._request("GET", "/health")

    def is_healthy(self) -> bool:
        try:
            return self.health().get("status") == "healthy"
        except Exception:
            return False

    def list_tasks(self) -> List[str]:
        return self._request("GET", "/tasks").get("tasks", [])

    def list_models(self) -> List[str]:
        return self._request("GET", "/models").get("models", [])

    def evaluate(self, model: str, tasks: List[str], model_args: Optional[Dict[str, Any]] = None, log_samples: bool = True,
                 predict_only: bool = False, num_gpus: int = 1, **more: Any) -> Dict[str, Any]:
        payload = {"model": model, "tasks": tasks, "model_args": model_args, "log_samples": log_samples,
                   "predict_only": predict_only, "num_gpus": num_gpus, **more}
        return self._request("POST", "/evaluate", {k: v for k, v in payload.items() if v is not None})

    def get_job(self, job_id: str) -> Dict[str, Any]:
        return self._request("GET", f"/jobs/{job_id}")

    def cancel_job(self, job_id: str) -> Dict[str, Any]:
        return self._request("DELETE", f"/jobs/{job_id}")

    def get_queue_status(self) -> Dict[str, Any]:
        return self._request("GET", "/queue")

    def merge_checkpoint(self, checkpoint_path: str, output_path: Optional[str] = None, checkpoint_type: str = "regular") -> Any:
        return self._request("POST", "/merge", {"checkpoint_path": checkpoint_path, "output_path": output_path,
                                                "checkpoint_type": checkpoint_type})

    def wait_for_job(self, job_id: str, poll_interval: float = 0.05, timeout: Optional[float] = None) -> Dict[str, Any]:
        """It knows only two final states, so it waits for a cancelled job until the time is up."""
        start = time.monotonic()
        while True:
            job = self.get_job(job_id)
            if job["status"] == "completed":
                return job
            if job["status"] == "failed":
                raise RuntimeError(f"Job failed: {job.get('error', 'Unknown error')}")
            if timeout is not None and time.monotonic() - start > timeout:
                raise TimeoutError(f"Timeout waiting for job {job_id}")
            time.sleep(poll_interval)


def metrics_of(job: Dict[str, Any]) -> Dict[str, float]:
    """Returns what LMMs-Engine logs for a result. It opens the result files itself, cuts keys at
    the comma, and reads "N/A" as NaN."""
    metrics: Dict[str, float] = {}
    for entry in job["result"].values():
        with open(entry["results"], encoding="utf-8") as file:
            tables = json.load(file)
        for task, values in tables["results"].items():
            for key, value in values.items():
                if "_stderr," in key or "_pass_at_k," in key or value == []:
                    continue
                if value == "N/A":
                    value = float("nan")
                if isinstance(value, (int, float)):
                    metrics[f"eval/{task}_{key.split(',')[0]}"] = value
    return metrics


class EvalServerBackend:
    """Imitates both versions of LMMs-Engine: it submits after a save, polls in a thread, and stores
    the results."""

    def __init__(self, server_url: str, model: str, tasks: List[str], checkpoint_key: str = "model", poll_interval: float = 0.05,
                 model_args: Optional[Dict[str, Any]] = None, generation: int = 2, **optional: Any) -> None:
        self.client = EvalClient(server_url)
        self.model, self.tasks, self.key, self.poll_interval = model, tasks, checkpoint_key, poll_interval
        self.args, self.generation, self.optional = dict(model_args or {}), generation, optional
        self.pending: Dict[str, int] = {}
        self.logged: Dict[int, Dict[str, float]] = {}
        self.lost: List[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def submit(self, checkpoint: str, step: int, checkpoint_type: str = "regular") -> str:
        path = os.path.abspath(checkpoint)
        more: Dict[str, Any] = {"output_dir": os.path.join(path, "eval"), **self.optional}
        if self.generation == 2:
            more["lmms_engine_kwargs"] = {"model_path": path, "checkpoint_type": checkpoint_type,
                                          "output_path": os.path.join(path, "merged")}
        key = self.key if self.generation == 2 else "pretrained"
        job = self.client.evaluate(self.model, self.tasks, model_args={**self.args, key: path}, **more)
        self.pending[job["job_id"]] = step
        return str(job["job_id"])

    def _poll(self) -> None:
        while not self._stop.wait(self.poll_interval):
            for job_id, step in list(self.pending.items()):
                try:
                    job = self.client.get_job(job_id)
                    if job["status"] == "completed":
                        self.logged[step] = {**metrics_of(job), "global_step": step}
                    elif job["status"] in ("queued", "running"):
                        continue
                    else:
                        self.lost.append(f"{job_id}: {job['status']}: {job['error']}")
                except Exception as fault:
                    self.lost.append(f"{job_id}: {fault}")
                del self.pending[job_id]

    def wait(self, until: Callable[..., Any]) -> None:
        until(lambda: not self.pending, "no evaluation is pending")
        self._stop.set()
        self._thread.join()
