"""The Debian packages as CPack makes them of this build: each holds what it is for, declares what its programs link, and works once
it is unpacked: the programs run, a program in C is compiled and linked against the client library."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import unittest
from typing import Dict, List

from scene import BUILD, SOURCE

TOOLS = all(shutil.which(tool) for tool in ("cpack", "dpkg-deb", "dpkg-shlibdeps", "cc"))
PROGRAM = """
#include <evalq.h>
#include <stdio.h>
int main(void)
{
    struct evalq_client *client = NULL;
    evalq_client_close(client);
    puts("linked");
    return 0;
}
"""


@unittest.skipUnless(TOOLS, "NOT RUN: no Debian tools")
class PackagesTest(unittest.TestCase):
    directory = ""
    files: Dict[str, List[str]] = {}

    @classmethod
    def setUpClass(cls) -> None:
        cls.directory = tempfile.mkdtemp(prefix="evalq-packages-")
        cls.addClassCleanup(shutil.rmtree, cls.directory, ignore_errors=True)
        # The package of the CUDA module is tested only if this build has the module.
        words = ["cpack", "--config", BUILD + "/CPackConfig.cmake", "-B", cls.directory + "/made"]
        words += ["-D", "CPACK_COMPONENTS_ALL=evalq;libevalq1;libevalq-dev"]
        done = subprocess.run(words, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        for name in sorted(os.listdir(cls.directory + "/made")):
            if name.endswith(".deb"):
                subprocess.run(["dpkg-deb", "-x", f"{cls.directory}/made/{name}", cls.directory + "/root"], check=True)
                listed = cls.dpkg("--fsys-tarfile", name, tar=True)
                cls.files[name.split("_")[0]] = [line for line in listed.split("\n") if line and not line.endswith("/")]

    @classmethod
    def dpkg(cls, how: str, name: str, *words: str, tar: bool = False) -> str:
        done = subprocess.run(["dpkg-deb", how, f"{cls.directory}/made/{name}", *words], capture_output=True, check=True).stdout
        if tar:
            done = subprocess.run(["tar", "-t"], input=done, capture_output=True, check=True).stdout
        return done.decode().strip()

    def field(self, package: str, field: str) -> str:
        found = [name for name in os.listdir(self.directory + "/made") if name.startswith(package + "_") and name.endswith(".deb")]
        return self.dpkg("-f", found[0], field)

    def holds(self, package: str, end: str) -> bool:
        return any(name.endswith(end) for name in self.files[package])

    def test_each_package_holds_its_own_and_no_file_is_in_two(self) -> None:
        self.assertEqual(sorted(self.files), ["evalq", "libevalq-dev", "libevalq1"])
        for end in ("bin/evalq", "bin/evalq-worker", "bin/evalq-logger", "man1/evalq.1.gz", "system/evalq-worker.service", "secrets.sh"):
            self.assertTrue(self.holds("evalq", end), end)
        self.assertTrue(self.holds("evalq", "completions/evalq"))
        self.assertTrue(self.holds("libevalq1", "/libevalq.so.1"))
        for end in ("include/evalq.h", "/libevalq.so", "pkgconfig/evalq.pc", "evalq-config.cmake"):
            self.assertTrue(self.holds("libevalq-dev", end), end)
            self.assertFalse(self.holds("libevalq1", end), end)
        for package in self.files:
            self.assertTrue(self.holds(package, f"doc/{package}/copyright"), package)
            self.assertTrue(self.holds(package, f"doc/{package}/changelog.gz"), package)
        every = [name for names in self.files.values() for name in names]
        self.assertEqual(len(every), len(set(every)))
        self.assertEqual([name for name in every if "cuda" in name or not name.startswith("./usr/")], [])

    def test_without_cuda_nothing_of_it_is_installed(self) -> None:
        with open(BUILD + "/cmake_install.cmake", encoding="utf-8") as file:
            documents = "doc/evalq-cuda" in file.read()
        with open(BUILD + "/kernels/cmake_install.cmake", encoding="utf-8") as file:
            self.assertEqual(documents, "libevalq_cuda" in file.read())

    def test_what_is_linked_is_declared(self) -> None:
        self.assertRegex(self.field("evalq", "Depends"), r"libc6 .*libhiredis")
        self.assertIn("redis-server", self.field("evalq", "Recommends"))
        self.assertIn("libc6", self.field("libevalq1", "Depends"))
        version = self.field("libevalq1", "Version")
        self.assertEqual(self.field("libevalq-dev", "Depends"), f"libevalq1 (= {version})")
        self.assertTrue(self.field("evalq", "Maintainer"))

    def test_unpacked_programs_run_and_the_library_is_linked(self) -> None:
        usr = self.directory + "/root/usr"
        for program in ("evalq", "evalq-worker", "evalq-logger"):
            done = subprocess.run([f"{usr}/bin/{program}", "--version"], text=True, capture_output=True, check=False)
            self.assertRegex(done.stdout, rf"^{program} \d+\.\d+\.\d+\n$", done.stderr)
        library = os.path.dirname([name for name in self.files["libevalq1"] if name.endswith("libevalq.so.1")][0])
        library = os.path.join(self.directory, "root", library)
        with open(self.directory + "/main.c", "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        words = ["cc", "-I", usr + "/include", "main.c", "-L", library, "-levalq", "-o", "main"]
        subprocess.run(words, cwd=self.directory, check=True)
        environment = dict(os.environ, LD_LIBRARY_PATH=library)
        done = subprocess.run([self.directory + "/main"], env=environment, text=True, capture_output=True, check=True)
        self.assertEqual(done.stdout, "linked\n")

    def test_units_name_programs_that_the_package_puts_there(self) -> None:
        folder = os.path.join(SOURCE, "deploy", "systemd")
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                program = [line for line in file if line.startswith("ExecStart=")][0].split()[0].split("=")[1]
            self.assertNotIn("/", program, "systemd finds it in /usr/bin, and in /usr/local/bin, where cmake --install puts it")
            if program != "evalq-gateway" or os.path.exists(BUILD + "/bin/evalq-gateway"):
                self.assertIn("./usr/bin/" + program, self.files["evalq"])


class UnitsTest(unittest.TestCase):
    def test_units_try_again_what_is_mended_in_redis(self) -> None:
        folder = os.path.join(SOURCE, "deploy", "systemd")
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                words = [line.strip().partition("=")[2].split() for line in file if line.startswith(("Restart=", "RestartPreventExitStatus="))]
            # Exit codes 6 (permission) and 7 (functions) are not in the list.
            self.assertEqual(words, [["on-failure"], ["2", "8"]], name)

    def test_units_see_checkpoints_beneath_home(self) -> None:
        folder = os.path.join(SOURCE, "deploy", "systemd")
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                self.assertIn("ProtectHome=read-only\n", file.readlines(), name)


if __name__ == "__main__":
    unittest.main()
