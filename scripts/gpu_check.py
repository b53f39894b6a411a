"""Everything that needs a CUDA device, in one run: is it right, and how fast is it?

    python scripts/gpu_check.py --json gpu_check.json

1. the ceilings of the device: bytes that a copy moves, operations of a matrix product;
2. the kernels against their references, on the device;
3. greedy tokens of orrery-tiny: CUDA as CPU, captured as eager, a request alone as in a crowd;
4. a step of decodes, captured and eager;
5. tokens per second of orrery-tiny, and of random weights in the shapes of Llamas of 1B and 8B, as shares of 1;
6. the tests marked `gpu`, and those of the kernels.

It keeps to a budget of seconds (`--budget`): what no longer fits is left out, and the report says so. It needs torch,
triton, and of the engine's light libraries msgspec, cbor2 and tqdm; without these 3 to 5 are left out. With
`--device cpu --quick` the same steps run in a small way where there is no GPU.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.gpu_checks.correctness import check_kernels, check_tokens, run_tests
from scripts.gpu_checks.report import Report, Settings
from scripts.gpu_checks.speed import LLAMAS, compare_graphs, measure_ceilings, measure_throughput, of_llama

#: Seconds that a part takes at most, by experience; less left, and it is not begun.
SECONDS = {"ceilings": 15, "kernels": 60, "tokens": 60, "graphs": 40, "orrery-tiny": 30, "random-1b": 60}
SECONDS |= {"random-8b": 100, "tests": 60}


def main() -> int:
    """Run all parts; returns 1 if a check failed."""
    arguments = _arguments()
    settings = Settings(arguments.device, arguments.quick, time.monotonic() + arguments.budget)
    report = Report(_machine(settings))
    print("  ".join(f"{name} {value}" for name, value in report.machine.items()))
    parts: dict[str, Callable[[Settings, Report], None]] = {
        "ceilings": measure_ceilings,
        "kernels": check_kernels,
        "tokens": check_tokens,
        "graphs": compare_graphs,
        "orrery-tiny": lambda settings, report: measure_throughput("orrery-tiny", settings, report),
        **{name: of_llama(name) for name in LLAMAS if settings.cuda},
        "tests": run_tests,
    }
    for name, part in parts.items():
        _run_part(name, part, settings, report)
        report.write(arguments.json)
    report.show_tables()
    print(f"\n{len(report.failed)} checks failed{': ' if report.failed else ''}{', '.join(report.failed)}")
    return 1 if report.failed else 0


def _run_part(name: str, part: Callable[[Settings, Report], None], settings: Settings, report: Report) -> None:
    print(f"\n{name}", flush=True)
    if settings.left < SECONDS[name]:
        report.check(name, None, f"{settings.left:.0f} s are left, and it may take {SECONDS[name]}")
        return
    started = time.monotonic()
    try:
        part(settings, report)
    except ModuleNotFoundError as error:
        report.check(name, None, f"{error.name} is not installed")
    except Exception as error:  # noqa: BLE001 - one broken part must not cost the findings of the others
        report.check(name, False, f"{type(error).__name__}: {error}")
    report.seconds[name] = round(time.monotonic() - started, 1)
    gc.collect()
    if settings.cuda:
        torch.cuda.empty_cache()


def _machine(settings: Settings) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if settings.cuda else platform.machine()
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = "none"
    return {"device": name, "python": platform.python_version(), "torch": torch.__version__, "triton": triton}


def _arguments() -> argparse.Namespace:
    first, _, rest = (__doc__ or "").partition("\n")
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=first, epilog=rest, formatter_class=formatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where to run (default: cuda)")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work at all?")
    parser.add_argument("--budget", type=float, default=480, help="seconds to keep to (default: 480)")
    parser.add_argument("--json", type=Path, help="write the report here")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no CUDA device here; --device cpu --quick runs the same steps in a small way")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
