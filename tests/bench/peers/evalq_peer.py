"""evalq's client: `python evalq_peer.py submit KIND COUNT MS FILE`; FILE's directory has one.safetensors."""

import os
import sys
import time

import jobs

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "producer", "python"))
import evalq  # noqa: E402


def main() -> None:
    count, ms, path = int(sys.argv[3]), sys.argv[4], os.path.dirname(sys.argv[5])
    with evalq.Client(run="peer", ring_directory=os.path.join(path, "ring"), log=False) as client:
        began = time.monotonic()
        for number in range(count):
            jobs.pace(number, began)
            name = os.path.join(path, f"step-{number}.safetensors")
            os.link(os.path.join(path, "one.safetensors"), name)
            client.submit(name, step=number, suites="noop", params={"sleep_ms": ms})
        client.flush(120)
        print(time.monotonic() - began)


main()
