"""Waiting with threads.

The coroutines of `lockkeeper._core` never suspend here: what they wait for blocks the thread, and `run` runs them to their end in one go. A
short call is made by the caller's own thread. In the background there is one thread that renews, and one that reads its stream; a thread
that releases or closes what its caller no longer waits for lives until that is done. All are daemons, and none outlives `close`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from itertools import count
from queue import SimpleQueue
from typing import Any, TypeVar

import grpc

from .._core.clock import timer_now
from .._core.failures import RpcFailure, timed_out
from .._core.methods import Method
from ..errors import ClientClosed
from . import Pending, Reply, Signal, Stream, Tls
from .settings import DETAILS, LEADER, NEVER_SENT, OPTIONS

log = logging.getLogger("lockkeeper")

T = TypeVar("T")

BUFFER_MAX = 64
"""Messages of a stream that wait for their reader; then flow control stops the node."""


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    work.close()
    raise RuntimeError("a coroutine of the client suspended without an event loop; this is a mistake of the client's")


class ThreadSignal:
    """Wakes one thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout: float | None) -> None:
        self._event.wait(timeout)
        # What is set between these two lines was true before, and the caller looks again.
        self._event.clear()


class ThreadIo:
    """`Io` with threads."""

    def __init__(self, tls: Tls | None, token: str | None) -> None:
        self._tls = tls
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._channels: dict[str, grpc.Channel] = {}
        self._callables: dict[tuple[str, str], Any] = {}
        self._threads: set[threading.Thread] = set()
        self._streams: set[ThreadStream] = set()
        self._numbers = count(1)
        self._mutex = threading.Lock()
        self._opening = threading.Lock()
        self._is_closed = False

    async def call(self, address: str, method: Method, request: Any, timeout: float) -> Reply:
        try:
            message, call = self._callable(address, method, "unary_unary").with_call(
                request, timeout=timeout, metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise _failure(error) from None
        return Reply(message, _leader(call.initial_metadata()))

    def start(self, address: str, method: Method, request: Any, signal: Signal) -> Pending:
        call = self._callable(address, method, "unary_unary").future(request, metadata=self._metadata)
        return ThreadPending(call, signal)

    def stream(self, address: str, method: Method, signal: Signal, on_leader: Callable[[str | None], None]) -> Stream:
        stream = ThreadStream(self._callable(address, method, "stream_stream"), self._metadata, signal, on_leader)
        with self._mutex:
            self._streams.add(stream)
        self._begin("lockkeeper-stream", stream.pump, lambda: self._streams.discard(stream))
        return stream

    def signal(self) -> Signal:
        return ThreadSignal()

    @asynccontextmanager
    async def mutex(self) -> AsyncGenerator[None]:
        with self._opening:
            yield

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._begin(name, lambda: run(work()))

    def call_back(self, callback: Callable[[], None]) -> None:
        self._begin("lockkeeper-on-lost", callback)

    async def close(self, limit: float) -> None:
        until = timer_now() + limit
        self._join(until)
        with self._mutex:
            self._is_closed = True
            channels = list(self._channels.values())
            self._channels.clear()
            self._callables.clear()
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        for channel in channels:
            channel.close()
        # What still ran has lost its connections now.
        self._join(timer_now() + 1.0)

    def _join(self, until: float) -> None:
        with self._mutex:
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in threads:
            thread.join(max(0.0, until - timer_now()))

    def _begin(self, name: str, work: Callable[[], None], at_end: Callable[[], None] = lambda: None) -> None:
        def body() -> None:
            try:
                work()
            except Exception:
                log.exception("the thread %s failed", threading.current_thread().name)
            finally:
                with self._mutex:
                    at_end()
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=body, name=f"{name}-{next(self._numbers)}", daemon=True)
        with self._mutex:
            self._threads.add(thread)
        try:
            thread.start()
        except BaseException:
            with self._mutex:
                self._threads.discard(thread)
            raise

    def _callable(self, address: str, method: Method, kind: str) -> Any:
        key = (address, method.path)
        with self._mutex:
            known = self._callables.get(key)
            if known is None:
                if self._is_closed:
                    raise ClientClosed("the client was closed: make another one with connect()")
                channel = self._channels.get(address)
                if channel is None:
                    channel = self._channels[address] = self._connect(address)
                known = getattr(channel, kind)(
                    method.path, request_serializer=method.serialize, response_deserializer=method.parse
                )
                self._callables[key] = known
        return known

    def _connect(self, address: str) -> grpc.Channel:
        if self._tls is None:
            return grpc.insecure_channel(address, options=OPTIONS)
        credentials = grpc.ssl_channel_credentials(self._tls.ca, self._tls.key, self._tls.cert)
        return grpc.secure_channel(address, credentials, options=OPTIONS)


class ThreadPending:
    """A call that another thread completes."""

    def __init__(self, call: Any, signal: Signal) -> None:
        self._call = call
        call.add_done_callback(lambda _: signal.set())

    def is_done(self) -> bool:
        done: bool = self._call.done()
        return done

    async def reply(self) -> Reply:
        try:
            message = self._call.result()
        except grpc.RpcError as error:
            raise _failure(error) from None
        except grpc.FutureCancelledError:
            raise RpcFailure("CANCELLED", "the call was cancelled") from None
        return Reply(message, _leader(self._call.initial_metadata()))

    def cancel(self) -> None:
        self._call.cancel()


class ThreadStream:
    """A stream whose messages are read by a thread of their own, since a read has no limit of time."""

    def __init__(self, begin: Any, metadata: Any, signal: Signal, on_leader: Callable[[str | None], None]) -> None:
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._messages: deque[Any] = deque()
        self._room = threading.Semaphore(BUFFER_MAX)
        self._failure: RpcFailure | None = None
        self._is_cancelled = False
        self._signal = signal
        self._on_leader = on_leader
        self._call = begin(self._sent(), metadata=metadata)

    def _sent(self) -> Iterator[Any]:
        yield from iter(self._requests.get, None)

    def send(self, message: Any) -> None:
        self._requests.put(message)

    def finish(self) -> None:
        self._requests.put(None)

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
        self._requests.put(None)
        self._room.release()
        self._call.cancel()

    def pump(self) -> None:
        """Reads until the stream ends: the body of its thread."""
        failure = RpcFailure("UNAVAILABLE", "it ended the stream")
        try:
            self._on_leader(_leader(self._call.initial_metadata()))
            for message in self._call:
                self._room.acquire()
                if self._is_cancelled:
                    break
                self._messages.append(message)
                self._signal.set()
        except grpc.RpcError as error:
            failure = _failure(error)
        finally:
            self._failure = failure
            self._requests.put(None)
            self._signal.set()


def _failure(error: Any) -> RpcFailure:
    code = error.code()
    message = error.details() or ""
    name = "UNKNOWN" if code is None else code.name
    if name == "DEADLINE_EXCEEDED" and not error.trailing_metadata():
        return timed_out()
    never_sent = name == "UNAVAILABLE" and message.startswith(NEVER_SENT)
    trailing = error.trailing_metadata()
    return RpcFailure(name, message, _value(trailing, DETAILS) or b"", _leader(trailing), never_sent)


def _leader(metadata: Any) -> str | None:
    named = _value(metadata, LEADER)
    return named if isinstance(named, str) else None


def _value(metadata: Any, wanted: str) -> Any:
    return next((value for key, value in metadata or () if key == wanted), None)
