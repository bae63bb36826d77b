#!/usr/bin/env python3
"""The evaluator of LMMS-Eval's requests: runs lmms-eval as the request says, on the checkpoint that the worker gives.

A command evaluator with `results: lmms-eval` (docs/lmms.md). The request comes as JSON in the job's parameter `lmms`, which
evalq-gateway fills; no shell sees any of it. lmms-eval writes into $EVALQ_RESULT, where the worker reads the metrics; its
files are then copied to where the client looks, if that lies beneath one of the directories of $EVALQ_LMMS_OUTPUT. Tasks of your
own lie in $EVALQ_LMMS_INCLUDE, a directory that can be missing.

    lmms_eval_run.py --catalog FILE     writes the names of all tasks and models, for the gateway's /tasks and /models
"""
import json
import os
import re
import shutil
import subprocess
import sys

FINAL = os.EX_DATAERR  # The exit status that says: trying again is of no use.

# What lmms-eval prints of a request that it can never carry out, whatever the machine does.
FINAL_ERRORS = (
    re.compile(r"^ValueError: (Tasks not found: [^.]*)"),
    re.compile(r"^ValueError: (Model '.*' not found)"),
    re.compile(r"^(?:ModuleNotFoundError|ImportError): (.*)"),
    re.compile(r"^TypeError: (.*got an unexpected keyword argument.*)"),
    re.compile(r"^\S+: error: (.*)"),  # Of argparse: an option or its value.
)
SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)S?$|_(PROXY|URL|ENDPOINT)$", re.IGNORECASE)


class Refused(Exception):
    """The request cannot be carried out, now or later."""


def read_request(path):
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    try:
        request = json.loads(job["params"]["lmms"])
    except (KeyError, ValueError) as fault:
        raise Refused("the job has no request of LMMS-Eval (parameter lmms): it must come through evalq-gateway") from fault
    return job, request


def model_args(request, checkpoint):
    """KEY=VALUE,... with the checkpoint where the client named it."""
    args = dict(request.get("model_args") or {})
    named = request.get("checkpoint") or ""
    if named:
        for key, value in args.items():
            if value == named:
                args[key] = checkpoint
        args[request.get("checkpoint_key") or "pretrained"] = checkpoint
    for key, value in args.items():
        if any(mark in str(part) for part in (key, value) for mark in ",=\n"):
            raise Refused(f"model_args.{key} is {value!r}: lmms-eval takes no ',' and no '=' in it")
    return ",".join(f"{key}={value}" for key, value in args.items())


def command_of(request, checkpoint, output):
    """The words of lmms-eval. Options carry their values with '=', so that no value is taken for an option."""
    words = [sys.executable]
    processes = int(request.get("num_gpus") or 1)
    if processes > 1:
        words += ["-m", "accelerate.commands.launch", f"--num_processes={processes}", "--num_machines=1"]
        words += [f"--main_process_port={os.environ.get('MASTER_PORT', '0')}"]
        words += ["--multi_gpu" if os.environ.get("CUDA_VISIBLE_DEVICES") else "--cpu"]
    words += ["-m", "lmms_eval", f"--model={request['model']}", f"--tasks={','.join(request['tasks'])}"]
    words += [f"--output_path={output}"]
    own_tasks = os.environ.get("EVALQ_LMMS_INCLUDE", "")
    if os.path.isdir(own_tasks):
        words.append(f"--include_path={own_tasks}")
    args = model_args(request, checkpoint)
    if args:
        words.append(f"--model_args={args}")
    if request.get("num_fewshot") is not None:
        words.append(f"--num_fewshot={request['num_fewshot']}")
    for name in ("batch_size", "limit", "gen_kwargs"):
        if request.get(name):
            words.append(f"--{name}={request[name]}")
    for name in ("log_samples", "predict_only"):
        if request.get(name):
            words.append(f"--{name}")
    return words


def newest_results(directory):
    found = []
    for folder, _, names in os.walk(directory):
        found += [os.path.join(folder, name) for name in names if name.endswith("_results.json") and name[0] != "."]
    return max(found, key=os.path.getmtime, default=None)


def allowed(directory):
    """Whether the configuration lets results be written there: a message alone must not choose any path."""
    real = os.path.realpath(directory)
    for parent in filter(None, os.environ.get("EVALQ_LMMS_OUTPUT", "").split(":")):
        base = os.path.realpath(parent)
        if base == "/" or real == base or real.startswith(base + "/"):
            return True
    return False


def renamed(tables, suffix):
    """The results file with the suffix behind each task's name, wherever the file is by task."""
    for table in ("results", "configs", "versions", "n-shot", "higher_is_better", "n-samples"):
        if isinstance(tables.get(table), dict):
            tables[table] = {name + suffix: value for name, value in tables[table].items()}
    return tables


def publish(results, request, job):
    """Copies samples, then the results, marked with the job, to where the client looks for them."""
    directory, suffix = request.get("output") or "", request.get("suffix") or ""
    if not directory or not allowed(directory):
        print(f"lmms_eval_run: no copy in '{directory}', which is beneath no directory of $EVALQ_LMMS_OUTPUT", file=sys.stderr)
        return
    os.makedirs(directory, exist_ok=True)
    folder, name = os.path.split(results)
    stamp = name[: -len("_results.json")]
    for sample in sorted(os.listdir(folder)):
        if sample.startswith(stamp + "_samples_") and sample.endswith(".jsonl"):
            target = sample[: -len(".jsonl")] + suffix + ".jsonl"
            shutil.copyfile(os.path.join(folder, sample), os.path.join(directory, target))
    with open(results, encoding="utf-8") as file:
        tables = json.load(file)
    if suffix:
        tables = renamed(tables, suffix)
    tables["evalq"] = {"job": job["job"], "variant": job["variant"], "attempt": job["attempt"], "from": "lmms-eval"}
    partial = os.path.join(directory, f".{name}.{os.getpid()}")
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(tables, file, indent=2)
    os.replace(partial, os.path.join(directory, name))


def secrets():
    """Values of the environment that no log may show."""
    return [value.encode() for name, value in os.environ.items() if SECRET.search(name) and len(value) >= 8]


def run(words):
    """Runs lmms-eval, with its output in our log. Returns its exit status and why no retry would help, or ""."""
    hidden, why = secrets(), ""
    process = subprocess.Popen(words, env=dict(os.environ, PYTHONUNBUFFERED="1"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    rest = b""
    while True:
        data = process.stdout.read1(65536)
        # Whole lines, so that no secret is cut in two; a progress bar ends its states with carriage returns.
        parts = re.split(rb"(?<=[\r\n])", rest + data)
        rest = parts.pop() if data and len(parts[-1]) < 1 << 20 else b""
        for line in parts:
            for value in hidden:
                line = line.replace(value, b"***")
            sys.stdout.buffer.write(line)
            text = line.decode(errors="replace").strip()
            why = next((found.group(1) for found in (rule.match(text) for rule in FINAL_ERRORS) if found), why)
        sys.stdout.flush()
        if not data:
            return process.wait(), why


def evaluate():
    job, request = read_request(os.environ["EVALQ_JOB"])
    output = os.environ["EVALQ_RESULT"]
    words = command_of(request, job["checkpoint"], output)
    print("lmms_eval_run:", json.dumps(words), flush=True)
    status, why = run(words)
    results = newest_results(output) if status == 0 else None
    if results is None and why:
        raise Refused(f"lmms-eval: {why}")
    if status != 0:
        print(f"lmms_eval_run: lmms-eval ended with status {status}", file=sys.stderr)
        return 1
    if results is None:  # It catches its own exceptions and still exits 0.
        print("lmms_eval_run: lmms-eval ended with status 0 and left no results", file=sys.stderr)
        return 1
    try:
        publish(results, request, job)
    except OSError as fault:
        print(f"lmms_eval_run: the client's copy was not written: {fault}", file=sys.stderr)
    return 0


def catalog(path):
    from lmms_eval.models import AVAILABLE_MODELS
    from lmms_eval.tasks import TaskManager

    document = {"tasks": sorted(TaskManager().all_tasks), "models": sorted(AVAILABLE_MODELS)}
    partial = f"{path}.{os.getpid()}"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
    os.replace(partial, path)
    print(f"{path}: {len(document['tasks'])} tasks, {len(document['models'])} models")
    return 0


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--catalog":
        return catalog(sys.argv[2])
    if len(sys.argv) > 1 or "EVALQ_JOB" not in os.environ:
        print("usage: lmms_eval_run.py [--catalog FILE]; without, a worker runs it (docs/lmms.md)", file=sys.stderr)
        return 2
    try:
        return evaluate()
    except Refused as fault:
        print(fault, file=sys.stderr)
        return FINAL


if __name__ == "__main__":
    sys.exit(main())
