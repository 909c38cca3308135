"""The state directory of a simulated host: its programs, its Python, its keys, and who is alive on it.

bin/            first on PATH: python3, nvidia-smi
env/            a virtual environment that holds "sglang" and "nvidia-nccl-cu13" of the preset's versions
home/           the user's home directory
gpu/            GPU memory in use, one file a process
host.json       what nvidia-smi lists
keys/           host key, user key, known_hosts
host.log        the host's own log
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import tuner
from tuner.errors import InputError
from tuner.simulated import nvidia_smi
from tuner.simulated.machine import Machine

MARK = "TUNER_SIMULATED_STATE"
"""Environment variable that every process of the host carries: its state directory."""

_PASSED_ON = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class HostState:
    """A state directory."""

    path: Path

    @classmethod
    def create(cls, machine: Machine, path: Path | None) -> HostState:
        """Makes it, readable by this user only.

        Args:
            path: where; ``None``: a new directory for temporary files.

        Raises:
            InputError: there is something in the way; what is not ours is neither used nor removed.
        """
        if path is not None and path.exists() and any(path.iterdir()):
            raise InputError(
                f"--state-dir {path}: not empty; name a new or an empty directory: it is removed at the end"
            )
        if path is None:
            path = Path(tempfile.mkdtemp(prefix="tuner-host-"))
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = cls(path.resolve())
        for name in ("bin", "home", "gpu", "keys"):
            (state.path / name).mkdir(mode=0o700, exist_ok=True)
        state._write_machine(machine)
        state._write_python(machine)
        state._write_programs()
        return state

    @property
    def keys(self) -> Path:
        """Folder of the keys."""
        return self.path / "keys"

    def environment(self, machine: Machine, settings: Mapping[str, str]) -> dict[str, str]:
        """The login environment of the host's user.

        Args:
            settings: variables for the stand-in.
        """
        user = getpass.getuser()
        passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return {
            **passed,
            "PATH": f"{self.path / 'bin'}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.path / "home"),
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/sh",
            "TUNER_SIMULATED": machine.name,
            "TUNER_SIMULATED_LAUNCH_S": f"{machine.real_launch_s:g}",
            MARK: str(self.path),
            **settings,
        }

    def _write_machine(self, machine: Machine) -> None:
        uuids = []
        for index in range(machine.gpus):
            digest = hashlib.sha256(f"{machine.name}/{index}".encode()).hexdigest()
            uuids.append(f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}")
        capability = machine.topology.compute_capability
        description = {
            "gpus": machine.gpus,
            "gpu_name": machine.gpu_name,
            "gpu_memory_bytes": machine.gpu_memory_bytes,
            "driver_version": machine.driver_version,
            "links": machine.links,
            "compute_cap": f"{capability // 10}.{capability % 10}",
            "uuids": uuids,
        }
        (self.path / "host.json").write_text(json.dumps(description), encoding="utf-8")

    def _write_python(self, machine: Machine) -> None:
        """A virtual environment of this interpreter: the packages of the real one, and the stand-in as ``sglang``."""
        base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
        packages = self.path / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        (packages / "sglang").mkdir(parents=True, exist_ok=True)
        for name in ("python3", "python"):
            link = self.path / "bin" / name
            if not link.is_symlink():
                link.symlink_to(base)
        config = f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n"
        (self.path / "pyvenv.cfg").write_text(config, encoding="utf-8")
        here = [str(Path(tuner.__file__).resolve().parent.parent)]
        here += [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
        (packages / "tuner-host.pth").write_text("\n".join(dict.fromkeys(here)) + "\n", encoding="utf-8")
        (packages / "sglang" / "__init__.py").write_text(
            f'__version__ = "{machine.engine_version}"\n', encoding="utf-8"
        )
        (packages / "sglang" / "launch_server.py").write_text(
            "import sys\n\nfrom sglang import __version__\nfrom tuner.simulated.standin.launcher import main\n\n"
            'if __name__ == "__main__":\n    main(sys.argv[1:], __version__)\n',
            encoding="utf-8",
        )
        for name, version in (("sglang", machine.engine_version), ("nvidia-nccl-cu13", machine.nccl_version)):
            info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir(exist_ok=True)
            metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: of a simulated host\n"
            (info / "METADATA").write_text(metadata, encoding="utf-8")
            (info / "INSTALLER").write_text("tuner.simulated\n", encoding="utf-8")

    def _write_programs(self) -> None:
        source = Path(nvidia_smi.__file__).read_text(encoding="utf-8")
        (self.path / "bin" / "nvidia_smi.py").write_text(source, encoding="utf-8")
        words = [str(self.path / "bin" / "python3"), "-I", "-S", str(self.path / "bin" / "nvidia_smi.py")]
        program = self.path / "bin" / "nvidia-smi"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
        program.chmod(0o700)

    def processes(self) -> Iterator[int]:
        """Pids of this host's living processes: those that carry its mark, and those that hold its GPU memory.

        A scheduler that was started without ``SPT_NOENV=1`` has lost the mark, but not its file of GPU memory.
        """
        mark = f"{MARK}={self.path}".encode()
        holding = {entry[0] for entry in nvidia_smi.holders(str(self.path)) if entry[3]}
        for name in os.listdir("/proc"):  # noqa: PTH208
            if not name.isdigit() or int(name) == os.getpid():
                continue
            if int(name) in holding:
                yield int(name)
                continue
            try:
                environ = Path(f"/proc/{name}/environ").read_bytes()
            except OSError:
                continue
            if mark in environ.split(b"\0"):
                yield int(name)

    def end_processes(self) -> None:
        """Kills what is left of this host's processes; no others."""
        for pid in list(self.processes()):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue

    def remove(self) -> None:
        """Removes the directory."""
        shutil.rmtree(self.path, ignore_errors=True)
