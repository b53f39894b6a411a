"""`orrery generate`: prompts in, text out, and the trace that explains it."""

from __future__ import annotations

import io
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.markup import escape
from rich.text import Text
from typer import Exit, Option

from engine.cli.engine_options import with_engine_options
from engine.config import GuidedDecodingConfig
from engine.errors import RequestError
from engine.sampling_params import GuidedDecodingParams, SamplingParams

if TYPE_CHECKING:
    from engine.logprobs import TokenLogprobs
    from engine.outputs import CompletionOutput, RequestOutput

_CONTROL_CHARACTERS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


@with_engine_options
def generate(
    prompt: Annotated[list[str], Option(metavar="TEXT", help="A prompt; give it several times for a batch.")],
    model: Annotated[str, Option(help="orrery-tiny, smollm2-135m, a hub name or a folder.")] = "orrery-tiny",
    trace: Annotated[Path | None, Option(help="Record the run here, as .jsonl or .jsonl.zst.")] = None,
    max_tokens: Annotated[int, Option(help="Most tokens to generate.")] = 64,
    temperature: Annotated[float, Option(help="0 takes the most likely token.")] = 1.0,
    seed: Annotated[int | None, Option(help="Same seed, same text.")] = None,
    n: Annotated[int | None, Option(help="Completions per prompt.")] = None,
    top_k: Annotated[int | None, Option(help="Keep the k most likely tokens.")] = None,
    top_p: Annotated[float | None, Option(help="Keep the likeliest tokens up to this probability.")] = None,
    min_p: Annotated[float | None, Option(help="Drop tokens below this share of the likeliest.")] = None,
    presence_penalty: Annotated[float | None, Option(help="Off the logits of tokens that the output holds.")] = None,
    frequency_penalty: Annotated[float | None, Option(help="The same, once for each time it holds them.")] = None,
    repetition_penalty: Annotated[float | None, Option(help="Above 1: against tokens of prompt and output.")] = None,
    min_tokens: Annotated[int | None, Option(help="Fewest tokens to generate.")] = None,
    ignore_eos: Annotated[bool, Option("--ignore-eos", help="Go on after the model's end of sequence.")] = False,
    stop: Annotated[list[str] | None, Option(metavar="TEXT", help="End at this text; may be repeated.")] = None,
    guided_choice: Annotated[list[str] | None, Option(metavar="TEXT", help="One of these; repeat it.")] = None,
    guided_regex: Annotated[str | None, Option(metavar="PATTERN", help="What the whole output matches.")] = None,
    guided_json: Annotated[str | None, Option(metavar="SCHEMA", help="A JSON schema, or @FILE with one.")] = None,
    guided_grammar: Annotated[str | None, Option(metavar="EBNF", help="A grammar, or @FILE with one.")] = None,
    logprobs: Annotated[int | None, Option(help="Show log probabilities, of so many likely tokens per place.")] = None,
    **engine_args: Any,
) -> None:
    """Generate text, and record every decision on the way."""
    # A terminal may be unable to show what a model says: better an escape than no answer.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sampling = SamplingParams(
        **_given(
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            n=n,
            presence_penalty=presence_penalty,
            frequency_penalty=frequency_penalty,
            repetition_penalty=repetition_penalty,
            min_tokens=min_tokens,
            ignore_eos=ignore_eos,
            stop=tuple(stop or ()),
            logprobs=logprobs,
            guided_decoding=_guided_decoding(guided_choice, guided_regex, guided_json, guided_grammar),
        )
    )
    outputs, seconds = _run(model, prompt, sampling, {**engine_args, **_given(trace=trace)})
    _show(outputs, seconds, trace)
    if any(output.error for output in outputs):
        raise Exit(1)


def _guided_decoding(
    choice: list[str] | None, regex: str | None, json: str | None, grammar: str | None
) -> GuidedDecodingParams | None:
    """What the output must look like; None if no option says so."""
    given = _given(choice=choice or None, regex=regex, json=_text_of(json), grammar=_text_of(grammar))
    return GuidedDecodingParams(**given) if given else None


def _text_of(argument: str | None) -> str | None:
    """An argument, or what is in the file it names as `@FILE`."""
    if argument is None or not argument.startswith("@"):
        return argument
    try:
        return Path(argument[1:]).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RequestError(f"{_spelled(argument[1:])} cannot be read as text: {error}.") from error


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given; the others are the engine's own to default."""
    return {name: value for name, value in options.items() if value is not None}


def _run(
    model: str, prompts: list[str], sampling: SamplingParams, engine_args: dict[str, Any]
) -> tuple[list[RequestOutput], float]:
    """Load the model and generate; returns the outputs and the seconds that generating took."""
    with Console(stderr=True).status(f"Loading {escape(_spelled(model))} …"):
        # Inside the spinner: importing torch is a good part of the wait.
        if sampling.guided_decoding is not None:
            _require_grammar(sampling.guided_decoding)
        from engine.llm import LLM

        llm = LLM(model=model, **engine_args)
    with llm.llm_engine:
        started = time.perf_counter()
        outputs = llm.generate(prompts, sampling)
        return outputs, time.perf_counter() - started


def _require_grammar(guided: GuidedDecodingParams) -> None:
    """See before a model is loaded that what was asked for is a grammar."""
    from engine.guided.errors import GrammarError
    from engine.guided.grammars import make_grammar

    try:
        make_grammar(guided.spec(), GuidedDecodingConfig().max_grammar_bytes)
    except GrammarError as error:
        raise RequestError(f"The output cannot be guided: {str(error).rstrip('.')}.") from error


def _show(outputs: list[RequestOutput], seconds: float, trace: Path | None) -> None:
    console = Console(highlight=False)
    for output in outputs:
        for completion in output.outputs:
            console.print("\n", _story(output, completion), sep="", soft_wrap=True)
            for place in completion.logprobs or []:
                console.print("  ", _likely_tokens(place), sep="", soft_wrap=True)
    tokens = sum(len(completion.token_ids) for output in outputs for completion in output.outputs)
    rate = tokens / seconds if seconds else 0.0
    console.print(
        f"\n[bold]{_count(len(outputs), 'request')}[/], [bold]{_count(tokens, 'token')}[/] "
        f"in {seconds:.2f} s, [bold]{rate:.1f}[/] tokens/s"
    )
    if trace is None:
        console.print("[dim]--trace run.jsonl records every decision of such a run.[/]\n")
        return
    file = escape(shlex.quote(str(trace)))
    console.print(f"The trace is in [bold]{file}[/]. Next:\n", soft_wrap=True)
    console.print(f"   [cyan]orrery replay {file}[/]           prove every decision in it", soft_wrap=True)
    console.print(f"   [cyan]orrery trace {file} --step 1[/]   see one step", soft_wrap=True)
    console.print(f"   [cyan]orrery app {file}[/]              step through it in the browser\n", soft_wrap=True)


def _story(output: RequestOutput, completion: CompletionOutput) -> Text:
    """Prompt, completion, and why it ended, as one paragraph."""
    name = output.request_id if len(output.outputs) == 1 else f"{output.request_id}.{completion.index}"
    end = completion.finish_reason or "unfinished"
    if output.error is not None:
        end += f": {output.error}"
    elif completion.stop_reason is not None:
        end += f" at {completion.stop_reason!r}"
    return Text.assemble(
        (_printable(output.prompt or ""), "dim"),
        _printable(completion.text),
        (f"\n{name}: {_count(len(output.prompt_token_ids), 'prompt token')}, ", "dim italic"),
        (f"{_count(len(completion.token_ids), 'token')} out, {end}", "dim italic"),
    )


def _likely_tokens(place: TokenLogprobs) -> Text:
    """The token that was taken, then the most likely ones, each with its log probability."""
    spelled = (
        (f"{entry.decoded_token!r} {entry.logprob:.3f}", "" if number == 0 else "dim")
        for number, entry in enumerate(place.values())
    )
    return Text("   ").join(Text(*each) for each in spelled)


def _printable(text: str) -> str:
    """A model may emit control characters, and a terminal would obey them."""
    return text.translate(_CONTROL_CHARACTERS)


def _spelled(argument: str) -> str:
    """An argument of the command line, which may hold bytes that are no UTF-8."""
    return argument.encode(errors="backslashreplace").decode()


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
