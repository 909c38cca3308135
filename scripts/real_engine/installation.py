"""The installed engine: a virtual environment with SGLang in it, and a model."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from real_engine import recipe

STUB_MARK = "# A stub of scripts/real-engine.\n"
_FREE_BYTES = 5 * 2**30
"""Room that the installation and its download need: 2.7 GB installed."""


class EngineError(Exception):
    """The engine cannot be installed or started; the message says what to do."""


@dataclass(frozen=True)
class Installation:
    """A folder with the engine in it.

    venv/           its virtual environment
    model/          the model
    installed.json  written last: what was installed, and the fingerprint of the recipe
    launch.json     how it is launched: command, args, env, as in a study file
    """

    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter that has SGLang."""
        return self.folder / "venv" / "bin" / "python"

    @property
    def model(self) -> Path:
        """The model's folder."""
        return self.folder / "model"

    @property
    def _record(self) -> Path:
        return self.folder / "installed.json"

    @property
    def complete(self) -> bool:
        """Whether all of it is there, as this version of the recipe wants it."""
        try:
            record = json.loads(self._record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        return bool(record["recipe"] == fingerprint()) and self.python.exists()

    @property
    def command(self) -> list[str]:
        """The words that start the server, before its arguments."""
        return [str(self.python), "-m", "sglang.launch_server"]

    @property
    def arguments(self) -> dict[str, str | int | bool]:
        """The server's arguments, ``True`` for a bare flag."""
        return {"model-path": str(self.model), **recipe.ARGUMENTS}

    def argv(self, port: int) -> list[str]:
        """The command that serves the model on the loopback."""
        words = self.command
        for name, value in self.arguments.items():
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return [*words, "--host", "127.0.0.1", "--port", str(port)]

    def write_launch(self) -> None:
        """Writes how it is launched, for the tests and for study files."""
        launch = {"command": self.command, "args": self.arguments, "env": recipe.ENVIRONMENT}
        (self.folder / "launch.json").write_text(json.dumps(launch, indent=1) + "\n", encoding="utf-8")

    def install(self, torch_index: str | None = None) -> None:
        """Installs it anew, whatever is there.

        Args:
            torch_index: URL of a package index with CPU builds of PyTorch; ``None``: pip's configured index.

        Raises:
            EngineError: this machine is not fit, or pip failed.
        """
        self._check()
        if self.folder.exists():
            say(f"removing what is in {self.folder}")
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        began = time.monotonic()
        say("making a virtual environment")
        _run([sys.executable, "-m", "venv", str(self.folder / "venv")], "the virtual environment was not made")
        pip = [str(self.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        say(f"installing {recipe.TORCH}")
        index = ["--index-url", torch_index] if torch_index else []
        _run([*pip, *index, recipe.TORCH], "pip did not install PyTorch")
        say(f"installing {len(recipe.REQUIREMENTS)} packages that SGLang imports")
        _run([*pip, *recipe.REQUIREMENTS], "pip did not install what SGLang imports")
        say(f"installing SGLang {recipe.VERSION} without its requirements, and {len(recipe.STUBS)} stubs")
        _run([*pip, "--no-deps", "--only-binary=:all:", f"sglang=={recipe.VERSION}"], "pip did not install SGLang")
        self._write_stubs()
        say("writing the model")
        writer = Path(__file__).with_name("model.py")
        _run([str(self.python), str(writer), str(self.model)], "the model was not written")
        self._record.write_text(json.dumps({"recipe": fingerprint(), "sglang": recipe.VERSION}), encoding="utf-8")
        size = sum(path.lstat().st_size for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink())
        say(f"installed in {time.monotonic() - began:.0f} s, {size / 1e9:.1f} GB in {self.folder}")

    def _check(self) -> None:
        if sys.platform != "linux":
            raise EngineError(f"this is {sys.platform}; SGLang's wheels are for Linux. Run it on a Linux machine.")
        if sys.version_info < (3, 11):  # noqa: UP036 - this runs before anything of ours is installed
            found = ".".join(map(str, sys.version_info[:2]))
            raise EngineError(f"this is Python {found}, expected 3.11 or later: python3.12 scripts/real-engine install")
        if self.folder.exists() and any(self.folder.iterdir()) and not (self.folder / "venv").exists():
            raise EngineError(f"{self.folder} holds something else. Remove it, or choose another folder with --folder.")
        free = shutil.disk_usage(self.folder.parent).free
        if free < _FREE_BYTES:
            raise EngineError(
                f"{self.folder.parent} has {free / 1e9:.1f} GB free, {_FREE_BYTES / 1e9:.1f} GB are needed. Make room, "
                "or choose another folder with --folder."
            )

    def _write_stubs(self) -> None:
        """Writes the stubs, and none over a real module."""
        code = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site = Path(
            subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        )
        for name in {path.partition("/")[0] for path in recipe.STUBS}:
            if (site / name).exists():
                raise EngineError(
                    f"{name} is installed for real, so the recipe's stub of it is wrong. Update the recipe."
                )
        for path, text in recipe.STUBS.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(STUB_MARK + text, encoding="utf-8")


def fingerprint() -> str:
    """Changes whenever another installation would come out."""
    sources = (Path(recipe.__file__), Path(__file__).with_name("model.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()


def say(text: str) -> None:
    """A line of progress."""
    print(f"real-engine: {text}", file=sys.stderr, flush=True)


def _run(argv: list[str], what: str) -> None:
    """Runs a command, whose output is shown only if it fails."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        tail = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise EngineError(f"{what} (exit {done.returncode} of {' '.join(argv[:6])} …):\n{tail}")
