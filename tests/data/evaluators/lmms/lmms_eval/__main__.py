"""python -m lmms_eval: writes OUTPUT/MODEL/TIME_results.json and its samples as the real one does, of what it really finds.

Tasks: `size` (bytes of the weights), `count` (files), `ranks` (processes that met at the master's port), `wrong` (an exception, and
exit status 0, as the real one), `unknown` (what the real one says of a task that it does not know), `key` (prints a key), `crash` (exit status 3). --gen_kwargs until=PATH waits for a file first.
"""
import argparse
import datetime
import json
import os
import re
import socket
import sys
import time

DEADLINE = 60.0


def until(condition, what):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"not within {DEADLINE:g} s: {what}")
        time.sleep(0.01)


def meet():
    """How many processes of this evaluation there are: each of them says so to the first, at its port."""
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if world == 1:
        return 1
    if rank == 0:
        seen = {0}
        with socket.create_server(place) as server:
            server.settimeout(DEADLINE)
            while len(seen) < world:
                peer, _ = server.accept()
                with peer:
                    seen.add(int(peer.makefile().readline()))
        return len(seen)
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            with socket.create_connection(place, 1) as peer:
                peer.sendall(f"{rank}\n".encode())
            return 0
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def files_of(path):
    if os.path.isfile(path):
        return [path]
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)


def evaluate(task, path, ranks):
    if task == "size":
        sizes = [os.path.getsize(name) for name in files_of(path)]
        return {"alias": task, "bytes,none": sum(sizes), "bytes_stderr,none": 0.5, "largest,strict": "N/A" if not sizes else max(sizes)}
    if task == "count":
        return {"alias": task, "files,none": len(files_of(path)), "list": []}
    if task == "ranks":
        return {"alias": task, "processes,none": ranks}
    if task == "wrong":
        raise ValueError("no such image")
    if task == "unknown":
        print("Traceback (most recent call last):\nValueError: Tasks not found: unknown. Try `lmms-eval --tasks list`", file=sys.stderr)
        raise ValueError("Tasks not found: unknown. Try `lmms-eval --tasks list`")
    if task == "key":
        print(f"the key is {os.environ['OPENAI_API_KEY']}, of {os.environ['AZURE_ENDPOINT']}", flush=True)
        return {"alias": task, "letters,none": len(os.environ["OPENAI_API_KEY"])}
    sys.exit(3)


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in ("model", "tasks", "output_path"):
        parser.add_argument("--" + name, required=True)
    for name in ("model_args", "num_fewshot", "batch_size", "limit", "gen_kwargs"):
        parser.add_argument("--" + name, default="")
    for name in ("log_samples", "predict_only"):
        parser.add_argument("--" + name, action="store_true")
    options = parser.parse_args()
    args = dict(pair.split("=") for pair in options.model_args.split(",") if pair)
    waited = dict(pair.split("=") for pair in options.gen_kwargs.split(",") if pair).get("until")
    if waited:
        until(lambda: os.path.exists(waited), waited)
    ranks = meet()
    if ranks == 0:
        return
    path = args.get("pretrained") or args.get("model") or ""
    try:
        results = {task: evaluate(task, path, ranks) for task in options.tasks.split(",")}
    except ValueError as fault:  # As the real one: told, and then a clean exit.
        print("Error during evaluation:", fault, file=sys.stderr)
        return
    folder = os.path.join(options.output_path, re.sub(r'["<>:/|\\?*\[\]]+', "__", "/".join(path.split("/")[-2:])))
    os.makedirs(folder, exist_ok=True)
    stamp = datetime.datetime.now(datetime.timezone(datetime.timedelta(hours=8))).strftime("%Y%m%d_%H%M%S")
    document = {"results": results, "n-samples": {task: {"original": 9, "effective": 9} for task in results},
                "higher_is_better": {task: {} for task in results}, "config": vars(options)}
    for task in results if options.log_samples else ():
        with open(os.path.join(folder, f"{stamp}_samples_{task}.jsonl"), "w", encoding="utf-8") as file:
            file.write(json.dumps({"doc_id": 0, "path": path}) + "\n")
    with open(os.path.join(folder, f"{stamp}_results.json"), "w", encoding="utf-8") as file:
        json.dump(document, file)


main()
