"""Every way a command can end badly becomes one sentence and the right exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cli.errors import explain
from engine.errors import ConfigError, ModelError, RequestError, TraceError


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (ConfigError("block_size must be an integer >= 1, got 0."), 2),
        (RequestError("The prompt is empty."), 2),
        (ModelError("no such model."), 1),
        (TraceError("not a trace."), 1),
    ],
)
def test_errors_of_the_engine_are_said_as_they_are(error: Exception, exit_code: int) -> None:
    assert explain(error) == (str(error), exit_code)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(OSError) as caught:
        Path("no/such/trace.jsonl").read_text()
    assert explain(caught.value) == ("no/such/trace.jsonl: no such file or directory.", 1)


def test_a_missing_package_names_the_extra_that_brings_it() -> None:
    error = ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    message, exit_code = explain(error, extra="engine")
    assert exit_code == 1
    assert message == "the package torch is not installed; pip install 'llm-orrery[engine]' brings it."


def test_a_missing_module_of_ours_is_a_defect() -> None:
    message, exit_code = explain(ModuleNotFoundError("No module named 'sim.gone'", name="sim.gone"))
    assert exit_code == 1
    assert "--debug" in message
    assert "pip install" not in message


def test_an_interrupt_is_not_an_error() -> None:
    assert explain(KeyboardInterrupt()) == ("interrupted.", 130)


def test_the_unexpected_is_one_line() -> None:
    message, exit_code = explain(ZeroDivisionError("division\nby zero"))
    assert exit_code == 1
    assert message == "ZeroDivisionError: division by zero; --debug shows where."
