"""Speculative decoding on a simulated host: what a cycle carries, what it costs, and what is accepted.

A drafter proposes tokens in `steps` passes, the model verifies them all in one step, and the longest run that it agrees
with is kept, together with one token of its own. Which constants are measured and which are made up: docs/simulator.md.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_CHAINED = ("EAGLE", "EAGLE3", "STANDALONE", "NEXTN")
_DEFAULT = (3, 1, 4)  # SGLang's own, for all but some Llamas
_NGRAM_TOKENS = 12
_TREE_GAIN = 0.25  # made up: four branches at each step raise an accept length of 2.9 by 16 %
_RANDOM_PROMPT_GAIN = (
    2.0  # made up, so that 2.9 becomes 3.7: random prompts were reported to lift 1.94 and 2.99 to 3.93
)
_RANDOM_PROMPT_TOKENS = 32
_RANDOM_PROMPT_DISTINCT = 0.97  # of so many tokens of a text in a language, more than one in thirty repeats another


@dataclass(frozen=True)
class Drafter:
    """How good the proposals are.

    Attributes:
        first: chance that the first token of a chain is accepted.
        decay: each further token's chance, given that those before it were accepted, is this times the last one's.
    """

    name: str
    first: float
    decay: float

    def acceptance(self, position: int, width: float = 1.0, *, inflated: bool = False) -> float:
        """Chance that some token at a depth is accepted, given that one was at each depth before it.

            1 - (1 - first × decay^position)^(width^0.25 × inflation)

        Args:
            position: from 0.
            width: branches to choose from at that depth, on average.
            inflated: the prompt is of random tokens; see `looks_random`.
        """
        alone = self.first * self.decay**position
        tries = width**_TREE_GAIN * (_RANDOM_PROMPT_GAIN if inflated else 1.0)
        return float(1.0 - (1.0 - alone) ** tries)


GOOD = Drafter("good", 0.82, 0.93)
"""Accept length 2.89 at (3, 1, 4), as cards of EAGLE-3 drafters of Kimi-K2.5 report (2.83 to 3.02)."""

WEAK = Drafter("weak", 0.42, 0.8)
"""Accept length 1.60 at (3, 1, 4)."""

BROKEN = Drafter("broken", 0.006, 1.0)
"""Accept length 1.006, as measured with random weights."""

NGRAM = Drafter("n-gram", 0.2, 0.9)
"""Repetition of what was said before; made up."""


def drafter_of(path: str) -> Drafter:
    """The drafter behind a ``--speculative-draft-model-path``: ``broken`` or ``weak`` if that is in its name."""
    named = path.lower()
    return BROKEN if "broken" in named else WEAK if "weak" in named else GOOD


def looks_random(ids: Sequence[int]) -> bool:
    """Whether a prompt is of random tokens: long, and hardly any token a second time, as in no natural text.

    What such a prompt leads to is repetition, of which a drafter guesses more.
    """
    return len(ids) >= _RANDOM_PROMPT_TOKENS and len(set(ids)) >= _RANDOM_PROMPT_DISTINCT * len(ids)


@dataclass(frozen=True)
class DraftCosts:
    """What a drafter costs on a machine.

    Attributes:
        step_s: of one draft step, its two all-reduces apart, with what else a cycle does in proportion to its steps.
        branch_s: more of it for each branch beyond the first.
        per_stream_s: of a cycle, for each stream beyond the first.
        weights_bytes: of the drafter on each GPU.
        graph_bytes: of the further captures on each GPU.
    """

    step_s: float
    branch_s: float
    per_stream_s: float
    weights_bytes: int
    graph_bytes: int


@dataclass(frozen=True)
class Speculation:
    """The speculative settings of a launch.

    Attributes:
        steps: passes of the drafter in a cycle; 0 without one.
        topk: branches of each step.
        tokens: that the verify step carries for each stream.
    """

    steps: int
    topk: int
    tokens: int
    drafter: Drafter

    @classmethod
    def of(cls, args: Mapping[str, str | bool]) -> Speculation | None:
        """From server arguments, names without dashes; ``None`` without speculation.

        Algorithms other than EAGLE's, STANDALONE and NGRAM are not modelled: they count as none.
        """
        algorithm = str(args.get("speculative-algorithm") or "").upper()
        steps, topk, tokens = (
            _whole(args.get(f"speculative-{name}")) for name in ("num-steps", "eagle-topk", "num-draft-tokens")
        )
        if algorithm == "NGRAM":
            return cls(0, 1, tokens or _NGRAM_TOKENS, NGRAM)
        if algorithm not in _CHAINED:
            return None
        drafter = drafter_of(str(args.get("speculative-draft-model-path") or ""))
        if steps is None or topk is None:
            steps, topk, tokens = _DEFAULT
        return cls(steps, topk, steps + 1 if topk == 1 or tokens is None else tokens, drafter)

    @property
    def fits(self) -> bool:
        """Whether the tree has as many candidates as the verify step is to carry; otherwise graph capture fails.

        ``tokens - 1 <= topk + (steps - 1) × topk²`` (source: SGLang's eagle_utils.py).
        """
        return self.steps == 0 or self.tokens - 1 <= self.topk + (self.steps - 1) * self.topk**2

    @property
    def depth(self) -> int:
        """Most drafted tokens that a cycle can accept."""
        return min(self.steps, self.tokens - 1) if self.steps else self.tokens - 1

    @property
    def width(self) -> float:
        """Verified candidates at each depth, on average, 1 to `topk`."""
        return max(1.0, min(self.topk, (self.tokens - 1) / max(1, self.depth)))

    def mean_length(self, *, inflated: bool = False) -> float:
        """Mean tokens of a cycle, the model's own among them: 1 + Σ over depths of the chance to get that far."""
        mean = reached = 1.0
        for position in range(self.depth):
            reached *= self.drafter.acceptance(position, self.width, inflated=inflated)
            mean += reached
        return mean

    def accepted(self, draws: random.Random, *, inflated: bool = False) -> int:
        """Tokens of one cycle of one stream, 1 to `depth` + 1."""
        for position in range(self.depth):
            if draws.random() >= self.drafter.acceptance(position, self.width, inflated=inflated):
                return position + 1
        return self.depth + 1


def _whole(value: str | bool | None) -> int | None:
    try:
        return None if value is None or isinstance(value, bool) else int(value)
    except ValueError:
        return None
