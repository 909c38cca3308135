"""The stand-in's tokens: text to ids, ids to text, and the answers of a model that knows very little.

About 1.3 tokens a word, as with real tokenizers. Answers are deterministic in the prompt (temperature 0), end by
themselves unless the end of sequence is ignored, and get simple sums and a few capitals right, so that a check of the
output's sanity has something to check.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

BOS = 1
EOS = 2
_FIRST_WORD = 100
_HASHED = 4096
_HASHED_SIZE = 159_000

_CAPITALS = {
    "france": "Paris",
    "germany": "Berlin",
    "italy": "Rome",
    "spain": "Madrid",
    "japan": "Tokyo",
    "england": "London",
    "austria": "Vienna",
    "egypt": "Cairo",
}

_WORDS = (  # noqa: SIM905 - a list of so many words is hard to read
    "the of and to in is that it was for on are as with they at be this from have or by one had not but what "
    "all were when we there can an your which their said if do will each about how up out them then she many "
    "some so these would other into has more her two like him see time could no make than first been its who "
    "now people my made over did down only way find use may water long little very after words called just "
    "where most know get through back much before go good new write our used me man too any day same right "
    "look think also around another came come work three word must because does part even place well such "
    "here take why things help put years different away again off went old number great tell men say small "
    "every found still between name should home big give air line set own under read last never us left end "
    "along while might next sound below saw something thought both few those always looked show large often "
    "together asked house world going want school important until form food keep children feet land side "
    "without boy once animals life "
).split()

_PIECES = tuple(
    dict.fromkeys(
        [*(f" {w}" for w in _WORDS), *(f" {c}" for c in _CAPITALS.values()), *"0123456789", " ", ".", ",", "\n"]
    )
)
_ID_OF = {piece: _FIRST_WORD + i for i, piece in enumerate(_PIECES)}
_SPLIT = re.compile(r" ?[^\W\d_]{1,7}|\d| ?[^\w\s]|\s|\w")
_SUM = re.compile(r"(\d{1,9})\s*([+*×x-])\s*(\d{1,9})")
_CAPITAL = re.compile(r"capital (?:city )?of (\w+)", re.IGNORECASE)


def encode(text: str, *, begin: bool = True) -> list[int]:
    """Token ids of a text, with the begin-of-sequence token before them.

    Pieces outside of the vocabulary get an id from their checksum: equal pieces have equal ids in every process.
    """
    ids = [BOS] if begin else []
    for piece in _SPLIT.findall(text):
        known = _ID_OF.get(piece)
        ids.append(known if known is not None else _HASHED + zlib.crc32(piece.encode()) % _HASHED_SIZE)
    return ids


def decode(ids: Sequence[int]) -> str:
    """Text of ids. The text of a sequence is the texts of its ids, one after the other."""
    return "".join(_PIECES[i - _FIRST_WORD] if 0 <= i - _FIRST_WORD < len(_PIECES) else "" for i in ids)


def opening(text: str) -> list[int]:
    """How the answer to a text begins, where the model knows it: the sum, or the capital, asked for last."""
    answer = ""
    if sums := _SUM.findall(text):
        left, operator, right = int(sums[-1][0]), sums[-1][1], int(sums[-1][2])
        answer = str(left + right if operator == "+" else left - right if operator == "-" else left * right)
        answer = answer.lstrip("-")  # no minus sign in the vocabulary
    elif capitals := _CAPITAL.findall(text):
        answer = _CAPITALS.get(capitals[-1].lower(), "")
    return encode(f" {answer}.", begin=False) if answer else []


@dataclass(frozen=True)
class Answer:
    """The tokens that follow a prompt.

    Attributes:
        seed: from the prompt's ids.
        first: the tokens it begins with.
    """

    seed: int
    first: tuple[int, ...]

    @classmethod
    def to(cls, prompt: Sequence[int], first: Sequence[int], *, salt: int = 0) -> Answer:
        """The answer to a prompt; another `salt` is another model."""
        data = b"".join((token & 0xFFFFFFFF).to_bytes(4, "little") for token in prompt)
        return cls(zlib.crc32(data, salt), tuple(first) if not salt else ())

    def token(self, position: int) -> int:
        """Token at a position, 0 for the first."""
        if position < len(self.first):
            return self.first[position]
        mixed = (self.seed ^ (position * 0x9E3779B1)) * 0x85EBCA6B & 0xFFFFFFFF
        return _FIRST_WORD + (mixed >> 8) % len(_WORDS)

    @property
    def length(self) -> int:
        """Tokens after which the model ends it by itself."""
        return len(self.first) if self.first else 24 + self.seed % 400
