"""A model folder that holds what no model folder holds is refused in one sentence, before anything large is made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelError
from engine.frontend.chat_template import load_chat_template
from engine.frontend.tokenizer import Tokenizer
from engine.models.architecture import read_architecture
from engine.models.decoder import Decoder
from engine.models.loading import load_weights
from engine.models.store import weight_files


@pytest.fixture
def folder(tiny_model_path: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model_path, tmp_path / "copy")


def change(file: Path, **values: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**content, **values}))


def load(folder: Path) -> None:
    load_weights(Decoder(read_architecture(folder), 16, torch.float32), folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("architectures", 5),
        ("architectures", "LlamaForCausalLM"),
        ("architectures", [5]),
        ("quantization_config", "int4"),
        ("rope_parameters", "default"),
        ("rope_parameters", {"rope_type": 5}),
        ("rope_parameters", {"rope_type": "linear"}),
        ("rope_parameters", {"rope_type": "linear", "factor": 0}),
        ("rope_theta", "many"),
        ("hidden_size", float("inf")),
        ("hidden_size", None),
        ("hidden_size", 10**12),
        ("num_attention_heads", -4),
        ("num_attention_heads", 5),
        ("num_key_value_heads", -2),
        ("num_key_value_heads", 5),
        ("head_dim", 3),
        ("vocab_size", -1),
        ("vocab_size", True),
        ("num_hidden_layers", 4.7),
        ("num_hidden_layers", 10_000_000),
        ("tie_word_embeddings", "false"),
        ("rms_norm_eps", float("nan")),
        ("dtype", 5),
        ("hidden_act", ["silu"]),
    ],
)
def test_a_value_that_no_config_has(folder: Path, name: str, value: Any) -> None:
    if name == "rope_theta":
        change(folder / "config.json", rope_parameters=None)
    change(folder / "config.json", **{name: value})
    with pytest.raises(ModelError, match=r"\.$") as refusal:
        read_architecture(folder)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("eos", [2048, -1, True, "2", [2, 2048], 10**400])
def test_an_end_of_sequence_outside_the_vocabulary(folder: Path, file: str, eos: Any) -> None:
    change(folder / "generation_config.json", eos_token_id=None)
    change(folder / file, eos_token_id=eos)
    with pytest.raises(ModelError, match=r"^eos_token_id must be token ids in \[0, 2047\], got "):
        read_architecture(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.complex64])
def test_weights_of_a_dtype_that_is_none_of_weights(folder: Path, dtype: torch.dtype) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"].to(dtype)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"^model.norm.weight must be of dtype "):
        load(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_weights_that_are_no_numbers(folder: Path, value: float) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], value, dtype=torch.float64)
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"^model.norm.weight must be finite"):
        load(folder)


@pytest.mark.parametrize("weight_map", [5, {"model.norm.weight": 5}, ["model.safetensors"], None])
def test_an_index_that_names_no_files(folder: Path, weight_map: Any) -> None:
    change(folder / "model.safetensors.index.json", weight_map=weight_map)
    with pytest.raises(ModelError, match="has no readable weight_map"):
        load(folder)
    with pytest.raises(ModelError, match="is not a safetensors index"):
        weight_files(folder)


@pytest.mark.parametrize(
    ("name", "value"),
    [("bos_token", 5), ("eos_token", {"text": "</s>"}), ("pad_token", ["a"]), ("additional_special_tokens", "abc")],
)
def test_special_tokens_that_are_no_text(folder: Path, name: str, value: Any) -> None:
    change(folder / "tokenizer_config.json", **{name: value})
    with pytest.raises(ModelError, match=f"^{name} must be "):
        Tokenizer.from_folder(folder)


def test_a_chat_template_that_is_no_text(folder: Path) -> None:
    for template in (5, [{"name": "default"}], [5]):
        change(folder / "tokenizer_config.json", chat_template=template)
        with pytest.raises(ModelError, match="chat_template must be "):
            load_chat_template(folder)
