"""Requests to LMMS-Eval's endpoints, each with a name: (name, method, path, content type or None, body or None)."""

from __future__ import annotations

import json
from typing import Any, Iterator, List, Optional, Tuple

Request = Tuple[str, str, str, Optional[str], Optional[bytes]]
JSON = "application/json"
UNKNOWN = "00000000-0000-4000-8000-000000000000"
ROUTES = ("/health", "/evaluate", f"/jobs/{UNKNOWN}", "/queue", "/tasks", "/models", "/merge")

# Values of one field of /evaluate, beside a model and a task.
FIELDS: List[Tuple[str, List[Any]]] = [
    ("model", [None, 1, True, "", "a/b", ["m"], {"m": 1}, "\u202e"]),
    ("tasks", [None, "size", 1, [], [1], [None], ["a", 2], {"a": 1}, ["a,b"], ["x"] * 300]),
    ("model_args", [None, {}, "a=1,b=2", "", "a", 3, [1], True, {"a": None}, {"a": {"b": [1]}}, {"": 1}]),
    ("num_fewshot", [None, 0, -1, 1.0, 1.5, "3", " 3 ", "x", True, 2**70, [1]]),
    ("batch_size", [None, 0, 1, 4, "auto", "", "4", 1.0, 1.5, True, [], {}]),
    ("device", [None, "cuda:0", 1, ""]),
    ("limit", [None, 0, 8, 0.5, -1, "8", "0.5", "x", True, [], 1e308]),
    ("gen_kwargs", [None, "temperature=0", "", 1, {"a": 1}]),
    ("log_samples", [None, True, False, 0, 1, 2, "yes", "no", "maybe", "on", 1.0]),
    ("predict_only", [None, True, "true", "off", 3]),
    ("num_gpus", [None, 0, -3, 1, 2, 8, 64, 65, 1000, 2.0, 2.5, "4", "x", True]),
    ("output_dir", [None, "", "relative", 1]),
    ("unknown", [None, 1, {"deep": [[[[]]]]}]),
    ("lmms_engine_kwargs", [None, {}, {"checkpoint_type": "ema"}, 1]),
]
RAW = [
    ("empty", b""), ("not json", b"{"), ("a word", b"hello"), ("a number", b"3"), ("null", b"null"), ("a list", b"[1]"), ("a text", b'"x"'),
    ("not utf-8", b'{"model": "\xff"}'), ("twice", b'{"model": "a", "model": "b", "tasks": []}'), ("a comma too many", b'{"model": "m",}'),
    ("NaN", b'{"model": "m", "tasks": [], "limit": NaN}'), ("Infinity", b'{"model": "m", "tasks": [], "limit": Infinity}'),
    ("-Infinity", b'{"model": "m", "tasks": [], "limit": -Infinity}'), ("NaN in model_args", b'{"model": "m", "tasks": [], "model_args": {"a": NaN}}'),
    ("a lone surrogate", b'{"model": "\\ud800", "tasks": []}'), ("a NUL", b'{"model": "a\\u0000b", "tasks": []}'),
    ("20 KiB", json.dumps({"model": "m", "tasks": [], "device": "x" * 20000}).encode()),
    ("30 KiB", json.dumps({"model": "m", "tasks": [], "device": "x" * 30000}).encode()),
    ("1 MiB", json.dumps({"model": "m", "tasks": [], "device": "x" * (1 << 20)}).encode()),
    ("40 deep", b'{"model": "m", "tasks": [], "model_args": {"a": ' + b"[" * 40 + b"]" * 40 + b"}}"),
]
MERGES: List[Any] = [
    {}, {"checkpoint_path": None}, {"checkpoint_path": 1}, {"checkpoint_path": ""}, {"checkpoint_path": "/nowhere/checkpoint-1"},
    {"checkpoint_path": "relative"}, {"checkpoint_path": "/nowhere/c-1", "checkpoint_type": "best"},
    {"checkpoint_path": "/nowhere/c-1", "checkpoint_type": None}, {"checkpoint_path": "/nowhere/c-1", "output_path": 1},
]  # fmt: skip


def requests() -> Iterator[Request]:
    for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        for route in ROUTES:
            if (method, route) not in (("POST", "/evaluate"), ("POST", "/merge")):
                yield f"{method} {route.replace(UNKNOWN, 'ID')}", method, route, None, None
    for path in ("/", "/nothing", "/health/", "/queue/", "/evaluate/", "/jobs", "/jobs/", "/jobs/x", "/jobs/x/y", "/Health", "/health?a=1", "//health", "/docs",
                 "/openapi.json", "/redoc"):
        yield f"GET {path}", "GET", path, None, None
    for field, values in FIELDS:
        for value in values:
            text = json.dumps({"model": "m", "tasks": ["size"], field: value})
            yield f"evaluate {field}={json.dumps(value)[:40]}", "POST", "/evaluate", JSON, text.encode()
    for name, body in RAW:
        yield f"evaluate {name}", "POST", "/evaluate", JSON, body
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8", "application/vnd.api+json", None):
        yield f"evaluate as {kind}", "POST", "/evaluate", kind, b'{"model": "m", "tasks": []}'
    for value in MERGES:
        yield f"merge {json.dumps(value)}", "POST", "/merge", JSON, json.dumps(value).encode()
