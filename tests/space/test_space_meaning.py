"""Whether two files mean the same space, and what is told when they do not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import yaml

from tuner.space.load import load_space

SPACE = """
why: an example
env:
  NCCL_ALGO:
    choices: [null, Ring, {value: "allreduce:tree", requires: {nccl: ">=2.24"}, why: Tree is refused}]
    why: ring or tree
  NCCL_MIN_NCHANNELS: {int: {low: 1, high: 32, log: true}}
  NCCL_MAX_NCHANNELS: {int: {low: 2, high: 32, step: 2}, default: 4, requires: {gpus: ">=2"}}
  NCCL_BUFFSIZE: {choices: [null, 65536], when: NCCL_ALGO != null}
args:
  num-continuous-decode-steps: {choices: [null, 4, 8]}
  mem-fraction-static: {float: {low: 0.5, high: 0.9, step: 0.1}, default: 0.8}
  enable-mixed-chunk: {choices: [null, true]}
rules:
  - {rule: NCCL_MIN_NCHANNELS <= NCCL_MAX_NCHANNELS, why: min wins}
  - rule: mem_fraction_static < 0.9 or NCCL_ALGO == 'Ring'
try_first:
  - {name: everything default, set: {}}
  - {name: ring, set: {NCCL_ALGO: Ring, NCCL_MAX_NCHANNELS: 8}}
"""


def variants() -> Iterator[tuple[str, str, str]]:
    """Changes of the meaning: what to replace, by what, and the difference that must be told."""
    yield "[null, 4, 8]", "[null, 4]", "args.num-continuous-decode-steps.choices: was [null, 4, 8], is now [null, 4]"
    yield (
        "[null, 4, 8]",
        "[null, 8, 4]",
        "args.num-continuous-decode-steps.choices: was [null, 4, 8], is now [null, 8, 4]",
    )
    yield "default: 4", "default: 6", "env.NCCL_MAX_NCHANNELS.default: was 4, is now 6"
    yield (
        'nccl: ">=2.24"',
        'nccl: ">=2.25"',
        "env.NCCL_ALGO.choice guards.allreduce:tree.nccl: was '>=2.24', is now '>=2.25'",
    )
    yield 'gpus: ">=2"', 'gpus: ">=4"', "env.NCCL_MAX_NCHANNELS.requires.gpus: was '>=2', is now '>=4'"
    yield "high: 32, log: true", "high: 64, log: true", "env.NCCL_MIN_NCHANNELS.range: was [1, 32], is now [1, 64]"
    yield "high: 32, log: true", "high: 32, log: false", "env.NCCL_MIN_NCHANNELS.log: was true, is now false"
    yield (
        "when: NCCL_ALGO != null",
        "when: NCCL_ALGO == null",
        "env.NCCL_BUFFSIZE.when: was 'NCCL_ALGO != null', is now 'NCCL_ALGO == null'",
    )
    yield "mem_fraction_static < 0.9 or", "mem_fraction_static < 0.85 or", "rules.mem_fraction_static < 0.85 or"
    yield "NCCL_MAX_NCHANNELS: 8", "NCCL_MAX_NCHANNELS: 6", 'try_first: was [{"name": "everything default", "set": {}}'
    yield "  enable-mixed-chunk: {choices: [null, true]}\n", "", "args.enable-mixed-chunk: removed"
    yield "args:\n", "args:\n  new: {choices: [null, 1]}\n", "args.new: added"
    yield "[null, true]", "[null, 'true']", 'args.enable-mixed-chunk.choices: was [null, true], is now [null, "true"]'


@pytest.mark.parametrize(("old", "new", "difference"), list(variants()))
def test_a_change_of_meaning_is_seen_and_told(old: str, new: str, difference: str) -> None:
    before, after = load_space(SPACE, "x.yaml"), load_space(changed(old, new), "x.yaml")
    assert before.fingerprint != after.fingerprint
    told = before.differences(after)
    assert any(line.startswith(difference) for line in told), told
    assert len(told) <= 2
    assert len(after.differences(before)) == len(told)


def changed(old: str, new: str) -> str:
    assert SPACE.count(old) >= 1, f"the example has no {old!r} any more"
    return SPACE.replace(old, new, 1)


def test_layout_order_and_reasons_are_no_part_of_the_meaning() -> None:
    document = yaml.safe_load(SPACE)
    flipped = {key: document[key] for key in reversed(document)}
    for section in ("env", "args"):
        flipped[section] = {
            name: {k: v for k, v in reversed(list(p.items())) if k != "why"}
            for name, p in reversed(document[section].items())
        }
    flipped["rules"] = [{"rule": f" {r['rule']}  "} for r in reversed(document["rules"])]
    flipped["why"] = "another"
    same = load_space("# a comment\n" + yaml.safe_dump(flipped, sort_keys=False), "y.yaml")
    space = load_space(SPACE, "x.yaml")
    assert space.fingerprint == same.fingerprint
    assert space.differences(same) == ()
    assert len(space.fingerprint) == 64


def test_spaces_of_different_files_have_different_fingerprints() -> None:
    texts = [SPACE, *(changed(old, new) for old, new, _ in variants())]
    spaces = [load_space(text, "x.yaml") for text in texts]
    for a, b in itertools.combinations(spaces, 2):
        assert a.fingerprint != b.fingerprint
