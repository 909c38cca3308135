"""Markdown's inline code, prose and tables, for texts that come from strangers: a space, a server's log."""

from __future__ import annotations

from collections.abc import Sequence


def code(text: str) -> str:
    """A text as inline code, whatever is in it."""
    text = " ".join(text.split())
    fence = "`"
    while fence in text:
        fence += "`"
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"`{text}`"


def prose(text: str) -> str:
    """A text in which no HTML is left: the dashboard would show it."""
    return text.replace("<", "&lt;")


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that can be read as it stands: columns padded on the left, but for the last, which may be long."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in (header, *rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header) - 1)]
    text = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=False)) + f" | {line[-1]} |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|---|"
    return "\n".join([text[0], rule, *text[1:]])
