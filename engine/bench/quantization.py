"""What quantization costs in quality: how far a quantized model's predictions are from those of the full weights.

The text is the model's own, sampled at temperature 1 from its full weights, so that its perplexity under them is as low
as text of that kind gets and nothing depends on a data set. Every position of it is predicted by both:

- *divergence*: the mean of KL(full ‖ quantized) over positions, in nats per token; 0 is no loss at all
- *agreement*: share of positions at which both think the same token the likeliest
- *perplexity* of the text, as a ratio to that of the full weights

    python -m engine.bench.quantization --model smollm2-135m
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from engine.attention.backend import AttentionInputs, AttentionSpec
from engine.attention.registry import make_backend
from engine.layers.attention import AttentionMetadata
from engine.llm import LLM
from engine.models.architecture import read_architecture
from engine.models.decoder import Decoder
from engine.models.loading import load_weights
from engine.models.packed_decoder import PackedDecoder
from engine.models.store import resolve_model
from engine.sampling_params import SamplingParams
from engine.worker.kv_cache import CacheShape, bind_kv_cache
from kernels.cpu.packing import Quantization

OPENINGS = (
    "The",
    "In 1905",
    "Once upon a time",
    "def main():",
    "Dear reader,",
    "Question:",
    "To bake bread,",
    "Planets",
)
BLOCK_SIZE = 16


class Loss(NamedTuple):
    """What one quantization loses, over all positions."""

    quantization: str
    weight_bytes: int
    divergence: float
    agreement: float
    perplexity_ratio: float


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description="Quality that quantization costs.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=256, help="of each text")
    parser.add_argument("--texts", type=int, default=16)
    options = parser.parse_args()
    texts = sampled_texts(options.model, options.texts, options.tokens)
    print("| weights | MB | divergence | agreement | perplexity |\n| --- | --: | --: | --: | --: |")
    for loss in measure(resolve_model(options.model), texts):
        print(
            f"| {loss.quantization} | {loss.weight_bytes / 1e6:.0f} | {loss.divergence:.4f} "
            f"| {loss.agreement:.1%} | × {loss.perplexity_ratio:.4f} |"
        )


def sampled_texts(model: str, count: int, length: int) -> list[list[int]]:
    """Texts of the model itself, each of `length` tokens and its opening."""
    llm = LLM(model=model, dtype="float32", max_model_len=length + 32)
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=length, ignore_eos=True) for seed in range(count)]
    openings = [OPENINGS[number % len(OPENINGS)] for number in range(count)]
    outputs = llm.generate(openings, params)
    return [[*(output.prompt_token_ids or []), *output.outputs[0].token_ids] for output in outputs]


def measure(folder: Path, texts: list[list[int]]) -> Iterator[Loss]:
    """Compare bfloat16, int8 and int4 with float32."""
    longest = max(map(len, texts))
    full = [log_probs.half() for log_probs in predictions(load(folder, torch.float32, None, longest), texts)]
    stored: list[tuple[str, torch.dtype, Quantization | None]] = [("bfloat16", torch.bfloat16, None)]
    stored += [(name, torch.float32, name) for name in get_args(Quantization)]
    for name, dtype, quantization in stored:
        model = load(folder, dtype, quantization, longest)
        positions = divergence = agreeing = surprise = 0.0
        for text, wanted, found in zip(texts, full, predictions(model, texts), strict=True):
            exact = wanted.float()
            divergence += float((exact.exp() * (exact - found)).sum())
            agreeing += float((exact.argmax(-1) == found.argmax(-1)).sum())
            following = torch.tensor(text[1:])[:, None]
            surprise += float((exact - found)[:-1].gather(1, following).sum())
            positions += len(text)
        ratio = float(torch.tensor(surprise / (positions - len(texts))).exp())
        yield Loss(name, model.weight_bytes(), divergence / positions, agreeing / positions, ratio)


def load(folder: Path, dtype: torch.dtype, quantization: Quantization | None, length: int) -> PackedDecoder:
    """The model with a KV cache for one text."""
    shape = read_architecture(folder)
    decoder = Decoder(shape, length, dtype).eval()
    load_weights(decoder, folder)
    packed = PackedDecoder(decoder, quantization)
    spec = AttentionSpec(shape.num_heads, shape.num_kv_heads, shape.head_size, BLOCK_SIZE, dtype, torch.device("cpu"))
    bind_kv_cache(packed, CacheShape.of(packed, BLOCK_SIZE), length // BLOCK_SIZE + 2, make_backend("cpu", spec))
    return packed


@torch.inference_mode()
def predictions(model: PackedDecoder, texts: list[list[int]]) -> Iterator[Tensor]:
    """Log probabilities of what follows each token of each text: [tokens, vocab_size] float32."""
    for text in texts:
        positions = torch.arange(len(text))
        tables = torch.arange(1, len(text) // BLOCK_SIZE + 2)[None]
        lengths = torch.tensor([len(text)])
        inputs = AttentionInputs(tables, torch.tensor([0, len(text)]), lengths, BLOCK_SIZE + positions)
        plans: list[Any] = []
        for attention in model.attentions():
            assert attention.kv_cache is not None
            if attention.kv_cache.group == len(plans):
                plans.append(attention.kv_cache.backend.plan(inputs, inputs, None))
        hidden = model(torch.tensor(text), positions, AttentionMetadata(tuple(plans)))
        yield torch.log_softmax(model.compute_logits(hidden), dim=-1)


if __name__ == "__main__":
    main()
