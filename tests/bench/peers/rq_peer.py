"""RQ: `python rq_peer.py worker [simple]`, or `python rq_peer.py submit KIND COUNT MS FILE`."""

import os
import sys
import time

import jobs
import redis
from rq import Queue, Retry, SimpleWorker, Worker

DURABLE = float(os.environ.get("PEER_DURABLE") or 0)


def submit(queue: Queue, kind: str, count: int, ms: int, path: str) -> None:
    options = {"result_ttl": 3600}
    if DURABLE:
        options.update(retry=Retry(max=5), job_timeout=60)
    began = time.monotonic()
    for number in range(count):
        jobs.pace(number, began)
        call, value = (jobs.noop, count) if kind == "noop" else (jobs.work, ms)
        while True:
            try:
                queue.enqueue(call, number, value, path, job_id=f"t{number}", **options)
                break
            except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError):
                continue  # Whether it arrived is not known: again, under the same id.
    print(time.monotonic() - began)


def serve(queue: Queue, simple: bool) -> None:
    options = {}
    if DURABLE:  # Seconds; its own: 600, 30 and 420, which is also how long an idle one waits before it looks.
        options.update(maintenance_interval=int(DURABLE), job_monitoring_interval=1, worker_ttl=20)
    (SimpleWorker if simple else Worker)([queue], connection=queue.connection, **options).work(logging_level="ERROR", with_scheduler=bool(DURABLE))


def main() -> None:
    queue = Queue(connection=redis.Redis(host="127.0.0.1", port=int(os.environ["PEER_PORT"])))
    if sys.argv[1] == "submit":
        submit(queue, sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        serve(queue, "simple" in sys.argv)


if __name__ == "__main__":
    main()
