"""Throughput of evalq.fetch beside `s3fs.get`, from a server on loopback that speaks enough of S3:

    python tests/bench/bench_remote.py [--megabytes 512] [--files 4] [--rounds 5] [--directory DIR]

Both fetch the same checkpoint in turns, each into an empty directory. evalq also checks the MD5 of each
file, syncs the files to the disk, and lists the checkpoint before and after. The last lines are medians."""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, Tuple
from urllib.parse import parse_qs, unquote, urlsplit

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PREFIX = "run/step-1/"
Objects = Dict[str, Tuple[bytes, str]]


def serve(objects: Objects, ports: Any) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def answer(self, code: int, data: Any, **headers: str) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if "list-type" in parts.query:
                prefix = parse_qs(parts.query).get("prefix", [""])[0]
                found = "".join(
                    f"<Contents><Key>{key}</Key><Size>{len(data)}</Size><ETag>&quot;{tag}&quot;</ETag>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
                    for key, (data, tag) in sorted(objects.items())
                    if key.startswith(prefix)
                )
                text = f"<ListBucketResult><Name>bench</Name><Prefix>{prefix}</Prefix><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
                self.answer(200, text.encode(), Content_Type="application/xml")
                return
            key = unquote(parts.path)[len("/bench/") :]
            if key not in objects:
                self.answer(404, b"" if self.command == "HEAD" else b"<Error><Code>NoSuchKey</Code></Error>")
                return
            data, tag = objects[key]
            named = {"ETag": f'"{tag}"', "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "Accept_Ranges": "bytes"}
            wanted = self.headers.get("Range")
            if wanted is None:
                self.answer(200, memoryview(data), **named)
                return
            first, last = wanted.split("=")[1].split("-")
            begin, end = int(first), min(int(last or len(data) - 1), len(data) - 1)
            self.answer(206, memoryview(data)[begin : end + 1], Content_Range=f"bytes {begin}-{end}/{len(data)}", **named)

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # A client may close early.
    ports.put(server.server_address[1])
    server.serve_forever()


def with_evalq(directory: str) -> float:
    """Seconds from the request to the end, without the start of the interpreter."""
    helper = subprocess.Popen([sys.executable, "-m", "evalq.fetch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert helper.stdin is not None and helper.stdout is not None

    def ask(*words: str) -> Tuple[float, str]:
        began = time.perf_counter()
        helper.stdin.write("\t".join(words) + "\n")  # type: ignore[union-attr]
        helper.stdin.flush()  # type: ignore[union-attr]
        for line in helper.stdout:  # type: ignore[union-attr]
            if line.startswith(("@listing", "@end", "@error")):
                return time.perf_counter() - began, line
        raise SystemExit("the helper has ended")

    _, line = ask("list", "s3://bench/run/step-1", "bench:step-1")  # Imports the packages.
    seconds, last = ask("fetch", "s3://bench/run/step-1", "bench:step-1", line.split("\t")[1], directory)
    helper.stdin.close()
    helper.wait()
    if last != "@end\n":
        raise SystemExit(last)
    return seconds


def with_s3fs(directory: str) -> float:
    code = (
        "import sys, time, s3fs\n"
        "fs = s3fs.S3FileSystem(use_listings_cache=False)\n"
        "fs.find('bench/run/step-1')\n"
        "began = time.perf_counter()\n"
        "fs.get('bench/run/step-1', sys.argv[1], recursive=True)\n"
        "print(time.perf_counter() - began)\n"
    )
    return float(subprocess.run([sys.executable, "-c", code, directory], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=None)
    options = parser.parse_args()
    objects: Objects = {}
    for number in range(options.files):
        data = os.urandom(options.megabytes * 1000000 // options.files)
        objects[f"{PREFIX}model-{number}.bin"] = (data, hashlib.md5(data).hexdigest())
    ports: Any = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(objects, ports), daemon=True)
    server.start()
    os.environ.update(
        AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", AWS_DEFAULT_REGION="us-east-1",
        AWS_ENDPOINT_URL=f"http://127.0.0.1:{ports.get()}", PYTHONPATH=os.path.join(SOURCE, "producer", "python"),
    )  # fmt: skip
    rates: Dict[str, list[float]] = {"evalq.fetch": [], "s3fs.get": []}
    place = tempfile.mkdtemp(prefix="evalq-bench-", dir=options.directory)
    try:
        for turn in range(options.rounds):
            for name, fetch in (("evalq.fetch", with_evalq), ("s3fs.get", with_s3fs)):
                directory = os.path.join(place, "fetched")
                seconds = fetch(directory)
                shutil.rmtree(directory)
                rates[name].append(options.megabytes / seconds)
                print(f"round {turn + 1}: {name} {rates[name][-1]:.0f} MB/s", flush=True)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        server.terminate()
    for name, found in rates.items():
        print(f"median {name}: {statistics.median(found):.0f} MB/s ({min(found):.0f} to {max(found):.0f}), {options.megabytes} MB in {options.files} files")


if __name__ == "__main__":
    main()
