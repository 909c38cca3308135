"""``--dry-run``: the commands that a study would run first, without a host."""

from __future__ import annotations

from rich.console import Console

from tuner.engines import engine as engine_named
from tuner.space.load import load_space
from tuner.values.study import StudySpec


def dry_run(spec: StudySpec, console: Console) -> None:
    """Prints the launch of each configuration that the first stage tries first.

    Version guards are not applied: which of them a host meets is known at preflight.
    """
    engine = engine_named(spec.engine.name)
    stage = spec.stages[0]
    offered = load_space(stage.space, stage.space_name).unguarded
    hosts = ", ".join(host.address.name for host in spec.hosts)
    console.print(f"# study {spec.name}, stage {stage.name}: on {hosts}, over SSH, one after the other")
    console.print(f"# a budget of {spec.budget.launches} launches; version guards are checked when the host was read")
    for named in offered.first:
        configuration = offered.configuration(named.values)
        console.print(f"\n# {named.name}: {configuration}")
        console.print(engine.shell_line(spec.engine.launch, configuration), soft_wrap=True)
