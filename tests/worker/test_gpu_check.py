"""The script for CUDA machines starts anywhere, keeps to its budget, and leaves out what it lacks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=240, check=False
    )


def test_what_the_budget_has_no_time_for_is_left_out_and_said(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run("--device", "cpu", "--quick", "--budget", "0", "--json", str(report))
    assert done.returncode == 0, done.stderr
    assert "0 checks failed" in done.stdout
    found = json.loads(report.read_text())
    assert {check["name"] for check in found["checks"]} == {
        "ceilings",
        "kernels",
        "tokens",
        "graphs",
        "orrery-tiny",
        "tests",
    }
    assert all(check["passed"] is None and "s are left" in check["detail"] for check in found["checks"])


def test_kernels_are_checked_without_the_engines_libraries(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['msgspec'] = None; sys.argv[0] = sys.argv.pop(1); sys.path.insert(0, sys.argv.pop(1));"
        "import scripts.gpu_check as script; sys.exit(script.main())"
    )
    report = tmp_path / "report.json"
    arguments = ["--device", "cpu", "--quick", "--json", str(report)]
    done = subprocess.run(
        [sys.executable, "-c", code, str(SCRIPT), str(SCRIPT.parents[1]), *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {check["name"]: check for check in json.loads(report.read_text())["checks"]}
    assert checks["rms_norm float32"]["passed"] is True
    for part in ("tokens", "graphs", "orrery-tiny"):
        assert checks[part] == {"name": part, "passed": None, "detail": "msgspec is not installed"}
