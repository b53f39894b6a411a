"""The `orrery` command: its table, its help, and what it says when it is asked for something that is not there."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

from engine.cli import COMMANDS, main


def orrery(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "engine.cli", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_lists_every_command(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert name in shown
        assert command.summary in shown


def test_help_imports_no_command() -> None:
    code = "import sys; from engine.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr.split()
    assert "engine.cli" in loaded
    assert not {"torch", "typer", "msgspec", "streamlit", "sim", "viz", "engine.core"} & set(loaded)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, function = COMMANDS[name].target.split(":")
    assert inspect.isfunction(getattr(importlib.import_module(module), function))
    assert main([*name.split(), "--help"]) == 0
    assert f"Usage: orrery {name}" in capsys.readouterr().out


def test_a_group_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model"]) == 0
    shown = capsys.readouterr().out
    assert "list" in shown
    assert "fetch" in shown
    assert "generate" not in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("orrery 20")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["genrate"], "did you mean `orrery generate`?"),
        (["model", "fetsh"], "did you mean `orrery model fetch`?"),
        (["--verbose"], "`--verbose` is not an option"),
        (["generate"], "Missing option '--prompt'"),
        (["generate", "--prompt", "x", "--max-tokens", "many"], "--max-tokens"),
        (["generate", "--prompt", "x", "--blocksize", "8"], "--block-size"),
    ],
)
def test_a_wrong_question_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_the_process_has_the_exit_code_of_main() -> None:
    ran = orrery("nonsense")
    assert ran.returncode == 2
    assert ran.stderr.startswith("orrery: `nonsense` is not a command")


def test_debug_adds_the_traceback_wherever_it_stands() -> None:
    wrong = ["generate", "--prompt", "x", "--temperature", "-1"]
    for arguments in (["--debug", *wrong], [*wrong, "--debug"]):
        ran = orrery(*arguments)
        assert ran.returncode == 2
        assert "Traceback" in ran.stderr
    assert "Traceback" not in orrery(*wrong).stderr
