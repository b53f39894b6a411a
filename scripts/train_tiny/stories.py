# ruff: noqa: E501 (a template is one line, however long)
"""Stories: a plot is a list of beats, a beat is told in one of several ways, and the cast stays the same throughout."""

import random
from collections.abc import Mapping

from scripts.train_tiny.phrase import expand, pick
from scripts.train_tiny.plots import PLOTS, Plot
from scripts.train_tiny.world import cast

OPENINGS = (
    "{time}, {A} the {Arole} [was|sat|stood] {in_place}. {sky}.",
    "{A} was a {trait} {Arole} who lived in {town}. [everyone in the town knew {Ahim}.|{Ahe} had lived there for {years} years.|{Ahis} house stood close to {place}.]",
    "there was once a {Arole} named {A}. {Ahe} lived near {place} with {Ahis} {animal}, {pet}.",
    "in the town of {town}, there lived a {trait} {Arole} [called|named] {A}.",
    "{sky} when {A} [came to|walked to|arrived at|left] {place}. it had been a long [day|week|night].",
    "{time}, when {sky}, {A} [woke early|could not sleep|went out for a walk].",
    "once upon a time, a {trait} {Arole} lived {in_place}. [{Ahis} name was|people called {Ahim}] {A}.",
    "the {Arole} of {town} was called {A}. {Ahe} was {trait} and {trait2}, and {Ahe} loved [{food}|the sea|old books|long walks|music|the stars].",
    "everyone in {town} knew {A}, the {Arole}. {Ahe} was as {trait} as anyone could be.",
)
ASIDES = (
    "{pet} the {animal} [watched from a safe distance|slept through all of it|followed {Ahim} everywhere|looked up and waited].",
    "[outside|by then|meanwhile], {sky}.",
    "somewhere [a bell rang|a door closed|a dog barked|someone was singing|a gull cried].",
    "{A} [thought about it for a while|said nothing for a moment|took a deep breath|smiled|shook {Ahis} head|looked at the sea].",
    "the {tree} by {place} [moved in the wind|had begun to bloom|had lost its leaves|stood very still].",
    "it was [almost|nearly] [dark|morning|noon|time for supper].",
    "there was a smell of {food} in the air.",
    "the {ship} lay [in the harbour|at the pier], [full of|waiting for] {good}.",
    "{A} felt {feeling}, [but did not say so|and it showed|though {Ahe} could not say why].",
)
TALK = (
    '"[what a day|what a night|how strange|this is not easy|we have time]," said {A}.',
    '"[are you sure|do you think so|can that be true|is it far]?" asked {A}. "[i am sure|i think so|it is|we will see]," said {B}.',
    '"[slowly|be careful|wait a moment|look at this|listen]," said {B}, and {A} [nodded|did as {Bhe} said|waited|listened].',
    '{B} laughed. "[you always say that|nobody will believe us|i thought so|of course]," {Bhe} said.',
    '"[i have an idea|i know what to do|there is another way|let us try once more]," said {A}. {B} [listened carefully|was not so sure|agreed at once].',
)
ENDINGS = (
    "[from that day on|after that|since then], {A} and {B} were [good friends|the best of friends|never far apart].",
    "{A} went home [tired but happy|with a light heart|slowly, under the stars|and slept well]. [it had been a good day.|{pet} was waiting at the door.|there was {food} for supper.]",
    "and [every year|every spring|every winter] after that, [they told the story again|the people of {town} remembered that day|{A} told the story to anyone who would listen].",
    "that evening they ate {food} [together|by the fire|under the {tree}], and [nobody was in a hurry|everyone was glad|even {pet} the {animal} got some].",
    '"[well|so]," said {B}, "[that is that|all is well|we did it]." and {A} [had to agree|smiled|laughed].',
    "{A} learned [something|a lesson] that day: [a small light is better than none|it is good to ask for help|patience is a kind of strength|even a small gear can turn a large one|a promise should be kept].",
)


def tell(rng: random.Random, plot: Plot, names: Mapping[str, str], length: float = 1.0) -> str:
    """One plot told once; `length` is the chance scale of asides and talk between the beats."""
    parts = [pick(rng, OPENINGS, names)]
    # Each aside and each exchange is told once at most: a text that repeats itself teaches a model to loop.
    asides, talk = rng.sample(ASIDES, len(ASIDES)), rng.sample(TALK, len(TALK))
    for number, beat in enumerate(plot.beats):
        parts.append(pick(rng, beat, names))
        if asides and rng.random() < 0.35 * length:
            parts.append(expand(rng, asides.pop(), names))
        if talk and number >= plot.companion_from and rng.random() < 0.35 * length:
            parts.append(expand(rng, talk.pop(), names))
    parts.append(pick(rng, ENDINGS, names))
    return paragraphs(rng, parts)


def paragraphs(rng: random.Random, parts: list[str]) -> str:
    """Join sentences, breaking into a new paragraph now and then."""
    text = parts[0]
    since_break = 1
    for part in parts[1:]:
        broken = since_break >= 3 and rng.random() < 0.3
        text += ("\n" if broken else " ") + part
        since_break = 1 if broken else since_break + 1
    return text


def story(rng: random.Random) -> str:
    """A short story, sometimes with a title."""
    plot, names = rng.choice(PLOTS), cast(rng)
    text = tell(rng, plot, names)
    return f"{title(rng, plot, names)}\n\n{text}" if rng.random() < 0.25 else text


def title(rng: random.Random, plot: Plot, names: Mapping[str, str]) -> str:
    """`Mara and the Lost Compass`, or the like."""
    return expand(rng, rng.choice(plot.titles), names)


def summary(rng: random.Random, plot: Plot, names: Mapping[str, str]) -> str:
    """The plot in one sentence."""
    return pick(rng, plot.summaries, names)


def long_story(rng: random.Random, chapters: int) -> str:
    """Several plots in a row about the same people, as the chapters of a book."""
    names = cast(rng)
    plots = rng.sample(PLOTS, chapters)
    text = expand(rng, "the [book|story|adventures|year] of {A} the {Arole}", names)
    for number, plot in enumerate(plots, 1):
        # The people stay; the things around them change from chapter to chapter.
        kept = ("A", "B", "C", "town", "pet", "animal", "ship")
        scene = {**cast(rng), **{key: value for key, value in names.items() if key.startswith(kept)}}
        text += f"\n\nChapter {number}: {title(rng, plot, scene)}\n\n{tell(rng, plot, scene, length=1.5)}"
    return text
