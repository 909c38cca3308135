"""A search space on the screen."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TextIO

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.documents.complaints import shown
from tuner.space.distribution import Categorical
from tuner.space.offered import OfferedSpace
from tuner.space.parameter import Parameter
from tuner.space.space import SearchSpace

_PIPED_WIDTH = 10_000
"""Columns when nobody looks: no line is ever wrapped for a program that reads it."""

_WIDE = 200
"""Columns from which the reasons fit beside the values; on narrower screens they follow in a table of their own."""


def console(file: TextIO) -> Console:
    """A console that wraps for a terminal, and writes plain, whole lines to a pipe."""
    if file.isatty():
        return Console(file=file, highlight=False, markup=False, emoji=False)
    return Console(
        file=file,
        highlight=False,
        markup=False,
        emoji=False,
        width=_PIPED_WIDTH,
        color_system=None,
        legacy_windows=False,
    )


def print_space(space: SearchSpace, source: str, out: Console) -> None:
    """The whole space: parameters, size, rules, what is tried first."""
    whole = space.unguarded
    _line(out, f"{source}: {len(space.parameters)} parameters, {size_in_words(whole)}")
    if space.why:
        _line(out, space.why)
    with_why = out.width >= _WIDE
    out.print(_parameters(space.parameters, with_why))
    if not with_why:
        out.print(_rows("Why", ("name", "why"), [(p.name, p.why) for p in space.parameters if p.why]))
    if choices := list(_choices(space.parameters)):
        out.print(_rows("Choices", ("choice", "requires", "why"), choices))
    if space.rules:
        out.print(_rows("Rules", ("rule", "why"), [(str(r.expression), r.why) for r in space.rules]))
    if space.try_first:
        first = [(e.name, _assignments(e.chosen)) for e in space.try_first]
        out.print(_rows("Tried first", ("name", "set"), first))


def print_offered(offered: OfferedSpace, host: str, out: Console) -> None:
    """What of the space a host can take, and why not the rest."""
    _line(out, f"On {host}: {len(offered.parameters)} parameters, {size_in_words(offered)}")
    if offered.withheld:
        rows = [(w.name, "all" if w.value is None else shown(w.value), w.reason) for w in offered.withheld]
        out.print(_rows("Withheld", ("name", "value", "reason"), rows))
    if offered.first:
        rows2 = [(f.name, str(offered.configuration(f.values))) for f in offered.first]
        out.print(_rows("Tried first there", ("name", "configuration"), rows2))
    if offered.first_dropped:
        out.print(_rows("Not tried first there", ("note",), [(note,) for note in offered.first_dropped]))


def size_in_words(offered: OfferedSpace) -> str:
    """``1,260 points (conditions and rules not counted)``."""
    size = offered.size
    count = "infinitely many" if math.isinf(size) else f"{int(size):,}"
    return f"{count} points (conditions and rules not counted)"


def _parameters(parameters: Iterable[Parameter], with_why: bool) -> RenderableType:
    columns = ("name", "kind", "values", "default", "when", "requires", "why")[: 7 if with_why else 6]
    rows = []
    for p in parameters:
        default = "unset" if p.default is None else str(p.default)
        when = f"{p.when or ''}{f'; otherwise {p.otherwise}' if p.otherwise else ''}"
        cells = (p.name, p.kind.value, p.words, default, when, str(p.guard), p.why)
        rows.append(cells[: len(columns)])
    return _rows("Parameters", columns, rows)


def _choices(parameters: Iterable[Parameter]) -> Iterable[tuple[str, str, str]]:
    """The choices that have a guard or a reason of their own."""
    for parameter in parameters:
        if isinstance(parameter.distribution, Categorical):
            for choice in parameter.distribution.choices:
                if choice.why or choice.guard.demands:
                    yield f"{parameter.name}={choice}", str(choice.guard), choice.why


def _assignments(chosen: Iterable[tuple[str, object]]) -> str:
    return " ".join(f"{name}={'unset' if value is None else value}" for name, value in chosen) or "(all default)"


def _rows(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        # Names stay whole, so that they can be copied; long words wrap in the other columns.
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "kind"))
    for row in rows:
        table.add_row(*(Text(" ".join(cell.split())) for cell in row))
    return table


def _line(out: Console, text: str) -> None:
    out.print(Text(" ".join(text.split())))
