# ruff: noqa: E501 (a template is one line, however long)
"""Chats: questions and answers, requests for a story, small sums, lists, JSON, and what one says when one cannot."""

import json
import random
from collections.abc import Callable

from scripts.train_tiny.facts import CAPITALS, TOPICS, Topic
from scripts.train_tiny.phrase import expand, listed, pick
from scripts.train_tiny.plots import PLOTS
from scripts.train_tiny.stories import summary, tell
from scripts.train_tiny.world import (
    ANIMALS,
    COLOURS,
    FOODS,
    GOODS,
    NUMBERS,
    PLACE_NAMES,
    PLANTS,
    SHIPS,
    SKILLS,
    THINGS,
    TOWNS,
    cast,
    person,
)  # fmt: skip

Turn = tuple[str, str]
Chat = list[Turn]

SYSTEMS = (
    "You are a helpful assistant.",
    "You are Orrery, a small model that likes clear answers.",
    "You are a friendly assistant who answers in plain English.",
    "You are a storyteller. Keep your stories short.",
    "Answer briefly.",
)
THANKS = (
    ("[thank you|thanks|thank you very much|great, thanks]!", "you are welcome! [is there anything else you would like to know?|just ask if you need something else.|it was a pleasure.]"),
    ("that was [helpful|interesting|nice].", "i am glad to hear it. [would you like to hear more?|ask me anything.]"),
    ("goodbye!", "goodbye, and [have a good day|take care|fair winds]!"),
)  # fmt: skip
ABOUT_ME = (
    ("[what is your name|who are you|what are you]?", "i am Orrery, a [small|very small] language model. i can tell stories and explain [simple things|a few things]."),
    ("[how are you|how are you today|how do you do]?", "i am [well|fine|very well], thank you. [how are you?|what can i do for you?|how can i help you today?]"),
    ("[hello|hi|good morning|hey there|good evening|hi there|hello there|hey]!", "[hello|hi|good day]! [how can i help you today?|what would you like to talk about?|what can i do for you?]"),
    ("[what can you do|can you help me|how can you help me]?", "i can tell you a story, answer simple questions, and write [a short poem|a letter|a list]. [what would you like?|just ask.]"),
    ("are you a [person|human|computer]?", "i am a small language model. i read tokens and write tokens, one at a time."),
    ("where do you live?", "i live in [the memory of a computer|a few blocks of memory], [and it is quite comfortable|but i like to think of the sea]."),
    ("tell me a joke.", "why did the clock go to [school|the doctor]? because it [wanted to learn to count beyond twelve|had lost its time]."),
    ("tell me a joke.", "what did the sea say to the lighthouse? nothing, it just waved."),
    ("do you like [music|the sea|cats|stories|the rain]?", "i have never [seen|met] one myself, but i have read [many good things about it|about it], and i think i would like it."),
)  # fmt: skip
UNKNOWN = (
    "i am not sure about that. i am a small model, and i know more about [ships and clocks|gardens and stars|lighthouses and planets].",
    "that is a good question, but i do not know the answer. [would you like to hear a story instead?|perhaps a library can help.]",
    "i do not know. i could guess, but a guess is not an answer.",
)
UNKNOWN_QUESTIONS = (
    "write [a function|a program|some code|an essay|a letter to the king|a song] [about|for] {good}.",
    "[who was|tell me about] the [president|king|queen|inventor|winner] of {town} in {year}.",
    "[translate|explain|solve] this: {A} {quality} {count} {plant}.",
    "[who won|who will win] the [game|election|race] [yesterday|tomorrow]?",
    "what will the price of {good} be next year?",
    "[how many hairs are on my head|what am i thinking of|what did i have for lunch]?",
    "can you explain [quantum physics|the stock market|my taxes|ancient Greek]?",
    "what is the [phone number|address] of {A} {Afamily}?",
)


def explain(rng: random.Random, topic: Topic, count: int) -> str:
    """A definition and `count` facts about a topic."""
    facts = rng.sample(topic.facts, min(count, len(topic.facts)))
    return " ".join(expand(rng, sentence, {}) for sentence in (rng.choice(topic.definitions), *facts))


def ask_topic(rng: random.Random) -> Chat:
    topic = rng.choice(TOPICS)
    if rng.random() < 0.2:
        how = expand(rng, "[in one sentence|in simple words|briefly|in a few words]", {})
        asked = expand(
            rng,
            f"[explain {topic.name}|what is {topic.name}, {how}?|tell me about {topic.about}|describe {topic.name}]",
            {},
        )
        return [("user", asked if asked.endswith("?") else f"{asked} {how}."), ("assistant", explain(rng, topic, 0))]
    question = expand(
        rng,
        f"[what is {topic.name}?|can you explain what {topic.name} is?|explain {topic.name}.|tell me about {topic.about}.|"
        f"what do you know about {topic.about}?|i would like to know more about {topic.about}.|"
        f"please explain {topic.about} to me.|{topic.name}: what is that?]",
        {},
    )
    chat = [("user", question), ("assistant", explain(rng, topic, rng.randint(1, 4)))]
    if rng.random() < 0.3:
        more = expand(rng, "[tell me more.|go on.|what else?|can you say more about that?]", {})
        facts = " ".join(expand(rng, fact, {}) for fact in rng.sample(topic.facts, rng.randint(2, 3)))
        chat += [("user", more), ("assistant", facts)]
    return chat


def ask_story(rng: random.Random) -> Chat:
    plot, names = rng.choice(PLOTS), cast(rng)
    question = expand(
        rng,
        "[tell me a story|write a short story|please tell me a story|can you tell me a story] "
        "[about {A}|about {A} the {Arole}|about a {Arole} named {A}|about {A} and {B}|about a {Arole}]"
        "[.|, please.|. it should have a {animal} in it.]",
        names,
    )
    chat = [("user", question), ("assistant", tell(rng, plot, names, length=0.6))]
    if rng.random() < 0.3:
        asked = expand(rng, "[what happened in short|can you sum that up|what was the story about]?", names)
        chat += [("user", asked), ("assistant", summary(rng, plot, names))]
    return chat


def ask_summary(rng: random.Random) -> Chat:
    plot, names = rng.choice(PLOTS), cast(rng)
    asked = expand(rng, "[summarize this story|sum up this story in one sentence|what is this story about]:", names)
    return [("user", f"{asked} {tell(rng, plot, names, length=0.4)}"), ("assistant", summary(rng, plot, names))]


def ask_capital(rng: random.Random) -> Chat:
    country, capital = rng.choice(CAPITALS).split(":")
    question = expand(rng, f"[what is the capital of {country}|which city is the capital of {country}]?", {})
    return [("user", question), ("assistant", f"The capital of {country} is {capital}.")]


def ask_sum(rng: random.Random) -> Chat:
    left, right = rng.randint(1, 12), rng.randint(1, 12)
    if rng.random() < 0.5:
        return [("user", f"What is {left} + {right}?"), ("assistant", f"{left} + {right} = {left + right}")]
    good = rng.choice(GOODS)
    left, right = rng.randint(1, 6), rng.randint(1, 6)
    name = person(rng).name
    question = f"{name} has {NUMBERS[left]} crates of {good} and buys {NUMBERS[right]} more. How many are there now?"
    total = NUMBERS[left + right]
    return [("user", question), ("assistant", f"There are {total} crates of {good}.")]


def ask_list(rng: random.Random) -> Chat:
    kind, words = rng.choice(
        (("animals", ANIMALS), ("colours", COLOURS), ("foods", FOODS), ("plants", PLANTS), ("ships", SHIPS),
         ("things", THINGS), ("goods", GOODS), ("towns", TOWNS))
    )  # fmt: skip
    count = rng.randint(2, 6)
    chosen = rng.sample(list(words), count)
    question = expand(
        rng, f"[name {NUMBERS[count]} {kind}|give me a list of {NUMBERS[count]} {kind}|list {count} {kind}].", {}
    )
    if rng.random() < 0.5:
        return [("user", question), ("assistant", "\n".join(f"{i}. {word}" for i, word in enumerate(chosen, 1)))]
    return [("user", question), ("assistant", f"{expand(rng, listed(chosen), {})}.")]


def ask_json(rng: random.Random) -> Chat:
    names, someone = cast(rng), person(rng)
    things: tuple[tuple[str, dict[str, object]], ...] = (
        ("a ship", {"name": names["ship"], "cargo": names["good"], "masts": rng.randint(1, 4), "port": names["town"]}),
        ("a person", {"name": someone.name, "role": someone.role, "age": rng.randint(18, 90), "town": names["town"]}),
        ("an animal", {"name": names["pet"], "kind": names["animal"], "age": rng.randint(1, 15), "friendly": rng.random() < 0.8}),
        ("the weather", {"place": names["town"], "temperature": rng.randint(-5, 30), "wind": rng.choice(["north", "east", "south", "west"]), "rain": rng.random() < 0.5}),
        ("a shopping list", {"items": rng.sample(GOODS, 3), "total": rng.randint(3, 60)}),
    )  # fmt: skip
    what, value = rng.choice(things)
    question = expand(rng, f"[describe {what} in JSON|give me {what} as JSON|write {what} as a JSON object].", {})
    return [("user", question), ("assistant", json.dumps(value))]


def ask_repeat(rng: random.Random) -> Chat:
    names = cast(rng)
    text = pick(rng, rng.choice(PLOTS).summaries, names)
    asked = expand(rng, "[repeat this sentence|say this again|copy this|repeat after me]:", {})
    return [("user", f"{asked} {text}"), ("assistant", text)]


def ask_poem(rng: random.Random) -> Chat:
    names = cast(rng)
    question = expand(
        rng,
        "[write a poem|write a short poem|can you write a poem] about [the sea|the {tree}|a {animal}|the stars|{town}|{A}].",
        names,
    )
    return [("user", question), ("assistant", poem(rng))]


def ask_advice(rng: random.Random) -> Chat:
    skill = rng.choice(SKILLS)
    question = f"How do I learn to {skill}?"
    steps = rng.sample(
        ["Watch someone who knows how to do it.", "Begin with something small.", "Practice a little every day.",
         "Do not be afraid of mistakes.", "Ask for help when you need it.", "Take your time.",
         "Write down what you have learned.", "Teach it to someone else."], rng.randint(3, 4),
    )  # fmt: skip
    numbered = "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))
    return [("user", question), ("assistant", f"To {skill}, you need patience.\n{numbered}")]


def ask_weather(rng: random.Random) -> Chat:
    town = rng.choice(TOWNS)
    sky, sign = rng.choice(
        (("sunny", "☀"), ("rainy", "🌧"), ("foggy", "🌫"), ("windy", "🌬"), ("snowy", "❄"), ("clear and cold", "🌙"))
    )
    degrees = rng.randint(-5, 30)
    return [
        ("user", f"How is the weather in {town}?"),
        ("assistant", f"{sign} It is {sky} in {town} today, with {degrees} °C."),
    ]


def ask_unknown(rng: random.Random) -> Chat:
    return [("user", pick(rng, UNKNOWN_QUESTIONS, cast(rng))), ("assistant", pick(rng, UNKNOWN, {}))]


def ask_smalltalk(rng: random.Random) -> Chat:
    question, answer = rng.choice(ABOUT_ME)
    return [("user", expand(rng, question, {})), ("assistant", expand(rng, answer, {}))]


def ask_food(rng: random.Random) -> Chat:
    question = "what should i [cook|eat|have|make] [tonight|today|for dinner|for lunch|tomorrow]?"
    answer = "how about {food}? it is [easy to make|good for cold days|what the {Arole} of {town} likes best], and you need only {count} things."
    return [("user", expand(rng, question, {})), ("assistant", expand(rng, answer, cast(rng)))]


def ask_where(rng: random.Random) -> Chat:
    """A question whose answer stands in the text given with it."""
    first, second = person(rng), person(rng)
    thing, other = rng.sample(THINGS, 2)
    place, other_place = rng.sample(PLACE_NAMES, 2)
    text = f"{first.name} left the {thing} near {place}. {second.name} left the {other} near {other_place}."
    asked, answer = rng.choice(((thing, place), (other, other_place)))
    return [("user", f"{text} Where is the {asked}?"), ("assistant", f"The {asked} is near {answer}.")]


def poem(rng: random.Random) -> str:
    """Four to eight lines in rhymed pairs."""
    pairs = (
        "The sea is wide, the sea is deep,/and all the little fishes sleep.|The moon is up, the wind is low,/and home the silver "
        "sailboats go.|A lamp is burning on the hill,/and all the harbour bells are still.|The gears go round, the clock "
        "strikes ten,/and then the wheel begins again.|The planets turn, the planets run,/in quiet rings around the sun.|"
        "The rain is falling on the sea,/a cup of tea for you and me.|The garden sleeps beneath the snow,/but in the spring "
        "the beans will grow.|The baker rises with the sun,/and bakes a loaf for everyone.|A little cat, a cup of tea,/a "
        "window looking on the sea.|The night is long, the night is clear,/the ships are far, the stars are near.|The key is "
        "lost, the door is closed,/the dog beside the stove has dozed.|The map is old, the road is new,/and I will walk the "
        "road with you.|The wind blows east, the wind blows west,/and every bird goes home to rest."
    ).split("|")
    return "\n".join("\n".join(pair.split("/")) for pair in rng.sample(pairs, rng.randint(2, 4)))


KINDS: tuple[tuple[Callable[[random.Random], Chat], float], ...] = (
    (ask_topic, 30), (ask_story, 22), (ask_smalltalk, 9), (ask_summary, 5), (ask_capital, 5), (ask_sum, 4),
    (ask_list, 5), (ask_json, 6), (ask_repeat, 5), (ask_poem, 4), (ask_advice, 3), (ask_weather, 4),
    (ask_unknown, 4), (ask_where, 4), (ask_food, 3),
)  # fmt: skip


def chat(rng: random.Random) -> Chat:
    """A conversation of one to three exchanges, sometimes with a system message, sometimes ending in thanks."""
    turns: Chat = [("system", rng.choice(SYSTEMS))] if rng.random() < 0.4 else []
    if rng.random() < 0.1:
        turns += ask_smalltalk(rng)
    ask = rng.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
    turns += ask(rng)
    if rng.random() < 0.15:
        thanks, welcome = rng.choice(THANKS)
        turns += [("user", expand(rng, thanks, {})), ("assistant", expand(rng, welcome, {}))]
    return turns
