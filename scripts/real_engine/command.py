"""The command line: ``install``, ``serve``, ``test``."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path

from real_engine import recipe
from real_engine.installation import EngineError, Installation, say

ROOT = Path(__file__).resolve().parents[2]
FOLDER_VARIABLE = "TUNER_REAL_ENGINE"
"""Tells the contract tests where the engine is; without it those against the real engine are skipped."""

_DESCRIPTION = f"""\
A real SGLang {recipe.VERSION} on this machine's CPU, with a model of random weights, and the contract tests that hold
the engine adapter and the stand-in server to it. Everything is kept in .real-engine/ of the checkout (about 2.7 GB)."""

_EXAMPLES = """\
examples:
  scripts/real-engine                    install if needed, then test
  scripts/real-engine test -x -k drain   arguments after `test` go to pytest
  scripts/real-engine serve --port 8000  a server to look at by hand; Ctrl-C ends it"""


def main() -> int:
    """Runs a subcommand and returns the exit status."""
    options, rest = _parser().parse_known_args()
    if rest and options.do is not _test:
        _parser().error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    try:
        return int(options.do(options))
    except EngineError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/real-engine",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # Taken both before and after the subcommand, whose own default must not overwrite what stood before it.
    shared = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    for each in (parser, shared):
        each.add_argument("--folder", type=Path, help="where the engine is (default: .real-engine)")
        each.add_argument(
            "--torch-index",
            metavar="URL",
            help="package index with CPU builds of PyTorch; the usual index may give CUDA builds, which work and take "
            "several GB more",
        )
    parser.set_defaults(folder=ROOT / ".real-engine")
    parser.set_defaults(do=_test)
    commands = parser.add_subparsers(title="subcommands", metavar="{install,serve,test}")
    install = commands.add_parser("install", parents=[shared], help="install it anew")
    install.set_defaults(do=_install)
    serve = commands.add_parser("serve", parents=[shared], help="start it in the foreground, on the loopback")
    serve.add_argument("--port", type=int, default=0, help="default: a free one")
    serve.set_defaults(do=_serve)
    test = commands.add_parser("test", parents=[shared], help="run the contract tests against it (the default)")
    test.set_defaults(do=_test)
    return parser


def _installed(options: argparse.Namespace) -> Installation:
    """The engine; installed if it is not, or not as the recipe wants it now."""
    engine = Installation(options.folder.resolve())
    if not engine.complete:
        engine.install(options.torch_index)
    engine.write_launch()
    return engine


def _install(options: argparse.Namespace) -> int:
    Installation(options.folder.resolve()).install(options.torch_index)
    return 0


def _serve(options: argparse.Namespace) -> int:
    """Becomes the server."""
    engine = _installed(options)
    argv = engine.argv(options.port or _free_port())
    words = [f"{name}={value}" for name, value in recipe.ENVIRONMENT.items()]
    say(f"starting {' '.join([*words, *argv])}")
    os.execve(argv[0], argv, {**os.environ, **recipe.ENVIRONMENT})  # noqa: S606


def _test(options: argparse.Namespace) -> int:
    engine = _installed(options)
    say("running the contract tests; a start of the engine takes about 20 s")
    env = {**os.environ, FOLDER_VARIABLE: str(engine.folder)}
    argv = [str(ROOT / "scripts" / "test"), "tests/contract", "-m", "real_engine", "-v", *options.rest]
    return subprocess.run(argv, env=env, cwd=ROOT).returncode


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
