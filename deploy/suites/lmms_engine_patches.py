#!/usr/bin/env python3
"""Starts LMMs-Engine 0.1.4 without the faults by which it loses evaluations (docs/lmms.md):

    torchrun ... /etc/evalq/lmms_engine_patches.py config_yaml=train.yaml     instead of   torchrun ... -m lmms_engine.launch.cli config_yaml=train.yaml

1. It gives lmms_engine_kwargs to EvalClient.evaluate(), which lmms-eval 0.7.3 does not accept: nothing is submitted.
2. Its closing wait ends when no job is pending, although the results of the last ones were not logged yet.
3. A job is forgotten when one poll fails, as while the server restarts.
"""
import runpy
import time
import types

from lmms_eval.entrypoints import EvalClient
from lmms_engine.eval.backends import EvalServerBackend
from loguru import logger

_request = EvalClient._request
_evaluate = EvalClient.evaluate
_init = EvalServerBackend.__init__


def evaluate(self, model, tasks, lmms_engine_kwargs=None, **fields):
    """As EvalClient.evaluate(), with the field that LMMs-Engine adds to the request."""
    if lmms_engine_kwargs is None:
        return _evaluate(self, model, tasks, **fields)

    def request(method, path, json=None, **more):
        return _request(self, method, path, json={**json, "lmms_engine_kwargs": lmms_engine_kwargs}, **more)

    return _evaluate(types.SimpleNamespace(_request=request), model, tasks, **fields)  # It needs no more of a client.


class Pending(dict):
    """The jobs that have no logged result yet: its length, which the closing wait looks at, counts results that nobody took."""

    def __init__(self, results):
        super().__init__()
        self._results = results

    def __len__(self):
        return super().__len__() + self._results.qsize()


def init(self, *args, **fields):
    _init(self, *args, **fields)
    self.pending_evals = Pending(self.results_queue)


def poll(self):
    """The backend's thread: a job stays pending until its result is in the queue, and through polls that fail."""
    while True:
        time.sleep(self.poll_interval)
        for job_id, step in list(self.pending_evals.items()):
            try:
                job = self.client.get_job(job_id)
            except Exception as fault:
                known = getattr(getattr(fault, "response", None), "status_code", 0) != 404
                logger.warning(f"job {job_id} of step {step} {'was not polled, which is tried again' if known else 'is not known any more'}: {fault}")
                if not known:
                    del self.pending_evals[job_id]
                continue
            if job.get("status") in ("queued", "running"):
                continue
            metrics = self._parse_eval_results(job.get("result")) if job.get("status") == "completed" else {}
            if metrics:
                self.results_queue.put((step, metrics))
            else:
                logger.error(f"job {job_id} of step {step} is {job.get('status')}: {job.get('error') or 'no metrics'}")
            del self.pending_evals[job_id]


EvalClient.evaluate = evaluate
EvalServerBackend.__init__ = init
EvalServerBackend._poll_results = poll

if __name__ == "__main__":
    runpy.run_module("lmms_engine.launch.cli", run_name="__main__", alter_sys=True)
