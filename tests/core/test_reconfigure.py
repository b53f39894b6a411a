"""Limits that change while a core runs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.errors import ConfigError
from tests.core.driver import make_core, request, run_step


def changed(core: Any, **limits: Any) -> None:
    core.reconfigure(msgspec.structs.replace(core.scheduler.config, **limits))


def test_a_smaller_budget_holds_from_the_next_step_on() -> None:
    core = make_core(max_num_batched_tokens=16)
    core.add(request("a", list(range(3, 33)), max_tokens=4))
    assert run_step(core).rows[0].num_scheduled_tokens == 16
    changed(core, max_num_batched_tokens=5)
    assert [run_step(core).rows[0].num_scheduled_tokens for _ in range(3)] == [5, 5, 4]


def test_who_runs_keeps_running_where_fewer_may() -> None:
    core = make_core(max_num_seqs=3)
    for name in "abcd":
        core.add(request(name, [5, 6, 7], max_tokens=3))
    assert len(run_step(core).rows) == 3
    changed(core, max_num_seqs=1)
    assert [row.request_id for row in run_step(core).rows] == ["a", "b", "c"], "d has to wait for all of them"
    run_step(core)
    assert [row.request_id for row in run_step(core).rows] == ["d"]


@pytest.mark.parametrize("choice", [{"policy": "priority"}, {"async_scheduling": True}], ids=str)
def test_what_is_chosen_at_the_start_cannot_change(choice: dict[str, Any]) -> None:
    core = make_core()
    with pytest.raises(ConfigError, match="chosen at the start"):
        changed(core, **choice)
