"""``python -m tuner.study``: from files or the database to a verdict."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from rich.console import Console

from tuner.errors import (
    BudgetSpent,
    ControlFailed,
    ForeignServer,
    HostLost,
    HostRefused,
    InputError,
    SpecificationChanged,
    StoreError,
)
from tuner.study.dry_run import dry_run
from tuner.study.options import (
    DEFAULT_STORAGE,
    EXIT_INFEASIBLE,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_STOPPED,
    Options,
)
from tuner.study.selection import check, specified
from tuner.study.streams import results_console


def command(options: Options) -> int:
    """Runs the command; returns its exit status. Results go to stdout, everything else to stderr."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    try:
        return asyncio.run(run(options, os.environ))
    except (KeyboardInterrupt, asyncio.CancelledError):
        errors.print("Interrupted. The study can be resumed: give the same command again.")
        return EXIT_INTERRUPTED
    except (InputError, SpecificationChanged) as error:
        errors.print(f"error: {error}")
        return EXIT_INPUT
    except ControlFailed as error:
        errors.print(f"error: {error}")
        return EXIT_INFEASIBLE
    except (BudgetSpent, StoreError) as error:
        errors.print(f"error: {error}")
        return EXIT_STOPPED
    except (ForeignServer, HostRefused, HostLost) as error:
        errors.print(f"error: {error}\nThe study can be resumed: give the same command again.")
        return EXIT_STOPPED
    except BrokenPipeError:
        # Who read our output has gone, as `head` does; what was found is in the database and in the report.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return EXIT_OK


async def run(options: Options, environment: Mapping[str, str]) -> int:
    """Loads, decides whether to start, resume or only print, and runs.

    Raises:
        TunerError: as `command` maps them to exit statuses.
    """
    out = results_console()
    if options.resume is None:
        spec, storage = specified(options)
        check(spec)
        if options.dry_run:
            dry_run(spec, out)
            return EXIT_OK
    else:
        spec, storage = None, options.storage or DEFAULT_STORAGE
    # The database, Optuna and the rest take a second to import: mistakes in files are told before.
    from tuner.study.driver import drive

    await drive(spec, storage, options, environment, out)
    return EXIT_OK
