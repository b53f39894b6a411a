"""The compiled library: built at first use, for the very processor it runs on, and kept in the user's cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, cast

from filelock import FileLock

_FOLDER = Path(__file__).parent
_SOURCE = _FOLDER / "operations.cpp"
_HEADERS = (
    "simd.h",
    "weights.h",
    "matmul.h",
    "int4.h",
    "multiply.h",
    "attention.h",
    "decoder_layer.h",
    "draft_chain.h",
)
#: Contraction makes a · b + c one instruction; errno and traps are never looked at. Nothing here reorders a sum.
_FLAGS = (
    "-std=c++20",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
)
_LINK_FLAGS = ("-fopenmp",)
_BUILD_FOLDER = "build-"


class BuildError(Exception):
    """The kernels cannot be compiled here; the message is one sentence."""


@functools.cache
def load() -> ctypes.CDLL:
    """The library, compiled first if this machine has no whole copy of these very sources.

    Raises:
        BuildError: there is no compiler, it failed, or there is no place for what it makes.
    """
    path = _cache_dir() / f"{_fingerprint()}.so"
    try:
        if not _is_whole(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.parent / "build.lock"):
                if not _is_whole(path):  # another process may have been faster
                    _build(path)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"the CPU kernels cannot be kept in {path.parent}: {error.strerror or error}") from error


def declared(function: Any, result: Any, *arguments: Any) -> ctypes._NamedFuncPointer:
    """A function of the library, told what it takes and gives."""
    function.restype, function.argtypes = result, arguments
    return cast("ctypes._NamedFuncPointer", function)


@functools.cache
def why_unavailable() -> str | None:
    """Why `load` fails here, in one sentence without a full stop; None if it does not."""
    try:
        load()
    except BuildError as error:
        return str(error)
    return None


def _is_whole(path: Path) -> bool:
    """Whether a library is there and as it was built: loading half of one would end the process."""
    digest = path.with_suffix(".sha256")
    return path.exists() and digest.exists() and digest.read_text() == _sha256(path)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _build(path: Path) -> None:
    """Compile the library. The caller holds the lock, so folders of other builds were left behind by killed ones."""
    for left_behind in path.parent.glob(f"{_BUILD_FOLDER}*"):
        shutil.rmtree(left_behind, ignore_errors=True)
    compiler = os.environ.get("CXX") or "c++"
    if shutil.which(shlex.split(compiler)[0]) is None:
        raise BuildError(f"the CPU kernels need a C++ compiler, and there is no {compiler} (set CXX to name another)")
    print("Compiling the CPU kernels for this machine (once; about 20 seconds) …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix=_BUILD_FOLDER, dir=path.parent) as folder:
        # In a process of its own: torch's loader also loads what it has built, and twice is once too often. Nothing of
        # torch's is included, so it need not look whether the compiler is like its own.
        command = [sys.executable, "-c", _BUILD, folder, str(_SOURCE), " ".join(_FLAGS), " ".join(_LINK_FLAGS)]
        environment = {**os.environ, "TORCH_DONT_CHECK_COMPILER_ABI": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise BuildError(f"the CPU kernels did not compile: {_first_error(done.stdout + done.stderr)}")
        built = Path(folder) / "orrery_cpu.so"
        path.with_suffix(".sha256").write_text(_sha256(built))
        os.replace(built, path)


_BUILD = """
import sys
from torch.utils import cpp_extension

_, folder, source, flags, link_flags = sys.argv
cpp_extension.load("orrery_cpu", [source], extra_cflags=flags.split(), extra_ldflags=link_flags.split(),
                   build_directory=folder, is_python_module=False)
"""


def _first_error(output: str) -> str:
    """What the compiler objected to first, or whatever was said last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next(
        (line for line in lines if re.search(r"(?<!\w)error:", line)), lines[-1] if lines else "it said nothing"
    )


def _cache_dir() -> Path:
    chosen = os.environ.get("ORRERY_CACHE")
    cache = (
        Path(chosen).expanduser()
        if chosen
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orrery"
    )
    return cache / "kernels"


def _fingerprint() -> str:
    """Changes with the sources, the flags and the processor, which `-march=native` looks at."""
    digest = hashlib.sha256()
    for name in (_SOURCE.name, *_HEADERS):
        digest.update((_FOLDER / name).read_bytes())
    digest.update("\0".join((*_FLAGS, *_LINK_FLAGS, os.environ.get("CXX", ""), platform.machine())).encode())
    digest.update(_processor().encode())
    return digest.hexdigest()[:16]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
