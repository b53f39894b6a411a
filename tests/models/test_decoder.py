"""Both decoders against Hugging Face's models: same logits, whichever way a prompt is cut into steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.attention.backend import AttentionInputs, AttentionSpec
from engine.attention.cpu import CpuBackend
from engine.attention.torch import TorchBackend
from engine.errors import ModelError
from engine.layers.attention import AttentionMetadata
from engine.models.architecture import read_architecture
from engine.models.causal_lm import CausalLM
from engine.models.decoder import Decoder
from engine.models.loading import load_weights
from engine.models.packed_decoder import PackedDecoder
from engine.worker.kv_cache import CacheShape, bind_kv_cache
from engine.worker.layer_groups import group_layers
from kernels.cpu import library
from tests.models.random_models import VARIANTS, save_random_model

BLOCK_SIZE = 4
#: Blocks that the tests deal out; each KV cache group has as many of its own.
NUM_BLOCKS = 64


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    architecture = read_architecture(folder)
    decoder = Decoder(architecture, architecture.max_position_embeddings, dtype)
    load_weights(decoder, folder)
    bind_kv_cache(decoder, CacheShape.of(decoder, BLOCK_SIZE), 3 * NUM_BLOCKS, backend_of(decoder))
    return decoder


def load_packed(folder: Path, dtype: torch.dtype = torch.float32) -> PackedDecoder:
    if library.why_unavailable() is not None:
        pytest.skip(str(library.why_unavailable()))
    decoder = PackedDecoder(load(folder, dtype))
    bind_kv_cache(decoder, CacheShape.of(decoder, BLOCK_SIZE), 3 * NUM_BLOCKS, backend_of(decoder))
    return decoder


def backend_of(decoder: CausalLM) -> TorchBackend | CpuBackend:
    shape = decoder.architecture
    heads = (shape.num_heads, shape.num_kv_heads, shape.head_size)
    spec = AttentionSpec(*heads, BLOCK_SIZE, decoder.dtype, torch.device("cpu"))
    return CpuBackend(spec) if isinstance(decoder, PackedDecoder) else TorchBackend(spec)


LOADERS = [load, load_packed]


@torch.inference_mode()
def run_step(decoder: CausalLM, tokens: Tensor, computed: list[int], scheduled: list[int], tables: Tensor) -> Tensor:
    """One step over some of the tokens of several requests: their logits, [num_tokens, vocab_size]."""
    spans = [range(begin, begin + length) for begin, length in zip(computed, scheduled, strict=True)]
    positions = torch.tensor([position for span in spans for position in span])
    rows = torch.tensor([row for row, span in enumerate(spans) for _ in span])
    query_start_loc = torch.tensor([0, *scheduled]).cumsum(0)
    seq_lens = torch.tensor([span.stop for span in spans])
    groups = group_layers(decoder.architecture.sliding_windows)
    slots = tables[rows, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    plans = []
    for number, group in enumerate(groups):
        first = number * NUM_BLOCKS
        inputs = AttentionInputs(tables + first, query_start_loc, seq_lens, slots + first * BLOCK_SIZE)
        plans.append(backend_of(decoder).plan(inputs, inputs, group.sliding_window))
    hidden = decoder(tokens[rows, positions], positions, AttentionMetadata(tuple(plans)))
    return decoder.compute_logits(hidden)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_match_in_chunks_and_in_a_batch(
    variant: str, loader: Callable[[Path], CausalLM], tmp_path: Path
) -> None:
    reference = save_random_model(tmp_path, variant)
    decoder = loader(tmp_path)
    tokens = torch.randint(3, 131, (2, 40))
    with torch.inference_mode():
        expected = reference(tokens).logits
    tables = torch.randperm(63)[:20].view(2, 10) + 1

    # Prompts in chunks of unlike length, one row's beside the other's; then decodes; then a chunk beside a decode.
    steps = [([0, 0], [11, 5]), ([11, 5], [14, 20]), ([25, 25], [1, 1]), ([26, 26], [1, 9]), ([27, 35], [13, 5])]
    worst = 0.0
    for computed, scheduled in steps:
        logits = run_step(decoder, tokens, computed, scheduled, tables)
        wanted = torch.cat([expected[row, b : b + n] for row, (b, n) in enumerate(zip(computed, scheduled))])  # noqa: B905
        worst = max(worst, float((logits - wanted).abs().max()))
    assert worst < 1e-4
    assert float(expected.std()) > 0.5, "logits this flat would match by accident"


@pytest.mark.parametrize(("loader", "tolerance"), [(load, 1e-5), (load_packed, 0.0)])
def test_a_request_gets_the_same_logits_alone(
    loader: Callable[[Path], CausalLM], tolerance: float, tmp_path: Path
) -> None:
    save_random_model(tmp_path, "llama")
    decoder = loader(tmp_path)
    tokens, tables = torch.randint(3, 131, (3, 30)), torch.arange(1, 25).view(3, 8)
    together = run_step(decoder, tokens, [0, 0, 0], [30, 7, 19], tables)
    alone = run_step(decoder, tokens[1:2], [0], [7], tables[1:2] + 30)
    torch.testing.assert_close(together[30:37], alone, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("loader", LOADERS)
def test_bfloat16_stays_close(loader: Callable[[Path, torch.dtype], CausalLM], tmp_path: Path) -> None:
    reference = save_random_model(tmp_path, "qwen3").bfloat16()
    decoder = loader(tmp_path, torch.bfloat16)
    tokens = torch.randint(3, 131, (1, 30))
    logits = run_step(decoder, tokens, [0], [30], torch.arange(1, 9)[None])
    with torch.inference_mode():
        expected = reference(tokens).logits[0].float()
    assert (logits - expected).abs().mean() < 0.05 * expected.std()


def test_float32_weights_that_were_bfloat16_are_stored_as_bfloat16(tmp_path: Path) -> None:
    model = save_random_model(tmp_path, "llama")
    exact, tokens, tables = load_packed(tmp_path), torch.randint(3, 131, (1, 30)), torch.arange(1, 9)[None]
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    model.save_pretrained(tmp_path)
    narrow = load_packed(tmp_path)
    assert narrow.dtype is torch.float32
    assert 2 * narrow.weight_bytes() == exact.weight_bytes()
    torch.testing.assert_close(
        run_step(narrow, tokens, [0], [30], tables),
        run_step(load(tmp_path), tokens, [0], [30], tables),
        atol=1e-4,
        rtol=0,
    )


def test_int4_keeps_a_head_whole_that_does_not_divide_into_groups(tmp_path: Path) -> None:
    save_random_model(tmp_path, "llama", hidden_size=96, intermediate_size=96, head_dim=16)
    if library.why_unavailable() is not None:
        pytest.skip(str(library.why_unavailable()))
    packed, plain = PackedDecoder(load(tmp_path), "int4"), load_packed(tmp_path)
    ids = torch.arange(20)
    assert torch.equal(packed.embed(ids), plain.embed(ids))
    assert packed.weight_bytes() < plain.weight_bytes()


def test_a_sharded_checkpoint_of_another_dtype(tmp_path: Path) -> None:
    whole, sharded = tmp_path / "whole", tmp_path / "sharded"
    model = save_random_model(whole, "qwen2").bfloat16()
    model.save_pretrained(sharded, max_shard_size="50KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    loaded = load(sharded).checkpoint_tensors()
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded[name], tensor.float()), name


def _rewrite(folder: Path, change: str) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    if change == "missing":
        del tensors["model.layers.1.mlp.up_proj.weight"]
    elif change == "unexpected":
        tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(16)
    else:
        tensors["model.norm.weight"] = torch.ones(63)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", r"lacks model\.layers\.1\.mlp\.up_proj\.weight"),
        ("unexpected", r"holds model\.layers\.0\.self_attn\.q_norm\.weight, which LlamaForCausalLM does not have"),
        ("misshapen", r"model\.norm\.weight must be \[64\] according to config\.json, got \[63\]"),
    ],
)
def test_a_checkpoint_that_is_not_the_models_is_refused(change: str, message: str, tmp_path: Path) -> None:
    save_random_model(tmp_path, "llama")
    _rewrite(tmp_path, change)
    with pytest.raises(ModelError, match=message):
        load(tmp_path)


def test_damaged_and_absent_weights_are_refused(tmp_path: Path) -> None:
    save_random_model(tmp_path, "llama")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        load(tmp_path)
    weights.unlink()
    with pytest.raises(ModelError, match="holds no weights"):
        load(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"model.norm.weight": "one.safetensors"}}')
    with pytest.raises(ModelError, match=r"lacks one\.safetensors, which its index names"):
        load(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match="no readable weight_map"):
        load(tmp_path)


def _edit(folder: Path, changes: dict[str, object], name: str = "config.json") -> None:
    path = folder / name
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel; supported are LlamaForCausalLM, MistralFor"),
        ({"architectures": None}, "names no architecture; supported are"),
        ({"hidden_act": "gelu"}, "only silu is"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised by gptq"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "'yarn' is not supported; supported are default"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor must be"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial rotary"),
        ({"hidden_size": "wide"}, "hidden_size must be an integer"),
    ],
)
def test_a_model_of_another_shape_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    save_random_model(tmp_path, "llama")
    _edit(tmp_path, changes)
    with pytest.raises(ModelError, match=message):
        read_architecture(tmp_path)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"it holds no config\.json"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        read_architecture(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ModelError, match="lacks 'hidden_size'"):
        read_architecture(tmp_path)


def test_eos_tokens_come_from_the_generation_config_first(tmp_path: Path) -> None:
    save_random_model(tmp_path, "llama")
    (tmp_path / "generation_config.json").unlink(missing_ok=True)
    assert read_architecture(tmp_path).eos_token_ids == (2,)
    _edit(tmp_path, {"eos_token_id": [5, 7]}, "generation_config.json")
    assert read_architecture(tmp_path).eos_token_ids == (5, 7)
    _edit(tmp_path, {"eos_token_id": None}, "generation_config.json")
    _edit(tmp_path, {"eos_token_id": None})
    assert read_architecture(tmp_path).eos_token_ids == ()


def test_configs_of_transformers_4_mean_the_same(tmp_path: Path) -> None:
    save_random_model(tmp_path, "llama 3 rope")
    modern = read_architecture(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"], config["rope_scaling"] = rope.pop("rope_theta"), rope
    config["torch_dtype"] = config.pop("dtype")
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_architecture(tmp_path) == modern
