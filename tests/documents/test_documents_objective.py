"""Objectives: what counts, and what a person is told who names something that does not exist."""

from __future__ import annotations

import pytest

from tuner.documents.objective import Objective, load_objective
from tuner.errors import InputError
from tuner.shipped import shipped_file, shipped_names
from tuner.values.measurement import METRICS, Metric


@pytest.mark.parametrize("name", shipped_names("objectives"))
def test_every_shipped_objective_loads(name: str) -> None:
    path = shipped_file("objectives", name)
    assert load_objective(path.read_text(encoding="utf-8"), str(path)).metric in METRICS


def test_throughput() -> None:
    text = shipped_file("objectives", "throughput").read_text(encoding="utf-8")
    assert load_objective(text, "throughput.yaml") == Objective(
        name="throughput", metric="output_tok_s", direction="maximize", unit="tok/s", constraints=(), margin=0.01
    )


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_metric_brings_its_direction_and_unit(metric: Metric) -> None:
    objective = load_objective(f"metric: {metric.name}", "objectives/mine.yaml")
    assert (objective.name, objective.unit, objective.direction) == ("mine", metric.unit, metric.direction)


def test_constraints_are_measured_in_the_unit_of_their_sides() -> None:
    objective = load_objective(
        "metric: output_tok_s\nconstraints:\n  - ttft_p50_s <= 1.5\n  - output_tok_s >= 1.02 * baseline\n", "o.yaml"
    )
    metrics = {"output_tok_s": 50.0, "ttft_p50_s": 1.75}
    late, slow = objective.violations(metrics, baseline=50.0)
    assert late == pytest.approx(0.25)
    assert slow == pytest.approx(1.0)
    kept = objective.violations({"output_tok_s": 60.0, "ttft_p50_s": 1.0}, baseline=50.0)
    assert all(violation <= 0 for violation in kept)


def test_what_is_not_known_violates_nothing() -> None:
    objective = load_objective(
        "metric: output_tok_s\nconstraints: ['accept_length >= 2', 'output_tok_s >= baseline']", "o.yaml"
    )
    assert objective.violations({"output_tok_s": 1.0}) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "metric: output_toks",
            "o.yaml:1: metric: found the unknown metric 'output_toks', expected one of output_tok_s, ",
        ),
        ("metric: output_toks", "did you mean 'output_tok_s'?"),
        ("metrik: output_tok_s", "did you mean 'metric'?"),
        ("name: x", "found no key 'metric'"),
        ("metric: [output_tok_s]", "metric: found a list, expected a text"),
        ("metric: output_tok_s\ndirection: minimize", "o.yaml:2: direction: found minimize, expected maximize"),
        ("metric: output_tok_s\ndirection: up", "o.yaml:2: direction: "),
        ("metric: output_tok_s\nmargin: 1.0", "o.yaml:2: margin: found 1.0"),
        ("metric: output_tok_s\nmargin: -0.1", "o.yaml:2: margin: found -0.1"),
        ("metric: output_tok_s\nmargin: '0.01'", "o.yaml:2: margin: found '0.01', expected a number"),
        ("metric: output_tok_s\nmargin: .nan", "o.yaml:2: found .nan"),
        ("metric: output_tok_s\nname: ../x", "o.yaml:2: name: found '../x', expected a name"),
        (
            "metric: output_tok_s\nconstraints:\n- ttft_p5_s < 2",
            "o.yaml:3: constraints[0]: in 'ttft_p5_s < 2', column 1",
        ),
        ("metric: output_tok_s\nconstraints:\n- ttft_p5_s < 2", "did you mean 'ttft_p50_s'?"),
        ("metric: output_tok_s\nconstraints:\n- ttft_p50_s == 2", "expected one comparison"),
        ("metric: output_tok_s\nconstraints:\n- 1 < 2", "found no metric in '1 < 2'"),
        ("metric: output_tok_s\nconstraints:\n- ttft_p50_s < baseline", "found 'baseline' beside ttft_p50_s"),
        ("metric: output_tok_s\nconstraints:\n- __import__('os').system('id') < 1", "o.yaml:3: constraints[0]: "),
        ("metric: output_tok_s\nconstraints: ttft_p50_s < 2", "constraints: found 'ttft_p50_s < 2', expected a list"),
        ("metric: !!python/name:os.system x", "found the tag"),
        ("", "o.yaml: found an empty file"),
        ("# only a comment", "o.yaml: found an empty file"),
        ("- a list", "o.yaml:1: found a list, expected a mapping"),
    ],
)
def test_what_is_wrong_is_said(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        load_objective(text, "o.yaml")
    assert says in str(caught.value)


def test_all_problems_at_once() -> None:
    text = "metric: output_tok_s\ndirection: minimize\nconstraints: ['x < 1', '1 < 2', 'itl_p50_s < 1']"
    with pytest.raises(InputError) as caught:
        load_objective(text, "o.yaml")
    assert len(caught.value.problems) == 3
