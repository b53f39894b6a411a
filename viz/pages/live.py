"""Run the engine and watch it: prompts and knobs go in, and the steps are drawn as they happen."""

from __future__ import annotations

from typing import Any

import streamlit as st

from engine.errors import OrreryError, TraceError
from engine.sampling_params import SamplingParams
from viz import address
from viz.components.board import board
from viz.figures.html import Html, el, join
from viz.figures.masthead import action, masthead, notice
from viz.live import HOW_TO_INSTALL, Arrival, LiveRun, Recipe, can_run
from viz.open_trace import open_timeline
from viz.pages.step import draw
from viz.undrawn import in_a_sentence

_PROMPTS = """\
Once upon a time, in a small town by the sea, there lived an old man who kept the lighthouse.
Once upon a time, in a small town by the sea, there lived a girl who had a little boat.
"Where does the moon go in the morning?" asked Max."""

#: Seconds between looks at a growing trace.
_LOOK_EVERY = 0.5


def page() -> None:
    """The page."""
    if not can_run():
        sentence = ["A live run needs the engine, which is not installed here. Install it with ", _code(HOW_TO_INSTALL)]
        _head(notice(join([*sentence, " and start the app again. Recorded traces open without it."])))
        return
    run: LiveRun | None = st.session_state.get("live run")
    if run is None:
        _head()
    else:
        _watch(run)
    # Who is told that a knob is wrong needs the knobs before them.
    expanded = run is None or run.failure is not None
    with st.expander("Prompts and knobs" if run is None else "Run again with other prompts and knobs", expanded):
        _form()


def _code(text: str) -> Html:
    return el("code", "", text)


def _head(*notices: Html) -> None:
    board({"header": masthead("live run", None, None, view=None, notices=notices)}, on_act=address.follow)


# --- the form ---------------------------------------------------------------------------------------------------


def _form() -> None:
    with st.form("recipe", border=False):
        prompts = st.text_area("Prompts, one per line", _PROMPTS, height=110)
        sampling, engine_args, rest = _knobs()
        started = st.form_submit_button("Run", type="primary")
    if started:
        _start(prompts, sampling, engine_args, rest)


def _knobs() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The values of the widgets: for the sampler, for the engine, for the run as a whole."""
    row = st.columns(5)
    model = row[0].text_input("model", "orrery-tiny", help="orrery-tiny, smollm2-135m, a hub name or a folder")
    max_tokens = row[1].number_input("max_tokens", 1, 4096, 32, help="most tokens to generate for a prompt")
    temperature = row[2].number_input("temperature", 0.0, 5.0, 0.0, 0.1, help="0 takes the most likely token")
    top_k = row[3].number_input("top_k", 0, 10_000, 0, help="keep the k most likely tokens; 0 keeps all")
    top_p = row[4].number_input("top_p", 0.01, 1.0, 1.0, 0.05, help="keep the likeliest tokens up to this probability")
    row = st.columns(5)
    seed = row[0].number_input("seed", 0, 2**31 - 1, 0, help="same seed, same text")
    blocks = row[1].number_input(
        "num_gpu_blocks", 2, 100_000, 48, help="blocks in the KV pool, the null block included"
    )
    block_size = row[2].number_input("block_size", 1, 256, 16, help="tokens in a block")
    seqs = row[3].number_input("max_num_seqs", 1, 1024, 8, help="most requests running at once")
    max_model_len = row[4].number_input("max_model_len", 2, 100_000, 256, help="longest prompt plus output, in tokens")
    row = st.columns(5)
    budget = row[0].number_input("max_num_batched_tokens", 1, 100_000, 64, help="token budget of one step")
    chunk = row[1].number_input(
        "long_prefill_token_threshold", 0, 100_000, 0, help="most prompt tokens of one request in a step; 0: no limit"
    )
    apart = row[2].number_input("steps between prompts", 0, 1000, 4, help="0: all prompts arrive at once")
    pace = row[3].number_input("seconds per step", 0.0, 10.0, 0.3, 0.1, help="slow motion, so that one can watch")
    prefix_caching = row[4].toggle("prefix caching", True, help="reuse the blocks of prompts that begin alike")
    sampling = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    engine_args = {
        "num_gpu_blocks_override": blocks,
        "block_size": block_size,
        "max_num_batched_tokens": budget,
        "max_num_seqs": seqs,
        "long_prefill_token_threshold": chunk,
        "max_model_len": max_model_len,
        "enable_prefix_caching": prefix_caching,
    }
    return sampling, engine_args, {"model": model, "apart": apart, "pace": pace}


def _start(prompts: str, sampling: dict[str, Any], engine_args: dict[str, Any], rest: dict[str, Any]) -> None:
    lines = [line for line in prompts.splitlines() if line.strip()]
    if not lines:
        st.error("There is no prompt: write at least one line.")
        return
    try:
        params = SamplingParams(**sampling)
    except OrreryError as error:
        st.error(str(error))
        return
    arrivals = tuple(
        Arrival(prompt=line, sampling_params=params, after_step=i * rest["apart"]) for i, line in enumerate(lines)
    )
    previous: LiveRun | None = st.session_state.get("live run")
    if previous is not None and previous.running:
        previous.stop()
    recipe = Recipe(arrivals=arrivals, model=rest["model"], engine_args=engine_args, seconds_per_step=rest["pace"])
    st.session_state["live run"] = LiveRun.start(recipe)
    for parameter in ("step", "req", "block"):
        st.query_params.pop(parameter, None)
    st.rerun()


# --- watching ---------------------------------------------------------------------------------------------------


def _watch(run: LiveRun) -> None:
    """The board, redrawn while the run goes on."""
    running = run.running
    st.fragment(_look, run_every=_LOOK_EVERY if running else None)(run, running)
    if not running and run.has_trace:
        left, right, _ = st.columns([1, 1, 4])
        left.download_button("Save the trace", run.trace.read_bytes, file_name="live-run.jsonl", width="stretch")
        if right.button(
            "Give it an address", width="stretch", help="opens the trace by its path, so that it can be linked"
        ):
            address.go_to("step", trace=str(run.trace))
            st.rerun()


def _look(run: LiveRun, was_running: bool) -> None:
    running = run.running
    if address.page() != "live" or was_running != running:
        st.rerun()  # a click led away, or the run has ended; only this fragment was run again
    failure = run.failure
    if failure:
        _head(notice(failure, error=True))
    elif not run.has_trace:
        _head(notice("Loading the model …"))
    else:
        _draw(run, running)


def _draw(run: LiveRun, running: bool) -> None:
    actions = [action("Stop", "live:stop", "end the run after this step; what was recorded stays")] if running else []
    if running and address.step_number() is not None:
        actions.append(action("Follow", "live:follow", "show each step as it happens"))

    def on_act(act: dict[str, Any]) -> None:
        match act:
            case {"live": "stop"}:
                run.stop()
            case {"live": "follow"}:
                st.query_params.pop("step", None)
            case _:
                address.follow(act)

    try:
        with in_a_sentence():
            timeline, version = open_timeline(str(run.trace))
            draw("live run", timeline, version, *actions, growing=running, newest=True, on_act=on_act)
    except TraceError as error:
        _head(notice(str(error), error=True))
