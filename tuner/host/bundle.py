"""What is sent to a host: the modules of `tuner.host.remote` as one script, and the command that runs it.

The host needs a Python and nothing else. The script puts its modules where ``import`` finds them, so that they read
like any other code here and are tested like it.
"""

from __future__ import annotations

import shlex
from functools import cache
from importlib.resources import files

_PACKAGE = "tuner.host.remote"
_MODULES = ("processes", "shared_memory", "record", "log", "sockets", "gpus", "stopping", "supervisor", "agent")
"""In an order in which each finds what it imports."""

_LOADER = """import sys, types
if sys.version_info < (3, 8):
    sys.exit("tuner: this is Python " + sys.version.split()[0] + ", needed is 3.8 or later")
def _load(name, text):
    module = types.ModuleType(name)
    module.__path__ = []
    sys.modules[name] = module
    if "." in name:
        parent, _, last = name.rpartition(".")
        setattr(sys.modules[parent], last, module)
    exec(compile(text, "<" + name + ">", "exec"), module.__dict__)
    return module
for _name, _text in SOURCES:
    _load(_name, _text)
if sys.argv[1] == "supervisor":
    sys.modules["tuner.host.remote.supervisor"].main(sys.argv[2])
else:
    sys.modules["tuner.host.remote.agent"].main(s, sys.stdin.buffer, sys.stdout.buffer)
"""

_BOOTSTRAP = 'import sys; s = sys.stdin.buffer.read(int(sys.argv[2])); exec(compile(s, "tuner-agent", "exec"))'


@cache
def script() -> bytes:
    """The script, about 60 kB: text of ASCII that any Python 3.8 can run."""
    parents = [(".".join(_PACKAGE.split(".")[: depth + 1]), "") for depth in range(_PACKAGE.count(".") + 1)]
    folder = files("tuner").joinpath("host", "remote")
    modules = [(f"{_PACKAGE}.{name}", folder.joinpath(f"{name}.py").read_text("utf-8")) for name in _MODULES]
    return f"SOURCES = {[*parents, *modules]!a}\n{_LOADER}".encode("ascii")


def command(python: str) -> str:
    """The command line for the host's login shell; the script follows on standard input.

    Args:
        python: the interpreter, such as ``python3``; never anything that the shell would take apart.
    """
    return f"exec {shlex.quote(python)} -I -S -c {shlex.quote(_BOOTSTRAP)} agent {len(script())}"
