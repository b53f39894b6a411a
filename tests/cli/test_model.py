"""`orrery model list|fetch`, on the models that are here."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.cli import main


def test_list_says_which_models_are_here(capsys: pytest.CaptureFixture[str], tiny_model_path: Path) -> None:
    assert main(["model", "list"]) == 0
    shown = capsys.readouterr().out
    assert "orrery-tiny " in shown
    assert "smollm2-135m " in shown
    assert "here" in shown
    for head in ("orrery-tiny-eagle", "orrery-tiny-medusa", "smollm2-135m-eagle", "smollm2-135m-medusa"):
        assert f"{head} " in shown


def test_a_head_that_is_not_here_is_to_be_trained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ORRERY_CACHE", str(tmp_path))
    assert main(["model", "list"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "smollm2-135m-medusa" in line]
    assert "to train" in line
    assert "3.7 M parameters" in line


def test_fetching_what_is_here_leaves_it(capsys: pytest.CaptureFixture[str], tiny_model_path: Path) -> None:
    before = sorted((path.name, path.stat().st_mtime_ns) for path in tiny_model_path.iterdir())
    assert main(["model", "fetch", "orrery-tiny"]) == 0
    assert str(tiny_model_path) in capsys.readouterr().out
    assert sorted((path.name, path.stat().st_mtime_ns) for path in tiny_model_path.iterdir()) == before


def test_an_unknown_model_is_one_sentence_that_names_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "fetch", "no-such-model"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "orrery-tiny" in said
    assert "smollm2-135m" in said
