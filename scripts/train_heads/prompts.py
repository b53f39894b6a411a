"""What the target is asked: questions of many kinds, each kind about each of many subjects.

A head is to guess what the target says, so the answers have to cover the ways in which it speaks: prose, lists, steps,
code, letters, stories, tables. Every fortieth prompt is held out; the heads are never trained on its answer.
"""

from __future__ import annotations

import itertools
import random

from transformers import PreTrainedTokenizerBase as Tokenizer

from scripts.train_heads.questions import chat
from scripts.train_tiny.corpus import MARK, documents

HELD_OUT_EVERY = 40
_SEED = 5
_ASSISTANT = "<|im_start|>assistant\n"
#: Beginnings of documents, and tokens of the longest: what a long chat began with does not matter much.
_BEGINNINGS, _LONGEST = 1600, 256

_THINGS = (
    "the tides", "volcanoes", "honey bees", "bread", "glaciers", "the printing press", "photosynthesis", "the heart",
    "rainbows", "coral reefs", "bicycles", "the Roman Empire", "solar panels", "jazz", "the water cycle", "black holes",
    "chess", "vaccines", "the Silk Road", "earthquakes", "coffee", "the immune system", "batteries", "lighthouses",
    "the Industrial Revolution", "clouds", "whales", "paper", "the stock market", "ancient Egypt", "magnets", "sleep",
    "the Moon", "recycling", "democracy", "steam engines", "forests", "cheese", "the internet", "gravity", "penguins",
    "languages", "inflation", "DNA", "the piano", "deserts", "robots", "maps", "the Olympic Games", "rivers",
)  # fmt: skip
_SKILLS = (
    "learn to swim", "grow tomatoes", "write a short story", "save money", "train a puppy", "learn a new language",
    "bake a cake", "prepare for a job interview", "start running", "fix a flat tyre", "paint a room", "plan a trip",
    "sleep better", "make new friends", "study for an exam", "cook rice", "build a bookshelf", "learn the guitar",
    "give a speech", "reduce waste at home", "take better photographs", "knit a scarf", "keep houseplants alive",
    "organise a small kitchen", "stay calm under pressure",
)  # fmt: skip
_TASKS = (
    "reverses a string", "counts the words of a text", "checks whether a number is prime", "sorts a list of numbers",
    "finds the largest item of a list", "computes a factorial", "merges two dictionaries", "reads a CSV file",
    "removes duplicates from a list", "checks whether a word is a palindrome", "converts Celsius to Fahrenheit",
    "computes the Fibonacci numbers", "counts the vowels of a string", "flattens a nested list", "rolls two dice",
    "finds the common elements of two lists", "computes the mean and the median", "searches a sorted list",
)  # fmt: skip
_SCENES = (
    "a lighthouse in a storm", "a dog that finds a map", "a robot that learns to paint", "a train at night",
    "a garden on a roof", "a lost umbrella", "a village under the snow", "a ship that sails to the stars",
    "an old clock that runs backwards", "a fox and an owl", "the last day of summer", "a library with one door",
    "a baker who cannot taste", "a river that changes its course", "a market on the moon", "two friends on an island",
)  # fmt: skip
_SENTENCES = (
    "The meeting was moved to Friday because the room was not free.",
    "Plants take in carbon dioxide and give off oxygen while the sun shines.",
    "The new bridge will shorten the way to the station by ten minutes.",
    "Many people drink tea in the morning and coffee in the afternoon.",
    "The museum opens at nine and closes at five, except on Mondays.",
    "After a long winter the first flowers came up in the park.",
    "The team finished the project two weeks before the deadline.",
    "Sales rose in spring, fell in summer and recovered in autumn.",
    "Our train was late, so we missed the first half of the concert.",
    "A good night's sleep helps the memory and the mood.",
)  # fmt: skip

_ASKED = {
    _THINGS: (
        "What are {}?", "Explain {} to a child.", "Tell me three interesting facts about {}.",
        "Why are {} important?", "Write a short paragraph about {}.", "Give me a brief history of {}.",
        "List five things that everyone should know about {}.", "What questions would you ask an expert on {}?",
        "Write a short poem about {}.", "Summarise what is known about {} in two sentences.",
        "What are common misunderstandings about {}?", "Write a quiz with three questions about {}.",
        "Compare {} with something similar.", "Make a table of key terms about {} and what they mean.",
    ),
    _SKILLS: (
        "How do I {}?", "Give me five tips to {}.", "Write a step-by-step plan to {}.",
        "What mistakes should I avoid when I want to {}?", "Write an email to a friend who wants to {}.",
        "I have one hour a day. Help me to {}.", "What do I need before I {}?", "Is it hard to {}?",
    ),
    _TASKS: (
        "Write a Python function that {}.", "Show me JavaScript code that {}.",
        "Explain how a program works that {}.", "Write a Python function that {} and a test for it.",
    ),
    _SCENES: (
        "Write a story about {}.", "Write a poem about {}.", "Describe {} in one paragraph.",
        "Write the opening of a novel about {}.", "Write a dialogue about {}.", "Give me a title and a plot for {}.",
    ),
    _SENTENCES: (
        "Rewrite this more formally: {}", "Make this shorter: {}", "Explain this sentence: {}",
        "Turn this into a question: {}", "Continue this text: {}", "Write a headline for this: {}",
        "Which are the nouns and verbs in this sentence? {}",
    ),
}  # fmt: skip
_PLAIN = (
    "Hello! What can you do?", "Tell me a joke.", "What is 17 times 6?", "Name the planets of the solar system.",
    "What is the capital of France?", "Give me a recipe for pancakes.", "What is the boiling point of water?",
    "How many days are there in a leap year?",
    "Who wrote Romeo and Juliet?", "Suggest a name for a small bookshop.", "Plan a weekend in Rome.",
    "What should I cook with rice, eggs and spinach?", "Write a haiku about autumn.", "What is machine learning?",
    "What are the primary colours?", "How does a computer store a picture?", "Give me a motivational quote.",
    "Describe the taste of an orange.", "What is the meaning of the word serendipity?",
)  # fmt: skip


def chat_prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Every kind of question about every subject of its kind, as the chat template has it."""
    asked = [
        template.format(subject)
        for subjects, templates in _ASKED.items()
        for template, subject in itertools.product(templates, subjects)
    ]
    return [chat(tokenizer, question) for question in (*asked, *_PLAIN)]


def mixed(prompts: list[list[int]]) -> list[list[int]]:
    """Prompts in a drawn order, so that each part of them is as good as another."""
    return random.Random(_SEED).sample(prompts, len(prompts))


def beginnings(tokenizer: Tokenizer) -> list[list[int]]:
    """For orrery-tiny: documents of its own kind that it was not trained on, each cut where it is to go on.

    A chat is cut where the assistant answers last, anything else within its first words.
    """
    cuts = random.Random(_SEED)
    prompts = []
    for document in itertools.islice(documents(_SEED), _BEGINNINGS):
        given, answered, _ = document.replace(MARK, "").rpartition(_ASSISTANT)
        prompt = given + answered if answered else " ".join(document.split(" ")[: cuts.randint(2, 12)])
        prompts.append(tokenizer.encode(prompt, add_special_tokens=False)[-_LONGEST:])
    return prompts


def is_held_out(number: int) -> bool:
    """Whether the prompt of this number, counted in that order, is kept for measuring."""
    return number % HELD_OUT_EVERY == 0
