"""Train a tiny model and write it as a Hugging Face folder: `python -m scripts.train_tiny.train orrery-tiny OUT`.

Plain next-token training in float32 on one core. Everything is seeded; the corpus is generated as it is read, and no
document comes twice. A checkpoint is written every few hundred steps, so a run that is cut short leaves a model.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from scripts.train_tiny.corpus import BOS, EOS, MARK, TURN_END, documents, long_documents
from scripts.train_tiny.tokenizer import MAX_LENGTH, VOCAB_SIZE, save_tokenizer, train_tokenizer

TOKENIZER_SEED, TRAIN_SEED, LONG_SEED, HELD_OUT_SEED = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Recipe:
    """Shape and schedule of one model.

    A batch is `tokens` tokens: rows of 512 or, in every `long_every`-th step, rows of 1,024 out of long documents.
    """

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int
    steps: int
    peak_lr: float
    kv_heads: int = 2
    warmup: int = 100
    tokens: int = 1024
    long_every: int = 5


RECIPES = {
    "orrery-tiny": Recipe(hidden_size=192, layers=4, heads=6, intermediate_size=512, steps=4200, peak_lr=2.5e-3),
    "orrery-tiny-draft": Recipe(hidden_size=128, layers=2, heads=4, intermediate_size=256, steps=1500, peak_lr=3e-3),
}


def new_model(recipe: Recipe, tokenizer: Tokenizer) -> LlamaForCausalLM:
    """A Llama with random weights, grouped-query attention and tied embeddings."""
    torch.manual_seed(TRAIN_SEED)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=tokenizer.token_to_id(EOS),
        pad_token_id=tokenizer.token_to_id(EOS),
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=[tokenizer.token_to_id(EOS), tokenizer.token_to_id(TURN_END)],
        pad_token_id=tokenizer.token_to_id(EOS),
    )
    return model


Batch = tuple[torch.Tensor, torch.Tensor]
"""Token ids and labels, int64, shape [rows, length]; a label of -100 is not learned."""


def rows(texts: Iterator[str], tokenizer: Tokenizer, length: int, count: int) -> Iterator[Batch]:
    """Batches of `count` rows: documents laid end to end and cut."""
    ids: list[int] = []
    labels: list[int] = []
    size = length * count
    while True:
        while len(ids) < size:
            for text in itertools.islice(texts, 64):
                given, mark, learned = text.partition(MARK)
                unlearned = tokenizer.encode(given, add_special_tokens=False).ids if mark else []
                encoding = tokenizer.encode(given + learned, add_special_tokens=False).ids
                ids += encoding
                labels += [-100] * len(unlearned) + encoding[len(unlearned) :]
        yield torch.tensor(ids[:size]).view(count, length), torch.tensor(labels[:size]).view(count, length)
        del ids[:size], labels[:size]


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine down to a fiftieth of the peak."""
    if step < recipe.warmup:
        return recipe.peak_lr * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup)
    return recipe.peak_lr * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the model in bfloat16, whose rounding is far below the noise of training, with its tokenizer."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.generation_config = model.generation_config
    copy.bfloat16()
    copy.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, batches: list[Batch]) -> float:
    """Mean cross-entropy in nats per token on documents of a seed that training never sees."""
    losses = [model(input_ids=ids, labels=labels).loss.item() for ids, labels in batches]
    return sum(losses) / len(losses)


def train(recipe: Recipe, folder: Path, checkpoint_every: int) -> None:
    """Run the recipe and leave the model in `folder`, with `log.jsonl` (step, losses, seconds) beside it."""
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(TOKENIZER_SEED)
    model = new_model(recipe, tokenizer)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters", flush=True)
    short = rows(documents(TRAIN_SEED), tokenizer, 512, recipe.tokens // 512)
    long = rows(long_documents(LONG_SEED), tokenizer, 1024, recipe.tokens // 1024)
    held_out = list(itertools.islice(rows(documents(HELD_OUT_SEED), tokenizer, 512, 8), 4))
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        fused=True,
    )
    # Compiling pays for itself within minutes: the small layers are bound by their element-wise operations.
    compiled = torch.compile(model, dynamic=False)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with (folder / "log.jsonl").open("w") as log:
        for step in range(1, recipe.steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step - 1, recipe)
            ids, labels = next(long if step % recipe.long_every == 0 else short)
            loss = compiled(input_ids=ids, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % 50 == 0 or step == 1:
                line = {"step": step, "loss": round(loss.item(), 4), "seconds": round(time.monotonic() - began)}
                if step % checkpoint_every == 0 or step == recipe.steps:
                    line["held_out"] = round(held_out_loss(model, held_out), 4)
                    save(model, tokenizer, folder)
                print(json.dumps(line), file=log, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=RECIPES)
    parser.add_argument("folder", type=Path, help="where the Hugging Face folder is written")
    parser.add_argument("--checkpoint-every", type=int, default=300, metavar="STEPS")
    arguments = parser.parse_args()
    train(RECIPES[arguments.name], arguments.folder, arguments.checkpoint_every)


if __name__ == "__main__":
    main()
