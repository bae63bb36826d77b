"""Creates a certificate authority and server certificates for a test, with openssl, which
deploy/bootstrap.sh installs."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import unittest


class Authority:
    """A certificate authority. ca is the path of its certificate."""

    def __init__(self, directory: str) -> None:
        if shutil.which("openssl") is None:
            raise unittest.SkipTest("NOT RUN: openssl is not installed")
        self.directory = directory
        os.makedirs(directory)
        self.ca = os.path.join(directory, "ca.pem")
        self._openssl("req", "-x509", *self._key("ca"), "-out", self.ca, "-days", "2", "-subj", "/CN=evalq test")
        self.certificate, self.key = self.server("127.0.0.1")

    def server(self, address: str) -> "tuple[str, str]":
        """Returns the paths of certificate and key for a server at this address."""
        names = os.path.join(self.directory, "names")
        with open(names, "w", encoding="utf-8") as file:
            file.write(f"subjectAltName=IP:{address}\n")
        request, certificate = (os.path.join(self.directory, address + end) for end in (".csr", ".pem"))
        self._openssl("req", *self._key(address), "-out", request, "-subj", "/CN=" + address)
        self._openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", os.path.join(self.directory, "ca.key"),
                      "-CAcreateserial", "-out", certificate, "-days", "2", "-extfile", names)
        return certificate, os.path.join(self.directory, address + ".key")

    def _key(self, name: str) -> "list[str]":
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        return [*curve, "-keyout", os.path.join(self.directory, name + ".key")]

    def context(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(self.certificate, self.key)
        return made

    @staticmethod
    def _openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, capture_output=True)
