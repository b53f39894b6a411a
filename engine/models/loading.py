"""Checkpoints: safetensors files in Hugging Face's layout, copied straight into a decoder's fused parameters."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ModelError
from engine.models.decoder import Decoder

#: What checkpoints carry beside weights, or carry twice.
_IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)
_WEIGHT_DTYPES = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))
#: Standard deviation of made-up weights, which is what models are initialised with.
_NOISE = 0.02
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_TIED_HEAD = "lm_head.weight"


class _Index(msgspec.Struct):
    """Which file holds which tensor."""

    weight_map: dict[str, str]


@torch.inference_mode()
def load_weights(decoder: Decoder, folder: Path, *, first_layers: bool = False) -> None:
    """Fill every parameter of a decoder, converting to its dtype on the way.

    Args:
        decoder: what is filled.
        folder: of the checkpoint.
        first_layers: the checkpoint has more layers than the decoder, which is its beginning.

    Raises:
        ModelError: no safetensors file, a damaged one, or one whose tensors are not exactly the decoder's.
    """
    num_layers = decoder.architecture.num_layers

    def is_left_out(name: str) -> bool:
        return _is_redundant(name, decoder) or (first_layers and _layer_of(name) >= num_layers)

    load_tensors(decoder.checkpoint_tensors(), folder, decoder.architecture.name, is_left_out)


@torch.inference_mode()
def load_tensors(
    wanted: dict[str, torch.Tensor], folder: Path, owner: str, is_left_out: Callable[[str], bool] = lambda name: False
) -> None:
    """Fill tensors from the checkpoint of a folder, weights converted to their dtype on the way.

    Args:
        wanted: what is filled, by its name in the checkpoint.
        folder: of the checkpoint.
        owner: whose tensors they are, for errors.
        is_left_out: whether a tensor of the checkpoint, by its name, is passed over.

    Raises:
        ModelError: no safetensors file, a damaged one, or one whose tensors are not exactly those wanted.
    """
    loaded: set[str] = set()
    for path in _checkpoint_files(folder):
        try:
            with safe_open(path, framework="pt") as checkpoint:
                for name in checkpoint.keys():  # noqa: SIM118 - the file is no mapping, only keys() lists it
                    if is_left_out(name):
                        continue
                    if name not in wanted:
                        raise ModelError(f"{path.name} holds {name}, which {owner} does not have.")
                    _copy(checkpoint.get_tensor(name), wanted[name], name)
                    loaded.add(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is not a readable safetensors file: {error}.") from error
    missing = sorted(wanted.keys() - loaded)
    if missing:
        raise ModelError(f"{folder} lacks {missing[0]}" + (f" and {len(missing) - 1} more." if missing[1:] else "."))


@torch.inference_mode()
def fill_with_noise(decoder: Decoder) -> None:
    """Random weights where they are to stay, the same in every run: for a model whose speed alone matters."""
    generator = torch.Generator(decoder.device).manual_seed(0)
    for name, tensor in decoder.checkpoint_tensors().items():
        if name.endswith("norm.weight"):
            tensor.fill_(1.0)
        elif name.endswith(".bias"):
            tensor.zero_()
        else:
            tensor.normal_(std=_NOISE, generator=generator)


def _checkpoint_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            shards = sorted(set(msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values()))
        except (OSError, ValueError) as error:
            raise ModelError(f"{index} is damaged: it has no readable weight_map.") from error
        absent = [shard for shard in shards if not (folder / shard).exists()]
        if absent:
            raise ModelError(f"{folder} lacks {absent[0]}, which its index names.")
        return [folder / shard for shard in shards]
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    raise ModelError(f"{folder} holds no weights: neither model.safetensors nor model.safetensors.index.json.")


def _is_redundant(name: str, decoder: Decoder) -> bool:
    return name.endswith(_IGNORED_SUFFIXES) or (name == _TIED_HEAD and decoder.architecture.tie_word_embeddings)


def _layer_of(name: str) -> int:
    """The layer that a tensor of a checkpoint belongs to; -1 for one outside all layers."""
    named = _LAYER.match(name)
    return int(named[1]) if named else -1


def _copy(source: torch.Tensor, target: torch.Tensor, name: str) -> None:
    if source.shape != target.shape:
        raise ModelError(f"{name} must be {list(target.shape)} according to config.json, got {list(source.shape)}.")
    allowed = _WEIGHT_DTYPES if target.is_floating_point() else {target.dtype}
    if source.dtype not in allowed:
        kinds = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in allowed))
        raise ModelError(f"{name} must be of dtype {kinds}, got {str(source.dtype).removeprefix('torch.')}.")
    target.copy_(source)
    # After the conversion, in which a large number may overflow.
    if not bool(target.isfinite().all()):
        raise ModelError(
            f"{name} must be finite in {str(target.dtype).removeprefix('torch.')}, but holds NaN or infinity."
        )
