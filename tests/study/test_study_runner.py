"""The study loop on doubles: what is launched, told, confirmed and claimed."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from study_double import Bench, proto_matters, spec, url

from tuner.errors import BudgetSpent, ControlFailed, ForeignServer, HostLost, HostRefused, InputError
from tuner.store.rows import Outcome
from tuner.study.result import StageResult
from tuner.study.verdict import Claim
from tuner.values.configuration import Configuration
from tuner.values.failure import Failure, FailureClass
from tuner.values.launch import LaunchCommand, Role
from tuner.values.measurement import TunnelLag
from tuner.values.study import Budget

LL = Configuration.of(env={"NCCL_PROTO": "LL"})


async def test_the_winner_is_confirmed_by_launches_of_its_own(tmp_path: Path) -> None:
    bench = Bench(url(tmp_path), spec(), launch_cv=0.003)
    result = await bench.run()

    assert result.claim is Claim.FASTER
    assert Configuration.from_key(result.configuration).env[-1] == ("NCCL_PROTO", "LL")
    assert result.interval is not None
    assert result.interval.low < 1.2 < result.interval.high
    with bench.store() as store:
        rows = store.launches(1)
    assert len(rows) == 16
    confirmed = [row for row in rows if row.role is Role.CONFIRMATION]
    assert Counter(row.configuration.key for row in confirmed) == {result.configuration: 3, Configuration().key: 3}
    # The interval is of the confirmation's six launches and of nothing else.
    assert (result.interval.candidates, result.interval.controls) == (3, 3)
    assert result.confirmed_value == pytest.approx(
        (lambda v: (v[0] * v[1] * v[2]) ** (1 / 3))(
            [row.metrics["output_tok_s"] for row in confirmed if row.configuration.key == result.configuration]
        )
    )


async def test_confirmation_is_interleaved_in_random_order(tmp_path: Path) -> None:
    orders = set()
    for seed in range(6):
        study = spec(f"order-{seed}")
        study = replace(study, stages=(replace(study.stages[0], seed=seed),))
        bench = Bench(url(tmp_path), study)
        await bench.run()
        with bench.store() as store:
            stored = store.study(study.name)
            assert stored is not None
            roles = [row for row in store.launches(stored.id) if row.role is Role.CONFIRMATION]
        order = [row.configuration == Configuration() for row in roles]
        assert [sum(order[i : i + 2]) for i in (0, 2, 4)] == [1, 1, 1]  # one control in each pair
        orders.add(tuple(order))
    assert len(orders) > 1


async def test_nothing_has_an_effect(tmp_path: Path) -> None:
    result = await Bench(url(tmp_path), spec(), surface=lambda _: 100.0, launch_cv=0.002).run()
    assert result.claim is Claim.NO_EFFECT
    assert Configuration.from_key(result.configuration) == Configuration()


async def test_the_default_is_best(tmp_path: Path) -> None:
    def worse(command: LaunchCommand) -> float:
        return 100.0 - 10.0 * sum(name in ("NCCL_PROTO", "NCCL_ALGO", "NCCL_MAX_NCHANNELS") for name, _ in command.env)

    bench = Bench(url(tmp_path), spec(), surface=worse)
    result = await bench.run()
    assert result.claim is Claim.NO_DIFFERENCE
    with bench.store() as store:
        assert not [row for row in store.launches(1) if row.role is Role.CONFIRMATION]  # nothing to confirm


async def test_a_failure_is_a_result_and_never_wins(tmp_path: Path) -> None:
    bench = Bench(url(tmp_path), spec(launches=24))
    result = await bench.run()
    with bench.store() as store:
        rows = store.launches(1)
    failed = [row for row in rows if row.outcome is Outcome.FAILED]
    assert failed, "LL128 was proposed in 18 launches of this space"
    assert all(dict(row.configuration.env)["NCCL_PROTO"] == "LL128" for row in failed)
    assert {row.failure.failure_class for row in failed if row.failure} == {FailureClass.NCCL_REFUSED}
    assert "LL128" not in result.configuration


async def test_a_candidate_that_fails_when_confirmed_is_passed_over(tmp_path: Path) -> None:
    asked = 0

    def ll_alone_works_once(command: LaunchCommand) -> float | Failure:
        nonlocal asked
        env = dict(command.env)
        if env.get("NCCL_PROTO") == "LL" and not {"NCCL_ALGO", "NCCL_MAX_NCHANNELS"} & set(env):
            asked += 1
            # Asked once to become ready and once a window, one of them for warm-up: the second launch fails.
            return 120.0 if asked <= 4 else Failure(FailureClass.OUT_OF_MEMORY_RUN, "measure", "Decode out of memory.")
        return 110.0 if env.get("NCCL_PROTO") == "Simple" else 100.0

    bench = Bench(url(tmp_path), spec(launches=26), surface=ll_alone_works_once)
    result = await bench.run()
    with bench.store() as store:
        rows = [row for row in store.launches(1) if row.role is Role.CONFIRMATION]
    assert [row.outcome for row in rows if row.configuration == LL] == [Outcome.FAILED]
    # What is left of the launches for confirmation goes to the next best, and is too little for its whole share.
    assert ("NCCL_PROTO", "Simple") in rows[-1].configuration.env or rows[-1].configuration == Configuration()
    assert result.configuration != LL.key
    assert len(rows) == 6


async def test_a_lost_launch_is_made_again_and_counted_apart(tmp_path: Path) -> None:
    calls: Counter[str] = Counter()

    def drop(host: str, step: str) -> None:
        calls[step] += 1
        if step == "window" and calls[step] in (3, 4):
            raise HostLost(host, "the SSH connection broke")

    bench = Bench(url(tmp_path), spec(), before=drop)
    result = await bench.run()
    assert result.claim is Claim.FASTER
    with bench.store() as store:
        rows = store.launches(1)
        counts = store.counts(1)
    lost = [row for row in rows if row.outcome is Outcome.LOST]
    assert counts.lost == len(lost) == 2
    assert counts.spent == 16
    assert len({row.trial for row in lost}) == 1
    kept = [row for row in rows if row.trial == lost[0].trial and row.outcome is Outcome.MEASURED]
    assert len(kept) == 1


async def test_too_many_lost_launches_end_the_run_resumably(tmp_path: Path) -> None:
    def gone(host: str, step: str) -> None:
        if step == "clean":
            raise HostLost(host, "no route to host")

    bench = Bench(url(tmp_path), spec(lost_launches=2), before=gone)
    with pytest.raises(BudgetSpent, match="lost"):
        await bench.run()
    with bench.store() as store:
        assert store.counts(1).lost == 2
        store.replace_spec("double", replace(bench.spec, budget=Budget(16, lost_launches=9)))
    with pytest.raises(HostLost, match="3 launches in a row were lost"):
        await bench.run()
    bench.before = lambda host, step: None
    result = await bench.run()
    assert result.claim is Claim.FASTER
    with bench.store() as store:
        assert store.counts(1).spent == 16


async def test_a_host_that_is_gone_is_set_aside_and_the_others_go_on(tmp_path: Path) -> None:
    def two_gone(host: str, step: str) -> None:
        if host == "two":
            raise HostLost(host, "no route to host")

    bench = Bench(url(tmp_path), spec(hosts=("one", "two"), launches=16), before=two_gone)
    result = await bench.run()
    assert result.claim is Claim.FASTER
    with bench.store() as store:
        rows = store.launches(1)
    assert {row.host for row in rows if row.outcome is not Outcome.LOST} == {"one"}
    assert sum(row.outcome is Outcome.LOST for row in rows) == 3
    # What the lost host had in hand was launched by the other.
    lost = {row.trial for row in rows if row.outcome is Outcome.LOST}
    assert lost <= {row.trial for row in rows if row.outcome is Outcome.MEASURED}


async def test_a_control_that_fails_ends_the_study_and_again_on_resume(tmp_path: Path) -> None:
    bench = Bench(url(tmp_path), spec(), surface=lambda _: Failure(FailureClass.BAD_FLAG, "ready", "exit 2"))
    for _ in range(2):
        with pytest.raises(ControlFailed, match="bad flag"):
            await bench.run()
    with bench.store() as store:
        assert store.counts(1).spent == 1


@pytest.mark.parametrize(
    "error",
    [
        ForeignServer(Failure(FailureClass.PORT_TAKEN, "clean", "port 30000 is held by pid 7")),
        HostRefused("one", "GPU memory did not come back"),
    ],
)
async def test_what_must_not_be_touched_stops_the_study_after_one_launch(tmp_path: Path, error: Exception) -> None:
    def refuse(host: str, step: str) -> None:
        if step == "clean":
            raise error

    bench = Bench(url(tmp_path), spec(), before=refuse)
    with pytest.raises(type(error)):
        await bench.run()
    with bench.store() as store:
        (row,) = store.launches(1)
        assert row.outcome is Outcome.LOST
        assert store.counts(1).spent == 0


async def test_two_hosts_work_side_by_side(tmp_path: Path) -> None:
    bench = Bench(url(tmp_path), spec(hosts=("one", "two"), launches=20))
    result = await bench.run()
    assert result.claim is Claim.FASTER
    with bench.store() as store:
        rows = store.launches(1)
    search = Counter(row.host for row in rows if row.role is not Role.CONFIRMATION)
    assert set(search) == {"one", "two"}
    assert sum(search.values()) == 14
    assert len({row.host for row in rows if row.role is Role.CONFIRMATION}) == 1  # pairs share a host
    trials = [row.trial for row in rows if row.trial is not None]
    assert len(trials) == len(set(trials))


async def test_a_cancelled_study_stops_its_server_first(tmp_path: Path) -> None:
    steps: list[str] = []
    inside = asyncio.Event()

    def before(host: str, step: str) -> None:
        steps.append(step)
        if step == "window" and not inside.is_set():
            inside.set()
            task.cancel()

    bench = Bench(url(tmp_path), spec(), before=before)
    task = asyncio.ensure_future(bench.run())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps[-1] == "stop"
    with bench.store() as store:
        assert not store.open_launches(1)
    bench.before = lambda host, step: None
    result: StageResult = await bench.run()
    assert result.claim is Claim.FASTER


async def test_the_budget_in_hours_ends_the_search_and_leaves_time_to_confirm(tmp_path: Path) -> None:
    bench = Bench(url(tmp_path), spec(launches=60), surface=proto_matters)
    bench.seconds_left = lambda: 0.0
    await bench.run()
    with bench.store() as store:
        assert store.counts(1).spent <= 1


async def test_a_latency_bound_finer_than_the_tunnel_is_refused(tmp_path: Path) -> None:
    study = spec()
    stage = replace(study.stages[0], objective="metric: output_tok_s\nconstraints: ['itl_p99_s <= 0.03']\n")
    bench = Bench(url(tmp_path), replace(study, stages=(stage,)), lag=TunnelLag(0.001, 0.008, 500))
    with pytest.raises(InputError, match=r"30 ms.* 8 ms at p99 .*at least 0\.04 s"):
        await bench.run()
    with bench.store() as store:
        assert store.counts(1).measured == 1  # told after the first launch, whose measurement is kept
    bench.lag = TunnelLag(0.001, 0.005, 500)
    assert (await bench.run()).claim is Claim.FASTER
