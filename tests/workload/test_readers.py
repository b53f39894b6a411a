"""Workload files: what is read out of good ones, and the sentence that a bad one gets."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from engine.bench.__main__ import WORKLOADS
from engine.errors import WorkloadError
from engine.workload.custom import read_custom
from engine.workload.request import WorkloadRequest, oversampled
from engine.workload.sharegpt import read_sharegpt
from engine.workload.synthetic import random_requests
from engine.workload.token_ids import read_token_ids


def written(folder: Path, content: Any) -> Path:
    path = folder / "requests.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def words(text: str) -> int:
    return len(text.split())


def conversation(question: str, answer: str) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}


def test_the_shipped_workloads() -> None:
    workloads = read_token_ids(WORKLOADS)
    sizes = {
        name: (len(requests), {request.output_tokens for request in requests}) for name, requests in workloads.items()
    }
    assert sizes["dec1"] == (1, {128})
    assert sizes["dec32"] == (32, {128})
    assert sizes["pre8"] == (8, {16})
    assert len(workloads["mix64"]) == 64
    lengths = {len(request.token_ids) for request in workloads["mix64"]}
    assert min(lengths) >= 32 and max(lengths) <= 256 and len(lengths) > 10


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": [\n  {"prompt": [1, 2,], "out": 4}]}', "line 2"),
        (b'{"a":\n\n "\xff"}', "line 3: this is no UTF-8"),
        ([1, 2], "an object with a list of requests by name"),
        ({"a": []}, "workload 'a': it must be a list of at least one request"),
        (
            {"a": [{"prompt": [1], "out": 1}, {"prompt": [1, -2], "out": 4}]},
            "workload 'a', request 1: expected `int` >= 0",
        ),
        ({"a": [{"prompt": [1, "2"], "out": 4}]}, "expected `int`, got `str` - at `$.prompt[1]`"),
        ({"a": [{"prompt": [], "out": 4}]}, "length >= 1"),
        ({"a": [{"prompt": [1], "out": 0}]}, "expected `int` >= 1"),
        ({"a": [{"prompt": [1]}]}, "missing required field `out`"),
    ],
)
def test_bad_files_of_token_ids(tmp_path: Path, content: Any, said: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(WorkloadError) as error:
        read_token_ids(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert str(error.value).endswith(".")


def test_sharegpt_takes_first_exchanges_of_a_length_to_measure(tmp_path: Path) -> None:
    good = [(f"question {i} of four", f"the answer is {i}") for i in range(20)]
    bad = [("too short", "a b c d"), ("a b c d", "short"), ("w " * 1025, "a b c d")]
    path = written(tmp_path, [*(conversation(*each) for each in bad + good), {"conversations": []}, {"id": "none"}])
    requests = read_sharegpt(path, 100, random.Random(3), words)
    # Python's shuffle of all exchanges, which is also vLLM's choice for this seed.
    order = bad + good
    random.Random(3).shuffle(order)
    assert [request.prompt for request in requests] == [each[0] for each in order if each in good]
    assert {request.output_tokens for request in requests} == {4}
    assert read_sharegpt(path, 5, random.Random(3), words) == requests[:5]
    assert {each.output_tokens for each in read_sharegpt(path, 9, random.Random(3), words, output_tokens=2)} == {2}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[\n{]", "line 2, column 2: this is no JSON"),
        ({"conversations": []}, "a ShareGPT file is a list of conversations"),
        ([{"conversations": "none"}], "entry 0: expected `array`, got `str`"),
        ([{"conversations": [{"value": "a b c d"}, {"from": "gpt"}]}], "entry 0"),
        ([], "it holds no conversation, which has at least a question and an answer."),
        ([{"id": 1}, {"conversations": [{"value": "a b c d"}]}], "all of its 2 entries are shorter."),
        ([conversation("too short", "a b c d")], "none of its 1 conversations has a prompt of 4 to 1024 tokens"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_bad_sharegpt_files(tmp_path: Path, content: Any, said: str) -> None:
    with pytest.raises(WorkloadError) as error:
        read_sharegpt(written(tmp_path, content), 5, random.Random(0), words)
    assert said in str(error.value)


def test_custom_prompts_say_their_own_length_or_get_one(tmp_path: Path) -> None:
    lines = [{"prompt": f"prompt {i}", "output_tokens": i + 1} for i in range(8)]
    path = written(tmp_path, "\n\n".join(map(json.dumps, lines)).encode())
    requests = read_custom(path, 100, random.Random(5), str.upper)
    random.Random(5).shuffle(lines)
    assert requests == [WorkloadRequest(line["prompt"].upper(), line["output_tokens"]) for line in lines]  # type: ignore[attr-defined,arg-type]
    assert {each.output_tokens for each in read_custom(path, 3, random.Random(5), str, output_tokens=7)} == {7}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"prompt": "a", "output_tokens": 3}\n{"prompt": }', "line 2, column 12: this is no JSON"),
        (b'{"prompt": "a", "output_tokens": 3}\n{"text": "b"}', "line 2: object missing required field `prompt`"),
        (b'{"prompt": "a", "output_tokens": 0}', "line 1: expected `int` >= 1"),
        (b'{"prompt": "a"}', "line 1: it has no `output_tokens`"),
        (b'["a"]', "line 1: expected `object`"),
        (b"\n\n", "it holds no prompts"),
    ],
)
def test_bad_custom_files(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(WorkloadError) as error:
        read_custom(written(tmp_path, content), 5, random.Random(0), str)
    assert said in str(error.value)


def test_random_prompts_share_a_prefix_and_keep_their_lengths() -> None:
    requests = random_requests(
        40, random.Random(0), range(50, 90), input_tokens=20, output_tokens=10, range_ratio=0.5, prefix_tokens=3
    )
    assert len({tuple(request.token_ids[:3]) for request in requests}) == 1
    assert len({tuple(request.token_ids) for request in requests}) == 40
    lengths, outputs = {len(each.token_ids) - 3 for each in requests}, {each.output_tokens for each in requests}
    assert 10 <= min(lengths) < max(lengths) <= 30
    assert 5 <= min(outputs) < max(outputs) <= 15
    assert {token for request in requests for token in request.token_ids} <= set(range(50, 90))
    fixed = random_requests(2, random.Random(0), range(9), input_tokens=4, output_tokens=2)
    assert [(len(each.token_ids), each.output_tokens) for each in fixed] == [(4, 2), (4, 2)]


@pytest.mark.parametrize("wrong", [{"input_tokens": 0}, {"output_tokens": 0}, {"range_ratio": 1.0}])
def test_lengths_that_random_prompts_cannot_have(wrong: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError):
        random_requests(1, random.Random(0), range(9), **{"input_tokens": 4, "output_tokens": 2, **wrong})


def test_a_workload_that_is_too_short_is_drawn_from_again() -> None:
    requests = [WorkloadRequest(str(number), 1) for number in range(3)]
    longer = oversampled(requests, 10, random.Random(1))
    assert longer[:3] == requests
    assert len(longer) == 10
    rng = random.Random(1)
    assert longer[3:] == [rng.choice(requests) for _ in range(7)]
    assert oversampled(requests, 2, random.Random(1)) == requests[:2]
