"""Correctness canaries: fixed prompts, answered greedily after the windows, compared with the default's answers.

Equal bytes are not asked for. NCCL's algorithms and protocols add the partial sums of an all-reduce in different
orders, so log-probabilities move a little, and where two tokens are nearly as likely the other one may win; from there
on the texts differ. Corruption looks different: tokens change that a model was sure of, the same tokens get other
log-probabilities, or nothing sensible comes at all.

The rule. An answer is *proof* of corruption if there is none although the default gave one, if its log-probabilities
are no numbers, or if over at least `EARLY_TOKENS` common tokens their median moved by more than `MEDIAN_GAP_NATS`. It
is *suspect* if it differs within the first `EARLY_TOKENS` tokens, or later at a token that was no near tie. One proof,
or suspects in at least `SUSPECT_SHARE` of the canaries, and the launch counts as corrupted.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import takewhile
from typing import Any

from tuner.values.canary import CanaryAnswer, CanaryComparison, CanaryReport, Finding

PATH = "/generate"
ANSWER_TOKENS = 20
"""All canaries at once: 1.5 s in one measurement on the simulated eight-GPU host (40 tok/s at one
stream). Enough to see a text go astray, too little to cost a study."""
EARLY_TOKENS = 4
"""The canaries' first tokens nearly follow from the prompt: a sound model seldom has a near tie there, and a corrupted
one cannot go on right. It is also the least number of tokens whose median says something."""
MEDIAN_GAP_NATS = 0.5
"""bfloat16 keeps 8 bits: another summation order moves a log-probability by hundredths of a nat, sometimes by a few
tenths at single tokens. Half a nat (a factor 1.6 in probability) in the median is another computation."""
TIE_NATS = 1.0
"""Two tokens of which either may win are a near tie: their log-probabilities are at most this far apart, generously."""
TIE_LOGPROB = -math.log1p(math.exp(-TIE_NATS))
"""Above this (probability 0.73) the runner-up is more than `TIE_NATS` behind: such a token is no near tie."""
SUSPECT_SHARE = 0.5
"""One answer may differ early by chance, or a mixture of experts route one token elsewhere; half of them do not."""
EXCERPT = 60
"""Characters of a text in the evidence."""
PROOF = frozenset({Finding.OTHER_LOGPROBS, Finding.NO_NUMBERS, Finding.NO_ANSWER})
SUSPECT = frozenset({Finding.AT_ONCE, Finding.NO_TIE})


# ── The prompts and the request ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Canary:
    """A prompt of the bundled set."""

    name: str
    prompt: str


@cache
def canaries() -> tuple[Canary, ...]:
    """The bundled set."""
    text = resources.files("tuner").joinpath("data/canaries.txt").read_text(encoding="utf-8")
    lines = (line.partition(": ") for line in text.splitlines() if line and not line.startswith("#"))
    return tuple(Canary(name, prompt) for name, _, prompt in lines)


def body(canary: Canary, *, logprobs: bool = True) -> dict[str, Any]:
    """The JSON body of the request; an engine that gives no log-probabilities is asked for the text alone."""
    sampling = {"temperature": 0, "max_new_tokens": ANSWER_TOKENS, "ignore_eos": True}
    asked: dict[str, Any] = {"text": canary.prompt, "sampling_params": sampling, "stream": False}
    return asked | {"return_logprob": True} if logprobs else asked


def answer(canary: Canary, content: bytes) -> CanaryAnswer:
    """What the body of an answer with status 200 says.

    Source of its form: ``detokenize_logprob_tokens`` in SGLang's ``managers/tokenizer_manager.py`` (0.5.17):
    ``meta_info.output_token_logprobs`` is a list of [log-probability, token id, text or null].
    """
    try:
        data = json.loads(content)
        meta = data["meta_info"]
        reason = meta.get("finish_reason")
        if isinstance(reason, dict) and reason.get("type") == "abort":
            return failed(canary, f"the server gave up: {reason.get('message') or 'no message'}")
        triples = meta.get("output_token_logprobs") or ()
        ids = [triple[1] for triple in triples] or data.get("output_ids") or ()
        return CanaryAnswer(
            canary.name, tuple(map(int, ids)), tuple(_number(triple[0]) for triple in triples), str(data["text"])
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return failed(canary, f"an answer of another form than /generate's: {content[:200]!r}")


def failed(canary: Canary, error: str) -> CanaryAnswer:
    """An answer that did not come."""
    return CanaryAnswer(canary.name, (), (), "", error)


def _number(value: Any) -> float | None:
    """A finite number, or ``None``: NaN comes as ``null`` or as such."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


# ── The comparison ──────────────────────────────────────────────────────────────────────────────────────────────────


def compare(reference: Sequence[CanaryAnswer] | None, answers: Sequence[CanaryAnswer]) -> CanaryReport:
    """Compares a launch's answers with those of the default, by the rule that the module states.

    Args:
        reference: the default's answers; unusable ones are passed over. ``None``: nothing to compare with.
    """
    given = {each.canary: each for each in answers}
    comparisons = tuple(_compared(each, given.get(each.canary)) for each in reference or () if each.usable)
    return CanaryReport(comparisons, _corruption(comparisons))


def _compared(reference: CanaryAnswer, found: CanaryAnswer | None) -> CanaryComparison:
    expected = _excerpt(reference.text)
    if found is None or not found.usable:
        error = (found.error if found is not None else "") or "an empty answer"
        return CanaryComparison(
            reference.canary, Finding.NO_ANSWER, len(reference.token_ids), 0, None, expected, _excerpt(error)
        )
    left, right = _units(reference, found)
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))
    divergence = None if common == len(left) == len(right) else common
    gaps = _gaps(reference, found)
    before = [gap for gap in gaps[:common] if gap is not None]
    gap = statistics.median(before) if before else None
    return CanaryComparison(
        reference.canary,
        _finding(reference, found, divergence, common, gap),
        len(left),
        divergence,
        gap,
        expected,
        _excerpt(found.text),
    )


def _units(reference: CanaryAnswer, found: CanaryAnswer) -> tuple[Sequence[object], Sequence[object]]:
    """What is compared one by one: token ids where both have them, else words."""
    if reference.token_ids and found.token_ids:
        return reference.token_ids, found.token_ids
    return reference.text.split(), found.text.split()


def _gaps(reference: CanaryAnswer, found: CanaryAnswer) -> list[float | None]:
    """Absolute difference of the log-probabilities at each position."""
    pairs = zip(reference.logprobs, found.logprobs, strict=False)
    return [None if a is None or b is None else abs(a - b) for a, b in pairs]


def _finding(
    reference: CanaryAnswer, found: CanaryAnswer, divergence: int | None, common: int, gap: float | None
) -> Finding:
    if any(a is not None and b is None for a, b in zip(reference.logprobs, found.logprobs, strict=False)):
        return Finding.NO_NUMBERS
    if gap is not None and common >= EARLY_TOKENS and gap > MEDIAN_GAP_NATS:
        return Finding.OTHER_LOGPROBS
    if divergence is None:
        return Finding.SAME
    if divergence < EARLY_TOKENS:
        return Finding.AT_ONCE
    return Finding.NEAR_TIE if _near_tie(reference.logprobs, found.logprobs, divergence) else Finding.NO_TIE


def _near_tie(reference: Sequence[float | None], found: Sequence[float | None], position: int) -> bool:
    """Whether two tokens at a position are so nearly as likely that rounding decides; true where nobody can tell."""
    if position >= min(len(reference), len(found)):
        return True
    a, b = reference[position], found[position]
    return a is None or b is None or (max(a, b) <= TIE_LOGPROB and abs(a - b) <= TIE_NATS)


def _corruption(comparisons: Sequence[CanaryComparison]) -> str:
    proof = [each for each in comparisons if each.finding in PROOF]
    suspect = [each for each in comparisons if each.finding in SUSPECT]
    if not proof and (not suspect or len(suspect) < SUSPECT_SHARE * len(comparisons)):
        return ""
    wrong = proof + suspect
    return f"{_words(wrong[0])} ({len(wrong)} of {len(comparisons)} canaries are wrong)"


def _words(one: CanaryComparison) -> str:
    """A comparison as evidence: the canary, the position, both texts."""
    where = "" if one.divergence is None else f" from token {one.divergence + 1} of {one.tokens} on"
    gap = "" if one.finding is not Finding.OTHER_LOGPROBS else f", by {one.logprob_gap:.2f} nats in the median"
    return (
        f"canary {one.canary!r} {one.finding.value}{gap}{where}: "
        f"the default answers {one.reference_text!r}, this configuration {one.text!r}"
    )


def _excerpt(text: str) -> str:
    return text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"
