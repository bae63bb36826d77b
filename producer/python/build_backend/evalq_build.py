"""Builds evalq's wheels and its source archive, as a build backend of PEP 517.

CMake builds the library and the programs, and this module packs them. It needs only the standard
library. The wheel's tag is py3-none-PLATFORM: the package loads its library with ctypes, so one
wheel serves every version of Python. Shared libraries that the programs need, except those of the C
library, are packed beside them; the programs find them by the path $ORIGIN.
"""

from __future__ import annotations

import base64
import glob
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sysconfig
import tarfile
import zipfile
from typing import Any, Dict, List, Optional, Tuple

from evalq_elf import manylinux

PROGRAMS = ("evalq", "evalq-worker", "evalq-logger", "evalq-gateway")
# For each major version of CUDA: NVIDIA's wheel that contains cuBLAS. The path is where the wheels
# put it, from the directory of our CUDA module.
CUBLAS = {"12": "nvidia-cublas-cu12", "13": "nvidia-cublas>=13,<14"}
CUBLAS_RPATH = "\\$ORIGIN/../../nvidia/cublas/lib:\\$ORIGIN/../../nvidia/cu13/lib"
# The parts of deploy/ that a build needs. Other files there may be the user's own, such as
# passwords.
DEPLOY = (
    "bootstrap.sh", "copyright", "evalq.yaml", "notices.txt", "packages.cmake",
    "packages_post.cmake", "redis", "systemd",
)  # fmt: skip
SOURCES = (
    "CMakeLists.txt", "LICENSE", "README.md", "shared", "kernels", "producer", "worker", "logger",
    *(f"deploy/{name}" for name in DEPLOY), "docs",
)  # fmt: skip
# The libraries of the C library and the compiler, which every Linux has.
SYSTEM_LIBRARY = re.compile(
    r"^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libutil|libresolv|libmvec|libgcc_s)"
    r"\.so"
)
HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INSTALL_HINT = "sh deploy/bootstrap.sh build installs what a build needs"
TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # A constant, so that the same tree gives the same wheel.

CLASSIFIERS = (
    "Programming Language :: Python :: 3",
    "Operating System :: POSIX :: Linux",
    "Typing :: Typed",
)


def _source() -> str:
    """The directory of the project's CMakeLists.txt."""
    directory = HERE
    while directory != "/":
        path = os.path.join(directory, "CMakeLists.txt")
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                if re.search(r"^project\(evalq ", file.read(), re.M):
                    return directory
        directory = os.path.dirname(directory)
    raise SystemExit(
        f"no CMakeLists.txt of evalq above {HERE}: a wheel is built from the whole source tree, but"
        " pip before 21.3 copies only a part of it: python -m pip install --upgrade pip"
    )


def _version() -> str:
    with open(os.path.join(_source(), "CMakeLists.txt"), encoding="utf-8") as file:
        found = re.search(r"^project\(evalq VERSION ([0-9.]+)", file.read(), re.M)
    assert found is not None
    return found.group(1)


def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        raise SystemExit(f"'{command[0]}' is needed to build evalq: {INSTALL_HINT}")
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"'{' '.join(command[:2])} ...' failed, see above: {INSTALL_HINT}")


def _build_directory(source: str) -> str:
    """A directory for this path of the tree, C library and toolchain, because CMake's cache keeps
    the first ones that it finds."""
    toolchain = os.environ.get("CMAKE_TOOLCHAIN_FILE", "")
    libc = " ".join(platform.libc_ver())
    key = f"{os.path.realpath(source)} {libc} {platform.machine()} {toolchain}".rstrip()
    return os.path.join(source, "build", "wheel-" + hashlib.sha256(key.encode()).hexdigest()[:8])


def _build(cuda: bool) -> str:
    """Configures and builds, and returns the build directory. cuda: builds only the CUDA module;
    otherwise everything else."""
    source = _source()
    build = _build_directory(source) + ("-cuda" if cuda else "")
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DEVQ_CUDA=" + ("ON" if cuda else "OFF"),
        "-DEVQ_TESTS=OFF",
        "-DEVQ_WERROR=OFF",
        "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
        # An rpath of the old kind also applies to the libraries that our libraries need.
        "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath,\\$ORIGIN -Wl,--disable-new-dtags -Wl,-s",
        # The library needs a packed library if the distribution has no static one.
        "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath,\\$ORIGIN -Wl,--disable-new-dtags -Wl,-s",
        f"-DCMAKE_MODULE_LINKER_FLAGS=-Wl,-rpath,{CUBLAS_RPATH} -Wl,-s",
        "-DCMAKE_SKIP_BUILD_RPATH=ON",
    ]
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    _run("cmake", "-S", source, "-B", build, *generator, *options)
    target = "evalq_cuda" if cuda else "all"
    _run("cmake", "--build", build, "--target", target, "--parallel", str(os.cpu_count() or 1))
    return build


def _needed(path: str) -> List[Tuple[str, str]]:
    """(soname, path) of each shared library that path needs and that must be packed."""
    text = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*(\S+) => (\S+) \(", line)
        if match and not SYSTEM_LIBRARY.match(os.path.basename(match.group(1))):
            found.append((match.group(1), match.group(2)))
        elif "not found" in line:
            raise SystemExit(f"{path} needs {line.strip()}")
    return found


def _native(build: str) -> Dict[str, str]:
    """The compiled files of the wheel, name -> path: ours, then the libraries that they need."""
    found = {"libevalq.so.1": os.path.realpath(os.path.join(build, "lib", "libevalq.so.1"))}
    found.update((program, os.path.join(build, "bin", program)) for program in PROGRAMS)
    missing = [path for path in found.values() if not os.path.isfile(path)]
    if missing:
        raise SystemExit(f"the build did not produce {missing[0]}: {INSTALL_HINT}")
    libraries: Dict[str, str] = {}
    for path in found.values():
        libraries.update(_needed(path))
    found.update((soname, os.path.realpath(path)) for soname, path in sorted(libraries.items()))
    return found


def _platform(native: Dict[str, str]) -> str:
    """The wheel's platform: manylinux_2_N if the files need only C library 2.N; else this
    machine's."""
    system, _, machine = sysconfig.get_platform().replace("-", "_").replace(".", "_").partition("_")
    return f"{manylinux(list(native.values()), set(native)) or system}_{machine}"


class _Wheel:
    """Writes a wheel file. info is the name of its .dist-info directory."""

    def __init__(self, path: str, info: str) -> None:
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self._info = info
        self._records: List[str] = []

    def add(self, name: str, data: bytes, executable: bool = False) -> None:
        entry = zipfile.ZipInfo(name, TIMESTAMP)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
        self._zip.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self._records.append(f"{name},sha256={digest},{len(data)}")

    def add_file(self, name: str, path: str, executable: bool = False) -> None:
        with open(path, "rb") as file:
            self.add(name, file.read(), executable)

    def close(self) -> None:
        record = f"{self._info}/RECORD"
        self.add(record, ("\n".join([*self._records, f"{record},,"]) + "\n").encode())
        self._zip.close()


def _project(section: str) -> Dict[str, Any]:
    """Reads a section of pyproject.toml. Each value is JSON on one line, because Python 3.9 has no
    reader of TOML."""
    found: Dict[str, Any] = {}
    inside = False
    with open(os.path.join(HERE, "pyproject.toml"), encoding="utf-8") as file:
        for line in file:
            if line.startswith("["):
                inside = line.strip() == f"[{section}]"
            elif inside and "=" in line and not line.startswith("#"):
                name, _, value = line.partition("=")
                found[name.strip()] = json.loads(value)
    return found


def _metadata() -> bytes:
    project = _project("project")
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {_version()}",
        f"Summary: {project['description']}",
        f"License: {project['license']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Classifier: {classifier}" for classifier in CLASSIFIERS),
    ]
    for extra, requirements in _project("project.optional-dependencies").items():
        lines.append(f"Provides-Extra: {extra}")
        for requirement in requirements:
            name, _, marker = requirement.partition("; ")
            condition = f'{marker} and extra == "{extra}"' if marker else f'extra == "{extra}"'
            lines.append(f"Requires-Dist: {name}; {condition}")
    text = "\n".join([*lines, "Description-Content-Type: text/markdown", "", ""])
    page = os.path.join(_source(), "docs", "python.md")
    if os.path.isfile(page):
        with open(page, encoding="utf-8") as file:
            text += file.read()
    return text.encode()


def _python_files() -> List[str]:
    found = []
    for directory, folders, names in os.walk(os.path.join(HERE, "evalq")):
        folders[:] = sorted(name for name in folders if name not in ("__pycache__", "_native"))
        for name in sorted(names):
            if name.endswith((".py", ".pyi", ".typed")):
                found.append(os.path.relpath(os.path.join(directory, name), HERE))
    return found


def _entry_points() -> bytes:
    scripts = _project("project.scripts").items()
    lines = [f"{script} = {target}" for script, target in scripts]
    return "\n".join(["[console_scripts]", *lines, ""]).encode()


def _wheel_record(tag: str) -> bytes:
    constant = "Wheel-Version: 1.0\nGenerator: evalq_build\nRoot-Is-Purelib: false\n"
    return f"{constant}Tag: {tag}\n".encode()


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: Optional[Dict[str, Any]] = None
) -> str:
    """Writes the metadata without a build. If this function were missing, pip would build a whole
    wheel to read its metadata."""
    cuda = (config_settings or {}).get("cuda")
    package = "evalq" if cuda is None else f"evalq_cuda{cuda}"
    name = f"{package}-{_version()}.dist-info"
    os.makedirs(os.path.join(metadata_directory, name))
    files = {
        "METADATA": _metadata() if cuda is None else _cuda_metadata(str(cuda)),
        "WHEEL": _wheel_record(f"py3-none-linux_{os.uname().machine}"),
    }
    if cuda is None:
        files["entry_points.txt"] = _entry_points()
    for file, data in files.items():
        with open(os.path.join(metadata_directory, name, file), "wb") as stream:
            stream.write(data)
    return name


def build_wheel(
    wheel_directory: str,
    config_settings: Optional[Dict[str, Any]] = None,
    metadata_directory: Optional[str] = None,
) -> str:
    """Builds the wheel evalq. Two settings change that: build-directory=DIR packs an existing
    build; cuda=12 or cuda=13 builds the wheel evalq-cuda12 or evalq-cuda13."""
    settings = config_settings or {}
    cuda = settings.get("cuda")
    build = str(settings.get("build-directory") or _build(cuda is not None))
    if cuda is not None:
        return _build_cuda_wheel(wheel_directory, build, str(cuda))
    version = _version()
    native = _native(build)
    tag = f"py3-none-{_platform(native)}"
    info = f"evalq-{version}.dist-info"
    name = f"evalq-{version}-{tag}.whl"
    wheel = _Wheel(os.path.join(wheel_directory, name), info)
    for path in _python_files():
        wheel.add_file(path, os.path.join(HERE, path))
    for file, path in native.items():
        wheel.add_file(f"evalq/_native/{file}", path, executable=True)
    for path in sorted(glob.glob(os.path.join(build, "man", "*.1"))):
        wheel.add_file(f"evalq-{version}.data/data/share/man/man1/{os.path.basename(path)}", path)
    wheel.add_file(f"{info}/LICENSE", os.path.join(_source(), "LICENSE"))
    wheel.add_file(f"{info}/NOTICES", os.path.join(_source(), "deploy", "notices.txt"))
    wheel.add(f"{info}/METADATA", _metadata())
    wheel.add(f"{info}/WHEEL", _wheel_record(tag))
    wheel.add(f"{info}/entry_points.txt", _entry_points())
    wheel.close()
    return name


def _cuda_metadata(cuda: str) -> bytes:
    if cuda not in CUBLAS:
        raise SystemExit(f"cuda={cuda}: expected one of {', '.join(CUBLAS)}")
    version, project = _version(), _project("project")
    lines = [
        "Metadata-Version: 2.1",
        f"Name: evalq-cuda{cuda}",
        f"Version: {version}",
        f"Summary: The CUDA {cuda} module of evalq: evaluates on NVIDIA GPUs",
        f"License: {project['license']}",
        f"Requires-Python: {project['requires-python']}",
        f"Requires-Dist: evalq=={version}",
        f"Requires-Dist: {CUBLAS[cuda]}",
        "",
    ]
    return "\n".join(lines).encode()


def _build_cuda_wheel(wheel_directory: str, build: str, cuda: str) -> str:
    """Packs the CUDA module. The wheel installs it beside the programs of the wheel evalq."""
    metadata = _cuda_metadata(cuda)
    path = os.path.join(build, "lib", "libevalq_cuda.so")
    if not os.path.isfile(path):
        raise SystemExit(
            f"the build did not produce {path}: nvcc of CUDA {cuda} was not found; name it in"
            " CUDACXX"
        )
    tag = f"py3-none-{_platform({'libevalq_cuda.so': path})}"
    info = f"evalq_cuda{cuda}-{_version()}.dist-info"
    name = f"evalq_cuda{cuda}-{_version()}-{tag}.whl"
    wheel = _Wheel(os.path.join(wheel_directory, name), info)
    wheel.add_file("evalq/_native/libevalq_cuda.so", path, executable=True)
    wheel.add_file(f"{info}/LICENSE", os.path.join(_source(), "LICENSE"))
    wheel.add_file(f"{info}/NOTICES", os.path.join(_source(), "deploy", "notices.txt"))
    wheel.add(f"{info}/METADATA", metadata)
    wheel.add(f"{info}/WHEEL", _wheel_record(tag))
    wheel.close()
    return name


def build_sdist(sdist_directory: str, config_settings: Optional[Dict[str, Any]] = None) -> str:
    """Packs the sources that a wheel is built from, with a pyproject.toml at the top."""
    source = _source()
    base = f"evalq-{_version()}"
    path = os.path.join(sdist_directory, base + ".tar.gz")
    with open(os.path.join(HERE, "pyproject.toml"), encoding="utf-8") as file:
        text = file.read().replace('["build_backend"]', '["producer/python/build_backend"]')
    generated = {"pyproject.toml": text.encode(), "PKG-INFO": _metadata()}
    with gzip.GzipFile(path, "wb", mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in SOURCES:
                path = os.path.join(source, name)
                if os.path.exists(path):
                    archive.add(path, f"{base}/{name}", filter=_normalized)
            for name, data in generated.items():
                entry = tarfile.TarInfo(f"{base}/{name}")
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    return base + ".tar.gz"


def _normalized(entry: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
    """Removes owner and time, so that the same tree gives the same archive. None: leaves out files
    that are hidden, or that a build has generated."""
    for part in entry.name.split("/"):
        if part.startswith(".") or part in ("__pycache__", "_native"):
            return None
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def get_requires_for_build_wheel(config_settings: Optional[Dict[str, Any]] = None) -> List[str]:
    return []


def get_requires_for_build_sdist(config_settings: Optional[Dict[str, Any]] = None) -> List[str]:
    return []
