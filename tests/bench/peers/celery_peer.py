"""Celery over Redis: `celery -A celery_peer worker ...`, or `python celery_peer.py submit KIND COUNT MS FILE`."""

import os
import sys
import time

import jobs
from celery import Celery
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

app = Celery("celery_peer", broker=f"redis://127.0.0.1:{os.environ['PEER_PORT']}/0")
app.conf.task_ignore_result = True
app.conf.broker_connection_retry_on_startup = True
if os.environ.get("PEER_DURABLE"):  # What Celery's own pages name for tasks that may run twice but must not be lost.
    app.conf.task_acks_late = True
    app.conf.task_reject_on_worker_lost = True
    app.conf.worker_prefetch_multiplier = 1
    app.conf.broker_transport_options = {"visibility_timeout": float(os.environ["PEER_DURABLE"])}


noop = app.task(name="noop")(jobs.noop)
work = app.task(name="work")(jobs.work)


def submit(kind: str, count: int, ms: int, path: str) -> None:
    began = time.monotonic()
    for number in range(count):
        jobs.pace(number, began)
        while True:
            try:
                if kind == "noop":
                    noop.apply_async((number, count, path), task_id=f"t{number}")
                else:
                    work.apply_async((number, ms, path), task_id=f"t{number}")
                break
            except (OperationalError, RedisError, OSError, AttributeError):
                # Whether it arrived is not known: again, under the same id. kombu 5.7 looks for a channel's client after
                # the channel was closed, hence the last one.
                continue
    print(time.monotonic() - began)


if __name__ == "__main__":
    submit(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
