"""What the stand-in reads from its environment: the host's settings, and failures on demand.

    TUNER_SIMULATED          preset of `tuner.simulated.machine`
    TUNER_SIMULATED_STATE    the host's state directory, where GPU memory in use is registered
    TUNER_SIMULATED_LOAD_S   seconds from the schedulers' start to the end of graph capture, 1.0
    TUNER_SIMULATED_NOISE    multiplier of the modelled noise, 1.0; 0: every launch is the same
    TUNER_SIMULATED_SEED     seed of the noise; each launch on the host draws its own from it; unset: random

``TUNER_STANDIN_FAULT``, for tests only, is a comma list of things that go wrong whatever the configuration. Those of
the running server begin after the warm-up, with requests of more than eight tokens:

    hang_load            loading stops; no further log line
    hang_run             the schedulers stop in the middle of a batch
    never_a_token        requests are accepted and never answered
    cut_stream           a stream ends in its middle, the connection with it
    oom_run              the scheduler dies under load: KV cache exhausted
    abort_child          a scheduler aborts (as NCCL's C++ does) at a request
    zombie_scheduler     the last scheduler outlives the launcher, re-parented, and keeps its GPU memory
    gpu_memory_stuck     GPU memory of the schedulers never comes back
    gpu_memory_late      GPU memory comes back a second after the processes are gone
    slow_exit            the drain after TERM takes ten seconds
    ignore_term          TERM does nothing
    wrong_output         other tokens than those of every other launch
    ignored_environment  the NCCL variables do not reach the server
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import InputError

REAL_LOAD_S = 54.0
"""From exec to ready of SGLang 0.5.17 with dummy weights at tp 2 on 2 × H200: the unit of the time scale."""

FAULTS = frozenset(
    {
        "hang_load",
        "hang_run",
        "never_a_token",
        "cut_stream",
        "oom_run",
        "abort_child",
        "zombie_scheduler",
        "gpu_memory_stuck",
        "gpu_memory_late",
        "slow_exit",
        "ignore_term",
        "wrong_output",
        "ignored_environment",
    }
)


@dataclass(frozen=True)
class Settings:
    """The environment of one launch of the stand-in, read once.

    Attributes:
        faults: names of `FAULTS`.
    """

    preset: str
    state_dir: Path | None
    load_s: float
    noise: float
    seed: int | None
    faults: frozenset[str]

    @property
    def time_scale(self) -> float:
        """How much shorter the engine's own waits (drain poll, settling after a crash) are than in SGLang."""
        return min(1.0, self.load_s / REAL_LOAD_S)

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Settings:
        """Reads the variables that the module's docstring lists.

        Raises:
            InputError: a number that is none, or a fault that does not exist.
        """
        problems = []

        def number(name: str, default: float) -> float:
            try:
                return max(0.0, float(env.get(name) or default))
            except ValueError:
                problems.append(f"{name}={env[name]!r} in the environment: expected a number")
                return default

        faults = frozenset(word.strip() for word in env.get("TUNER_STANDIN_FAULT", "").split(",") if word.strip())
        if unknown := faults - FAULTS:
            problems.append(
                f"TUNER_STANDIN_FAULT: no fault {', '.join(sorted(unknown))}; of {', '.join(sorted(FAULTS))}"
            )
        settings = cls(
            preset=env.get("TUNER_SIMULATED") or "h200x2-shm",
            state_dir=Path(env["TUNER_SIMULATED_STATE"]) if env.get("TUNER_SIMULATED_STATE") else None,
            load_s=number("TUNER_SIMULATED_LOAD_S", 1.0),
            noise=number("TUNER_SIMULATED_NOISE", 1.0),
            seed=int(number("TUNER_SIMULATED_SEED", 0)) if env.get("TUNER_SIMULATED_SEED") else None,
            faults=faults,
        )
        if problems:
            raise InputError(problems)
        return settings
