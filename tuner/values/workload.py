"""What a server is asked to do while it is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Workload:
    """Seeded load, the same for every launch: fresh prompts, equal token counts.

    A window is `concurrency` simultaneous requests of exactly `output_tokens` tokens each.

    Attributes:
        endpoint: ``generate`` (the engine's own) or ``chat`` (``/v1/chat/completions``).
        concurrency: streams at a time.
        prompt_words: length of a prompt in words, about 1.3 tokens each.
        output_tokens: tokens of each answer; the end of sequence is ignored.
        windows: measured windows of a launch.
        warm_up_windows: windows thrown away before them.
        seed: of the choice of prompts; window k of every launch gets the same prompts.
        request_timeout_s: a stream that sends nothing for so long has hung.
    """

    endpoint: Literal["generate", "chat"] = "generate"
    concurrency: int = 1
    prompt_words: int = 60
    output_tokens: int = 256
    windows: int = 3
    warm_up_windows: int = 1
    seed: int = 0
    request_timeout_s: float = 120.0
