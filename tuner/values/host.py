"""What a host is and what was found on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HostAddress:
    """How to reach a host by SSH. ``None`` leaves the choice to ``~/.ssh/config`` and OpenSSH's defaults.

    Attributes:
        name: our name for the host, and the alias looked up in ``~/.ssh/config``.
        hostname: DNS name or address; default: what the alias resolves to.
        port: TCP port of sshd.
        user: login name.
        key_file: private key; default: the agent and the usual files.
        jump: alias or ``user@host:port`` of a jump host.
        known_hosts_file: file of trusted host keys; default: the usual files. Keys are always checked.
        python: the interpreter on the host that runs the supervisor (standard library only, ≥ 3.8).
    """

    name: str
    hostname: str | None = None
    port: int | None = None
    user: str | None = None
    key_file: str | None = None
    jump: str | None = None
    known_hosts_file: str | None = None
    python: str = "python3"


@dataclass(frozen=True)
class Gpu:
    """One GPU as ``nvidia-smi`` lists it."""

    index: int
    uuid: str
    name: str
    memory_total_bytes: int
    memory_used_bytes: int


@dataclass(frozen=True)
class HostFacts:
    """What preflight read on a host: the ground for version guards, and part of every report.

    Attributes:
        boot_id: the kernel's boot id; a change means that the host was rebooted.
        driver_version: NVIDIA driver; ``None`` without ``nvidia-smi``.
        links: the text of ``nvidia-smi topo -m``; empty without it.
        engine_version: version of the installed engine; ``None`` when it could not be read.
        nccl_version: version of the NCCL that the engine's Python has, such as ``2.28.9``; ``None`` if unknown.
        simulated: name of the preset when the host is a simulated one. Only reports read it.
        real_launch_s: on a simulated host, what one launch would take on the machine it imitates.
    """

    name: str
    hostname: str
    boot_id: str
    kernel: str
    cpus: int
    driver_version: str | None
    gpus: tuple[Gpu, ...]
    links: str
    engine: str
    engine_version: str | None
    nccl_version: str | None
    simulated: str | None = None
    real_launch_s: float | None = None
