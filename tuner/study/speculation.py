"""The arithmetic of whether speculation pays, and why.

    tok/s without     = streams / plain step
    tok/s with        = streams × accept length / cycle        cycle = draft + verify
    break-even        = cycle / plain step                     the accept length at which both are equally fast
    message           = tokens × hidden × element size         bytes of one all-reduce; 2 for each layer

The cycle is a property of links, NCCL, model and steps; the accept length of drafter, prompts and steps. So each is
measured by itself, and the formulas put them together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}: found {value}, expected a positive, finite number")


@dataclass(frozen=True)
class CycleCost:
    """What a step and a cycle cost on one host, at one number of streams.

    Attributes:
        plain_step_s: a decode step without speculation.
        cycle_s: draft steps and verify step together, seconds between two runs of accepted tokens of a stream.
        draft_s: the drafter's part of the cycle; ``None`` where unknown.
        streams: that run at a time.

    Raises:
        ValueError: a time that is not positive and finite, a draft as long as the cycle, or no stream.
    """

    plain_step_s: float
    cycle_s: float
    draft_s: float | None = None
    streams: int = 1

    def __post_init__(self) -> None:
        _positive("plain step", self.plain_step_s)
        _positive("verify cycle", self.cycle_s)
        if self.draft_s is not None and not 0 <= self.draft_s < self.cycle_s:
            raise ValueError(f"found a draft of {self.draft_s} s, expected 0 to less than the cycle's {self.cycle_s} s")
        if self.streams < 1:
            raise ValueError(f"found {self.streams} streams, expected at least 1")

    @classmethod
    def from_rates(
        cls, plain_tok_s: float, speculative_tok_s: float, accept_length: float, *, streams: int = 1
    ) -> CycleCost:
        """From tok/s of all streams together: plain step = streams / tok/s, cycle = streams × accept length / tok/s.

        Raises:
            ValueError: a value that is not positive and finite.
        """
        _positive("tok/s without speculation", plain_tok_s)
        _positive("tok/s with speculation", speculative_tok_s)
        _positive("accept length", accept_length)
        return cls(streams / plain_tok_s, streams * accept_length / speculative_tok_s, streams=streams)

    @property
    def break_even(self) -> float:
        """Accept length at which speculation neither gains nor loses: cycle / plain step."""
        return self.cycle_s / self.plain_step_s

    @property
    def plain_tok_s(self) -> float:
        """Of all streams without speculation: streams / plain step."""
        return self.streams / self.plain_step_s

    def tok_s(self, accept_length: float) -> float:
        """Of all streams at an accept length: streams × accept length / cycle."""
        return self.streams * accept_length / self.cycle_s

    def speed_up(self, accept_length: float) -> float:
        """tok/s with speculation / without: accept length / break-even."""
        return accept_length / self.break_even

    def pays(self, accept_length: float, margin: float = 0.0) -> bool:
        """Whether the gain is above a margin (0.01 = 1 %)."""
        return self.speed_up(accept_length) > 1 + margin

    def longest_cycle_s(self, accept_length: float) -> float:
        """The cycle that would break even at that accept length: accept length × plain step."""
        return accept_length * self.plain_step_s


@dataclass(frozen=True)
class Communication:
    """The all-reduces of one step of a tensor-parallel model.

    Attributes:
        layers: of the model; each makes two all-reduces, after attention and after the MLP.
        hidden, element_bytes: a token's part of a message.
        tokens: that a step carries: streams, times the draft tokens of a verify step.
        allreduce_s: time of one, at that size.

    Raises:
        ValueError: a count below 1, or a time that is not positive and finite.
    """

    layers: int
    hidden: int
    element_bytes: int
    tokens: int
    allreduce_s: float

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "element_bytes", "tokens"):
            if (found := getattr(self, name)) < 1:
                raise ValueError(f"found {name} {found}, expected at least 1")
        _positive("all-reduce", self.allreduce_s)

    @property
    def allreduces(self) -> int:
        """Of a step: 2 × layers."""
        return 2 * self.layers

    @property
    def message_bytes(self) -> int:
        """Of one all-reduce: hidden × tokens × element size."""
        return self.hidden * self.tokens * self.element_bytes

    @property
    def step_s(self) -> float:
        """Of all all-reduces of a step, one after the other; none of them is taken to overlap with compute."""
        return self.allreduces * self.allreduce_s

    def share(self, whole_s: float) -> float:
        """Their part of a step or cycle, 0 to 1.

        Raises:
            ValueError: they take longer than the whole, so that one of the two is wrong.
        """
        if self.step_s > whole_s:
            raise ValueError(f"found {self.step_s:.6g} s of all-reduces in a step of {whole_s:.6g} s, expected less")
        return self.step_s / whole_s


@dataclass(frozen=True)
class Case:
    """A host whose numbers are known: what `explain` explains.

    Attributes:
        label: whether it is measured or assumed, and where.
        verify: all-reduces of its verify step; ``None`` where their time is unknown.
        plain: of its plain step.
    """

    label: str
    cost: CycleCost
    verify: Communication | None = None
    plain: Communication | None = None

    def links_needed(self, accept_length: float) -> float | None:
        """The fraction of their time that all-reduces may take for speculation to break even; ``None`` if none helps.

        Better links quicken the plain step too, so the fraction f solves

            cycle − verify's + f × verify's = accept length × (plain step − plain's + f × plain's)

        and is known only where both times are. Above 1: links may get worse.
        """
        if self.verify is None or self.plain is None:
            return None
        rest = accept_length * (self.cost.plain_step_s - self.plain.step_s) - (self.cost.cycle_s - self.verify.step_s)
        difference = self.verify.step_s - accept_length * self.plain.step_s
        if difference <= 0 or rest < 0:
            return None
        return rest / difference


MOTIVATING = Case(
    label="assumed: a model of 61 layers on 8 GPUs over PCIe; a step without speculation at 70 tok/s",
    cost=CycleCost(plain_step_s=14e-3, cycle_s=33e-3, draft_s=3e-3),
    verify=Communication(layers=61, hidden=7168, element_bytes=2, tokens=4, allreduce_s=25e-3 / 122),
)
"""What made people ask: verify step 30 ms, of which 122 all-reduces 25; draft 3 ms; break-even 33 / 14 = 2.36."""

MEASURED = Case(
    label="measured: 2 × H200 through host memory, SGLang 0.5.17, 61 layers, EAGLE3 (3, 1, 4), a random drafter",
    cost=CycleCost.from_rates(plain_tok_s=203.1, speculative_tok_s=136.2, accept_length=1.006),
)
"""Cycle 1.006 / 136.2 = 7.39 ms, plain step 1 / 203.1 = 4.92 ms, break-even 1.50."""


def explain(case: Case, accept_length: float, margin: float = 0.0) -> tuple[str, ...]:
    """Why speculation pays or does not, a sentence each, in the order of an argument.

    Args:
        accept_length: measured mean tokens of a cycle, the bonus token included.
        margin: gains up to it count as none (0.01 = 1 %).

    Raises:
        ValueError: an accept length that is not positive and finite, or all-reduces longer than their step.
    """
    _positive("accept length", accept_length)
    cost = case.cost
    pays = cost.pays(accept_length, margin)
    verdict = "speculation pays here" if pays else "speculation does not pay here"
    sentences = [
        f"Numbers {case.label}.",
        f"A plain step takes {_ms(cost.plain_step_s)} ({cost.plain_tok_s:.1f} tok/s), a cycle of drafting and "
        f"verifying {_ms(cost.cycle_s)}.",
        f"A cycle must yield {_ms(cost.cycle_s)} / {_ms(cost.plain_step_s)} = {cost.break_even:.2f} tokens to break "
        f"even; it yields {accept_length:.2f}.",
        f"That is {cost.tok_s(accept_length):.1f} tok/s, {cost.speed_up(accept_length):.2f} times the speed without: "
        f"{verdict}.",
        *_shares(case),
    ]
    return (*sentences, *(() if pays else _remedies(case, accept_length, margin)))


def _shares(case: Case) -> list[str]:
    """What the cycle and the plain step consist of, as far as it is known."""
    sentences = []
    if case.cost.draft_s is not None:
        sentences.append(
            f"Drafting is {_ms(case.cost.draft_s)} of the cycle ({case.cost.draft_s / case.cost.cycle_s:.0%})."
        )
    for communication, name, whole_s in (
        (case.verify, "cycle", case.cost.cycle_s),
        (case.plain, "plain step", case.cost.plain_step_s),
    ):
        if communication is not None:
            sentences.append(
                f"{communication.allreduces} all-reduces of {communication.message_bytes:,} bytes take "
                f"{_ms(communication.step_s)}, {communication.share(whole_s):.0%} of the {name}."
            )
    return sentences


def _remedies(case: Case, accept_length: float, margin: float) -> list[str]:
    """What would have to improve, each by itself, for a gain of the margin."""
    cost, needed_length = case.cost, case.cost.break_even * (1 + margin)
    accept_length /= 1 + margin
    longest_s = cost.longest_cycle_s(accept_length)
    sentences = [
        f"To pay, the drafter would need an accept length above {needed_length:.2f} at this cycle, or the cycle less "
        f"than {_ms(longest_s)} with this drafter: {_ms(cost.cycle_s - longest_s)} less."
    ]
    if cost.draft_s is not None:
        free = (cost.cycle_s - cost.draft_s) / cost.plain_step_s
        enough = "would do" if free < accept_length else "would not be enough"
        sentences.append(f"A drafter that costs nothing {enough}: the break-even would be {free:.2f}.")
    if case.verify is not None and case.plain is not None:
        needed = case.links_needed(accept_length)
        if needed is None:
            sentences.append("Faster links alone would not be enough, since they quicken the plain step too.")
        elif needed < 1:
            sentences.append(f"All-reduces in {needed:.0%} of their time would do, in plain and verify step alike.")
    return sentences


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
