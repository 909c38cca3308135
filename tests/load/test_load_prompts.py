from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections import Counter
from importlib import resources

import pytest

from tuner.load.prompts import prompts
from tuner.values.workload import Workload

WORKLOAD = Workload(concurrency=64, prompt_words=60, seed=7)


def test_they_are_the_same_for_every_launch_on_every_machine() -> None:
    texts = [prompt.text for prompt in prompts(WORKLOAD, 0)]
    assert texts == [prompt.text for prompt in prompts(WORKLOAD, 0)]
    # A constant: a study is resumed by another process, perhaps on another Python.
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    assert digest[:16] == "41f270eacb1b6bfd"


def test_no_two_of_a_launch_begin_alike() -> None:
    """Prefix-cache hits flatter: the first two words are nobody else's, and within a window not even the first."""
    workload = dataclasses.replace(WORKLOAD, concurrency=256)
    launch = [prompts(workload, index) for index in range(-2, 6)]
    for window in launch:
        assert max(Counter(prompt.text.split()[0] for prompt in window).values()) == 1
    every = list(itertools.chain.from_iterable(launch))
    assert len({prompt.name for prompt in every}) == len(every) == 8 * 256
    shared = Counter(tuple(prompt.text.split()[:3]) for prompt in every)
    assert max(shared.values()) == 1


def test_seeds_give_other_prompts() -> None:
    first = {prompt.text for prompt in prompts(WORKLOAD, 0)}
    other = {prompt.text for prompt in prompts(dataclasses.replace(WORKLOAD, seed=8), 0)}
    assert not first & other


@pytest.mark.parametrize("words", [20, 60, 400, 8000])
def test_they_are_about_as_long_as_asked(words: int) -> None:
    for prompt in prompts(dataclasses.replace(WORKLOAD, concurrency=8, prompt_words=words), 0):
        assert abs(len(prompt.text.split()) - words) <= 14


def test_a_tiny_prompt_is_still_a_prompt() -> None:
    (prompt,) = prompts(dataclasses.replace(WORKLOAD, concurrency=1, prompt_words=1), 0)
    assert 1 <= len(prompt.text.split()) <= 3


def test_the_bundled_text_is_whole_sentences() -> None:
    text = resources.files("tuner").joinpath("data/prompts.txt").read_text(encoding="utf-8")
    sentences = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(sentences) == len(set(sentences)) > 250
    for sentence in sentences:
        assert sentence[0].isupper() and sentence[-1] in ".?!" and "  " not in sentence, sentence
        assert len(sentence.split()) <= 30, sentence
