"""Is it right? Kernels against their references, tokens against tokens, and the tests that need a device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from scripts.gpu_checks.report import Report, Settings, name_of

ROOT = Path(__file__).parents[2]


def check_kernels(settings: Settings, report: Report) -> None:
    """Every operation on the device as its reference says in float64 on the CPU."""
    dtypes = (torch.float32,) if settings.quick else (torch.float32, torch.bfloat16, torch.float16)
    for dtype in dtypes:
        for name, operation, reference, arguments in _operations():
            given = [_cast(each, dtype) for each in arguments]
            found = operation(*(_moved(each, settings.device) for each in given))
            expected = reference(*(_cast(each, torch.float64) for each in given))
            _compare(report, f"{name} {name_of(dtype)}", found, expected, dtype)
    _check_random_numbers(settings, report)
    if settings.cuda:
        for dtype in dtypes:
            _check_attention(report, dtype)


def _check_attention(report: Report, dtype: torch.dtype) -> None:
    """Prompts, chunks and decodes over a poisoned cache, as the definition says."""
    from engine.attention.backend import AttentionSpec
    from engine.attention.triton import TritonBackend
    from tests.attention.steps import Requests

    steps = [[117, 5, 0], [1, 60, 9], [1, 1, 1], [0, 1, 1], [1, 9, 1]]
    for head_size in (64, 128):
        spec = AttentionSpec(8, 2, head_size, block_size=16, dtype=dtype, device=torch.device("cuda"))
        requests = Requests(spec, [sum(shares) for shares in zip(*steps, strict=True)])
        for window in (None, 33):
            outputs = requests.run(TritonBackend(spec), steps, window), requests.expected(steps, window)
            found, expected = (torch.cat([torch.cat(step) for step in each]) for each in outputs)
            name = f"paged attention {name_of(dtype)}, heads of {head_size}, window {window}"
            _compare(report, name, found, expected.double(), dtype)


def _operations() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any], list[Any]]]:
    from kernels import rms_norm, rotary_embedding, silu_and_mul

    torch.manual_seed(0)
    x, residual, weight = torch.randn(37, 1024), torch.randn(37, 1024), torch.rand(1024)
    heads, angles = torch.randn(37, 12, 64), torch.randn(37, 32)
    norm, rotate, gate = rms_norm, rotary_embedding, silu_and_mul
    yield "rms_norm", norm.rms_norm, norm.rms_norm_reference, [x, weight, 1e-5]
    yield (
        "add_rms_norm",
        lambda *given: norm.add_rms_norm(*given)[0],
        lambda x, residual, weight, eps: norm.rms_norm_reference(x + residual, weight, eps),
        [x, residual, weight, 1e-5],
    )
    yield "rotary", rotate.rotary_embedding, rotate.rotary_embedding_reference, [heads, angles.cos(), angles.sin()]
    yield "silu_and_mul", gate.silu_and_mul, gate.silu_and_mul_reference, [x]


def _check_random_numbers(settings: Settings, report: Report) -> None:
    """The same bits on every device: a seed is a promise."""
    from kernels.philox import Stream, uniform

    seeds, positions = torch.tensor([0, 7, -3]), torch.tensor([0, 1, 100_000])
    on_device = uniform(seeds.to(settings.device), positions.to(settings.device), Stream.TARGET, 4099)
    report.check("philox", torch.equal(on_device.cpu(), uniform(seeds, positions, Stream.TARGET, 4099)))


def _compare(report: Report, name: str, found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    error = float((found.cpu().double() - expected).abs().max() / expected.abs().max())
    allowed = 16 * torch.finfo(dtype).eps
    report.check(name, error <= allowed, f"largest error {error:.1e} of the largest value, {allowed:.1e} allowed")


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) else value


def _moved(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def check_tokens(settings: Settings, report: Report) -> None:
    """orrery-tiny in float32: the same greedy tokens whichever way they are computed."""
    from scripts.gpu_checks.engine import prompts_of, running

    prompts = [prompt for length in (1, 9, 40, 200) for prompt in prompts_of(2, length, 2048)]
    num_tokens = 8 if settings.quick else 48
    common = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 16}
    with running("orrery-tiny", settings, device="cpu", attention_backend="torch", **common) as engine:
        expected = engine.run(prompts, num_tokens)
    with running("orrery-tiny", settings, enforce_eager=True, **common) as engine:
        report.check("eager tokens are those of the CPU", engine.run(prompts, num_tokens) == expected)
    # Chunks: a budget that cuts prompts, and decodes beside them.
    with running("orrery-tiny", settings, max_num_batched_tokens=64, **common) as engine:
        report.check("tokens in small chunks are the same", engine.run(prompts, num_tokens) == expected)
    with running("orrery-tiny", settings, **common) as engine:
        if settings.cuda:
            graphs = engine.executor._worker.runner.graphs
            report.check("graphs are captured", graphs is not None and graphs.sizes == (1, 2, 4, 8, 16))
        report.check("captured tokens are the same", engine.run(prompts, num_tokens) == expected)
        report.check("and once more", engine.run(prompts[::-1], num_tokens) == expected[::-1])
        drawn = {"temperature": 1.0, "top_p": 0.95, "seed": 7}
        alone, crowd = engine.run(prompts[:1], num_tokens, **drawn), engine.run(prompts, num_tokens, **drawn)
        report.check("a seeded request draws the same alone as in a crowd", alone[0] == crowd[0])


def run_tests(settings: Settings, report: Report) -> None:
    """The tests that are marked `gpu`, and those of the kernels, which run on a GPU wherever there is one."""
    if not settings.cuda:
        report.check("pytest", None, "there is no CUDA device")
        return
    _pytest(settings, report, "-m", "gpu", "tests/attention", "tests/worker", "tests/kernels")
    # Compiling for other targets needs no device, and the kernels in C++ have no use for one.
    left_out = ("--ignore=tests/kernels/test_aot.py", "--ignore=tests/kernels/cpu")
    _pytest(settings, report, "-m", "not gpu", "tests/kernels", *left_out)


def _pytest(settings: Settings, report: Report, *arguments: str) -> None:
    name = " ".join(("pytest", *arguments[:2], *(each for each in arguments[2:] if not each.startswith("-"))))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    if settings.left <= 0:
        report.check(name, None, "the budget is spent")
        return
    try:
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=settings.left, check=False)
    except subprocess.TimeoutExpired:
        report.check(name, None, "the budget ended before they did")
        return
    lines = [line for line in run.stdout.splitlines() if line.strip()] or run.stderr.splitlines()
    for line in lines:
        if line.startswith(("FAILED", "ERROR")):
            print(f"    {line}")
    report.check(name, run.returncode == 0, lines[-1] if lines else "")
