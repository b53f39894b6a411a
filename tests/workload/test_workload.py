"""Workloads with arrival times: files of every public shape, what is made up, and the sentence that a bad one gets."""

from __future__ import annotations

import json
import math
import random
import statistics
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError, WorkloadError
from engine.trace import events as ev
from engine.trace.file import read_trace
from engine.workload import PromptShape, Span, Workload, WorkloadRequest, open_workload
from engine.workload.arrivals import arrival_times
from engine.workload.lengths import parse_lengths

MS, S = 1_000_000, 1_000_000_000
PREEMPTION = Path("viz/traces/preemption.jsonl")

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,110,0
2023-11-16 18:17:04.0781490,3180,8
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
"""
AZURE_2025 = """TIMESTAMP,NumImages,ContextTokens,GeneratedTokens
2025-02-01 23:59:59.5,2,900,12
2025-02-02 00:00:00.25,0,70,30
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118.5,GPT-4,417,276,693,API log
"""
BURST_WITH_SESSIONS = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,s1,2.5,ChatGPT,472,18,490,Conversation log
"""
MOONCAKE = """{"timestamp":27482,"input_length":1100,"output_length":52,"hash_ids":[46,47,90]}
{"timestamp":30535,"input_length":1024,"output_length":26,"hash_ids":[46,47]}
{"timestamp":30535,"input_length":1030,"output_length":3,"hash_ids":[46,47]}
"""
QWEN = (
    '{"chat_id":159,"parent_chat_id":-1,"timestamp":61.114,"input_length":20,"output_length":132,"type":"text",'
    '"turn":1,"hash_ids":[1089,1090]}\n'
    '{"chat_id":160,"parent_chat_id":159,"timestamp":62,"input_length":40,"output_length":7,"type":"text",'
    '"turn":2,"hash_ids":[1089,1091,1092]}\n'
    '{"chat_id":161,"parent_chat_id":160,"timestamp":62,"input_length":16,"output_length":7,"type":"text",'
    '"turn":3,"hash_ids":[1089]}\n'
)


def opened(folder: Path, content: str, name: str = "workload", **arguments: Any) -> Workload:
    path = folder / name
    path.write_text(content)
    return open_workload(str(path), random.Random(0), **arguments)


def lengths(requests: list[WorkloadRequest]) -> list[tuple[int, int, int]]:
    return [
        (each.arrival_ns, each.prompt.num_tokens, each.output_tokens)
        for each in requests
        if isinstance(each.prompt, PromptShape)
    ]


# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected", "said"),
    [
        (AZURE, [(0, 4808, 10), (98_189_000, 3180, 8)], "azure, times to 100 ns; 2 requests over 0.098 s; 1 without"),
        (AZURE_2024, [(0, 2162, 5), (990_070_000, 2399, 6)], "2 requests over 0.990 s"),
        (AZURE_2025, [(0, 900, 12), (750 * MS, 70, 30)], "2 requests over 0.750 s"),
        (
            BURST,
            [(0, 472, 18), (113_500 * MS, 417, 276)],
            "burstgpt, times in seconds; 2 requests over 113.500 s; 1 without output tokens left out",
        ),
    ],
)
def test_traces_of_lengths(tmp_path: Path, content: str, expected: list[Any], said: str) -> None:
    workload = opened(tmp_path, content)
    requests = list(workload)
    assert lengths(requests) == expected
    assert said in str(workload)
    assert tokens_of(requests[0])[:4] != tokens_of(requests[1])[:4]


def tokens_of(request: WorkloadRequest) -> list[int]:
    assert isinstance(request.prompt, PromptShape)
    return request.prompt.token_ids(32_000)


def test_sessions_of_burstgpt(tmp_path: Path) -> None:
    assert [each.session for each in opened(tmp_path, BURST_WITH_SESSIONS)] == ["s1"]


def test_mooncake_counts_milliseconds_and_shares_blocks_of_512(tmp_path: Path) -> None:
    workload = opened(tmp_path, MOONCAKE, format="mooncake")
    requests = list(workload)
    assert lengths(requests) == [(0, 1100, 52), (3053 * MS, 1024, 26), (3053 * MS, 1030, 3)]
    first, second, third = map(tokens_of, requests)
    assert first[:1024] == second == third[:1024]
    assert first[1024:1028] != third[1024:1028]
    assert "mooncake, times in milliseconds, blocks of 512 tokens; 3 requests over 3.053 s" in str(workload)


def test_a_timed_trace_counts_seconds_and_shares_blocks_of_16(tmp_path: Path) -> None:
    lines = '{"timestamp": 1.5, "input_length": 33, "output_length": 4, "hash_ids": [7, 8, 9]}\n'
    lines += '{"timestamp": 2.0, "input_length": 5, "output_length": 2}\n'
    requests = list(opened(tmp_path, lines, format="timed-trace"))
    assert lengths(requests) == [(0, 33, 4), (500 * MS, 5, 2)]
    assert requests[0].prompt == PromptShape((Span(7, 16), Span(8, 16), Span(9, 1)))


def test_qwen_bailian_follows_conversations(tmp_path: Path) -> None:
    requests = list(opened(tmp_path, QWEN))
    assert lengths(requests) == [(0, 20, 132), (886 * MS, 40, 7), (886 * MS, 16, 7)]
    assert [each.session for each in requests] == ["159"] * 3
    assert tokens_of(requests[0])[:16] == tokens_of(requests[1])[:16] == tokens_of(requests[2])


def test_texts_come_at_a_rate_that_is_asked_for(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"prompt": f"prompt {i}", "output_tokens": i + 1}) + "\n" for i in range(9))
    workload = opened(tmp_path, lines, encode=lambda text: list(text.encode()), rate=4, burstiness=math.inf, count=3)
    requests = list(workload)
    assert [each.arrival_ns for each in requests] == [0, 250 * MS, 500 * MS]
    assert all(bytes(each.token_ids).decode().startswith("prompt ") for each in requests)
    talk = [{"id": "x", "conversations": [{"from": "human", "value": "12345"}, {"from": "gpt", "value": "123456"}]}]
    (request,) = opened(tmp_path, json.dumps(talk), encode=lambda text: list(text.encode()))
    assert (bytes(request.token_ids), request.output_tokens, request.arrival_ns) == (b"12345", 6, 0)


def test_a_trace_of_ours_asks_for_what_each_request_got() -> None:
    requests = list(open_workload(str(PREEMPTION), random.Random(0)))
    events = read_trace(PREEMPTION).events
    added = [event for event in events if isinstance(event, ev.RequestAdded)]
    finished = {event.request: event for event in events if isinstance(event, ev.RequestFinished)}
    assert [tuple(each.token_ids) for each in requests] == [event.prompt_token_ids for event in added]
    assert [each.arrival_ns for each in requests] == [event.ts - added[0].ts for event in added]
    assert [each.output_tokens for each in requests] == [finished[event.request].num_output_tokens for event in added]


@pytest.mark.parametrize(
    ("content", "format", "said"),
    [
        (MOONCAKE, None, "does not say whether its times are seconds or milliseconds: name its format, mooncake"),
        ("a,b\n1,2\n", None, "is no workload of a known form; its format can be named (--workload-format)"),
        ("", None, "is no workload of a known form"),
        (AZURE.replace("4808", "-1"), None, "line 2: expected `int` >= 0 - at `$.ContextTokens`"),
        (AZURE.replace("3180", "many"), None, "line 4: expected `int`, got `str` - at `$.ContextTokens`"),
        (AZURE.replace("3180,8", "3180"), None, "line 4: it has not as many cells as the first line"),
        (AZURE.replace("3180,8", "3180,8,9"), None, "line 4: it has not as many cells as the first line"),
        (AZURE.replace("2023-11-16 18:17:04.0781490", "18:17"), None, "line 4: its time must be written YYYY-MM-DD"),
        (AZURE.replace("2023-11-16 18:17:04.0781490", "2023-13-16 18:17:04"), None, "line 4: its time must be"),
        (AZURE, "burstgpt", "its first line names no column 'Timestamp'"),
        (AZURE[: AZURE.index("2023")], None, "it holds no request that can be sent"),
        (BURST.replace(",18,", ",0,").replace(",276,", ",0,"), None, "can be sent; 3 without output tokens left out"),
        (BURST.replace("118.5", "4"), None, "line 4: its time lies before that of the request above"),
        (BURST.replace("118.5", "nan"), None, "line 4: expected `float` >= 0.0"),
        (MOONCAKE.replace("[46,47]", "[46]"), "mooncake", "line 2: 1 hash_ids of 512 tokens do not make a prompt of"),
        (MOONCAKE, "timed-trace", "line 1: 3 hash_ids of 16 tokens do not make a prompt of 1100"),
        (MOONCAKE.replace("30535", '"x"'), "mooncake", "line 2: expected `float`, got `str` - at `$.timestamp`"),
        (MOONCAKE.replace("30535", "1e400"), "mooncake", "line 2: number out of range"),
        (MOONCAKE[:-9], "mooncake", "line 3"),
        (QWEN.replace('"chat_id":160,', ""), "qwen-bailian", "line 2: object missing required field `chat_id`"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(
    tmp_path: Path, content: str, format: str | None, said: str
) -> None:
    with pytest.raises(WorkloadError) as error:
        list(opened(tmp_path, content, format=format))
    assert said in str(error.value)
    assert str(tmp_path) in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"format": "cobol"}, "must be one of azure, burstgpt, mooncake"),
        ({"rate": 3.0}, "has arrival times of its own"),
        ({"format": "custom"}, "holds text, of which only a model's tokenizer makes tokens"),
    ],
)
def test_arguments_that_a_workload_has_no_use_for(tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        list(opened(tmp_path, AZURE, **arguments))
    assert said in str(error.value)


# --- made up ----------------------------------------------------------------------------------------------------


def made_up(spec: str, seed: int = 0) -> list[WorkloadRequest]:
    return list(open_workload(f"synthetic:{spec}", random.Random(seed)))


def test_a_synthetic_workload_is_the_same_for_the_same_seed() -> None:
    spec = "num=50,rate=8,input=lognormal:200:90,output=uniform:3:9,prefix=64,groups=3,priorities=2"
    requests = made_up(spec)
    assert requests == made_up(spec) != made_up(spec, seed=1)
    assert len(requests) == 50
    assert {each.priority for each in requests} == {0, 1}
    assert {each.output_tokens for each in requests} == set(range(3, 10))
    prefixes = {tuple(tokens_of(each)[:64]) for each in requests}
    assert len(prefixes) == 3
    assert len({tuple(tokens_of(each)) for each in requests}) == 50
    assert [each.arrival_ns for each in requests] == sorted(each.arrival_ns for each in requests)


@pytest.mark.parametrize(("burstiness", "variation"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5), (math.inf, 0.0)])
def test_gaps_between_arrivals_have_the_rate_and_the_burstiness(burstiness: float, variation: float) -> None:
    times = list(islice(arrival_times(random.Random(5), 20.0, burstiness), 20_000))
    gaps = [(later - earlier) / S for earlier, later in pairwise(times)]
    assert times[0] == 0
    assert statistics.fmean(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(variation, abs=0.08)


def test_all_at_once() -> None:
    assert {each.arrival_ns for each in made_up("num=9")} == {0}


@pytest.mark.parametrize(
    ("words", "mean", "std"),
    [
        ("512", 512, 0),
        ("uniform:100:300", 200, 58),
        ("normal:500:50", 500, 50),
        ("lognormal:500:400", 500, 400),
    ],
)
def test_lengths_have_the_moments_that_were_asked_for(words: str, mean: float, std: float) -> None:
    draw, rng = parse_lengths("input", words, least=1), random.Random(2)
    drawn = [draw(rng) for _ in range(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(mean, rel=0.03)
    assert statistics.pstdev(drawn) == pytest.approx(std, rel=0.06)
    assert min(drawn) >= 1


def test_lengths_out_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_text("5\n7\n\n7\n")
    draw, rng = parse_lengths("input", f"empirical:{path}", least=1), random.Random(2)
    assert {draw(rng) for _ in range(50)} == {5, 7}
    path.write_text("5\n0\n")
    with pytest.raises(WorkloadError, match="line 2: this is no whole number of at least 1"):
        parse_lengths("input", f"empirical:{path}", least=1)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("speed=3", "has the keys num, rate, burstiness, input, output, prefix, groups, priorities, not 'speed'"),
        ("num=0", "num must be a whole number of at least 1, got '0'"),
        ("rate=0", "rate must be at least 1e-09 requests per second, or inf, got 0"),
        ("rate=fast", "rate must be a number above 0, or inf, got 'fast'"),
        ("rate=nan", "rate must be at least 1e-09"),
        ("rate=1e-300", "rate must be at least 1e-09"),
        ("burstiness=-1", "burstiness must be at least 1e-09"),
        ("input=0", "input must be a number of tokens of at least 1"),
        ("output=0,prefix=3", "output must be a number of tokens of at least 1"),
        ("input=uniform:9:3", "got 'uniform:9:3'"),
        ("input=normal:9", "got 'normal:9'"),
        ("input=inf", "got 'inf'"),
        ("input=zipf:3:4", "got 'zipf:3:4'"),
    ],
)
def test_what_cannot_be_made_up(spec: str, said: str) -> None:
    with pytest.raises(WorkloadError) as error:
        made_up(spec)
    assert said in str(error.value)


@given(st.lists(st.integers(-(10**9), 10**12), unique=True, min_size=2, max_size=20), st.integers(4, 600))
def test_spans_of_different_numbers_differ_and_shorter_ones_are_prefixes(numbers: list[int], length: int) -> None:
    spelled = [Span(number, length).token_ids(32_000) for number in numbers]
    assert len(set(map(tuple, spelled))) == len(numbers)
    for number, tokens in zip(numbers, spelled, strict=True):
        assert len(tokens) == length and 0 <= min(tokens) <= max(tokens) < 32_000
        assert Span(number, length // 2).token_ids(32_000) == tokens[: length // 2]
