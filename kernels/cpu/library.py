"""The compiled library: built at first use, for the very processor it runs on, and kept in the user's cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

_FOLDER = Path(__file__).parent
_SOURCE = _FOLDER / "decoder_layer.cpp"
_HEADERS = ("simd.h", "weights.h", "matmul.h", "attention.h")
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


class BuildError(Exception):
    """The kernels cannot be compiled here; the message is one sentence."""


@functools.cache
def load() -> ctypes.CDLL:
    """The library, compiled first if this machine has no copy of these very sources.

    Raises:
        BuildError: there is no compiler, or it failed.
    """
    path = _cache_dir() / f"{_fingerprint()}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not path.exists():  # another process may have been faster
                _build(path)
    return ctypes.CDLL(str(path))


@functools.cache
def why_unavailable() -> str | None:
    """Why `load` fails here, in one sentence; None if it does not."""
    try:
        load()
    except (BuildError, OSError) as error:
        return str(error)
    return None


def _build(path: Path) -> None:
    compiler = os.environ.get("CXX") or "c++"
    if shutil.which(compiler) is None:
        raise BuildError(f"the CPU kernels need a C++ compiler, and there is no {compiler} (set CXX to name another)")
    print("Compiling the CPU kernels for this machine (once; about 20 seconds) …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        # In a process of its own: torch's loader also loads what it has built, and twice is once too often.
        command = [sys.executable, "-c", _BUILD, folder, str(_SOURCE), " ".join(_FLAGS), " ".join(_LINK_FLAGS)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(f"the CPU kernels did not compile: {_first_error(done.stdout + done.stderr)}")
        os.replace(Path(folder) / "orrery_cpu.so", path)


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
    cache = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orrery"
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
