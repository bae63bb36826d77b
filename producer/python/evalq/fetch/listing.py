"""Lists the files of a checkpoint in a store, with their sizes and versions, and computes its
fingerprint."""

from __future__ import annotations

import base64
import concurrent.futures
import hashlib
import json
import os
from typing import Any, Dict, Iterator, List, Optional, Tuple

from .errors import SCHEMES, Failure

FILES_MAX = 100000
_VERSIONS = ("ETag", "etag", "generation", "lfs", "blob_id", "Last-Modified", "last_modified", "mtime")


class File:
    """One file: its name below the checkpoint, its place in the store, its size, version and digest."""

    def __init__(self, name: str, place: str, info: Dict[str, Any], scheme: str) -> None:
        self.name = name
        self.place = place
        size, version = info.get("size"), _version(info)
        if size is None or not version:
            raise Failure("invalid", f"the store gives no size or no version of '{place}', so evalq could not notice a change")
        self.size = int(size)
        self.version = version
        self.digest = _digest(info, scheme)  # ("md5", hex), or None.
        self.has_ranges = bool(info.get("partial", not scheme.startswith("http")))
        if any(ord(char) < 32 for char in name) or ".." in name.split("/") or name.startswith("/"):
            raise Failure("invalid", f"the store has a file with the name {name!r}, which cannot be stored here")


def _version(info: Dict[str, Any]) -> str:
    for key in _VERSIONS:
        value = info.get(key)
        if value is not None and value != "":
            value = getattr(value, "sha256", value)  # huggingface_hub gives a BlobLfsInfo.
            return f"{key.lower()}={str(value).strip(chr(34))}"
    return ""


def _digest(info: Dict[str, Any], scheme: str) -> Optional[Tuple[str, str]]:
    if scheme == "s3":
        tag = str(info.get("ETag", "")).strip('"').lower()
        # If the object was uploaded in parts, its tag has a dash and is not a digest of the content.
        return ("md5", tag) if len(tag) == 32 and set(tag) <= set("0123456789abcdef") else None
    if scheme == "gs" and info.get("md5Hash"):
        return "md5", base64.b64decode(info["md5Hash"]).hex()
    if scheme in ("az", "abfs"):
        content = (info.get("content_settings") or {}).get("content_md5")
        return ("md5", bytes(content).hex()) if content else None
    if scheme == "hf":
        large = getattr(info.get("lfs"), "sha256", None) or (info.get("lfs") or {}).get("sha256")
        return ("sha256", large) if large else ("git", info["blob_id"]) if info.get("blob_id") else None
    return None


class Checkpoint:
    """A file or a directory of a store at one moment."""

    def __init__(self, address: str, key: str, is_file: bool, files: List[File]) -> None:
        self.address = address
        self.key = key
        self.is_file = is_file
        self.kind = "f" if is_file else "d"
        self.files = sorted(files, key=lambda file: file.name)
        self.bytes = sum(file.size for file in files)
        text = json.dumps(["evalq remote 1", key, is_file, [[f.name, f.size, f.version] for f in self.files]])
        self.fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Store:
    """One store, reached through fsspec. Its answers are not cached."""

    def __init__(self, address: str) -> None:
        self.scheme = address.split("://")[0]
        if self.scheme not in SCHEMES:
            raise Failure("invalid", f"'{address}' has an unknown scheme, expected {', '.join(SCHEMES)}")
        import fsspec

        # fsspec's SFTP caches nothing, and would pass this option to the ssh library.
        options: Dict[str, Any] = {} if self.scheme == "sftp" else {"use_listings_cache": False}
        if self.scheme == "s3":
            options["config_kwargs"] = {"connect_timeout": 10, "read_timeout": 30, "max_pool_connections": 64}
        if self.scheme == "sftp":
            from .sftp import VerifiedSftp

            fsspec.register_implementation("sftp", VerifiedSftp, clobber=True)
        self.fs, _ = fsspec.core.url_to_fs(address, **options)
        self._base = self._authority(address)

    def _authority(self, address: str) -> str:
        """Returns the part of an address that decides the connection: for sftp with the host, otherwise
        only the scheme."""
        return "/".join(address.split("/")[:3]) if self.scheme == "sftp" else self.scheme

    def serves(self, address: str) -> bool:
        return address.split("://")[0] == self.scheme and self._authority(address) == self._base

    def _place(self, address: str) -> str:
        place = self.fs._strip_protocol(address)
        return str(place).rstrip("/")

    def _find(self, place: str) -> List[Tuple[str, Dict[str, Any]]]:
        """All files below a directory, with names relative to it."""
        self.fs.invalidate_cache()
        if self.scheme in ("http", "https"):
            places = [str(name) for name in self.fs.find(place + "/")]
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                found = dict(zip(places, pool.map(self.fs.info, places)))
        else:
            found = self.fs.find(place, detail=True)
        files = []
        for name, info in found.items():
            # A key that ends with a slash stands for an empty directory.
            if name.startswith(place + "/") and not name.endswith("/"):
                files.append((name[len(place) + 1 :], dict(info, name=name)))
        if len(files) > FILES_MAX:
            raise Failure("invalid", f"'{place}' has {len(files)} files, at most {FILES_MAX} are allowed")
        return files

    def _is_file(self, place: str) -> Optional[Dict[str, Any]]:
        self.fs.invalidate_cache()
        try:
            info = dict(self.fs.info(place))
        except FileNotFoundError:
            if self.scheme in ("http", "https"):
                return None  # A web server may know a directory only with a slash at the end.
            raise
        if self.scheme in ("http", "https"):
            page = str(info.get("mimetype", "")).startswith("text/html") and not place.endswith((".html", ".htm"))
            return None if page else info
        return info if info["type"] == "file" else None

    def checkpoint(self, address: str, key: str) -> Checkpoint:
        place = self._place(address)
        info = self._is_file(place)
        if info is not None:
            return Checkpoint(address, key, True, [File(os.path.basename(place), place, info, self.scheme)])
        files = [File(name, one["name"], one, self.scheme) for name, one in self._find(place)]
        if not files:
            raise Failure("gone", f"the store does not have '{address}'")
        return Checkpoint(address, key, False, files)

    def hides_digest(self, file: File) -> bool:
        """Whether the tag of an S3 object is not an MD5, because KMS or a customer's key encrypts it."""
        if self.scheme != "s3":
            return False
        bucket, key, _ = self.fs.split_path(file.place)
        head = self.fs.call_s3("head_object", Bucket=bucket, Key=key)
        return head.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in head

    def children(self, address: str, key: str) -> Iterator[Tuple[str, Checkpoint]]:
        """Yields each file and directory directly below the address, as a checkpoint."""
        root, path = key.split(":", 1)
        groups: Dict[str, List[File]] = {}
        single = set()
        for name, info in self._find(self._place(address)):
            first, _, rest = name.partition("/")
            single.update([first] if not rest else [])
            groups.setdefault(first, []).append(File(rest or first, info["name"], info, self.scheme))
        for name, files in sorted(groups.items()):
            below = name if path == "." else f"{path}/{name}"
            yield name, Checkpoint(f"{address}/{name}", f"{root}:{below}", name in single, files)
