"""Waiting with asyncio: all work is done by tasks of the program's own event loop, and there is no thread of ours."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import grpc
import grpc.aio

from .._core.failures import RpcFailure, timed_out
from .._core.methods import Method
from ..errors import ClientClosed
from . import Pending, Reply, Signal, Stream, Tls
from .settings import DETAILS, LEADER, NEVER_SENT, OPTIONS

log = logging.getLogger("lockkeeper")

BUFFER_MAX = 64
"""Messages of a stream that wait for their reader; then flow control stops the node."""


class LoopSignal:
    """Wakes one task."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        self._loop = loop
        self._thread = thread
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        if threading.get_ident() == self._thread:
            self._set()
        else:
            # The loop may be closed by now: then nobody waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._set)

    def _set(self) -> None:
        self._is_set = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout: float | None) -> None:
        if not self._is_set:
            self._waiter = waiter = self._loop.create_future()
            timer = None if timeout is None else self._loop.call_later(timeout, _wake, waiter)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        self._is_set = False


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class LoopIo:
    """`Io` with asyncio. Made within the event loop that it uses."""

    def __init__(self, certificates: Callable[[], Tls] | None, bearer: Callable[[], str] | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._certificates = certificates
        self._bearer = bearer
        # What the channels have.
        self._tls: Tls | None = None
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._callables: dict[tuple[str, str], Any] = {}
        # Also those with earlier certificates, on which calls are under way.
        self._all_channels: WeakSet[grpc.aio.Channel] = WeakSet()
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()
        self._is_closed = False

    async def call(self, address: str, method: Method, request: Any, timeout: float) -> Reply:
        callable_, _channel = self._callable(address, method, "unary_unary")
        return await _reply(callable_(request, timeout=timeout, metadata=self._metadata()))

    def start(self, address: str, method: Method, request: Any, signal: Signal) -> Pending:
        callable_, channel = self._callable(address, method, "unary_unary")
        return LoopPending(callable_(request, metadata=self._metadata()), signal, channel)

    def stream(self, address: str, method: Method, signal: Signal, on_leader: Callable[[str | None], None]) -> Stream:
        begin, channel = self._callable(address, method, "stream_stream")
        stream = LoopStream(begin, self._metadata(), signal, on_leader, channel)
        self._begin("lockkeeper-stream", stream.pump())
        return stream

    def _metadata(self) -> tuple[tuple[str, str], ...] | None:
        return None if self._bearer is None else (("authorization", f"Bearer {self._bearer()}"),)

    def signal(self) -> Signal:
        return LoopSignal(self._loop, self._thread)

    def mutex(self) -> asyncio.Lock:
        return self._opening

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._begin(name, work())

    def call_back(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    async def close(self, limit: float) -> None:
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        if tasks:
            await asyncio.wait(tasks, timeout=limit)
        self._is_closed = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        channels = list(self._all_channels)
        self._channels.clear()
        self._callables.clear()
        for channel in channels:
            await channel.close()

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("the task %s failed", task.get_name(), exc_info=task.exception())

    def _callable(self, address: str, method: Method, kind: str) -> tuple[Any, grpc.aio.Channel]:
        """The method at a node, and its channel, which ends when nobody has it any more."""
        key = (address, method.path)
        tls = None if self._certificates is None else self._certificates()
        if tls is not self._tls:
            # gRPC connects a channel again with what it was made with. Calls that are under way have theirs to their end.
            self._tls = tls
            self._channels.clear()
            self._callables.clear()
        known = self._callables.get(key)
        if known is None:
            if self._is_closed:
                raise ClientClosed("the client was closed: make another one with connect()")
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = self._connect(address, tls)
                self._all_channels.add(channel)
            known = self._callables[key] = getattr(channel, kind)(
                method.path, request_serializer=method.serialize, response_deserializer=method.parse
            )
        return known, self._channels[address]

    def _connect(self, address: str, tls: Tls | None) -> grpc.aio.Channel:
        if tls is None:
            return grpc.aio.insecure_channel(address, options=OPTIONS)
        credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
        return grpc.aio.secure_channel(address, credentials, options=OPTIONS)


class LoopPending:
    """A call under way."""

    def __init__(self, call: Any, signal: Signal, channel: grpc.aio.Channel) -> None:
        self._call = call
        self._channel = channel
        call.add_done_callback(lambda _: signal.set())

    def is_done(self) -> bool:
        done: bool = self._call.done()
        return done

    async def reply(self) -> Reply:
        return await _reply(self._call)

    def cancel(self) -> None:
        self._call.cancel()


class LoopStream:
    """A stream whose messages are read by a task of their own."""

    def __init__(
        self,
        begin: Any,
        metadata: Any,
        signal: Signal,
        on_leader: Callable[[str | None], None],
        channel: grpc.aio.Channel,
    ) -> None:
        self._channel = channel
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._messages: deque[Any] = deque()
        self._room = asyncio.Semaphore(BUFFER_MAX)
        self._failure: RpcFailure | None = None
        self._is_cancelled = False
        self._signal = signal
        self._on_leader = on_leader
        self._call = begin(self._sent(), metadata=metadata)

    async def _sent(self) -> AsyncIterator[Any]:
        while (message := await self._requests.get()) is not None:
            yield message

    def send(self, message: Any) -> None:
        self._requests.put_nowait(message)

    def finish(self) -> None:
        self._requests.put_nowait(None)

    def take(self) -> Any | None:
        if not self._messages:
            return None
        message = self._messages.popleft()
        self._room.release()
        return message

    def failure(self) -> Exception | None:
        return None if self._messages else self._failure

    def cancel(self) -> None:
        self._is_cancelled = True
        self._requests.put_nowait(None)
        self._room.release()
        self._call.cancel()

    async def pump(self) -> None:
        """Reads until the stream ends: the body of its task."""
        failure = RpcFailure("UNAVAILABLE", "it ended the stream")
        try:
            self._on_leader(_leader(await self._call.initial_metadata()))
            async for message in self._call:
                await self._room.acquire()
                if self._is_cancelled:
                    break
                self._messages.append(message)
                self._signal.set()
        except grpc.aio.AioRpcError as error:
            failure = _failure(error)
        except asyncio.CancelledError:
            failure = RpcFailure("CANCELLED", "the stream was cancelled")
            if not self._is_cancelled:
                raise
        finally:
            self._failure = failure
            self._requests.put_nowait(None)
            self._signal.set()


async def _reply(call: Any) -> Reply:
    try:
        message = await call
    except grpc.aio.AioRpcError as error:
        raise _failure(error) from None
    except asyncio.CancelledError:
        # gRPC raises it too where the call was cancelled by its channel, and not this task.
        if call.cancelled() and not _is_cancelling():
            raise RpcFailure("CANCELLED", "the call was cancelled") from None
        raise
    return Reply(message, _leader(await call.initial_metadata()))


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    count = getattr(task, "cancelling", None)
    # Before Python 3.11 nobody can tell: the task counts as cancelled.
    return True if count is None else count() > 0


def _failure(error: grpc.aio.AioRpcError) -> RpcFailure:
    name = error.code().name
    message = error.details() or ""
    trailing = error.trailing_metadata()
    if name == "DEADLINE_EXCEEDED" and not trailing:
        return timed_out()
    never_sent = name == "UNAVAILABLE" and message.startswith(NEVER_SENT)
    return RpcFailure(name, message, _value(trailing, DETAILS) or b"", _leader(trailing), never_sent)


def _leader(metadata: Any) -> str | None:
    named = _value(metadata, LEADER)
    return named if isinstance(named, str) else None


def _value(metadata: Any, wanted: str) -> Any:
    return next((value for key, value in metadata or () if key == wanted), None)
