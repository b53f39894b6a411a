"""Texts that the target writes: its answers to the prompts, by this engine, many at a time.

Answers come greedily and at two temperatures in turn, since heads are used with all of them. They are appended to
`texts.jsonl` batch by batch; a run that was cut short goes on with the first prompt that has no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from tqdm import tqdm

from engine.llm import LLM
from engine.sampling_params import SamplingParams
from scripts.train_heads.lines import whole_lines
from scripts.train_heads.prompts import is_held_out

TEMPERATURES = (0.0, 0.7, 0.0, 1.0)
#: Prompts whose answers are written to the file together, and how many of them run at a time.
BATCH, MOST_AT_A_TIME = 192, 64


class Text(msgspec.Struct, frozen=True):
    """One prompt with its answer, as token ids."""

    number: int
    prompt: list[int]
    answer: list[int]

    @property
    def token_ids(self) -> list[int]:
        """Both, as the target has seen them."""
        return self.prompt + self.answer


def temperature_of(number: int) -> float:
    """Of the answer to this prompt; those held out are greedy, so that what they measure can be measured again."""
    return 0.0 if is_held_out(number) else TEMPERATURES[number % len(TEMPERATURES)]


def read_texts(path: Path) -> list[Text]:
    """The texts of a file, in the order of their prompts; none if there is no file."""
    return [msgspec.json.decode(line, type=Text) for line in whole_lines(path)]


def write_texts(model: str, prompts: Sequence[list[int]], path: Path, num_tokens: int, max_tokens: int) -> list[Text]:
    """Let `model` answer prompts until there are `num_tokens` answer tokens, or no more prompts.

    Args:
        model: name or folder of the target.
        prompts: token ids of each, in the order of the file.
        path: the file that answers are appended to.
        num_tokens: answer tokens wanted, those of the file included.
        max_tokens: of one answer, at most.

    Raises:
        ValueError: the file has answers to other prompts.
    """
    texts = read_texts(path)
    if any(text.prompt != prompt for text, prompt in zip(texts, prompts, strict=False)):
        raise ValueError(f"{path} has answers to other prompts: move it away, with what was made of it.")
    have = sum(len(text.answer) for text in texts)
    if have >= num_tokens or len(texts) == len(prompts):
        return texts
    llm = LLM(model, max_model_len=1024, max_num_seqs=MOST_AT_A_TIME, enable_prefix_caching=False)
    with tqdm(total=num_tokens, initial=have, unit=" tokens", desc="texts") as bar, path.open("ab") as file:
        while have < num_tokens and len(texts) < len(prompts):
            numbers = range(len(texts), min(len(texts) + BATCH, len(prompts)))
            outputs = llm.generate(
                [{"prompt_token_ids": prompts[number]} for number in numbers],
                [SamplingParams(temperature=temperature_of(n), max_tokens=max_tokens, seed=n) for n in numbers],
                use_tqdm=False,
            )
            batch = [
                Text(number, output.prompt_token_ids, list(output.outputs[0].token_ids))
                for number, output in zip(numbers, outputs, strict=True)
            ]
            file.write(b"".join(msgspec.json.encode(text) + b"\n" for text in batch))
            file.flush()
            texts += batch
            written = sum(len(text.answer) for text in batch)
            have += written
            bar.update(written)
    return texts
