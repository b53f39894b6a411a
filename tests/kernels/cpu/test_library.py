"""The library is compiled once; where that cannot be done, a sentence says why."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.cpu import library


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a module that has loaded nothing yet."""
    monkeypatch.setenv("ORRERY_CACHE", str(tmp_path))
    library.load.cache_clear()
    library.why_unavailable.cache_clear()
    yield tmp_path / "kernels"
    library.load.cache_clear()
    library.why_unavailable.cache_clear()


def test_no_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    why = library.why_unavailable()
    assert why == "the CPU kernels need a C++ compiler, and there is no no-such-compiler (set CXX to name another)"


def test_a_compiler_that_fails(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    # Torch asks for the version first.
    compiler.write_text(
        "#!/bin/sh\ncase $* in *version*) exec c++ $*;; esac\necho 'x.cpp:1: error: out of ideas'\nexit 1\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    why = library.why_unavailable()
    assert why == "the CPU kernels did not compile: x.cpp:1: error: out of ideas"
    assert not list(fresh.glob("*.so")), "what failed must not be found by the next process"


def test_another_copy_of_the_sources_is_another_library(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = library._fingerprint()
    monkeypatch.setattr(library, "_FLAGS", (*library._FLAGS, "-DNDEBUG"))
    assert library._fingerprint() != before


@pytest.mark.parametrize("lanes", [4, 16])
def test_registers_of_another_width(lanes: int, tmp_path: Path) -> None:
    """This machine has one width; the compiler makes the others out of it, and the same tests hold for them."""
    compiler = tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\nexec c++ "$@" -O1 -DORRERY_LANES={lanes}\n')
    compiler.chmod(0o755)
    folder = Path(__file__).parent
    tests = [str(folder / name) for name in ("test_matmul.py", "test_attention.py")]
    plain = ["-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", *plain, *tests, "-k", "not test_product or 75"],
        env={**os.environ, "CXX": str(compiler), "ORRERY_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
