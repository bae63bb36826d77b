"""A model server without a model, for tests of evalq.model_server: it speaks as vLLM or SGLang do, and its log-probabilities
are a function of the bytes of the weights and of the prompt. It goes wrong in the way that the file $STANDIN_FAULT names:

    exit          ends while it starts           slow          never gets ready
    die           ends at the next generation    hang          never answers a generation
    die_late, hang_late                          the same, when a harness asks, not for the canary
    endless       generates without end when a harness asks
    error_late    500 when a harness asks, and from then on for everything but /health
    memory        ends at a reload, as one without memory
    refuse        500 at a reload, dead afterwards
    silent        says that it reloaded, and did not
    stale         does not forget its prefix cache
    partial       takes half of the new weights
    unsteady      gives another number each time
    once:FAULT    the same, once: the file is emptied then

It writes a line to the file $STANDIN_STARTS for each start, and one to $STANDIN_RELOADS, if that is set, for each reload.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, List, Optional

FAULT_FILE = os.environ.get("STANDIN_FAULT", "")


def fault(*names: str) -> str:
    """The fault of the file, if it is one of names."""
    if not os.path.exists(FAULT_FILE):
        return ""
    with open(FAULT_FILE, encoding="utf-8") as file:
        text = file.read().strip()
    once, _, name = text.rpartition(":")
    if name not in names:
        return ""
    if once:
        with open(FAULT_FILE, "w", encoding="utf-8"):
            pass
    return name


def weights_of(path: str) -> bytes:
    """The same for the same tensors, in whatever order they are written."""
    tensors: Dict[str, bytes] = {}
    for name in os.listdir(path):
        if name.endswith(".safetensors"):
            with open(os.path.join(path, name), "rb") as file:
                header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
                data = file.read()
            header.pop("__metadata__", None)
            for tensor, entry in header.items():
                kind = json.dumps([tensor, entry["dtype"], entry["shape"]]).encode()
                tensors[tensor] = kind + data[slice(*entry["data_offsets"])]
    return hashlib.sha256(b"".join(tensors[name] for name in sorted(tensors))).digest()


class State:
    def __init__(self, path: str, key: str, sglang: bool) -> None:
        self.key, self.sglang = key, sglang
        self.weights = weights_of(path)
        self.adapters: Dict[str, bytes] = {}  # The weights with each of them.
        self.cache: Dict[str, bytes] = {}  # Of a model and a prompt: the weights that it was computed with.
        self.dead = False
        self.broken = False  # As dead, but /health does not say so.
        self.requests = self.tokens = self.running = 0
        self.lock = threading.Lock()

    def reload(self, path: str) -> None:
        if fault("memory"):
            sys.stderr.write("torch.OutOfMemoryError: CUDA out of memory\n")
            os._exit(1)
        if not os.path.isdir(path) or fault("refuse"):
            self.dead = True
            raise RuntimeError(f"cannot load {path}")
        if fault("silent"):
            return
        new = weights_of(path)
        if "STANDIN_RELOADS" in os.environ:
            with open(os.environ["STANDIN_RELOADS"], "a", encoding="utf-8") as file:
                file.write(path + "\n")
        self.weights = hashlib.sha256(self.weights + new).digest() if fault("partial") else new

    def value(self, weights: bytes, ids: List[int]) -> float:
        digest = hashlib.sha256(weights + json.dumps(ids).encode()).digest()
        return -int.from_bytes(digest[:4], "big") / 2**29

    def add_adapter(self, name: str, path: str) -> None:
        if name in self.adapters or not os.path.exists(os.path.join(path, "adapter_config.json")):
            raise ValueError(f"cannot load the adapter {name} from {path}")
        self.adapters[name] = self.weights if fault("silent") else hashlib.sha256(self.weights + weights_of(path)).digest()

    def weights_for(self, model: str) -> bytes:
        return self.adapters[model] if model != "model" else self.weights

    def score(self, ids: List[int], model: str = "model") -> List[float]:
        """Of each token but the first, then of the next one."""
        weights = self.weights_for(model)
        return [self.value(weights, ids[:end]) for end in range(2, len(ids) + 2 - 1)] + [self.value(weights, ids)]

    def next(self, ids: List[int], late: bool, model: str = "model") -> float:
        late_faults = ("die_late", "hang_late", "error_late", "endless") if late else ()
        now = fault("die", "hang", *late_faults)
        if now.startswith("die"):
            os._exit(1)
        if now.startswith("hang"):
            with self.lock:
                self.running += 1
            threading.Event().wait()
        while now == "endless":
            with self.lock:
                self.running, self.tokens = 1, self.tokens + 1
            time.sleep(0.05)
        if now.startswith("error"):
            self.broken = True
            raise RuntimeError("the engine has a fault")
        with self.lock:
            self.requests += 1
            self.tokens += 1
            if fault("unsteady"):
                return self.value(self.weights, ids) - 1 - time.monotonic() % 7  # Never near the right one.
            return self.value(self.cache.setdefault(model + json.dumps(ids), self.weights_for(model)), ids)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State

    def log_message(self, *words: Any) -> None:
        pass

    def answer(self, what: Any, status: int = 200) -> None:
        data = what.encode() if isinstance(what, str) else json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def allowed(self) -> bool:
        return self.path == "/health" or self.headers.get("Authorization") == "Bearer " + self.state.key

    def do_GET(self) -> None:
        state = self.state
        if not self.allowed():
            self.answer({"error": "no key"}, 401)
        elif self.path == "/health":
            self.answer("", 503 if state.dead or fault("slow") else 200)
        elif self.path == "/v1/models":
            self.answer({"data": [{"id": "model", "max_model_len": 256}]})
        elif self.path in ("/version", "/get_server_info"):
            self.answer({"version": "0.standin"})
        elif self.path == "/metrics":
            kind = ("sglang:num_requests_total", "sglang:generation_tokens_total", "sglang:num_running_reqs")
            if not state.sglang:
                kind = ("vllm:request_success_total", "vllm:generation_tokens_total", "vllm:num_requests_running")
            values = (state.requests, state.tokens, state.running)
            self.answer("".join(f'{name}{{engine="0"}} {value}\n' for name, value in zip(kind, values)))
        else:
            self.answer({"error": "no such path"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if not self.allowed():
            self.answer({"error": "no key"}, 401)
        elif self.state.dead or self.state.broken:
            self.answer({"error": "the engine is dead"}, 500)
        else:
            try:
                self.post(self.path, body)
            except RuntimeError as error:
                self.answer({"error": str(error)}, 500)
            except ValueError as error:
                self.answer({"error": str(error)}, 400)

    def post(self, path: str, body: Any) -> None:
        state = self.state
        if path == "/collective_rpc" and not state.sglang:
            state.reload(body["kwargs"]["weights_path"])
            self.answer({"results": [None]})
        elif path == "/update_weights_from_disk" and state.sglang:
            try:
                state.reload(body["model_path"])
            except RuntimeError as error:
                return self.answer({"success": False, "message": str(error)}, 400)
            if body.get("flush_cache") and not fault("stale"):
                state.cache.clear()
            self.answer({"success": True, "message": "ok", "num_paused_requests": 0})
        elif path == "/v1/load_lora_adapter":
            state.add_adapter(body["lora_name"], body["lora_path"])
            self.answer(f"Success: LoRA adapter '{body['lora_name']}' added successfully.")
        elif path == "/v1/unload_lora_adapter":
            state.adapters.pop(body["lora_name"])
            self.answer("Success")
        elif path in ("/reset_prefix_cache", "/flush_cache"):
            if not fault("stale"):
                state.cache.clear()
            self.answer("")
        elif path == "/v1/completions" and not state.sglang or path == "/v1/completions" and "ids" not in body:
            late = isinstance(body["prompt"], str)
            ids = [ord(letter) for letter in body["prompt"]] if late else body["prompt"]
            fresh: "List[Optional[float]]" = [None, *state.score(ids, body["model"])]
            values = fresh if body.get("echo") else [state.next(ids, late, body["model"])]
            text = f" {int(-(values[-1] or 0) * 1000) % 10}"
            self.answer({"choices": [{"index": 0, "text": text, "logprobs": {"token_logprobs": values}}]})
        elif path == "/generate" and state.sglang:
            ids = body["input_ids"]
            whole = body["logprob_start_len"] == 0
            inputs = [[value, number, None] for value, number in zip([None, *state.score(ids)[:-1]], ids)] if whole else []
            last = state.score(ids)[-1] if whole else state.next(ids, False)
            self.answer({"meta_info": {"input_token_logprobs": inputs, "output_token_logprobs": [[last, 1, None]]}})
        else:
            self.answer({"error": "no such path"}, 404)


def main(sglang: bool) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", "--model-path", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--dtype")
    parser.add_argument("--api-key" if sglang else "--middleware", required=True, dest="guard")
    parser.add_argument("--enable-metrics", action="store_true")
    options = parser.parse_args([{"--help=all": "--help"}.get(word, word) for word in sys.argv[1:]])
    with open(os.environ["STANDIN_STARTS"], "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {options.port} {options.model}\n")
    if fault("exit"):
        sys.exit("ValueError: this checkpoint is not for me")
    if not sglang:
        assert options.guard == "evalq_server_key.Guard"
        import evalq_server_key  # The real one: it must be there, and take the key.

        evalq_server_key.Guard(None)
    Handler.state = State(options.model, options.guard if sglang else os.environ["EVALQ_SERVER_KEY"], sglang)
    while fault("slow"):
        time.sleep(0.05)
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()
