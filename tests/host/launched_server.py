"""A small real server for the life-cycle tests: run as a program, by the supervisor under test.

It answers GET /nonce with its nonce and GET /info with its arguments as JSON. Children and misbehaviour by options.
"""

from __future__ import annotations

import argparse
import ctypes
import http.server
import json
import os
import signal
import sys
import time
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--nonce", default="")
    parser.add_argument("--workers", type=int, default=0, help="children titled small::worker")
    parser.add_argument("--child-session", action="store_true", help="the workers lead sessions of their own")
    parser.add_argument("--escapees", type=int, default=0, help="children that leave the session, environment cleared")
    parser.add_argument("--retitled", type=int, default=0, help="children that overwrite their environment")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--exit-code", type=int, help="exit with it instead of serving")
    parser.add_argument("--hang", action="store_true", help="never bind")
    parser.add_argument("--chatter", type=int, default=0, help="lines to print first")
    parser.add_argument("--load-s", type=float, default=0.0, help="time before it binds")
    parser.add_argument("--drain-s", type=float, default=0.0, help="time from TERM to exit")
    parser.add_argument("--gpu-dir", type=Path, help="where the stub nvidia-smi looks for memory held")
    parser.add_argument("--shm", help="names a POSIX shared memory segment and leaves it behind")
    parser.add_argument("--pids", type=Path, help="file that gets the pids of all processes")
    options = parser.parse_args()

    pids = [os.getpid()]
    for _ in range(options.workers):
        pids.append(child(lambda: become_worker(options.child_session)))
    for _ in range(options.retitled):
        pids.append(child(overwrite_environment))
    for _ in range(options.escapees):
        pids.append(escapee())
    if options.pids:
        options.pids.write_text(json.dumps(pids))
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: drain(options.drain_s))
    if options.gpu_dir:
        (options.gpu_dir / str(os.getpid())).write_text("5000")
    if options.shm:
        segment = shared_memory.SharedMemory(options.shm, create=True, size=4096)
        resource_tracker.unregister(f"/{options.shm}", "shared_memory")
        options.segment = segment  # kept open, never unlinked
    for number in range(options.chatter):
        print(f"line {number:08d} " + "x" * 80)
    print("loading", flush=True)
    if options.exit_code is not None:
        print("fatal: told to exit", flush=True)
        os._exit(options.exit_code)
    if options.hang:
        signal.pause()
        time.sleep(3600)
    time.sleep(options.load_s)
    serve(options)


def serve(options: argparse.Namespace) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers = {"/nonce": options.nonce, "/info": json.dumps({"argv": sys.argv[1:], "api_key": "hush"})}
            body = answers.get(self.path, "").encode()
            self.send_response(200 if self.path in answers else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    print("serving", flush=True)
    server.serve_forever()


def drain(seconds: float) -> None:
    time.sleep(seconds)
    os._exit(0)


def child(prepare: object) -> int:
    """A child that waits for ever; its pid."""
    pid = os.fork()
    if pid == 0:
        prepare()  # type: ignore[operator]
        while True:
            time.sleep(3600)
    return pid


def become_worker(session: bool) -> None:
    if session:
        os.setsid()
    os.execv(sys.executable, ["small::worker", "-c", "import time; time.sleep(3600)"])


def escapee() -> int:
    """A grandchild in a session of its own, re-parented, with an empty environment and another title; its pid."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            os.execve(sys.executable, ["innocent", "-c", "import time; time.sleep(3600)"], {})
        os.write(write, str(pid).encode())
        os._exit(0)
    pid = int(os.read(read, 20))
    os.wait()
    return pid


def overwrite_environment() -> None:
    """What setproctitle does without SPT_NOENV: the title is written over the environment's memory."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])  # env_start, env_end
    ctypes.memset(start, 0, end - start)


if __name__ == "__main__":
    main()
