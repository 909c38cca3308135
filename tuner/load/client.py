"""The load client: httpx's door. One window is `concurrency` streams at once, stamped on receipt, parsed afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import httpcore
import httpx

from tuner.errors import InputError
from tuner.load import canary
from tuner.load.formats import error_text, format_of
from tuner.load.lag import LoopLag
from tuner.load.metrics import quantile
from tuner.load.prompts import prompts
from tuner.load.receipt import ReceiptBackend
from tuner.load.stream import StreamLog
from tuner.load.windows import window_of
from tuner.values.canary import CanaryAnswer
from tuner.values.measurement import Window
from tuner.values.workload import Workload

PARSE_ABOVE_BYTES = 256 * 1024
"""Raw bytes of a stream that are held unparsed: some 500 events, more than most windows have."""

ERROR_BODY_BYTES = 4096
"""How much of an HTTP error's body is read."""

CANARY_TIMEOUT_S = 60.0
"""Longest silence of a canary: an idle server with a short prompt answers within seconds, or never."""

_BROKEN = (httpx.HTTPError, httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError)
"""What a request that breaks raises: our transport hands httpcore's own errors on."""


class LoadClient:
    """Puts the load on one server and measures it. Connections are kept from window to window: warm-up opens them.

    One process, one event loop: honest to about 100 streams of 100 tok/s; where it is not, `Window.invalid` says so.

    Args:
        base_url: ``http://host:port``, optionally with a path that comes before the endpoint's.
        clock: monotonic seconds; of all times in a window.
        cpu_clock: seconds of CPU time that this process has used.

    Raises:
        InputError: `base_url` is not an ``http`` URL.
    """

    def __init__(
        self,
        base_url: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        if httpx.URL(base_url).scheme != "http":
            raise InputError(
                f"load: the server's address is {base_url!r}, expected http://HOST:PORT; the load goes to "
                "the host's own loopback, or through the SSH connection, and needs no TLS"
            )
        self._base_url = base_url
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._http = httpx.AsyncClient(base_url=base_url, transport=_Transport(ReceiptBackend(clock)), trust_env=False)

    async def window(self, workload: Workload, index: int) -> Window:
        """Runs window `index` (negative: warm-up) and returns it.

        Whatever the server does is in the window: `RequestSample.error` and `Window.invalid`; it never raises for that.
        """
        form = format_of(workload.endpoint)
        asked = prompts(workload, index)
        timeout = httpx.Timeout(workload.request_timeout_s)
        requests = [
            self._http.build_request("POST", form.path, json=form.body(p.text, workload.output_tokens), timeout=timeout)
            for p in asked
        ]
        logs = [
            StreamLog(form, int(PARSE_ABOVE_BYTES * (0.5 + place / len(requests)))) for place in range(len(requests))
        ]
        started_unix_s = time.time()
        began_s, cpu_s = self._clock(), self._cpu_clock()
        async with LoopLag() as lag, asyncio.TaskGroup() as streams:
            for request, log in zip(requests, logs, strict=True):
                streams.create_task(self._stream(request, log, workload.request_timeout_s))
                await asyncio.sleep(0)  # lets the loop read sockets between two sends
        duration_s = self._clock() - began_s
        cpu = (self._cpu_clock() - cpu_s) / duration_s
        return window_of(
            workload,
            index,
            [log.sample(prompt.name, workload.output_tokens, began_s) for prompt, log in zip(asked, logs, strict=True)],
            started_unix_s=started_unix_s,
            duration_s=duration_s,
            client_cpu=cpu,
            loop_lag_p99_s=quantile(lag.samples, 0.99) if lag.samples else 0.0,
        )

    async def canaries(self, timeout_s: float = CANARY_TIMEOUT_S) -> tuple[CanaryAnswer, ...]:
        """Asks all canaries at once, without streams. An answer that fails says so in itself; it never raises for that.

        Args:
            timeout_s: longest silence of the server.
        """
        return tuple(await asyncio.gather(*(self._canary(one, timeout_s) for one in canary.canaries())))

    async def _canary(self, asked: canary.Canary, timeout_s: float) -> CanaryAnswer:
        """One answer: with log-probabilities, or without from an engine that refuses to give them."""
        try:
            response = await self._post(canary.body(asked), timeout_s)
            if 400 <= response.status_code < 500:
                response = await self._post(canary.body(asked, logprobs=False), timeout_s)
        except _BROKEN as error:
            return canary.failed(asked, self._words(error, timeout_s))
        if response.status_code != 200:
            return canary.failed(asked, f"HTTP {response.status_code}: {error_text(response.content)}")
        return canary.answer(asked, response.content)

    async def _post(self, body: dict[str, Any], timeout_s: float) -> httpx.Response:
        return await self._http.post(canary.PATH, json=body, timeout=httpx.Timeout(timeout_s))

    async def close(self) -> None:
        """Closes all connections."""
        await self._http.aclose()

    async def _stream(self, request: httpx.Request, log: StreamLog, timeout_s: float) -> None:
        """Sends one request and keeps what comes, until the stream ends or breaks."""
        log.sent_s = self._clock()
        try:
            response = await self._http.send(request, stream=True)
            try:
                socket = response.extensions["network_stream"]
                log.sent_s = socket.written_s
                if response.status_code != 200:
                    log.error = f"HTTP {response.status_code}: {error_text(await _beginning(response))}"
                    return
                async for chunk in response.aiter_raw():
                    log.append(socket.received_s, chunk)
            finally:
                await response.aclose()
        except _BROKEN as error:
            log.error = self._words(error, timeout_s)

    def _words(self, error: Exception, timeout_s: float) -> str:
        """Why a request broke."""
        if isinstance(error, httpcore.ConnectError | httpcore.ConnectTimeout):
            return f"no connection to {self._base_url}: {error}"
        if isinstance(error, httpcore.TimeoutException):
            return f"nothing came for {timeout_s:g} s"
        return f"the connection broke: {error or type(error).__name__}"


async def _beginning(response: httpx.Response) -> bytes:
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > ERROR_BODY_BYTES:
            break
    return body


class _Transport(httpx.AsyncBaseTransport):
    """httpx over httpcore's connections, with our network backend and as many connections as there are streams.

    httpcore's own pool looks at every connection for every other one whenever a request starts or ends: with 256
    streams that end together it blocks the event loop for seconds (measured, httpcore 1.0.9). Here a connection that is
    free is taken, or a new one is opened.
    """

    def __init__(self, backend: httpcore.AsyncNetworkBackend) -> None:
        self._backend = backend
        self._idle: list[httpcore.AsyncHTTPConnection] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = httpcore.URL(
            scheme=request.url.raw_scheme,
            host=request.url.raw_host,
            port=request.url.port,
            target=request.url.raw_path,
        )
        connection = await self._free(url.origin)
        answer = await connection.handle_async_request(
            httpcore.Request(
                request.method,
                url,
                headers=request.headers.raw,
                content=cast("AsyncIterator[bytes]", request.stream),
                extensions=request.extensions,
            )
        )
        return httpx.Response(
            answer.status,
            headers=answer.headers,
            stream=_Body(answer.stream, lambda: self._keep(connection)),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        while self._idle:
            await self._idle.pop().aclose()

    async def _free(self, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection:
        """An idle connection that the server has not closed meanwhile, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_expired():
                return connection
            await connection.aclose()
        return httpcore.AsyncHTTPConnection(origin, network_backend=self._backend)

    def _keep(self, connection: httpcore.AsyncHTTPConnection) -> None:
        if connection.is_idle():
            self._idle.append(connection)


class _Body(httpx.AsyncByteStream):
    """The body of an answer as httpcore gives it; its connection is handed back when it is closed."""

    def __init__(self, stream: Any, closed: Callable[[], None]) -> None:
        self._stream = stream
        self._closed = closed

    def __aiter__(self) -> AsyncIterator[bytes]:
        return cast("AsyncIterator[bytes]", aiter(self._stream))

    async def aclose(self) -> None:
        await self._stream.aclose()
        self._closed()
