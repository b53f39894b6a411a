"""Tokenizers of both kinds, as small as they can be, and the real ones that are at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from engine.errors import ModelError
from engine.frontend.tokenizer import Tokenizer
from engine.models.store import resolve_model

CORPUS = [
    "the quick brown fox jumps over the lazy dog, and then the dog jumps over the quick fox",
    "a small engine turns the crank and the planets move; the planets move as the crank turns",
    "été, naïve, señor, Übermut: 你好世界 你好 😀😀 Добрый день",
]
_LETTERS = list("▁abcdefghijklmnopqrstuvwxyz,;:.你好")

SMALL_KINDS = ("byte-level", "sentencepiece", "metaspace")
REAL = [pytest.param("orrery-tiny"), pytest.param("smollm2-135m", marks=pytest.mark.real_model)]
KINDS = [*SMALL_KINDS, *REAL]


def _byte_level() -> tokenizers.Tokenizer:
    """As GPT-2, SmolLM2, Qwen2 and Llama 3 have it; no BOS."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>", "<|turn|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<plain added>", "<é>"])
    return tokenizer


def _byte_fallback() -> tokenizers.Tokenizer:
    """BPE over the letters of English and some of Chinese; every other character is spelled in bytes."""
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=_LETTERS,
        limit_alphabet=len(_LETTERS),
        special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.train_from_iterator(CORPUS, trainer)
    # The trainer marks every one of them special; in Llama's vocabulary the byte tokens are ordinary ones.
    description = json.loads(tokenizer.to_str())
    description["added_tokens"] = [token for token in description["added_tokens"] if token["id"] < 3]
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(description))
    tokenizer.add_tokens(["<plain added>", "<é>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def _sentencepiece() -> tokenizers.Tokenizer:
    """As Llama 2 and Mistral have it: a space is put before the text and taken off again."""
    tokenizer = _byte_fallback()
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _metaspace() -> tokenizers.Tokenizer:
    """The same vocabulary under the Metaspace decoder."""
    tokenizer = _byte_fallback()
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(prepend_scheme="always"), decoders.ByteFallback()])
    return tokenizer


def save(backend: tokenizers.Tokenizer, folder: Path, **config: object) -> Path:
    """A folder as Hugging Face would lay it out."""
    backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Per kind a folder with a small tokenizer of it."""
    makers = {"byte-level": _byte_level, "sentencepiece": _sentencepiece, "metaspace": _metaspace}
    return {kind: save(make(), tmp_path_factory.mktemp(kind)) for kind, make in makers.items()}


class Tokenizers:
    """Tokenizers by kind, or by the name of a model; loaded when first asked for."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self._folders = folders
        self._loaded: dict[str, Tokenizer] = {}

    def folder(self, kind: str) -> Path:
        """Where it is."""
        if kind in self._folders:
            return self._folders[kind]
        try:
            return resolve_model(kind)
        except ModelError as error:
            pytest.skip(str(error))

    def __getitem__(self, kind: str) -> Tokenizer:
        if kind not in self._loaded:
            self._loaded[kind] = Tokenizer.from_folder(self.folder(kind))
        return self._loaded[kind]


@pytest.fixture(scope="session")
def tokenizers_by_kind(folders: dict[str, Path]) -> Tokenizers:
    """Tokenizers of every kind."""
    return Tokenizers(folders)


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind in turn."""
    return str(request.param)


@pytest.fixture(scope="session")
def tokenizer(kind: str, tokenizers_by_kind: Tokenizers) -> Tokenizer:
    """A tokenizer of each kind in turn."""
    return tokenizers_by_kind[kind]


@pytest.fixture(scope="session")
def folder(kind: str, tokenizers_by_kind: Tokenizers) -> Path:
    """The folder of each kind in turn."""
    return tokenizers_by_kind.folder(kind)
