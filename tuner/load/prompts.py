"""Fresh natural-text prompts, seeded: the same for every launch, never twice within one.

Why natural text: random words inflate how many drafted tokens are accepted. Why fresh: a repeated prompt is found in
the prefix cache and its prefill costs nothing. The text in ``tuner/data/prompts.txt`` was written for this project.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from tuner.values.workload import Workload

INSTRUCTIONS = (
    "Continue this as a long story, with many details.",
    "Go on from here, and take the time to explain everything.",
    "Write the next chapters in the same tone.",
    "Describe at length what happened before and after.",
    "Explain the background step by step, in full sentences.",
    "Retell this for a patient reader, leaving nothing out.",
    "Write a long letter to a friend about it.",
    "Discuss it from several sides, with examples.",
)
"""How a prompt ends: with a request whose natural answer is long, since text beyond a natural end degenerates into
loops that a drafter guesses too well."""


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        name: ``seed/window/stream``, its identity.
        text: about as many words as the workload asks for.
    """

    name: str
    text: str


def prompts(workload: Workload, index: int) -> tuple[Prompt, ...]:
    """The prompts of window `index` (negative: warm-up), one for each stream.

    No two windows of a launch share one. Each prompt begins with a pair of words of its own, and the first words all
    differ until the vocabulary, over a thousand words, is used up.
    """
    # Warm-up windows −1, −2, … and windows 0, 1, … interleaved, so that every window has its own place.
    window = 2 * index if index >= 0 else -2 * index - 1
    places = range(window * workload.concurrency, (window + 1) * workload.concurrency)
    return tuple(
        Prompt(f"{workload.seed}/{index}/{stream}", _text(workload.seed, place, workload.prompt_words))
        for stream, place in enumerate(places)
    )


def _text(seed: int, place: int, words: int) -> str:
    opening = _opening(seed, place)
    choice = random.Random(f"{seed}/{place}")  # noqa: S311 (reproducible, not secret)
    instruction = choice.choice(INSTRUCTIONS)
    wanted = words - len(opening.split()) - len(instruction.split())
    body: list[str] = []
    left: list[str] = []
    while True:
        if not left:
            left = list(_sentences())
            choice.shuffle(left)
        sentence = left.pop()
        length = len(sentence.split())
        if wanted < length / 2:
            break
        body.append(sentence)
        wanted -= length
    parts = [opening, *body]
    if words > len(opening.split()) + len(instruction.split()):
        parts.append(instruction)
    return " ".join(parts)


def _opening(seed: int, place: int) -> str:
    """A title of two words, unlike that of any other place below the square of the vocabulary's size."""
    first, second = _titles(seed)
    return f"{first[place % len(first)]} and {second[(place + place // len(first)) % len(second)].lower()}."


@cache
def _titles(seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Two independent orders of the text's longer words."""
    vocabulary = sorted({word.lower() for word in re.findall(r"\b[A-Za-z]{5,}\b", " ".join(_sentences()))})
    orders = []
    for which in ("first", "second"):
        words = [word.capitalize() for word in vocabulary]
        random.Random(f"{seed}/{which}").shuffle(words)  # noqa: S311 (reproducible, not secret)
        orders.append(tuple(words))
    return orders[0], orders[1]


@cache
def _sentences() -> tuple[str, ...]:
    """The bundled sentences, one a line; lines that begin with ``#`` are comments."""
    text = resources.files("tuner").joinpath("data/prompts.txt").read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if line and not line.startswith("#"))
