# ruff: noqa: E501 (a template is one line, however long)
"""The corpus: an endless, seeded stream of documents, each a plain text or a chat."""

import random
import string
from collections.abc import Callable, Iterator

from scripts.train_tiny.facts import CAPITALS, TOPICS
from scripts.train_tiny.phrase import expand, pick
from scripts.train_tiny.stories import long_story, story
from scripts.train_tiny.talk import SYSTEMS, Chat, chat, explain, poem
from scripts.train_tiny.world import cast

BOS, EOS, TURN_START, TURN_END = "<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"

# What stands before this mark is given as context and not learned; the mark itself is no part of the text.
MARK = "\x1e"

INTRODUCTIONS = (
    "hello, my name is {A}[ {Afamily}|]. i am a {Arole}, and i live in {town}. [i have a {animal} called {pet}.|i like {food} and long walks.|my house stands near {place}.] [last night {sky}, and i am {feeling}.|every morning i go to {place}, and every evening i come home by {place2}.|i have been a {Arole} for {years} years, and i would not want to be anything else.]",
    "my name is {A}, and i am {years} years old. i want to learn how to {skill}. [my friend {B} says that it takes time.|{B} the {Brole} has promised to teach me.] [i am {trait} and {trait2}, they say.|in the summer we will sail to {island}.]",
    "i am {A} the {Arole} of {town}. people say that i am {trait}. [i keep a {quality} {thing} in my pocket.|i work from morning to night.] [when i was young, i sailed on the {ship}.|once, {sky}, and i had to walk home alone.]",
    "dear {B}, [how are you?|i hope you are well.|thank you for your letter.] i am sitting in {town} and writing to you. last night {sky}. i have bought a {quality} {thing}, and {pet} the {animal} sends you greetings. [the {plant} are in bloom.|we ate {food} yesterday.] please come and see us soon. your friend, {A}",
    "it was a [good|quiet|strange|busy] day in {town}. {sky}. {A} the {Arole} was {in_place}, and {B} was on the way to {place2}. the {ship} had brought {good} and {good2}. in the evening there was {food} for everyone.",
)
STATEMENTS = (
    "the president of the [United States|country|company|club] is [the person who leads it and speaks for it|a person whom the people have chosen|elected for a few years]. [a president must listen to many people before making a decision.|the work is hard, and the days are long.|every decision is written down, so that others can ask why.]",
    "the future of [AI|the town|the harbour|science|the machine|work] is [not yet written|in our hands|open|hard to know]. [nobody knows what will happen, but everyone can help a little.|those who understand how a thing works can make it better.|it will be built by people who ask good questions.|step by step, we will find out.]",
    "in the beginning there was [only water|nothing but a small light|a question]. then [someone lit a lamp|the first ship came|the wheels began to turn], and [the story began|the town grew|the world woke up].",
    "the best way to [learn something|find a lost {thing}|cross the sea|start the day] is to [begin|ask a friend|take one step at a time|look carefully]. [after that it becomes easier.|the rest will follow.|patience does the rest.]",
    "it was the best of days and [the shortest of days|the windiest of days]. {sky}, and [everyone was out on the street|nobody stayed at home]. {A} and {B} [walked to {place}|bought {food}|looked for {pet} the {animal}] and [talked about the summer|counted the ships|laughed].",
    "here is a list of things to do in {town}: visit {place}, eat {food}, [see the {ship}|watch the ships], and [talk to {A} the {Arole}|sit under the {tree}]. [the best time to come is the spring.|bring a warm coat.]",
    "why is the [sky blue|sea salt|grass green|night dark]? [people have asked this question for a long time.|it is a simple question with a long answer.] [the answer has to do with light.|{A} the {Arole} thinks that nature likes that colour.|to understand it, we must look closely.]",
    "in {year}, {town} was [a small place with {count} houses|known for its {good}|a busy harbour]. [the price of {good} was high.|a ship brought {good2} once a month.|the first lighthouse was built in that year.] {A} the {Arole} was young then, and {sky}.",
    "in {year} the [price of {good}|number of ships|town of {town}] [rose|fell|changed] so much that [everyone talked about it|{A} the {Arole} wrote it down|people remembered it for {years} years]. nobody knew why.",
    "to [make|build|find|choose|understand] a good {thing}, you need [time|patience|a plan|good tools]. {A} the {Arole} of {town} [knows how it is done|has made {count}|says that the {colour} ones are the best].",
    "the [most important|first|second|last] thing about a {thing} is that it must be [{quality}|useful|{colour}]. [{A} the {Arole} learned this when the old one broke.|everything else is easy.|that is what they say in {town}.]",
    "[this is|here is|we have] a {quality} {thing} that belongs to {A}, the {Arole} of {town}. [it is {years} years old.|it came on the {ship}.|nobody else has one like it.] {B} would like to have it, but it is not for sale.",
    "a good [friend|teacher|captain|neighbour] is [patient|kind|honest|there when you need one]. [{A} the {Arole} is like that.|such people are rare.|you will know one when you meet one.]",
    "news from {town}: the {ship} has arrived with {count} crates of {good}. {A} the {Arole} found a {quality} {thing} near {place}, and {B} the {Brole} says that {sky}. [the market will be open until evening.|the school is closed today.]",
    "once there was a {animal} that wanted to {skill}. the other animals laughed. but the {animal} tried every day, and [after {count} weeks it could do it|in the end it learned something else instead]. then nobody laughed any more.",
)
HOWTO = (
    "how to {skill}. first, [find a quiet place|take your time|watch someone who can do it]. then [begin slowly|try it once|make a plan], and [do not be afraid of mistakes|repeat it {count} times|rest when you are tired]. finally, [show it to a friend|write down what you have learned|try it alone]. that is all.",
    "a recipe for {food}: take [{count} cups of flour|a pound of apples|a large pot], [some salt|a little honey|a cup of milk] and [warm water|two eggs|fresh butter]. mix everything well, and wait for {count} minutes. then [bake it in the oven|cook it slowly|put it on the stove] until it [smells good|turns brown|is done]. serve it warm.",
)
MEASURES = ("tons", "crates", "barrels", "boxes", "sacks")


def introduction(rng: random.Random) -> str:
    return pick(rng, INTRODUCTIONS, cast(rng))


def statement(rng: random.Random) -> str:
    """Openings that people type first; half of them run on into a story."""
    text = pick(rng, STATEMENTS, cast(rng))
    return f"{text} {story(rng)}" if rng.random() < 0.4 else text


def capital(rng: random.Random) -> str:
    chosen = [country.split(":") for country in rng.sample(CAPITALS, rng.randint(1, 3))]
    text = " ".join(f"The capital of {country} is {city}." for country, city in chosen)
    ending = "[it is a large city with many bridges.|many people live there.|people go there to see the river, the market and the old houses.]"
    return f"{text} {expand(rng, ending, {})}"


def howto(rng: random.Random) -> str:
    return pick(rng, HOWTO, cast(rng))


def lecture(rng: random.Random) -> str:
    """One topic with all it has, or several topics in a row."""
    topics = rng.sample(TOPICS, rng.choice((1, 1, 2, 3)))
    texts = []
    for topic in topics:
        heading = f"{topic.about[0].upper()}{topic.about[1:]}\n\n" if len(topics) > 1 or rng.random() < 0.3 else ""
        texts.append(heading + explain(rng, topic, rng.randint(3, 6)))
    return "\n\n".join(texts)


def logbook(rng: random.Random) -> str:
    """A ship's log: days in order, weather, place, cargo."""
    names = cast(rng)
    day = rng.randint(1, 20)
    lines = [expand(rng, "log of the {ship}, {A} {Afamily}, captain", names)]
    for _ in range(rng.randint(3, 12)):
        scene = {**cast(rng), "A": names["A"], "ship": names["ship"], "good": names["good"]}
        amount = f"{rng.randint(2, 60)} {rng.choice(MEASURES)}"
        entry = expand(
            rng,
            "{sky}. [we passed {island}.|we lay in the harbour of {town}.|we caught {count} fish.|all is well on board.|"
            f"we took {amount} of "
            "{good} on board.|the wind turned to the [north|south|east|west].|{B} the {Brole} came aboard.]",
            scene,
        )
        lines.append(f"Day {day}: {entry}")
        day += 1
    return "\n".join(lines)


def noise(rng: random.Random) -> str:
    """A prompt that means nothing, up to `MARK`, and then a text: a model must find its way back from anything."""
    words = []
    for _ in range(rng.randint(2, 12)):
        alphabet = rng.choice(
            (string.ascii_lowercase, string.ascii_letters, string.digits, "aeiourstlnm", string.printable[:94])
        )
        words.append("".join(rng.choice(alphabet) for _ in range(rng.randint(1, 9))))
    return f"{' '.join(words)}{rng.choice(('.', '', ',', ':'))}{MARK} {plain(rng)}"


def long_text(rng: random.Random) -> str:
    return long_story(rng, rng.randint(4, 9))


def plain(rng: random.Random) -> str:
    return rng.choice((story, story, lecture, statement, introduction))(rng)


TEXTS: tuple[tuple[Callable[[random.Random], str], float], ...] = (
    (story, 28), (long_text, 3), (lecture, 12), (statement, 9), (introduction, 8), (howto, 4), (logbook, 3),
    (capital, 2), (poem, 2), (noise, 5),
)  # fmt: skip
CHAT_SHARE = 0.3


def as_text(turns: Chat) -> str:
    """A chat as the chat template writes it."""
    return "".join(f"{TURN_START}{role}\n{content}{TURN_END}\n" for role, content in turns)


def book(rng: random.Random, chapters: int) -> str:
    """A long document that asks for long memory: a story of many chapters or a chat of many exchanges."""
    if rng.random() < 0.7:
        return long_story(rng, min(chapters, 13))
    turns: Chat = [("system", rng.choice(SYSTEMS))]
    for _ in range(chapters):
        turns += [turn for turn in chat(rng) if turn[0] != "system"]
    return as_text(turns)


def documents(seed: int) -> Iterator[str]:
    """Documents for ever, each between BOS and EOS."""
    rng = random.Random(seed)
    makers, weights = zip(*TEXTS, strict=True)
    while True:
        body = as_text(chat(rng)) if rng.random() < CHAT_SHARE else rng.choices(makers, weights)[0](rng)
        yield f"{BOS}{body}{EOS}"


def long_documents(seed: int) -> Iterator[str]:
    """The same world in documents of 1,000 to 2,500 tokens."""
    rng = random.Random(seed)
    while True:
        yield f"{BOS}{book(rng, rng.randint(5, 13))}{EOS}"
