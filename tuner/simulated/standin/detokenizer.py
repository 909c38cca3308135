"""The detokenizer: token ids from the scheduler to text for the launcher."""

from __future__ import annotations

import socket

from tuner.simulated.standin.frames import Frames
from tuner.simulated.standin.vocabulary import decode


def serve(tokens: socket.socket, texts: socket.socket) -> None:
    """Adds the text to each batch of tokens, until the scheduler is gone."""
    source, target = Frames(tokens), Frames(texts)
    try:
        while True:
            batch = source.receive()
            for item in batch["items"]:
                item["text"] = decode(item["ids"])
            target.send(batch)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
