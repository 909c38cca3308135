"""What is sent to a host: that any Python 3.8 can run it, and its parts that need no connection."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tuner.host import bundle
from tuner.host.remote import gpus, sockets
from tuner.host.remote.log import LogWriter, log_bytes, read_ends, read_log, read_tail
from tuner.host.remote.record import Record, RecordError

REMOTE = Path(bundle.__file__).with_name("remote")
MODULES = sorted(REMOTE.glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_it_needs_python_3_8_and_the_standard_library_only(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] in sys.stdlib_module_names or name.startswith("tuner.host.remote"), name


def test_every_module_is_sent() -> None:
    text = bundle.script()
    for path in MODULES:
        assert f"tuner.host.remote.{path.stem}".encode() in text or path.stem == "__init__"
    assert text.isascii()


def test_the_command_survives_any_login_shell() -> None:
    command = bundle.command("/opt/my python/bin/python3")
    assert command.startswith("exec '/opt/my python/bin/python3' -I -S -c '")
    assert "\n" not in command and "!" not in command and command.count("'") == 4


def test_the_agent_ends_with_its_input_and_answers_errors() -> None:
    words = ["sh", "-c", bundle.command(sys.executable)]
    requests = [{"id": 1, "op": "no_such"}, {"id": 2, "op": "status", "nonce": "../../etc"}, {"id": 3, "op": "ping"}]
    lines = b"".join(json.dumps(request).encode() + b"\n" for request in requests)
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin and process.stdout
    process.stdin.write(bundle.script() + lines)
    process.stdin.flush()
    hello, *answers = [json.loads(process.stdout.readline()) for _ in range(4)]
    process.stdin.close()
    assert process.wait(10) == 0
    assert hello["hello"] == "tuner-agent"
    found = {answer["id"]: answer for answer in answers}
    assert "no such operation" in found[1]["error"] and "not a nonce" in found[2]["error"] and found[3]["ok"] == {}


def test_the_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    log = LogWriter(folder, segment_bytes=100, kept=2)
    text = b"".join(b"%08d\n" % number for number in range(100))  # 900 bytes
    for start in range(0, len(text), 70):
        log.write(text[start : start + 70])
    assert log_bytes(folder) == 900
    assert [path.name for path in sorted(folder.iterdir())] == ["000000000000000", "000000000000700", "000000000000800"]
    assert read_log(folder, 0, 50) == (0, text[:50])
    assert read_log(folder, 0, 1000) == (0, text[:100])  # up to the gap
    assert read_log(folder, 300, 1000) == (700, text[700:])
    assert read_log(folder, 850, 20) == (850, text[850:870])
    assert read_log(folder, 900, 20) == (900, b"")
    assert read_tail(folder, 40) == text[864:]  # whole lines
    ends = read_ends(folder, 200)
    assert ends.startswith(text[:100]) and ends.endswith(text[-90:]) and b"bytes left out" in ends


def test_an_empty_log_is_empty(tmp_path: Path) -> None:
    assert log_bytes(tmp_path / "none") == 0 and read_tail(tmp_path / "none", 10) == b""
    assert read_ends(tmp_path / "none", 10) == b""


@pytest.mark.parametrize("nonce", ["", "..", "../../etc/x", "a/b", "short", "x" * 101, "-rf-slash", "a\nbcdefg"])
def test_a_nonce_that_could_be_a_path_is_refused(tmp_path: Path, nonce: str) -> None:
    with pytest.raises(RecordError, match="not a nonce"):
        Record(nonce, tmp_path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_of_two_starts_one_makes_the_record(cache: Path) -> None:
    first, made = Record.make("nonce-1")
    again, made_again = Record.make("nonce-1")
    assert made and not made_again and first.folder == again.folder == cache / "tuner" / "nonce-1"


def test_a_record_folder_open_to_others_is_closed_and_a_link_is_not_followed(cache: Path, tmp_path: Path) -> None:
    (cache / "tuner").mkdir(mode=0o777)
    Record.make("nonce-1")
    assert (cache / "tuner").stat().st_mode & 0o077 == 0
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (cache / "tuner" / "nonce-2").symlink_to(elsewhere)
    assert Record.find("nonce-2") is None


def test_the_lease_changes_with_each_renewal(cache: Path) -> None:
    record, _ = Record.make("nonce-1")
    texts = set()
    for _ in range(3):
        record.renew()
        texts.add(record.lease)
    assert len(texts) == 3 and {len(text) for text in texts} == {21}


def test_a_free_port_can_be_bound_and_is_not_given_out_by_the_kernel() -> None:
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    port = sockets.free_port()
    assert sockets.can_bind(port) and (port < low or low < 21_000)
    with socket.create_server(("127.0.0.1", port)):
        assert not sockets.can_bind(port)
        assert sockets.own_listener(port, [os.getpid()]) is True
        assert sockets.own_listener(port, [os.getppid()]) is False
        assert f"pid {os.getpid()}" in sockets.holder_in_words(port)
    assert sockets.holder_in_words(port) == "" and sockets.own_listener(port, []) is None


def test_a_server_on_ipv6_holds_the_port_too() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 on this machine")
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = server.getsockname()[1]
        assert not sockets.can_bind(port) and sockets.listeners(port)


def test_secrets_of_a_foreign_command_line_are_not_repeated() -> None:
    argv = ["serve", "http://user:hush@host/x", "--api-key", "hush"]
    asleep = subprocess.Popen(["x", "-c", "import time; time.sleep(60)", *argv], executable=sys.executable)
    try:
        deadline = time.monotonic() + 5
        while (words := sockets.command_in_words(asleep.pid)) == "?":  # the program is being loaded
            assert time.monotonic() < deadline
        assert words.startswith("x -c") and "hush" not in words
    finally:
        asleep.kill()
        asleep.wait()


def test_the_interpreter_of_a_script_is_the_one_in_its_first_line(tmp_path: Path) -> None:
    script = tmp_path / "sglang"
    script.write_text(f"#!{sys.executable} -I\nprint()\n")
    script.chmod(0o755)
    assert gpus.interpreter_of([str(script)]) == [sys.executable, "-I"]
    assert gpus.interpreter_of(["sleep"]) is None and gpus.interpreter_of(["/no/such"]) is None
