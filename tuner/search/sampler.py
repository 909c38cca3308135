"""Which sampler proposes, and from which seed."""

from __future__ import annotations

import hashlib

import optuna

from tuner.search.storage import without_experimental_warnings

STARTUP_TRIALS = 5
"""Told trials before the model is used; the space's own ``try_first`` is most of them, so few are left to chance."""


def sampler_seed(seed: int, worker: int, attempt: int) -> int:
    """A seed of its own for each worker and each time that a study is opened.

    A sampler that starts from the study's seed again on a resume proposes its first random points a second time.
    """
    digest = hashlib.sha256(f"{seed}/{worker}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def tpe(seed: int, n_startup: int) -> optuna.samplers.TPESampler:
    """Multivariate TPE on a conditional space; trials under way count as bad, so that hosts spread out.

    No torch, unlike Optuna's GP, and it models conditional parameters, which GP leaves to chance.
    """
    with without_experimental_warnings():
        return optuna.samplers.TPESampler(
            n_startup_trials=n_startup, seed=seed, multivariate=True, group=True, constant_liar=True
        )
