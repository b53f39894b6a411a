"""The datasets of `orrery bench throughput`, under vLLM's names, and how requests are chosen from them.

Of a public trace the lengths are taken and what prompts share; its times are not, since all requests come at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import ConfigError, WorkloadError
from engine.workload import TIMED_FORMATS, PromptShape, open_workload
from engine.workload.custom import read_custom
from engine.workload.request import WorkloadRequest, oversampled
from engine.workload.sharegpt import read_sharegpt
from engine.workload.synthetic import random_requests
from engine.workload.token_ids import read_token_ids

if TYPE_CHECKING:
    from engine.llm_engine import LLMEngine

NAMES = ("random", "sharegpt", "custom", "token-ids", *TIMED_FORMATS)

#: vLLM's defaults.
NUM_PROMPTS = 1000
RANDOM_INPUT_LEN = 1024
RANDOM_OUTPUT_LEN = 128


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Where requests come from.

    Args:
        name: one of `NAMES`; None: sharegpt if there is a path, else random.
        path: the file; random has none.
        workload: which workload of a file of token ids; None: its only one.
        oversample: use requests of a file more than once if it has too few.
        input_len: tokens of a random prompt, after the prefix.
        output_len: tokens per completion; None: what the file says, for random requests `RANDOM_OUTPUT_LEN`.
        range_ratio: spread of the lengths of random requests.
        prefix_len: tokens that all random prompts begin with.
        skip_chat_template: send custom prompts as they are.

    Raises:
        ConfigError: an unknown name, or a file is needed and not named.
    """

    name: str | None = None
    path: Path | None = None
    workload: str | None = None
    oversample: bool = True
    input_len: int = RANDOM_INPUT_LEN
    output_len: int | None = None
    range_ratio: float = 0.0
    prefix_len: int = 0
    skip_chat_template: bool = False

    def __post_init__(self) -> None:
        if self.name is None:
            object.__setattr__(self, "name", "sharegpt" if self.path else "random")
        if self.name not in NAMES:
            raise ConfigError(f"dataset_name must be one of {', '.join(NAMES)}, got {self.name!r}.")
        if self.name != "random" and self.path is None:
            raise ConfigError(f"The dataset {self.name} is read from a file: name it with --dataset-path.")
        if self.output_len is not None and self.output_len < 1:
            raise ConfigError(f"output_len must be an integer >= 1, got {self.output_len}.")

    def requests(self, engine: LLMEngine, count: int | None, seed: int) -> list[WorkloadRequest]:
        """Choose requests.

        Args:
            engine: whose tokenizer, vocabulary and chat template apply.
            count: how many; None: `NUM_PROMPTS`, of token ids the whole workload.
            seed: the same seed chooses the same requests, of a file those that vLLM chooses.

        Raises:
            WorkloadError: the file is not of its form, or holds nothing that can be asked for.
            RequestError: the model has no chat template.
            OSError: the file cannot be read.
        """
        rng, wanted = random.Random(seed), count or NUM_PROMPTS
        if self.name == "random":
            return self._random(engine, wanted, rng)
        assert self.path is not None
        if self.name == "token-ids":
            requests = self._token_ids(self.path)
            wanted = count or len(requests)
        elif self.name == "sharegpt":
            requests = read_sharegpt(
                self.path, wanted, rng, lambda text: len(engine.tokenizer.encode(text)), self.output_len
            )
        elif self.name in TIMED_FORMATS:
            requests = self._of_trace(engine, self.path, self.name, wanted)
        else:
            requests = read_custom(self.path, wanted, rng, self._as_prompt(engine), self.output_len)
        # A fresh generator, as vLLM takes one: which requests come twice does not depend on the shuffling.
        return oversampled(requests, wanted, random.Random(seed)) if self.oversample else requests[:wanted]

    def _of_trace(self, engine: LLMEngine, path: Path, name: str, count: int) -> list[WorkloadRequest]:
        tokens = _plain_tokens(engine)

        def prompt(request: WorkloadRequest) -> list[int]:
            if isinstance(request.prompt, PromptShape):
                return [tokens[place] for place in request.prompt.token_ids(len(tokens))]
            return request.token_ids

        workload = open_workload(str(path), random.Random(0), format=name, count=count)
        return [
            request._replace(prompt=prompt(request), output_tokens=self.output_len or request.output_tokens)
            for request in workload
        ]

    def _random(self, engine: LLMEngine, count: int, rng: random.Random) -> list[WorkloadRequest]:
        return random_requests(
            count,
            rng,
            _plain_tokens(engine),
            input_tokens=self.input_len,
            output_tokens=self.output_len or RANDOM_OUTPUT_LEN,
            range_ratio=self.range_ratio,
            prefix_tokens=self.prefix_len,
        )

    def _token_ids(self, path: Path) -> list[WorkloadRequest]:
        workloads = read_token_ids(path)
        if self.workload is None and len(workloads) == 1:
            return next(iter(workloads.values()))
        if self.workload not in workloads:
            asked = "none was named" if self.workload is None else f"not {self.workload!r}"
            raise WorkloadError(f"{path} holds the workloads {', '.join(workloads)}; {asked} (--workload).")
        return [
            request._replace(output_tokens=self.output_len or request.output_tokens)
            for request in workloads[self.workload]
        ]

    def _as_prompt(self, engine: LLMEngine) -> Callable[[str], str]:
        """vLLM's benchmarks send a custom prompt as the message of a conversation."""
        if self.skip_chat_template:
            return str
        template = engine.chat_template()
        return lambda text: template.render([{"role": "user", "content": text}], add_generation_prompt=True)


def _plain_tokens(engine: LLMEngine) -> list[int]:
    """The ids of a model's vocabulary that stand for text."""
    return [token for token in range(engine.model.vocab_size) if not engine.tokenizer.is_special(token)]
