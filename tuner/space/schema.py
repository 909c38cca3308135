"""What a search space file looks like, before anything of it is understood.

why: NCCL on one node.
env:
  NCCL_ALGO:
    choices: [null, Ring, {value: "allreduce:tree", requires: {nccl: ">=2.24"}, why: plain Tree is refused}]
  NCCL_MAX_NCHANNELS:
    int: {low: 1, high: 32, log: true}
    default: null
    when: NCCL_ALGO != null
args:
  chunked-prefill-size:
    choices: [null, 2048, 8192]
    requires: {engine: ">=0.5.9"}
  speculative-num-draft-tokens:
    choices: [4, 8]
    default: 4
    when: speculative_eagle_topk in (2, 4)
    otherwise: speculative_num_steps + 1   # its value where the condition does not hold; unset if a name in it is
rules:
  - {rule: "NCCL_MAX_NCHANNELS >= 2 or NCCL_ALGO != 'Ring'", why: an example}
try_first:
  - {name: ring, set: {NCCL_ALGO: Ring}}
"""

from __future__ import annotations

from tuner.documents.reading import Document
from tuner.values.configuration import Scalar


class RequiresDocument(Document):
    """Version guards; each a specifier such as ``>=2.24`` or ``>=0.5.9,<0.5.20``."""

    engine: str | None = None
    nccl: str | None = None
    gpus: str | None = None


class ChoiceDocument(Document):
    """A choice with a guard or a reason."""

    value: Scalar
    requires: RequiresDocument = RequiresDocument()
    why: str = ""


class IntDocument(Document):
    """Whole numbers from low to high, both included."""

    low: int
    high: int
    step: int = 1
    log: bool = False


class FloatDocument(Document):
    """Numbers from low to high, both included."""

    low: float
    high: float
    step: float | None = None
    log: bool = False


class ParameterDocument(Document):
    """One parameter: exactly one of `choices`, `int` and `float`."""

    choices: tuple[Scalar | ChoiceDocument, ...] | None = None
    int: IntDocument | None = None
    float: FloatDocument | None = None
    default: Scalar = None
    when: str | None = None
    otherwise: str | None = None
    requires: RequiresDocument = RequiresDocument()
    why: str = ""


class RuleDocument(Document):
    """A rule among parameters."""

    rule: str
    why: str = ""


class TryFirstDocument(Document):
    """A configuration that every study starts with."""

    name: str
    set: dict[str, Scalar] = {}  # noqa: RUF012  pydantic copies it
    why: str = ""


class SpaceDocument(Document):
    """A whole file."""

    why: str = ""
    env: dict[str, ParameterDocument] = {}  # noqa: RUF012  pydantic copies it
    args: dict[str, ParameterDocument] = {}  # noqa: RUF012  pydantic copies it
    rules: tuple[RuleDocument, ...] = ()
    try_first: tuple[TryFirstDocument, ...] = ()
