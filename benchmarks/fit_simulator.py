"""Fits the constants of the simulated ``h200x2-shm`` machine to measurements, and says how wrong they are.

    python benchmarks/fit_simulator.py allreduce.jsonl [server.jsonl]

The first file has one line for each process start: ``config`` (NCCL's environment) and ``sizes`` (message bytes →
``us``, a list of mean µs per all-reduce). Only starts with ``NCCL_P2P_DISABLE=1`` are used. The second has one
line for each start of a real server: ``env``, ``args``, ``c1`` and ``c8`` (tok/s of windows at 1 and 8 streams): what
it says about differences between settings is fitted too, since a whole server is ten times quieter.

Prints constants to paste into tuner/simulated/link_costs.py, the error on starts that the fit has not seen, and the
worst of them. Needs numpy and scipy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from tuner.simulated.machine import machine
from tuner.simulated.nccl_belief import Belief, Choice, CollectiveLaunch
from tuner.simulated.nccl_settings import NcclSettings
from tuner.simulated.nccl_truth import bytes_per_thread, further_chunks

Array = NDArray[np.float64]
RANKS = 2
PAIRS: tuple[Choice, ...] = tuple((a, p) for a in ("Ring", "Tree") for p in ("LL", "LL128", "Simple"))
NAMES = ("latency_s", "thread_s_per_byte", "link_s_per_byte", "chunk_s", "channel_s")
SCALE_US = np.array([25.0, 0.2, 4e-5, 5.0, 0.2])  # typical sizes: the solver works on multiples of them
LOG_SIGMA = 0.08  # restart spread of a single all-reduce, as measured
PRIOR_SIGMA = 2.0  # in multiples of SCALE_US around 1: decides only what nothing was measured of
SERVER_SIGMA_US = 0.3  # restart spread of a server (0.3–0.5 % of 5 ms) over its 122 all-reduces
ALLREDUCES = machine("h200x2-shm").model.allreduces_per_step


@dataclass(frozen=True)
class Point:
    """One measured size of one start. `features` multiply the constants of the pair."""

    start: int
    config: str
    size: int
    pair: int
    features: tuple[float, ...]
    us: float


@dataclass(frozen=True)
class Difference:
    """How much longer than the default's an all-reduce of a server took, by its step time."""

    name: str
    pair: int
    features: tuple[float, ...]
    default_pair: int
    default_features: tuple[float, ...]
    us: float


def launched(config: dict[str, str], size: int) -> tuple[int, tuple[float, ...]]:
    """The pair that NCCL picks, and what multiplies that pair's constants."""
    env = dict(config)
    if env.get("NCCL_ALGO") in {"Ring", "Tree"}:
        env["NCCL_ALGO"] = "allreduce:" + env["NCCL_ALGO"]
    host = machine("h200x2-shm")
    settings = NcclSettings.of(env)
    version = tuple(int(part) for part in host.nccl_version.split("."))
    launch: CollectiveLaunch = Belief(host.topology, RANKS, version, settings).launch(size)
    features = (
        1.0,
        bytes_per_thread(launch, RANKS),
        float(size),
        float(further_chunks(launch, RANKS, settings.buffer_bytes["Simple"])),
        float(launch.channels - 1),
    )
    return PAIRS.index((launch.algorithm, launch.protocol)), features


def read_points(path: Path) -> list[Point]:
    points = []
    for start, line in enumerate(path.read_text().splitlines()):
        row = json.loads(line)
        config = {name: str(value) for name, value in row["config"].items()}
        if config.get("NCCL_P2P_DISABLE") != "1" or "failure" in row:
            continue
        label = " ".join(f"{name.removeprefix('NCCL_')}={value}" for name, value in config.items())
        for size, measured in row["sizes"].items():
            pair, features = launched(config, int(size))
            points.append(Point(start, label, int(size), pair, features, float(np.mean(measured["us"]))))
    return points


def read_differences(path: Path | None) -> list[Difference]:
    """Plain decode of the 61-layer model through host memory, each setting against the mean of the defaults."""
    if path is None:
        return []
    message = machine("h200x2-shm").model.message_bytes(1)
    steps = read_steps_us(path)
    found = []
    for setting, by_batch in steps.items():
        for batch, times in by_batch.items():
            if setting != "{}":
                longer = (np.mean(times) - np.mean(steps["{}"][batch])) / ALLREDUCES
                here = launched(json.loads(setting), batch * message)
                default = launched({}, batch * message)
                found.append(Difference(f"{setting} batch {batch}", *here, *default, float(longer)))
    return found


def read_steps_us(path: Path) -> dict[str, dict[int, list[float]]]:
    """Step times of each start: setting (JSON) → batch → µs."""
    steps: dict[str, dict[int, list[float]]] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        env = dict(row["env"])
        plain = row["model"] == "m61" and not any("speculative" in argument for argument in row["args"])
        if not row["up"] or not plain or env.pop("NCCL_P2P_DISABLE", None) != "1":
            continue
        for batch in (1, 8):
            steps.setdefault(json.dumps(env), {}).setdefault(batch, []).append(1e6 * batch / np.mean(row[f"c{batch}"]))
    return steps


def fit(points: Sequence[Point], differences: Sequence[Difference]) -> Array:
    """Non-negative constants of each pair, in µs: shape (pairs, constants)."""
    pair = np.array([p.pair for p in points])
    features = np.array([p.features for p in points])
    measured = np.array([p.us for p in points])

    def residuals(flat: Array) -> Array:
        constants = flat.reshape(len(PAIRS), len(NAMES)) * SCALE_US
        predicted = np.einsum("ij,ij->i", constants[pair], features)
        errors = list(np.log(predicted / measured) / LOG_SIGMA)
        errors += [(difference_us(constants, d) - d.us) / SERVER_SIGMA_US for d in differences]
        return np.concatenate([errors, (flat - 1.0) / PRIOR_SIGMA])

    begin = np.ones(len(PAIRS) * len(NAMES))
    result = least_squares(residuals, begin, bounds=(0.0, np.inf), loss="soft_l1")
    constants: Array = result.x.reshape(len(PAIRS), len(NAMES)) * SCALE_US
    for i, (_, protocol) in enumerate(PAIRS):
        if protocol != "Simple":
            constants[i, NAMES.index("chunk_s")] = 0.0  # multiplies nothing there
    return constants


def difference_us(constants: Array, d: Difference) -> float:
    here = constants[d.pair] @ np.array(d.features)
    return float(here - constants[d.default_pair] @ np.array(d.default_features))


def predicted_us(constants: Array, point: Point) -> float:
    return float(constants[point.pair] @ np.array(point.features))


def held_out(points: Sequence[Point], differences: Sequence[Difference]) -> list[tuple[float, Point]]:
    """(log of predicted over measured, point) of each start, by a fit to the other starts."""
    errors = []
    for start in sorted({p.start for p in points}):
        constants = fit([p for p in points if p.start != start], differences)
        errors += [(float(np.log(predicted_us(constants, p) / p.us)), p) for p in points if p.start == start]
    return errors


def report(errors: Sequence[tuple[float, Point]], title: str) -> None:
    sizes = np.abs([e for e, _ in errors])
    median, tenth = np.median(sizes), np.quantile(sizes, 0.9)
    print(
        f"{title}: n={len(sizes)}, |log ratio| median {median:.3f}, 90th percentile {tenth:.3f}, max {sizes.max():.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("allreduce", type=Path)
    parser.add_argument("server", type=Path, nargs="?")
    options = parser.parse_args()
    points = read_points(options.allreduce)
    differences = read_differences(options.server)
    constants = fit(points, differences)
    for (algorithm, protocol), row in zip(PAIRS, constants, strict=True):
        values = ", ".join(f"{value * 1e-6:.4g}" for value in row)
        print(f'    ("{algorithm}", "{protocol}"): PairCost({values}),')
    report([(float(np.log(predicted_us(constants, p) / p.us)), p) for p in points], "seen")
    unseen = held_out(points, differences)
    report(unseen, "held out (one start at a time)")
    for i, (algorithm, protocol) in enumerate(PAIRS):
        report([(e, p) for e, p in unseen if p.pair == i], f"  {algorithm} {protocol}")
    for size in sorted({p.size for p in points}):
        report([(e, p) for e, p in unseen if p.size == size], f"  {size} bytes")
    print("worst held out:")
    for error, point in sorted(unseen, key=lambda pair: -abs(pair[0]))[:8]:
        print(f"  {error:+.2f}  {point.us:.1f} µs at {point.size} bytes: {point.config}")
    for d in differences:
        print(f"server, {d.name}: {difference_us(constants, d):+.2f} µs an all-reduce, measured {d.us:+.2f}")
    if options.server is not None:
        for batch, times in read_steps_us(options.server)["{}"].items():
            pair, features = launched({}, batch * machine("h200x2-shm").model.message_bytes(1))
            rest = np.mean(times) - ALLREDUCES * (constants[pair] @ np.array(features))
            print(f"server, default, batch {batch}: {np.mean(times):.0f} µs a step, {rest:.0f} without all-reduces")


if __name__ == "__main__":
    main()
