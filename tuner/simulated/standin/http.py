"""The HTTP surface: SGLang's endpoints on starlette, served by uvicorn."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tuner.simulated.standin import metrics, vocabulary
from tuner.simulated.standin.arguments import version_of
from tuner.simulated.standin.frontend import HEALTH_RID, BadRequest, Frontend, Pending
from tuner.simulated.standin.log import Log
from tuner.simulated.standin.meta_info import GenerateChunks
from tuner.simulated.standin.openai import OpenAIChunks, prompt_of, sampling
from tuner.simulated.standin.server_info import ServerInfo

_HEALTH_TIMEOUT_S = 20.0
_CUT_AFTER_TOKENS = 8
_FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the "
    "operation will not be performed.)\n"
)
Handler = Callable[[Request], Awaitable[Response]]


class EventStream(Response):
    """Server-sent events, each sent as soon as it is there.

    Args:
        events: the texts after ``data: ``.
        gone: called when the client leaves before the end.
        cut: whether the connection breaks in the middle (a fault on demand).
    """

    def __init__(self, events: AsyncIterator[str], gone: Callable[[], None], *, cut: bool = False) -> None:
        super().__init__(media_type="text/event-stream")
        self._events = events
        self._gone = gone
        self._cut = cut

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends until the events end or the client is gone."""
        watcher = asyncio.create_task(self._watch(receive))
        head = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        try:
            async for event in self._events:
                body = f"data: {event}\n\n".encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
            if self._cut:
                raise ConnectionAbortedError("TUNER_STANDIN_FAULT=cut_stream")
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watcher.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone()


class Application:
    """The server behind the port.

    Attributes:
        up: whether the warm-up has succeeded.
        leaving: whether TERM has been received.
    """

    def __init__(self, info: ServerInfo, frontend: Frontend, faults: frozenset[str]) -> None:
        self.up = False
        self.leaving = False
        self._info = info
        self._frontend = frontend
        self._faults = faults
        self._log = Log()
        self._created = int(time.time())
        self._responses: Counter[tuple[str, str, int]] = Counter()

    def asgi(self, lifespan: Any) -> Starlette:
        """The application with its routes; what a version lacks answers 404."""
        version = version_of(self._info.machine.engine_version)
        both = ["GET", "POST"]
        routes: list[tuple[str, Handler, list[str]]] = [
            ("/health", self.health, ["GET"]),
            ("/health_generate", self.health, ["GET"]),
            ("/get_model_info", self.old(self.model_info, "/model_info"), ["GET"]),
            ("/get_server_info", self.old(self.server_info, "/server_info"), ["GET"]),
            ("/generate", self.generate, ["POST", "PUT"]),
            ("/v1/completions", self.completions, ["POST"]),
            ("/v1/chat/completions", self.chat, ["POST"]),
            ("/v1/models", self.models, ["GET"]),
            ("/flush_cache", self.flush_cache, both),
            ("/abort_request", self.abort_request, ["POST"]),
            ("/freeze_gc", self.freeze_gc, both),
        ]
        if version >= (0, 5, 6):
            routes += [("/model_info", self.model_info, ["GET"]), ("/server_info", self.server_info, ["GET"])]
        if version >= (0, 5, 20):
            routes.append(("/ready", self.ready, ["GET"]))
        if self._info.args["enable_metrics"]:
            routes.append(("/metrics", self.metrics, ["GET"]))
        return Starlette(
            routes=[Route(path, self._counted(path, handler), methods=methods) for path, handler, methods in routes],
            lifespan=lifespan,
            exception_handlers={404: _absent, 405: _absent},
        )

    def _counted(self, path: str, handler: Handler) -> Handler:
        async def counted(request: Request) -> Response:
            response = await handler(request)
            self._responses[path, request.method, response.status_code] += 1
            return response

        return counted

    def old(self, handler: Handler, new: str) -> Handler:
        """A handler under its deprecated name, which says so in the log."""

        async def deprecated(request: Request) -> Response:
            if version_of(self._info.machine.engine_version) >= (0, 5, 6):
                self._log.line(
                    f"Endpoint '{request.url.path}' is deprecated and will be removed in a future version. "
                    f"Please use '{new}' instead."
                )
            return await handler(request)

        return deprecated

    async def health(self, request: Request) -> Response:
        """200 when a token comes back from the detokenizer; looks once a second, so it takes a second."""
        if not self.up or self.leaving:
            return Response(status_code=503)
        begun = time.monotonic()
        rid = f"{HEALTH_RID}_{time.time()}"
        pending = self._frontend.submit(None, [0], {"max_new_tokens": 1, "temperature": 0.0}, stream=False, rid=rid)
        while time.monotonic() - begun < _HEALTH_TIMEOUT_S:
            await asyncio.sleep(1)
            if self._frontend.last_heard_s > begun:
                return Response(status_code=200)
        self._frontend.pending.pop(pending.rid, None)
        started = time.strftime("%H:%M:%S", time.localtime(time.time() - _HEALTH_TIMEOUT_S))
        self._log.line(
            f"Health check failed. Server couldn't get a response from detokenizer for last {_HEALTH_TIMEOUT_S:.0f} "
            f"seconds. tic start time: {started}. last_heartbeat time: {started}"
        )
        return Response(status_code=503)

    async def ready(self, request: Request) -> Response:
        """The flag alone."""
        return Response(status_code=200 if self.up and not self.leaving else 503)

    async def model_info(self, request: Request) -> Response:
        """The model, and the weight version that was given at the start."""
        return JSONResponse(self._info.model())

    async def server_info(self, request: Request) -> Response:
        """All arguments and the scheduler's state."""
        return JSONResponse(self._info.server(await self._frontend.call("state")))

    async def metrics(self, request: Request) -> Response:
        """Prometheus's text."""
        state = await self._frontend.call("state")
        text = metrics.exposition(self._info, state, self._frontend.totals, self._responses)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def models(self, request: Request) -> Response:
        """The one model."""
        name = self._info.args["served_model_name"]
        card = {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "sglang",
            "root": name,
            "parent": None,
            "max_model_len": self._info.capacity.context,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def flush_cache(self, request: Request) -> Response:
        """Empties the prefix cache, unless requests run."""
        flushed = (await self._frontend.call("flush"))["flushed"]
        return Response(_FLUSHED, status_code=200 if flushed else 400)

    async def abort_request(self, request: Request) -> Response:
        """Ends one request, or all."""
        body = await _object(request)
        self._frontend.abort(str(body.get("rid", "")), everyone=bool(body.get("abort_all")))
        return Response(status_code=200)

    async def freeze_gc(self, request: Request) -> Response:
        """Asked for by the warm-up; has nothing to do here."""
        return PlainTextResponse("Garbage collection frozen.\n")

    async def generate(self, request: Request) -> Response:
        """SGLang's own endpoint: cumulative text, ids and counts."""
        try:
            body = await _object(request)
        except ValueError as error:
            return _refusal(str(error))
        stream = bool(body.get("stream"))
        try:
            pending = self._frontend.submit(
                body.get("text"),
                body.get("input_ids"),
                body.get("sampling_params") or {},
                stream=stream,
                rid=body.get("rid"),
                logprobs=bool(body.get("return_logprob")),
            )
        except BadRequest as error:
            return self._stream_refusal(str(error)) if stream else _refusal(str(error))
        chunks = GenerateChunks(self._info.args, pending, logprob_text=bool(body.get("return_text_in_logprobs")))
        if stream:
            return self._stream(pending, self._generate_events(pending, chunks))
        await self._finished(pending)
        if pending.finish is not None and pending.finish.get("status_code"):
            return _refusal(pending.finish["message"])
        return Response(chunks.chunk(), media_type="application/json")

    async def completions(self, request: Request) -> Response:
        """OpenAI's completions."""
        return await self._openai(request, chat=False)

    async def chat(self, request: Request) -> Response:
        """OpenAI's chat completions."""
        return await self._openai(request, chat=True)

    async def _openai(self, request: Request, *, chat: bool) -> Response:
        try:
            body = await _object(request)
            if (missing := "messages" if chat else "prompt") not in body:
                return _invalid(missing)
            prompt = prompt_of(body["messages"]) if chat else body["prompt"]
            ids = prompt if isinstance(prompt, list) else vocabulary.encode(prompt)
            text = None if isinstance(prompt, list) else prompt
            pending = self._frontend.submit(text, ids, sampling(body), stream=bool(body.get("stream")), rid=None)
        except (BadRequest, ValueError, KeyError, TypeError, AttributeError) as error:
            message = {"object": "error", "message": str(error), "type": "BadRequestError", "param": None, "code": 400}
            return JSONResponse(message, status_code=400)
        chunks = OpenAIChunks(
            pending,
            chat=chat,
            model=body.get("model") or self._info.args["served_model_name"],
            options=body.get("stream_options"),
            cache_report=self._info.args["enable_cache_report"],
            weight_version=self._info.args["weight_version"],
        )
        if body.get("stream"):
            return self._stream(pending, self._openai_events(pending, chunks))
        await self._finished(pending)
        return JSONResponse(chunks.whole())

    async def _finished(self, pending: Pending) -> None:
        async for _ in self._frontend.updates(pending):
            pass

    def _stream(self, pending: Pending, events: AsyncIterator[str]) -> EventStream:
        def gone() -> None:
            if pending.finish is None:
                self._frontend.abort(pending.rid)

        return EventStream(events, gone, cut="cut_stream" in self._faults)

    def _cuts(self, pending: Pending) -> bool:
        return "cut_stream" in self._faults and pending.made >= _CUT_AFTER_TOKENS

    async def _generate_events(self, pending: Pending, chunks: GenerateChunks) -> AsyncIterator[str]:
        async for _ in self._frontend.updates(pending):
            yield chunks.chunk()
            if self._cuts(pending):
                return
        yield "[DONE]"

    async def _openai_events(self, pending: Pending, chunks: OpenAIChunks) -> AsyncIterator[str]:
        first = True
        async for _ in self._frontend.updates(pending):
            for chunk in (*(chunks.first() if first else ()), *chunks.news()):
                yield json.dumps(chunk, separators=(",", ":"))
            first = False
            if self._cuts(pending):
                return
        for chunk in chunks.last():
            yield json.dumps(chunk, separators=(",", ":"))
        yield "[DONE]"

    def _stream_refusal(self, message: str) -> Response:
        error: dict[str, Any] = {"message": message, "type": "invalid_request_error", "code": 400}
        if version_of(self._info.machine.engine_version) >= (0, 5, 10):
            error["retryable"] = False

        async def events() -> AsyncIterator[str]:
            yield json.dumps({"error": error}, separators=(",", ":"))
            yield "[DONE]"

        return EventStream(events(), lambda: None)


async def _object(request: Request) -> dict[str, Any]:
    """The request's JSON object.

    Raises:
        ValueError: the body is none.
    """
    body = json.loads(await request.body() or b"{}")
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    return body


def _absent(request: Request, error: Exception) -> Response:
    """No such path, or not by this method."""
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, status_code=error.status_code)


def _invalid(missing: str) -> Response:
    """What the validation of an OpenAI request says of a field that is missing."""
    errors = [{"type": "missing", "loc": ("body", missing), "msg": "Field required"}]
    message = {"object": "error", "message": str(errors), "type": "Bad Request", "param": None, "code": 400}
    return JSONResponse(message, status_code=400)


def _refusal(message: str) -> Response:
    return JSONResponse({"error": {"message": message}}, status_code=400)
