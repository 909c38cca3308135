"""A space, objectives and an imagined server for the search's tests."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.documents.objective import Objective
from tuner.search import Proposal, Search
from tuner.space.load import load_space
from tuner.space.offered import OfferedSpace

SPACE = """
why: for tests
env:
  NCCL_ALGO:
    choices: [null, Ring, Tree]
  NCCL_PROTO:
    choices: [null, LL, Simple]
    when: NCCL_ALGO == "Ring"
  NCCL_MIN_NCHANNELS:
    int: {low: 1, high: 16}
    default: null
  NCCL_MAX_NCHANNELS:
    int: {low: 1, high: 16}
    default: null
args:
  mem-fraction-static:
    float: {low: 0.5, high: 0.9, step: 0.01}
    default: 0.88
rules:
  - rule: NCCL_MIN_NCHANNELS <= NCCL_MAX_NCHANNELS
try_first:
  - name: default
  - name: tree
    set: {NCCL_ALGO: Tree}
  - name: ring with LL
    set: {NCCL_ALGO: Ring, NCCL_PROTO: LL}
"""

THROUGHPUT = Objective("throughput", "output_tok_s", "maximize", "tok/s", ("output_tok_s >= 0.9 * baseline",))
LATENCY = Objective("latency", "ttft_p50_s", "minimize", "s")
FIRST = ["default", "tree", "ring with LL"]


def space(text: str = SPACE) -> OfferedSpace:
    """The space of a text, as on a host that meets every guard."""
    return load_space(text, "test.yaml").unguarded


def speed(values: Mapping[str, object]) -> float:
    """An imagined server's tok/s."""
    result = 40.0 + {"Ring": 5.0, "Tree": 2.0}.get(str(values["NCCL_ALGO"]), 0.0)
    result += {"LL": 10.0}.get(str(values["NCCL_PROTO"]), 0.0)
    return result + float(str(values["mem-fraction-static"]))


def tell(search: Search, proposal: Proposal, value: float | None = None, violation: float = 0.0) -> bool:
    """Tells a proposal as the study loop does: measured with the value, or failed without one."""
    failed = value is None
    rules = float(len(proposal.broken_rules))
    constraints = {"rules": rules, "launch": float(failed and not rules)}
    constraints |= dict.fromkeys(THROUGHPUT.constraints, violation) if search.constraints else {}
    return search.tell(
        proposal.number, value=value, constraints=constraints, attributes={"failure": "crashed"} if failed else {}
    )
