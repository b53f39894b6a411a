"""Time from bytes and arithmetic: the sizes of known models, and steps worked out by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.errors import ConfigError, ModelError
from engine.models.model_shape import ModelShape
from engine.trace.examples import HEADER
from sim.cost_model.capacity import num_blocks_that_fit
from sim.cost_model.composition import RowShare, StepComposition
from sim.cost_model.devices import DEVICES, RooflineDevice
from sim.cost_model.model_files import KNOWN_MODELS, find_architecture
from sim.cost_model.roofline import RooflineModel

LLAMA = ModelShape.of(find_architecture("llama-3.1-8b"))
#: A byte and a FLOP take a nanosecond each, and nothing else takes any time.
UNIT = RooflineDevice(
    name="unit",
    memory_bytes=1,
    bytes_per_second=1e9,
    flops_per_second=1e9,
    memory_efficiency=1.0,
    compute_efficiency=1.0,
    step_overhead_ns=0,
    launch_ns=0,
)


def test_a_trace_tells_the_shape_of_its_model() -> None:
    assert ModelShape.of_facts(HEADER.model) == ModelShape(4, 192, 512, 6, 2, 32, 2048)
    untold = msgspec.structs.replace(HEADER.model, intermediate_size=0)
    with pytest.raises(ModelError, match="does not tell the intermediate size of orrery-tiny"):
        ModelShape.of_facts(untold)


def decodes(number: int, context: int) -> StepComposition:
    return StepComposition.of([RowShare(context - 1, 1, 1)] * number)


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.2-1b", 1_235_814_400),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-0.6b", 596_049_920),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_parameters_are_those_that_the_makers_state(model: str, parameters: int) -> None:
    # Qwen3 has a norm per head of queries and keys besides, which is not counted: 2 × 128 a layer.
    stated = ModelShape.of(find_architecture(model)).num_parameters
    assert parameters - stated in (0, 2 * 128 * find_architecture(model).num_layers)


def test_the_kv_of_a_token_of_llama_3_1_8b_is_128_kib() -> None:
    assert 2 * LLAMA.kv_values_per_token == 128 * 1024


def test_composition_counts_each_kind_of_row() -> None:
    step = StepComposition.of([RowShare(100, 1, 1), RowShare(0, 50, 0), RowShare(50, 10, 1), RowShare(7, 4, 4)])
    assert (step.num_rows, step.num_tokens, step.num_logits) == (4, 65, 6)
    assert (step.num_prefill_tokens, step.num_decode_tokens) == (60, 5)
    assert step.num_kv_tokens == 101 + 50 + 60 + 11
    assert step.prefill_pairs == sum(range(1, 51)) + sum(range(51, 61))
    assert step.decode_pairs == 101 + 8 + 9 + 10 + 11
    assert [decodes(2, 5).phase, step.phase, StepComposition.of([RowShare(0, 5, 1)]).phase] == [
        "decode",
        "mixed",
        "prefill",
    ]


def test_a_decode_takes_as_long_as_its_bytes() -> None:
    parts = RooflineModel(LLAMA, UNIT).step_time(decodes(1, 1000)).parts
    assert parts["layers"] == 2 * LLAMA.layer_weights
    assert parts["output head"] == 2 * LLAMA.head_weights
    assert parts["attention"] == max(1000 * 128 * 1024, 4 * 32 * 32 * 128 * 1000)
    assert parts["overhead"] == 0


def test_a_prompt_takes_as_long_as_its_arithmetic() -> None:
    parts = RooflineModel(LLAMA, UNIT).step_time(StepComposition.of([RowShare(0, 512, 1)])).parts
    assert parts["layers"] == 2 * LLAMA.layer_weights * 512
    assert parts["attention"] == 4 * 32 * 32 * 128 * (512 * 513 // 2)


def test_a_mixed_step_reads_the_weights_once() -> None:
    model = RooflineModel(LLAMA, DEVICES["h100"])
    prompt, both = [RowShare(0, 512, 1)], [RowShare(0, 512, 1), *[RowShare(1000, 1, 1)] * 8]
    apart = model.step_ns(StepComposition.of(prompt)) + model.step_ns(decodes(8, 1001))
    assert model.step_ns(StepComposition.of(both)) < 0.8 * apart


def test_an_8b_model_on_an_h100_decodes_at_the_speed_of_its_weights() -> None:
    milliseconds = RooflineModel(LLAMA, DEVICES["h100"], captured_sizes=(1, 2, 4)).step_ns(decodes(1, 100)) / 1e6
    assert 16.06e9 / 3.35e12 * 1e3 < milliseconds < 1.5 * 16.06e9 / 3.35e12 * 1e3


def test_padding_runs_through_the_layers_and_a_large_step_is_not_captured() -> None:
    device = RooflineDevice(name="x", memory_bytes=1, bytes_per_second=1e20, flops_per_second=1e12, launch_ns=1000)
    model = RooflineModel(LLAMA, device, captured_sizes=(1, 8))
    three, eight, nine = (model.step_time(decodes(number, 10)).parts for number in (3, 8, 9))
    assert three["layers"] == eight["layers"]
    assert nine["overhead"] - eight["overhead"] == 1000 * device.kernels_per_layer * 32


def test_where_decoding_turns_from_memory_to_arithmetic() -> None:
    model = RooflineModel(LLAMA, UNIT)
    assert model.saturation_tokens == 1.0  # two bytes and two FLOPs per weight
    h100 = RooflineModel(LLAMA, DEVICES["h100"]).saturation_tokens
    assert h100 == pytest.approx(989.4e12 * 0.65 / (3.35e12 * 0.8))


def test_blocks_that_fit() -> None:
    limits: dict[str, Any] = {
        "block_size": 16,
        "gpu_memory_utilization": 0.9,
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 256,
    }
    blocks = num_blocks_that_fit(LLAMA, DEVICES["h100"], dtype_bytes=2, **limits)
    # 72 GiB less 15 GiB of weights, 1 GiB of context and some activations; 2 MiB a block.
    assert 26_500 < blocks < 28_672
    assert num_blocks_that_fit(LLAMA, DEVICES["h200"], dtype_bytes=2, **limits) > 1.8 * blocks
    with pytest.raises(ConfigError, match="The model does not fit on l4"):
        num_blocks_that_fit(LLAMA._replace(num_layers=80), DEVICES["l4"], dtype_bytes=2, **limits)


@pytest.mark.parametrize("model", KNOWN_MODELS)
def test_every_known_model_is_of_a_supported_shape(model: str) -> None:
    assert ModelShape.of(find_architecture(model)).num_parameters > 0


def test_every_device_says_where_its_figures_come_from() -> None:
    assert {"a100", "h100", "h200", "l4", "rtx4090", "cpu"} <= set(DEVICES)
    assert all(device.source for device in DEVICES.values())
