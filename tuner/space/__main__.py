"""``python -m tuner.space check FILE``: shows a search space as a table, or says what is wrong and where."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from tuner.documents.reading import read_text
from tuner.errors import InputError
from tuner.shipped import shipped_file
from tuner.space.load import load_space
from tuner.space.space import SearchSpace
from tuner.space.table import console, print_offered, print_space
from tuner.values.host import Gpu, HostFacts

_DESCRIPTION = """\
Checks a search space file and prints it as a table: parameters with their values,
conditions and version guards, the number of points, the rules, and what a study
tries first. Touches no host.

FILE is a path, or the name of a space that comes with the tuner, such as nccl.yaml.

exit status: 0 the space is good; 2 it is not: standard error says what and where.
"""

_EPILOG = """\
examples:
  python -m tuner.space check nccl.yaml
  python -m tuner.space check my-space.yaml
  python -m tuner.space check nccl.yaml --engine-version 0.5.17 --nccl-version 2.28.9 --gpus 8
        also shows what such a host is offered, and what is withheld from it and why
  python -m tuner.space check my-space.yaml --allow NCCL_GRAPH_FILE
        a name that the study file would permit under 'allow:'
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit status."""
    options = _parser().parse_args(argv)
    try:
        path = shipped_file("search_spaces", options.file)
        space = load_space(read_text(path, str(path)), str(path))
        refuse_untunable(space, options.file, options.allow)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    out = console(sys.stdout)
    with out.capture() as captured:
        print_space(space, options.file, out)
        if (options.engine_version, options.nccl_version, options.gpus) != (None, None, None):
            print_offered(space.offered(_facts(options)), "such a host", out)
    return _write(captured.get())


def _write(text: str) -> int:
    """Writes to standard output; a reader that went away, such as ``head``, is no fault."""
    if not sys.stdout.isatty():
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains when it exits
    return 0


def refuse_untunable(space: SearchSpace, source: str, allow: Sequence[str]) -> None:
    """Asks the engine's adapter whether the names may be set at all.

    Raises:
        InputError: they may not; with the adapter's words.
    """
    from tuner.engines.sglang import SGLang  # here, in the command: the space itself knows no engine

    problems = SGLang().problems(space.env_names, space.arg_names, allow)
    if problems:
        raise InputError([f"{source}: {problem}" for problem in problems])


def _facts(options: argparse.Namespace) -> HostFacts:
    """A host as the options describe it."""
    gpus = tuple(Gpu(index, f"GPU-{index}", "GPU", 0, 0) for index in range(options.gpus or 0))
    return HostFacts(
        name="(as described)",
        hostname="",
        boot_id="",
        kernel="",
        cpus=1,
        driver_version=None,
        gpus=gpus,
        links="",
        engine="sglang",
        engine_version=options.engine_version,
        nccl_version=options.nccl_version,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tuner.space", description="Search spaces: what a study may vary.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="check a search space file and print it as a table",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("file", metavar="FILE", help="a path, or the name of a shipped space")
    check.add_argument("--allow", metavar="NAME", action="append", default=[], help="permit a name; may be repeated")
    check.add_argument("--engine-version", metavar="V", help="also show what a host with this engine is offered")
    check.add_argument("--nccl-version", metavar="V", help="… with this NCCL (not given: unknown)")
    check.add_argument("--gpus", metavar="N", type=_count, help="… with so many GPUs")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) > 1024:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a number of GPUs from 0 to 1024")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
