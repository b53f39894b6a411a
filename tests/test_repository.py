"""What the repository promises as a whole: how it is packaged, and what its parts do not import."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def in_a_fresh_interpreter(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def third_party_requirements() -> Iterator[Requirement]:
    for line in chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        requirement = Requirement(line)
        if requirement.name != PROJECT["name"]:
            yield requirement


def installed_closure(distribution: str) -> set[str]:
    """The distribution and everything that installing it without extras brings along."""
    closure: set[str] = set()
    pending = [distribution]
    while pending:
        name = canonicalize_name(pending.pop())
        if name in closure:
            continue
        closure.add(name)
        for line in importlib.metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return closure


def test_the_version_is_a_date() -> None:
    assert re.fullmatch(r"20\d\d\.([1-9]|1[0-2])\.\d+", PROJECT["version"])
    assert importlib.metadata.version(PROJECT["name"]) == PROJECT["version"], "run `make` again: .venv is stale"


def test_the_base_install_is_light() -> None:
    heavy = {"torch", "triton", "transformers", "numpy", "streamlit", "pandas"}
    assert not heavy & installed_closure(PROJECT["name"])


def test_every_named_package_is_pinned_within_its_range() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    for requirement in third_party_requirements():
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"constraints.txt does not pin {requirement.name}"
        assert requirement.specifier.contains(pin), f"constraints.txt pins {requirement.name} outside its range"


@pytest.mark.parametrize("package", ["engine", "kernels", "sim", "viz"])
def test_the_common_names_are_this_repository_s(package: str) -> None:
    assert Path(importlib.import_module(package).__file__ or "").parent == ROOT / package


def test_transformers_lives_beside_a_package_named_kernels() -> None:
    # transformers looks for a distribution that provides `kernels`, and reads its version.
    importlib.import_module("transformers.integrations.hub_kernels")
    assert (ROOT / "kernels/__init__.py").read_bytes() == b""


def test_control_plane_and_simulator_load_without_torch() -> None:
    loaded = in_a_fresh_interpreter("import sim, engine.trace, engine.core, sys; print(*sys.modules)").split()
    assert "engine.core" in loaded
    assert not {"torch", "numpy", "transformers", "kernels"} & set(loaded)


def test_the_story_of_a_step_stays_short() -> None:
    lines = (ROOT / "engine/core/scheduler/scheduler.py").read_text().splitlines()
    assert len(lines) < 400, "a feature that does not fit wants a collaborator"


def test_make_help_names_the_targets_people_need() -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for target in ("app", "test", "demo", "lint", "bench", "docs"):
        assert re.search(rf"^\s*make {target} ", listed, re.MULTILINE), f"`make` does not list {target}"
