"""Questions that the target asks itself: given a chat that has got as far as the user's turn, it goes on as the user.

A list of templates has few kinds of questions, and a head that has learned from those alone guesses less well what the
target answers to others. What a chat model writes in the user's place is about whatever it was trained to be asked.

Source: Magpie (Xu et al. 2024).
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase as Tokenizer

from engine.llm import LLM
from engine.sampling_params import SamplingParams
from scripts.train_heads.lines import whole_lines

#: Questions that run at a time, and are written to the file together.
_BATCH = 128
_TEMPERATURE = 0.8
_FEWEST_TOKENS, _MOST_TOKENS = 6, 64
_QUESTION = "QUESTION"


def self_asked(model: str, tokenizer: Tokenizer, path: Path, number: int) -> list[list[int]]:
    """Chats with questions of the target's own, as token ids up to where it answers.

    Args:
        model: name or folder of the target.
        tokenizer: the target's, with a chat template.
        path: the file that what it asked is appended to, a JSON string per line, or null for what was not new and
            whole; those in it are kept.
        number: questions wanted.

    Raises:
        ValueError: the target does not ask questions, or no more of them.
    """
    asked = _read(path)
    if _num_kept(asked) < number:
        asked = _ask(LLM(model, max_model_len=1024, max_num_seqs=_BATCH), tokenizer, path, number, asked)
    return [chat(tokenizer, question) for question in asked if question is not None][:number]


def _read(path: Path) -> list[str | None]:
    """What was asked so far; each is the answer to its own seed, so the number of all of them is the next one's."""
    return [msgspec.json.decode(line, type=str | None) for line in whole_lines(path)]


def _num_kept(asked: list[str | None]) -> int:
    return len(asked) - asked.count(None)


def chat(tokenizer: Tokenizer, question: str) -> list[int]:
    """A chat that begins with a question, as the template has it, up to where the assistant answers."""
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
    )
    return cast(list[int], ids)


def _ask(llm: LLM, tokenizer: Tokenizer, path: Path, number: int, asked: list[str | None]) -> list[str | None]:
    template = tokenizer.apply_chat_template([{"role": "user", "content": _QUESTION}], tokenize=False)
    before = tokenizer.encode(cast(str, template).split(_QUESTION)[0], add_special_tokens=False)
    known = set(asked)
    with (
        tqdm(total=number, initial=_num_kept(asked), unit=" questions", desc="questions") as bar,
        path.open("ab") as file,
    ):
        while _num_kept(asked) < number:
            params = [
                SamplingParams(temperature=_TEMPERATURE, max_tokens=_MOST_TOKENS, seed=seed)
                for seed in range(len(asked), len(asked) + _BATCH)
            ]
            outputs = llm.generate([{"prompt_token_ids": before}] * _BATCH, params, use_tqdm=False)
            new: list[str | None] = []
            for written in (output.outputs[0] for output in outputs):
                whole = written.finish_reason == "stop" and len(written.token_ids) >= _FEWEST_TOKENS
                question = written.text.strip() if whole else None
                new.append(None if question in known else question)
                known.add(question)
            file.write(b"".join(msgspec.json.encode(question) + b"\n" for question in new))
            file.flush()
            if not _num_kept(new):
                raise ValueError(f"Of {_BATCH} questions that the target wrote, none was new and whole.")
            asked = asked + new
            bar.update(_num_kept(new))
    return asked
