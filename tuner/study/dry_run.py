"""``--dry-run``: the commands that a study would run first, without a host."""

from __future__ import annotations

import shlex

from rich.console import Console

from tuner.documents import secrets
from tuner.engines import engine as engine_named
from tuner.space.load import load_space
from tuner.values.study import StudySpec

EXAMPLE_PORT = 30000
"""SGLang's default: shown where the real one is chosen on the host."""


def dry_run(spec: StudySpec, console: Console) -> None:
    """Prints the launch of each configuration that the first stage tries first.

    Version guards are not applied: which of them a host meets is known at preflight.
    """
    engine = engine_named(spec.engine.name)
    stage = spec.stages[0]
    offered = load_space(stage.space, stage.space_name).unguarded
    hosts = ", ".join(host.address.name for host in spec.hosts)
    port = spec.hosts[0].port or EXAMPLE_PORT
    console.print(f"# study {spec.name}, stage {stage.name}: on {hosts}, over SSH, one after the other")
    console.print(
        f"# a budget of {spec.budget.launches} launches; version guards are checked when the host has been read"
    )
    console.print(
        "# NONCE stands for a fresh text of each launch: its mark in the processes and in the server's answers"
    )
    if spec.hosts[0].port is None:
        console.print(f"# the port is a free one of the host, chosen for each launch: here {port}")
    for named in offered.first:
        configuration = offered.configuration(named.values)
        command = engine.command(spec.engine.launch, configuration, port=port, nonce="NONCE")
        words = [f"{name}={quoted(value)}" for name, value in command.env] + [quoted(word) for word in command.argv]
        console.print(f"\n# {named.name}: {configuration}")
        console.print(" ".join(words), soft_wrap=True)


def quoted(word: str) -> str:
    """One word for a shell; a reference to a secret (``$NAME``) stays one."""
    return f'"{word}"' if secrets.reference(word) else shlex.quote(word)
