"""The part of the address that asks what if: `fork=3&max_num_seqs=1&without=r1,r2&with=other.jsonl&by=time`."""

from __future__ import annotations

import streamlit as st

from engine.errors import ConfigError
from sim.fork.change import KNOBS, Change, KnobValue
from viz.address import integer


def change() -> Change | None:
    """What is asked of the trace; None if nothing is.

    Raises:
        ConfigError: a value cannot be read.
    """
    knobs = {name: _knob(name, st.query_params[name]) for name in KNOBS if name in st.query_params}
    without = [word for word in st.query_params.get("without", "").split(",") if word]
    if not knobs and not without:
        return None
    step = _number("fork", st.query_params.get("fork", "1"))
    return Change(step=step, knobs=knobs, without=tuple(_number("without", word.removeprefix("r")) for word in without))


def ask(question: Change | None) -> None:
    """Address a question; None: no more."""
    for name in ("fork", "without", *KNOBS):
        st.query_params.pop(name, None)
    if question is not None:
        st.query_params["fork"] = str(question.step)
        for name, value in question.knobs.items():
            st.query_params[name] = str(value).lower()
        if question.without:
            st.query_params["without"] = ",".join(f"r{serial}" for serial in question.without)


def other_traces() -> list[str]:
    """Traces that stand beside the one that is shown."""
    return [name for name in st.query_params.get_all("with") if name]


def compare_with(names: list[str]) -> None:
    """Address traces to stand beside the one that is shown."""
    st.query_params.pop("with", None)
    if names:
        st.query_params["with"] = names


def is_by_time() -> bool:
    """Whether runs beside each other are shown at the same moment, rather than in steps of the same number."""
    return st.query_params.get("by") == "time"


def align(by: str) -> None:
    """Address the way in which runs are aligned: by `time`, or by `step`."""
    st.query_params.pop("by", None)
    if by == "time":
        st.query_params["by"] = by


def _knob(name: str, written: str) -> KnobValue:
    if name == "policy":
        return written
    if name == "enable_prefix_caching":
        if written not in ("true", "false"):
            raise ConfigError(f"{name} must be true or false, got {written[:40]!r}.")
        return written == "true"
    return _number(name, written)


def _number(name: str, written: str) -> int:
    number = integer(written)
    if number is None:
        raise ConfigError(f"{name} must be a number, got {written[:40]!r}.")
    return number
