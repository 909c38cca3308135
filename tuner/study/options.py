"""The options of ``python -m tuner.study``, and the help that teaches them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

EXIT_OK, EXIT_INPUT, EXIT_STOPPED, EXIT_INFEASIBLE, EXIT_INTERRUPTED = 0, 2, 3, 4, 130

DEFAULT_STUDY = "simulated.yaml"
DEFAULT_STORAGE = "sqlite:///studies/tuner.db"

EPILOG = """\
examples:
  python -m tuner.study --space nccl.yaml
      the embedded simulated host: no GPU, no set-up, three minutes
  python -m tuner.study --space nccl.yaml --dry-run
      the exact commands of the first configurations; no host is touched
  python -m tuner.study --space nccl.yaml --study studies/kimi-k2.5.yaml
      your own GPU host: copy the file, edit hosts and engine
  python -m tuner.study --resume kimi-k2.5
      go on after a crash, from nothing but the database; the first command again does the same

A study's NAME is its file's `name`. The same command again: an unfinished study goes on, a finished one prints its
result; --new starts NAME-2. Ctrl-C stops the server, proves it gone, and leaves the study resumable.

exit status:
  0  the study ended with a verdict          3  a host, the database or the budget stopped it: resumable
  2  a file or an option is wrong            4  nothing feasible: the control itself fails
  130  interrupted: resumable
"""


@dataclass(frozen=True)
class Options:
    """What the command line asked for; ``None``: not given."""

    study: str | None
    space: str | None
    objective: str | None
    storage: str | None
    launches: int | None
    lost_launches: int | None
    seed: int | None
    resume: str | None
    new: bool
    accept_changes: bool
    dry_run: bool
    ray_address: str | None


def parse(argv: Sequence[str] | None = None) -> Options:
    """Reads the command line; prints help or what is wrong, and exits, where that is asked for or needed."""
    parser = argparse.ArgumentParser(
        prog="python -m tuner.study",
        description="Searches the configuration that makes an LLM inference server faster, and proves it by restarts.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--space", metavar="FILE", help="search space of the first stage: a file, or the name of a shipped one"
    )
    parser.add_argument(
        "--study",
        metavar="FILE",
        help=f"hosts, engine, workload, budget, stages: a file, or a shipped one (default: {DEFAULT_STUDY})",
    )
    parser.add_argument("--objective", metavar="FILE", help="objective of the first stage: a file, or a shipped one")
    parser.add_argument(
        "--storage",
        metavar="URL",
        help=f"database: sqlite:///FILE or postgresql://… (default: the study file's, else {DEFAULT_STORAGE})",
    )
    parser.add_argument(
        "--trials", metavar="N", type=positive, dest="launches", help="starts of the server, all roles together"
    )
    parser.add_argument(
        "--lost-launches",
        metavar="N",
        type=positive,
        help="launches that may be lost to the infrastructure before it stops",
    )
    parser.add_argument("--seed", metavar="N", type=seed, help="of the sampler and of the load")
    parser.add_argument("--resume", metavar="NAME", help="go on with a study of the database; no file is read")
    parser.add_argument("--new", action="store_true", help="start afresh under the next free name (NAME-2, …)")
    parser.add_argument(
        "--accept-changes", action="store_true", help="go on although space, objective or launch have changed"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the commands of the first configurations; touch no host"
    )
    parser.add_argument(
        "--ray-address", metavar="HOST:PORT", help="a running Ray cluster (default: a local one that ends with this)"
    )
    options = Options(**vars(parser.parse_args(argv)))
    if options.resume is not None:
        given = {
            "--study": options.study,
            "--space": options.space,
            "--objective": options.objective,
            "--seed": options.seed is not None,
            "--new": options.new,
            "--accept-changes": options.accept_changes,
            "--dry-run": options.dry_run,
        }
        wrong = [name for name, value in given.items() if value]
        if wrong:
            parser.error(
                f"--resume NAME takes everything from the database: it goes without {', '.join(wrong)}. To raise its "
                "budget, add --trials N or --lost-launches N."
            )
    return options


def positive(text: str) -> int:
    """An integer ≥ 1."""
    return whole(text, 1, 1_000_000)


def seed(text: str) -> int:
    """An integer of 32 bits, as the study file's."""
    return whole(text, 0, 2**32 - 1)


def whole(text: str, low: int, high: int) -> int:
    """An integer within limits."""
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}: a whole number of at least {low} and at most {high} is expected"
        )
    return value
