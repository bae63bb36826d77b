"""A training of the standard library alone: saves checkpoints, waits for their metrics and loads the page."""
import os
import subprocess
import urllib.request

import evalq

client = evalq.Client(run="small", raise_errors=True)
os.makedirs("out")
for step in (100, 200, 300):
    path = "out/step-%d.bin" % step
    with open(path, "wb") as file:
        file.write(bytes(step))
    client.submit(path, step=step, suites="eval")
if not client.wait(timeout=200):
    raise SystemExit("train: the metrics did not arrive")
found = client.best("eval/eval/bytes", "max")
if found is None or found.step != 300 or found.value != 300:
    raise SystemExit("train: the best result is %s, expected step 300 with 300 bytes" % (found,))

address = subprocess.run(["evalq", "page"], check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout.strip()
with urllib.request.urlopen(address.partition("#")[0], timeout=60) as answer:
    if answer.status != 200 or b"<title>" not in answer.read():
        raise SystemExit("train: the page did not load")
print("train: 3 checkpoints measured, the page loads")
