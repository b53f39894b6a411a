"""Conversations become the prompts that transformers makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from engine.errors import RequestError
from engine.frontend.chat_template import ChatTemplate, load_chat_template
from engine.llm import LLM
from engine.sampling_params import SamplingParams

SHORT = SamplingParams(temperature=0.0, max_tokens=4)
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What color is the sea?  "},
    {"role": "assistant", "content": "It is <b>blue</b> & green."},
    {"role": "user", "content": "And the sky?"},
]
QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "What is an orrery?"}]

TOOLS = """{% for tool in tools or [] %}{{ tool | tojson }}|{% endfor %}
{%- for message in messages %}
  {%- if message.role == 'user' %}
[U]{{ message.content | trim }}
  {%- else %}
[A]{% generation %}{{ message['content'] }}{% endgeneration %}{{ eos_token }}
  {%- endif %}
  {%- if loop.index > 7 %}{% break %}{% endif %}
{%- endfor %}
{% if add_generation_prompt %}[A]{% endif %}{{ mood or 'calm' }}"""


Tokenizer = Any  # transformers' own types are stricter than what it takes


@pytest.fixture(scope="module")
def theirs(tiny_model_path: Path) -> Tokenizer:
    return transformers.AutoTokenizer.from_pretrained(tiny_model_path)


@pytest.mark.parametrize("messages", [TALK, QUESTION, TALK[1:3]], ids=len)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_the_models_own_template(
    llm: LLM,
    theirs: Tokenizer,
    messages: list[dict[str, Any]],
    add_generation_prompt: bool,
) -> None:
    (output,) = llm.chat(messages, SHORT, add_generation_prompt=add_generation_prompt)
    asked = {"add_generation_prompt": add_generation_prompt}
    assert output.prompt == theirs.apply_chat_template(messages, tokenize=False, **asked)
    assert output.prompt_token_ids == theirs.apply_chat_template(messages, **asked)["input_ids"]


@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_a_template_of_ones_own(theirs: Tokenizer, add_generation_prompt: bool) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"a<b>": "é"}}}]
    mine = ChatTemplate(TOOLS, {"eos_token": str(theirs.eos_token)})
    asked: dict[str, Any] = {"add_generation_prompt": add_generation_prompt, "tools": tools, "mood": "bright"}
    expected = theirs.apply_chat_template(TALK, chat_template=TOOLS, tokenize=False, **asked)
    more = {"mood": asked.pop("mood")}
    assert mine.render(TALK, more=more, **asked) == expected


@pytest.mark.parametrize("content", ["The sea is", "The sea is ", "  The sea"])
def test_the_last_message_can_be_continued(llm: LLM, theirs: Tokenizer, content: str) -> None:
    messages = [*QUESTION, {"role": "assistant", "content": content}]
    for template in (None, TOOLS, "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"):
        (output,) = llm.chat(
            messages, SHORT, chat_template=template, add_generation_prompt=False, continue_final_message=True
        )
        expected = theirs.apply_chat_template(
            messages, chat_template=template, tokenize=False, continue_final_message=True, tools=[]
        )
        assert output.prompt == expected


def test_several_conversations_and_contents_in_parts(llm: LLM) -> None:
    parts: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "an orrery?"}]}
    ]
    lines: list[dict[str, Any]] = [{"role": "user", "content": "What is\nan orrery?"}]
    first, second, third = llm.chat([parts, lines, QUESTION], SHORT)
    assert first.prompt == second.prompt != third.prompt
    assert first.outputs == second.outputs


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "messages must hold at least one"),
        ([{"content": "a"}], "A message must be"),
        (["hello"], "A message must be"),
        ([{"role": "user", "content": 5}], "The content of a message must be text"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "A part of a message must be"),
    ],
    ids=str,
)
def test_what_is_no_conversation(llm: LLM, messages: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says) as refusal:
        llm.chat(messages, SHORT)
    assert "\n" not in str(refusal.value)
    assert not llm.llm_engine.has_unfinished_requests()


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for %}", "cannot be read"),
        ("{{ raise_exception('roles must\nalternate') }}", "refuses these messages: roles must alternate"),
        ("{{ messages[9].role }}", "refuses these messages"),
        ("{{ ''.__class__.__mro__ }}", "refuses these messages"),
    ],
)
def test_a_template_with_a_mistake(llm: LLM, template: str, says: str) -> None:
    with pytest.raises(RequestError, match=says) as refusal:
        llm.chat(QUESTION, SHORT, chat_template=template)
    assert str(refusal.value).endswith(".")
    assert "\n" not in str(refusal.value)


def test_a_template_cannot_change_the_messages(llm: LLM) -> None:
    messages = [dict(message) for message in QUESTION]
    with pytest.raises(RequestError, match="refuses"):
        llm.chat(messages, SHORT, chat_template="{{ messages.append(1) }}")
    assert messages == QUESTION


def test_contradictions_are_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="exclude each other"):
        llm.chat(QUESTION, SHORT, continue_final_message=True)


def test_a_model_without_a_template(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="has no chat template"):
        load_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        '{"bos_token": {"content": "<s>"}, "chat_template": [{"name": "default", "template": "{{ bos_token }}d"},'
        '{"name": "tool_use", "template": "t"}]}'
    )
    assert load_chat_template(tmp_path).render(QUESTION) == "<s>d"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}file")
    assert load_chat_template(tmp_path).render(QUESTION) == "<s>file"


@pytest.mark.real_model
def test_the_real_models_template(smollm2_path: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(smollm2_path)
    template = load_chat_template(smollm2_path)
    for messages in (TALK, QUESTION):
        expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert template.render(messages) == expected
