"""The tokenizer encodes as Hugging Face's does, and spells every token in its exact bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from engine.errors import ModelError, RequestError
from engine.frontend.tokenizer import Tokenizer

from .conftest import KINDS, Tokenizers, save

TEXTS = ["hello the fox", " hello", "", "你好😀 x\n\n\ty", "<s>the</s>", " <plain added>  <|end|>fox", "Übermut ﬁ é"]


def _hugging_face(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder))


@pytest.mark.parametrize("text", TEXTS)
def test_encodes_as_hugging_face(tokenizer: Tokenizer, folder: Path, text: str) -> None:
    theirs = _hugging_face(folder)
    assert tokenizer.encode(text) == theirs.encode(text)
    assert tokenizer.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert tokenizer.vocab_size == len(theirs)


@pytest.mark.parametrize(
    "config",
    [
        {"bos_token": "<s>", "eos_token": "</s>"},
        {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True},
        {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False},
        {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True},
        {"bos_token": None, "eos_token": "</s>", "add_bos_token": True},
        {"bos_token": {"__type": "AddedToken", "content": "<s>"}, "eos_token": "</s>", "add_bos_token": True},
        {"eos_token": "the", "pad_token": "<|a new one|>"},
    ],
)
def test_follows_the_configuration_beside_it_as_hugging_face_does(
    folders: dict[str, Path], tmp_path: Path, config: dict[str, Any]
) -> None:
    save(Backend.from_file(str(folders["sentencepiece"] / "tokenizer.json")), tmp_path, **config)
    ours, theirs = Tokenizer.from_folder(tmp_path), _hugging_face(tmp_path)
    for text in [*TEXTS, "<|a new one|> the"]:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert {i for i in range(ours.vocab_size) if ours.is_special(i)} == set(theirs.all_special_ids) | {
        i for i, token in theirs.added_tokens_decoder.items() if token.special
    }


@settings(deadline=None)
@given(text=st.text())
@pytest.mark.parametrize("which", KINDS)
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(
    tokenizers_by_kind: Tokenizers, which: str, text: str
) -> None:
    tokenizer = tokenizers_by_kind[which]
    ids = tokenizer.encode(text, add_special_tokens=False)
    first, rest = ids[:1], ids[1:]
    spelled = b"".join([*map(tokenizer.first_token_bytes, first), *map(tokenizer.token_bytes, rest)])
    expected = tokenizer.decode(ids, skip_special_tokens=False)
    assert spelled.decode("utf-8", errors="replace") == expected


def test_a_lone_token_is_spelled_as_the_library_decodes_it(tokenizer: Tokenizer) -> None:
    anchor = tokenizer.encode("the", add_special_tokens=False)[-1:]
    before = tokenizer.decode(anchor)
    for token_id in range(tokenizer.vocab_size):
        with_anchor = tokenizer.decode([*anchor, token_id], skip_special_tokens=False)
        assert tokenizer.token_bytes(token_id).decode(errors="replace") == with_anchor.removeprefix(before)
        alone = tokenizer.decode([token_id], skip_special_tokens=False)
        assert tokenizer.first_token_bytes(token_id).decode(errors="replace") == alone


def test_an_id_without_a_token_stands_for_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_bytes(tokenizer.vocab_size + 7) == b""


def test_the_name_and_digest_tell_tokenizers_apart(folders: dict[str, Path]) -> None:
    one, same, other = (Tokenizer.from_folder(folders[k]) for k in ("byte-level", "byte-level", "metaspace"))
    assert one.digest == same.digest != other.digest
    assert Tokenizer.from_folder(folders["byte-level"], "mine").name == "mine"


def test_padding_and_truncation_of_the_file_are_off(folders: dict[str, Path], tmp_path: Path) -> None:
    backend = Backend.from_file(str(folders["byte-level"] / "tokenizer.json"))
    whole = backend.encode(TEXTS[0]).ids
    backend.enable_truncation(2)
    backend.enable_padding(length=64)
    assert Tokenizer.from_folder(save(backend, tmp_path)).encode(TEXTS[0]) == whole


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no tokenizer"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="is not a tokenizer"):
        Tokenizer.from_folder(tmp_path)


def test_an_unknown_decoder_is_refused_by_name(tmp_path: Path) -> None:
    backend = Backend(models.BPE())
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece"):
        Tokenizer.from_folder(save(backend, tmp_path))


def test_an_older_format_is_converted(folders: dict[str, Path], tmp_path: Path) -> None:
    model = json.loads((folders["byte-level"] / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(merge) for merge in model["merges"]))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    ours, theirs = Tokenizer.from_folder(tmp_path), _hugging_face(tmp_path)
    assert ours.encode("the quick 你好") == theirs.encode("the quick 你好")


def test_a_lone_surrogate_is_the_users_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        tokenizer.encode("a\ud800b")


def test_the_frontend_loads_neither_torch_nor_transformers() -> None:
    modules = "tokenizer detokenizer processor output_processor stop_strings"
    program = (
        f"import sys, importlib\nfor name in '{modules}'.split(): importlib.import_module('engine.frontend.' + name)\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
