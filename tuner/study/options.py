"""The options of ``python -m tuner.study``, and the help that teaches them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

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

    study: str
    space: str | None
    objective: str | None
    storage: str | None
    launches: int | None
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
        default=DEFAULT_STUDY,
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
    parser.add_argument("--seed", metavar="N", type=int, help="of the sampler and of the load")
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
    if options.resume is not None and (options.space or options.objective or options.new or options.dry_run):
        parser.error("--resume NAME reads no files: it goes without --space, --objective, --new and --dry-run")
    return options


def positive(text: str) -> int:
    """An integer ≥ 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number of at least 1 is expected")
    return value
