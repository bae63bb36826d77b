"""BullMQ's own port to Python, with the same scripts in Redis: where the registry of the original does not answer.
`python bullmq_peer.py worker CONCURRENCY`, or `python bullmq_peer.py submit KIND COUNT MS FILE`."""

import asyncio
import os
import sys
import time

import jobs
from bullmq import Queue, Worker

DURABLE = float(os.environ.get("PEER_DURABLE") or 0)
CONNECTION = {"host": "127.0.0.1", "port": int(os.environ["PEER_PORT"])}


async def submit(kind: str, count: int, ms: int, path: str) -> None:
    streams = {"events": {"maxLen": 1000000}} if kind == "work" else {}  # Those of jobs that leave a trace are counted afterwards.
    queue = Queue("peer", {"connection": CONNECTION, "streams": streams})
    began = time.monotonic()

    async def add(number: int) -> None:
        data = {"number": number, "count": count, "ms": ms, "file": path}
        while True:
            try:
                await queue.add(kind, data, {"jobId": f"t{number}", "attempts": 5 if DURABLE else 1})
                return
            except OSError:
                continue

    flight = 1 if os.environ.get("PEER_RATE") else 100
    for at in range(0, count, flight):
        jobs.pace(at, began)
        await asyncio.gather(*(add(number) for number in range(at, min(count, at + flight))))
    print(time.monotonic() - began)
    await queue.close()


async def process(job, _token) -> None:
    if job.name == "work":
        await asyncio.sleep(job.data["ms"] / 1000)
        jobs.write(job.data["file"], str(job.data["number"]))
    else:
        jobs.noop(job.data["number"], job.data["count"], job.data["file"])


async def serve(concurrency: int) -> None:
    options = {"connection": CONNECTION, "concurrency": concurrency}
    if DURABLE:
        options.update(lockDuration=int(DURABLE * 1000), stalledInterval=int(DURABLE * 1000), maxStalledCount=5)
    if os.environ.get("PEER_REMOVE"):
        options.update(removeOnComplete={"count": 0})
    worker = Worker("peer", process, options)
    worker.on("error", lambda *_: None)
    await asyncio.Event().wait()


if __name__ == "__main__":
    if sys.argv[1] == "submit":
        asyncio.run(submit(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
    else:
        asyncio.run(serve(int(sys.argv[2])))
