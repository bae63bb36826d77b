"""The helper of remote stores, evalq.fetch, over a store in memory: what it fetches, resumes and refuses. It needs no fsspec."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import unittest
from typing import Any, Dict, List, Tuple
from unittest import mock

from scene import PACKAGE  # noqa: F401  It adds the package to sys.path.

from evalq.fetch import __main__ as program
from evalq.fetch import errors, listing, transfer
from evalq.fetch.errors import Failure

PART = 1000
PLACE = "bucket/run/step-1"
ADDRESS = f"s3://{PLACE}"
KEY = "ckpt:step-1"


class Files:
    """A file system of fsspec's kind, with what a test makes of its reads."""

    async_impl = True

    def __init__(self) -> None:
        self.content: Dict[str, bytes] = {}
        self.tags: Dict[str, str] = {}
        self.reads: List[Tuple[str, int]] = []
        self.faults: List[Any] = []  # Each is called for one read, with its data.

    def put(self, name: str, data: bytes) -> None:
        self.content[f"{PLACE}/{name}"] = data
        self.tags[f"{PLACE}/{name}"] = hashlib.md5(data).hexdigest()

    def _info(self, place: str) -> Dict[str, Any]:
        return {"name": place, "size": len(self.content[place]), "ETag": self.tags[place], "type": "file"}

    def info(self, place: str) -> Dict[str, Any]:
        return self._info(place) if place in self.content else {"type": "directory"}

    def find(self, place: str, detail: bool) -> Dict[str, Dict[str, Any]]:
        return {name: self._info(name) for name in self.content if name.startswith(place)}

    def cat_file(self, place: str, start: int, end: int, timeout: float) -> bytes:
        self.reads.append((place[len(PLACE) + 1 :], start))
        data = self.content[place][start:end]
        return self.faults.pop(0)(data) if self.faults else data

    def invalidate_cache(self) -> None:
        pass

    def split_path(self, place: str) -> Tuple[str, str, None]:
        return (*place.split("/", 1), None)  # type: ignore[return-value]

    encryption = "AES256"

    def call_s3(self, call: str, **_: str) -> Dict[str, str]:
        return {"ServerSideEncryption": self.encryption}

    @staticmethod
    def _strip_protocol(address: str) -> str:
        return address.split("://")[1]


class HelperTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="evalq-fetch-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.directory = os.path.join(self.folder, "partial")
        self.files = Files()
        self.files.put("model.bin", os.urandom(2500))
        self.files.put("sub/config.json", b"{}")
        self.store = listing.Store.__new__(listing.Store)
        self.store.scheme = self.store._base = "s3"
        self.store.fs = self.files
        self.said: List[Tuple[str, ...]] = []
        for target, name, value in (
            (transfer, "PART_BYTES", PART), (transfer, "PARALLEL", 1), (errors, "PAUSE_SECONDS", 0.001),
            (program, "Store", lambda address: self.store), (program, "_say", lambda *fields: self.said.append(tuple(map(str, fields)))),
        ):  # fmt: skip
            patch = mock.patch.object(target, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        self.helper = program.Helper()

    def fetch(self) -> Tuple[str, ...]:
        """The last line of the answer to a fetch of what is there now."""
        found = self.store.checkpoint(ADDRESS, KEY)
        self.helper.answer(["fetch", ADDRESS, KEY, found.fingerprint, self.directory])
        return self.said[-1]

    def fault(self, *faults: Any) -> None:
        self.files.faults = list(faults)
        self.files.reads.clear()

    def assert_fetched(self) -> None:
        for place, data in self.files.content.items():
            with open(os.path.join(self.directory, "step-1", place[len(PLACE) + 1 :]), "rb") as file:
                self.assertEqual(file.read(), data, place)
        self.assertEqual(os.listdir(self.directory), ["step-1"])  # Without the journal.

    def cut(self) -> None:
        """Leaves two of three parts of the large file, as a helper does that was killed."""
        stop = mock.Mock(side_effect=MemoryError)
        self.fault(lambda data: data, lambda data: data, stop)
        with mock.patch.object(errors, "TRIES", 1), mock.patch.object(transfer, "repeat", lambda action, stop: action()):
            self.assertEqual(self.fetch()[:2], ("error", "retry"))
        self.fault()

    def test_fetch_brings_all_files(self) -> None:
        self.assertEqual(self.fetch(), ("end",))
        self.assert_fetched()
        self.assertEqual(self.files.reads, [("model.bin", 0), ("model.bin", 1000), ("model.bin", 2000), ("sub/config.json", 0)])

    def test_interrupted_fetch_continues(self) -> None:
        self.cut()
        self.assertEqual(self.fetch(), ("end",))
        self.assert_fetched()
        self.assertEqual([at for name, at in self.files.reads if name == "model.bin"], [2000])

    def test_parts_before_a_restart_of_the_machine_do_not_count(self) -> None:
        self.cut()
        with mock.patch.object(transfer, "_boot", lambda: "another"):
            self.assertEqual(self.fetch(), ("end",))
        self.assertEqual([at for name, at in self.files.reads if name == "model.bin"], [0, 1000, 2000])
        self.assert_fetched()

    def test_short_read_is_repeated(self) -> None:
        self.fault(lambda data: data[:-1])
        self.assertEqual(self.fetch(), ("end",))
        self.assertEqual(self.files.reads[:2], [("model.bin", 0)] * 2)
        self.assert_fetched()

    def test_damaged_file_is_refused_and_fetched_again(self) -> None:
        self.fault(lambda data: bytes([data[0] ^ 1]) + data[1:])
        last = self.fetch()
        self.assertEqual(last[:2], ("error", "corrupt"))
        self.assertIn("the store has", last[2])
        self.fault()
        self.assertEqual(self.fetch(), ("end",))
        self.assertEqual([read for read in self.files.reads if read[0] == "model.bin"], [("model.bin", at) for at in (0, 1000, 2000)])
        self.assert_fetched()

    def test_tag_of_an_encrypted_object_is_no_digest(self) -> None:
        self.files.tags[f"{PLACE}/model.bin"] = "0" * 32
        self.assertEqual(self.fetch()[:2], ("error", "corrupt"))
        self.files.encryption = "aws:kms"
        self.assertEqual(self.fetch(), ("end",))

    def test_link_in_the_directory_is_not_followed(self) -> None:
        outside = os.path.join(self.folder, "outside")
        with open(outside, "wb") as file:
            file.write(b"kept")
        self.cut()
        path = os.path.join(self.directory, "step-1", "model.bin")
        os.unlink(path)
        os.symlink(outside, path)
        self.assertEqual(self.fetch()[0], "error")
        with open(outside, "rb") as file:
            self.assertEqual(file.read(), b"kept")

    def test_change_before_or_during_the_fetch_is_told(self) -> None:
        found = self.store.checkpoint(ADDRESS, KEY)
        self.files.put("sub/config.json", b"[]")
        self.helper.answer(["fetch", ADDRESS, KEY, found.fingerprint, self.directory])
        self.assertEqual(self.said[-1][:2], ("error", "changed"))
        self.assertEqual(self.files.reads, [])

        def replace(data: bytes) -> bytes:
            self.files.put("model.bin", os.urandom(2500))
            return data

        self.fault(replace)
        self.assertEqual(self.fetch()[:2], ("error", "changed"))

    def test_names_that_leave_the_directory_are_refused(self) -> None:
        for name in ("../x", "a/../../x", "/x", "a\nb"):
            with self.assertRaisesRegex(Failure, "which cannot be stored here"):
                listing.File(name, name, {"size": 1, "ETag": "a"}, "s3")

    def test_file_without_a_version_or_size_is_refused(self) -> None:
        for info in ({"size": 1}, {"ETag": "a"}, {"size": None, "ETag": "a"}):
            with self.assertRaisesRegex(Failure, "could not notice a change"):
                listing.File("x", "x", info, "s3")

    def test_digest_of_a_tag_of_parts_and_of_other_stores(self) -> None:
        md5 = "d41d8cd98f00b204e9800998ecf8427e"
        self.assertEqual(listing._digest({"ETag": f'"{md5}"'}, "s3"), ("md5", md5))
        self.assertIsNone(listing._digest({"ETag": f'"{md5}-2"'}, "s3"))
        self.assertEqual(listing._digest({"md5Hash": "1B2M2Y8AsgTpgAmY7PhCfg=="}, "gs"), ("md5", md5))
        self.assertEqual(listing._digest({"content_settings": {"content_md5": bytearray.fromhex(md5)}}, "az"), ("md5", md5))
        self.assertEqual(listing._digest({"lfs": {"sha256": "5a"}, "blob_id": "b"}, "hf"), ("sha256", "5a"))
        self.assertEqual(listing._digest({"blob_id": "b", "lfs": None}, "hf"), ("git", "b"))

    def test_secrets_in_addresses_do_not_reach_a_message(self) -> None:
        told = errors.explain(OSError("GET https://h/x?X-Amz-Signature=planted failed"), ADDRESS)
        self.assertEqual(told.kind, "retry")
        self.assertNotIn("planted", str(told))

    def test_errors_are_told_apart(self) -> None:
        expired = OSError("An error occurred (ExpiredToken): The provided token has expired")
        expired.response = {"ResponseMetadata": {"HTTPStatusCode": 400}}  # type: ignore[attr-defined]
        busy = OSError("slow down")
        busy.status = 503  # type: ignore[attr-defined]
        for error, kind in (
            (expired, "setup"), (PermissionError("no"), "setup"), (FileNotFoundError("x"), "gone"), (busy, "retry"),
            (OSError(28, "No space left on device"), "full"), (ImportError("s3fs"), "setup"),
        ):  # fmt: skip
            self.assertEqual(errors.explain(error, ADDRESS).kind, kind, error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
