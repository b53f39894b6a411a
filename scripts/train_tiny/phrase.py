"""A sentence grammar small enough to read: `[this|that]` is a choice, `{name}` is looked up in the cast."""

import random
import re
from collections.abc import Mapping, Sequence

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
# After `said."` a new sentence begins; after `said!"` or `said?"` the narrator goes on in lower case.
_SENTENCE_START = re.compile(r"(^\"?|[.!?]\s+\"?|\.\"\s+\"?|\n\"?)([a-z])")
_LONE_I = re.compile(r"\bi\b")
_ARTICLE = re.compile(r"\b([Aa]) (?=(?!one\b|uni|use|eu)[aeiouAEIOU]|hono|honest|hour)")


def expand(rng: random.Random, template: str, names: Mapping[str, str]) -> str:
    """One sentence (or several) out of `template`: innermost choices first, then names, then capitals and articles."""
    text = template
    while match := _CHOICE.search(text):
        text = text[: match.start()] + rng.choice(match[1].split("|")) + text[match.end() :]
    return polish(text.format_map(names))


def polish(text: str) -> str:
    """Spelling that follows from position: a capital after a full stop, and "an" before a vowel."""
    text = _SENTENCE_START.sub(lambda match: match[1] + match[2].upper(), text)
    text = _LONE_I.sub("I", text)
    return _ARTICLE.sub(lambda match: match[1] + "n ", text)


def pick(rng: random.Random, templates: Sequence[str], names: Mapping[str, str]) -> str:
    """Expand one of several ways to say the same thing."""
    return expand(rng, rng.choice(templates), names)


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
