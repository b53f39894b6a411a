"""`orrery generate --guided-…`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.cli import main

BASE = ["generate", "--prompt", "The answer is", "--max-tokens", "30", "--seed", "1"]


def test_choice_and_regex(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, "--guided-choice", "42", "--guided-choice", "43"]) == 0
    assert capsys.readouterr().out.split("\n")[1] in ("The answer is42", "The answer is43")
    assert main([*BASE, "--guided-regex", "[x]{3}"]) == 0
    assert capsys.readouterr().out.split("\n")[1] == "The answer isxxx"


def test_schema_and_grammar_may_come_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.ebnf"
    schema.write_text(json.dumps({"const": "grün"}), encoding="utf-8")
    grammar.write_text('root ::= "a" "b"', encoding="utf-8")
    assert main([*BASE, "--guided-json", f"@{schema}"]) == 0
    assert capsys.readouterr().out.split("\n")[1] == 'The answer is"grün"'
    assert main([*BASE, "--guided-grammar", f"@{grammar}"]) == 0
    assert capsys.readouterr().out.split("\n")[1] == "The answer isab"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--guided-regex", "a", "--guided-choice", "b"], "exactly one of"),
        (["--guided-json", "{"], "json must be JSON"),
        (["--guided-json", "@/no/such/file"], "/no/such/file cannot be read as text"),
    ],
)
def test_mistakes_are_told_in_a_sentence(options: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, *options]) != 0
    assert why in capsys.readouterr().err


def test_what_is_no_grammar_is_refused_before_the_model_is_looked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BASE, "--guided-regex", "(ab", "--model", "no-such-model"]) == 2
    said = capsys.readouterr().err
    assert "The output cannot be guided: Regex parsing error at position 4: The parenthesis is not closed" in said
    assert "no-such-model" not in said.splitlines()[-1]
