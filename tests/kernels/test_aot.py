"""Every kernel compiles for every target, and spills no more than the committed table says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from kernels.aot import (
    DOCUMENT,
    TARGETS,
    Row,
    Usage,
    all_specimens,
    check,
    parse_table,
    spills_beyond,
    unlisted,
    with_table,
)

TIGHT = Row("tight", 1.5, dict.fromkeys(TARGETS, Usage(40, 1024, 0)))
SPILLING = Row("spilling", 60.25, dict.fromkeys(TARGETS, Usage(255, 0, 16)))


def test_the_table_is_read_back_as_it_was_written() -> None:
    document = with_table(DOCUMENT.read_text(encoding="utf-8"), [TIGHT, SPILLING])
    assert parse_table(document) == {"tight": TIGHT.usages, "spilling": SPILLING.usages}
    assert with_table(document, [TIGHT, SPILLING]) == document


def test_spills_beyond_the_table_are_complained_of() -> None:
    committed = {row.name: row.usages for row in (TIGHT, SPILLING)}
    assert spills_beyond([TIGHT, SPILLING], committed) == []
    assert spills_beyond([TIGHT, SPILLING._replace(usages=TIGHT.usages)], committed) == []
    worse = TIGHT._replace(usages=TIGHT.usages | {"sm_90": Usage(255, 1024, 8)})
    assert spills_beyond([worse, SPILLING], committed) == ["tight spills 8 bytes on sm_90, the table says 0."]


def test_kernels_and_table_must_name_each_other() -> None:
    assert unlisted([TIGHT], {}) == ["tight is not in the table."]
    assert unlisted([], {"tight": TIGHT.usages}) == ["tight is in the table, but not among the kernels."]


def test_spills_are_compared_under_one_compiler_only(capsys: pytest.CaptureFixture[str]) -> None:
    triton = pytest.importorskip("triton")
    document = with_table(DOCUMENT.read_text(encoding="utf-8"), [TIGHT])
    worse = [TIGHT._replace(usages=SPILLING.usages)]
    assert len(check(worse, document)) == len(TARGETS)
    older = document.replace(f"Compiled by Triton {triton.__version__}.", "Compiled by Triton 3.0.0.")
    assert check(worse, older) == []
    assert "spills are not compared" in capsys.readouterr().out


def test_every_kernel_compiles_for_every_target() -> None:
    pytest.importorskip("triton")
    # In a process of its own: the interpreter that the other tests run in takes the compiler's place.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    checked = subprocess.run(
        [sys.executable, "-m", "kernels.aot", "--check"], check=False, env=environment, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(all_specimens())} kernels compiled for sm_80, sm_90, sm_100, gfx942, 0 complaints" in checked.stdout


def test_the_interpreter_is_refused() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    refused = subprocess.run(
        [sys.executable, "-m", "kernels.aot"], check=False, env=environment, capture_output=True, text=True
    )
    assert refused.returncode == 2 and "TRITON_INTERPRET must not be set" in refused.stderr
