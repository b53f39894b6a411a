"""The training loop: AdamW, a cosine, everything seeded; a line of the curve every few steps."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from tqdm import tqdm

from scripts.train_heads.acceptance import measure
from scripts.train_heads.examples import Batch, Examples
from scripts.train_heads.head import HeadInTraining
from scripts.train_heads.recipes import Schedule

#: Steps that a line of the curve is the mean of, and lines between two measurements.
_EVERY, _MEASURED_EVERY = 20, 10
COLUMNS = ("step", "loss", "mean_acceptance_length")


def train(head: HeadInTraining, examples: Examples, schedule: Schedule, curve: Path) -> None:
    """Train a head.

    Args:
        head: is changed.
        examples: what it learns from, and is measured on.
        schedule: how long, and how fast.
        curve: a CSV file, written anew: `COLUMNS`, the last empty where nothing was measured.
    """
    optimizer = torch.optim.AdamW(head.parameters(), lr=schedule.peak_lr, betas=(0.9, 0.95), weight_decay=0.01)
    steps = schedule.rounds * examples.num_batches(schedule.batch)
    with curve.open("w", newline="") as file, tqdm(total=steps, unit=" steps", desc="training") as bar:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        losses: list[float] = []
        for step, batch in enumerate(_rounds(examples, schedule), start=1):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step - 1, steps, schedule)
            loss = head.loss(batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            bar.update()
            if step % _EVERY == 0 or step == steps:
                measured = step % (_EVERY * _MEASURED_EVERY) == 0 or step == steps
                length = f"{measure(head, examples).mean_length:.3f}" if measured else ""
                lines.writerow((step, f"{sum(losses) / len(losses):.4f}", length))
                file.flush()
                losses.clear()


def learning_rate(step: int, steps: int, schedule: Schedule) -> float:
    """Linear warm-up over a twentieth of the steps, then a cosine down to a fiftieth of the peak."""
    warmup = max(1, steps // 20)
    if step < warmup:
        return schedule.peak_lr * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return schedule.peak_lr * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))


def _rounds(examples: Examples, schedule: Schedule) -> Iterator[Batch]:
    for number in range(schedule.rounds):
        yield from examples.batches(schedule.batch, seed=number)
