"""The warm-up: a thread that talks to the server's own port, whoever listens there.

That is SGLang's way, and its hazard: an older server that still holds the port answers, and "fired up" is logged.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from tuner.simulated.standin.log import Log

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
READY = "The server is fired up and ready to roll!"


def warm_up(args: Mapping[str, Any], *, seeing: bool, up: Callable[[], None], failed: Callable[[], None]) -> None:
    """Waits for the port, sends one request, and says that the server is up.

    Args:
        seeing: whether the model takes images, and so gets one.
        failed: called when the request fails: SGLang kills itself then.
    """
    log = Log()
    if not args["skip_server_warmup"]:
        try:
            _request(args, seeing=seeing)
        except (OSError, http.client.HTTPException, ValueError) as error:
            log.line(f"Initialization failed. warmup error: {error!r}")
            failed()
            return
    up()
    log.line(READY)


def _request(args: Mapping[str, Any], *, seeing: bool) -> None:
    for attempt in range(120):
        try:
            _call(args, "GET", "/model_info", None)
            break
        except OSError:
            if attempt == 119:
                raise
            time.sleep(0.05 if attempt < 20 else 1.0)  # SGLang waits a second each time; here nobody shall wait for it
    if seeing:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_PIXEL}"}}
        content = [image, {"type": "text", "text": "Describe the image."}]
        body: dict[str, Any] = {
            "model": args["served_model_name"],
            "messages": [{"role": "user", "content": content}],
            "max_tokens": 8,
        }
        path = "/v1/chat/completions"
    elif args["skip_tokenizer_init"]:
        path, body = "/generate", {"input_ids": [10, 11, 12]}
        body["sampling_params"] = {"temperature": 0, "max_new_tokens": 8}
    else:
        path, body = "/generate", {"text": "The capital city of France is"}
        body["sampling_params"] = {"temperature": 0, "max_new_tokens": 8}
    _call(args, "POST", path, body)
    _call(args, "GET", "/freeze_gc", None)


def _call(args: Mapping[str, Any], method: str, path: str, body: dict[str, Any] | None) -> bytes:
    host = "127.0.0.1" if args["host"] in ("0.0.0.0", "::") else args["host"]  # noqa: S104
    connection = http.client.HTTPConnection(host, args["port"], timeout=600)
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise ValueError(f"{path} answered {response.status}: {data[:200]!r}")
        return data
    finally:
        connection.close()
