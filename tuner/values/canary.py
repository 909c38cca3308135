"""Correctness canaries: what a server answered to fixed prompts, and how that compares with the default's answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class CanaryAnswer:
    """One greedy answer.

    Attributes:
        canary: identity of the prompt in the bundled set.
        token_ids: of the answer; empty where the engine does not tell.
        logprobs: natural logarithm of each token's probability; ``None`` for what is no finite number; empty where
            the engine does not tell.
        text: of the answer.
        error: why there is none; empty if there is one.
    """

    canary: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    text: str
    error: str = ""

    @property
    def usable(self) -> bool:
        """Whether there is something to compare."""
        return not self.error and bool(self.token_ids or self.text)


class Finding(StrEnum):
    """How one answer compares with the default's; the rule is in `tuner.load.canary`."""

    SAME = "agrees to the last token"
    NEAR_TIE = "differs late, between tokens of nearly the same probability"
    AT_ONCE = "differs at once"
    NO_TIE = "differs where one of the two was sure of its token"
    OTHER_LOGPROBS = "has other log-probabilities for the same tokens"
    NO_NUMBERS = "has log-probabilities that are no numbers"
    NO_ANSWER = "has no answer"


@dataclass(frozen=True)
class CanaryComparison:
    """One canary's answer beside the default's.

    Attributes:
        tokens: of the default's answer (words, where token ids are not known).
        divergence: position of the first difference, 0 for the first token; ``None`` if there is none.
        logprob_gap: median absolute difference of the log-probabilities of the tokens before it, in nats; ``None``
            where nothing can be compared.
        reference_text, text: how both answers begin, or the error.
    """

    canary: str
    finding: Finding
    tokens: int
    divergence: int | None
    logprob_gap: float | None
    reference_text: str
    text: str

    @property
    def agreement(self) -> float:
        """Fraction of the default's tokens before the first difference."""
        return 1.0 if self.divergence is None else self.divergence / max(1, self.tokens)


@dataclass(frozen=True)
class CanaryReport:
    """All canaries of a launch.

    Attributes:
        comparisons: one for each canary that the default answered; empty when there was nothing to compare with.
        corrupted: why the answers count as wrong, naming a canary, a position and both texts; empty if they do not.
    """

    comparisons: tuple[CanaryComparison, ...]
    corrupted: str = ""
