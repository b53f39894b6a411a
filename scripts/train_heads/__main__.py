"""Train a head: `python -m scripts.train_heads smollm2-135m --kind eagle`.

Texts, states and curves are kept in the working folder; a run that was cut short, or that trains the other kind, goes
on from what is there. The head goes where its name is looked for.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import get_args

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from engine.cache_dir import cache_dir
from engine.models.store import draft_head_folder, resolve_model
from scripts.train_heads.acceptance import measure
from scripts.train_heads.eagle import EagleInTraining
from scripts.train_heads.examples import Examples
from scripts.train_heads.medusa import MedusaInTraining
from scripts.train_heads.prompts import mixed
from scripts.train_heads.questions import self_asked
from scripts.train_heads.recipes import RECIPES, Recipe
from scripts.train_heads.save import Kind, save_head
from scripts.train_heads.states import write_states
from scripts.train_heads.texts import write_texts
from scripts.train_heads.training import train

_SEED = 11


def new_head(
    kind: Kind, target: LlamaForCausalLM, examples: Examples, recipe: Recipe
) -> EagleInTraining | MedusaInTraining:
    """A head that has learned nothing yet."""
    torch.manual_seed(_SEED)
    target_ids = examples.most_frequent(recipe.draft_vocab_size)
    if kind == "eagle":
        return EagleInTraining(target, target_ids, recipe.eagle_passes)
    return MedusaInTraining(target, target_ids, recipe.medusa_heads)


def make_head(name: str, kind: Kind, work: Path, folder: Path) -> None:
    """From prompts to a head in its folder.

    Args:
        name: of the target.
        kind: of head.
        work: where texts, states, the curve and the figures are kept.
        folder: where the head goes.
    """
    recipe = RECIPES[name]
    work.mkdir(parents=True, exist_ok=True)
    path = resolve_model(name)
    tokenizer = AutoTokenizer.from_pretrained(path)
    prompts = recipe.prompts(tokenizer)
    if recipe.num_self_asked:
        prompts = mixed(prompts + self_asked(name, tokenizer, work / "questions.jsonl", recipe.num_self_asked))
    texts = write_texts(name, prompts, work / "texts.jsonl", recipe.num_tokens, recipe.max_tokens)
    target = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval().requires_grad_(False)
    examples = Examples(texts, write_states(target, texts, work / "states.f16"))
    head = new_head(kind, target, examples, recipe)
    train(head, examples, recipe.eagle if kind == "eagle" else recipe.medusa, work / f"{kind}.csv")
    save_head(head, head.vocabulary, kind, name, folder)
    acceptance = measure(head, examples)
    figures = {
        "answer_tokens": sum(len(text.answer) for text in texts),
        "draft_vocabulary_coverage": round(examples.coverage(head.vocabulary.target_ids), 4),
        "acceptance_by_position": [round(share, 4) for share in acceptance.by_position],
        "mean_acceptance_length": round(acceptance.mean_length, 3),
        "measured_from": acceptance.num_steps,
    }
    (work / f"{kind}.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.train_heads", description=__doc__)
    parser.add_argument("name", choices=RECIPES, help="the target")
    parser.add_argument("--kind", choices=get_args(Kind), required=True)
    parser.add_argument("--folder", type=Path, help="where the head goes; by default where its name is looked for")
    parser.add_argument("--work", type=Path, help="where texts, states and curves are kept; by default in the cache")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    work = arguments.work or cache_dir() / "heads" / arguments.name
    folder = arguments.folder or draft_head_folder(f"{arguments.name}-{arguments.kind}")
    make_head(arguments.name, arguments.kind, work, folder)


if __name__ == "__main__":
    main()
