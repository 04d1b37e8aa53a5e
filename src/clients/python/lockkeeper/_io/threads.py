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
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

import grpc

from .._core.clock import timer_now
from .._core.failures import RpcFailure, timed_out
from .._core.methods import Method
from ..errors import ClientClosed
from . import Pending, Reply, Signal, Stream, Tls
from .settings import DETAILS, LEADER, NEVER_SENT, OPTIONS

log = logging.getLogger("lockkeeper")

T = TypeVar("T")

IDLE_MAX = 2
"""Threads that are kept for the next call of the main thread. It makes one at a time, unless a handler of a signal makes one too."""

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
    """Wakes one thread. A bare lock, which is taken while nobody has set it: an interruption leaves it in order."""

    def __init__(self) -> None:
        self._unset = threading.Lock()
        self._unset.acquire()

    def set(self) -> None:
        # It is set already.
        with suppress(RuntimeError):
            self._unset.release()

    async def wait(self, timeout: float | None) -> None:
        self.wait_here(timeout)

    def wait_here(self, timeout: float | None) -> None:
        self._unset.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))


class _Job:
    """Work for another thread, and its outcome."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._value: Any = None
        self._error: BaseException | None = None
        self.is_done = ThreadSignal()

    def execute(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error

    def outcome(self) -> Any:
        self.is_done.wait_here(None)
        if self._error is not None:
            raise self._error
        return self._value


class Aside:
    """Does the main thread's work with gRPC in other threads.

    Python interrupts the main thread between any two steps (Ctrl-C, a handler of a signal), also within gRPC, which then keeps a mutex of a
    channel locked for ever: no thread could renew any more. So the main thread only waits, for a bare lock. Other threads are not
    interrupted, and do their own work.
    """

    def __init__(self, begin: Callable[[str, Callable[[], None]], None]) -> None:
        self._begin = begin
        self._idle: deque[SimpleQueue[_Job | None]] = deque()
        # Also those whose queue was taken by a call that was interrupted before it gave its work.
        self._all: list[SimpleQueue[_Job | None]] = []
        self._is_closed = False

    def run(self, work: Callable[[], T]) -> T:
        if threading.current_thread() is not threading.main_thread():
            return work()
        job = _Job(work)
        try:
            queue = self._idle.pop()
        except IndexError:
            queue = SimpleQueue()
            self._all.append(queue)
            self._begin("lockkeeper-caller", partial(self._serve, queue))
        queue.put(job)
        outcome: T = job.outcome()
        return outcome

    def close(self) -> None:
        self._is_closed = True
        self._idle.clear()
        for queue in list(self._all):
            queue.put(None)

    def _serve(self, queue: SimpleQueue[_Job | None]) -> None:
        while (job := queue.get()) is not None:
            job.execute()
            # Before the main thread goes on, which may have more work at once.
            self._idle.append(queue)
            job.is_done.set()
            del job
            if self._is_closed or len(self._idle) > IDLE_MAX:
                with suppress(ValueError):
                    self._idle.remove(queue)
                    break
        with suppress(ValueError):
            self._all.remove(queue)


class ThreadIo:
    """`Io` with threads."""

    def __init__(self, certificates: Callable[[], Tls] | None, bearer: Callable[[], str] | None) -> None:
        self._certificates = certificates
        self._bearer = bearer
        # What the channels have.
        self._tls: Tls | None = None
        self._channels: dict[str, grpc.Channel] = {}
        self._callables: dict[tuple[str, str], Any] = {}
        # Also those with earlier certificates, on which calls are under way.
        self._all_channels: WeakSet[grpc.Channel] = WeakSet()
        self._threads: set[threading.Thread] = set()
        self._streams: set[ThreadStream] = set()
        self._numbers = count(1)
        self._mutex = threading.Lock()
        self._opening = threading.Lock()
        self._aside = Aside(self._begin)
        self._is_closed = False

    async def call(self, address: str, method: Method, request: Any, timeout: float) -> Reply:
        return self._aside.run(lambda: self._call(address, method, request, timeout))

    def _call(self, address: str, method: Method, request: Any, timeout: float) -> Reply:
        try:
            callable_, _channel = self._callable(address, method, "unary_unary")
            message, call = callable_.with_call(request, timeout=timeout, metadata=self._metadata())
        except grpc.RpcError as error:
            raise _failure(error) from None
        return Reply(message, _leader(call.initial_metadata()))

    def start(self, address: str, method: Method, request: Any, signal: Signal) -> Pending:
        def begin() -> ThreadPending:
            callable_, channel = self._callable(address, method, "unary_unary")
            call = callable_.future(request, metadata=self._metadata())
            return ThreadPending(call, signal, self._aside, channel)

        return self._aside.run(begin)

    def stream(self, address: str, method: Method, signal: Signal, on_leader: Callable[[str | None], None]) -> Stream:
        def begin() -> ThreadStream:
            callable_, channel = self._callable(address, method, "stream_stream")
            stream = ThreadStream(callable_, self._metadata(), signal, on_leader, self._aside, channel)
            with self._mutex:
                self._streams.add(stream)
            self._begin("lockkeeper-stream", stream.pump, lambda: self._streams.discard(stream))
            return stream

        return self._aside.run(begin)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self._bearer is None else (("authorization", f"Bearer {self._bearer()}"),)

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
        self._aside.close()
        self._join(until)
        with self._mutex:
            self._is_closed = True
            channels = list(self._all_channels)
            self._channels.clear()
            self._callables.clear()
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        for channel in channels:
            self._aside.run(channel.close)
        self._aside.close()
        # What still ran has lost its connections now.
        self._join(timer_now() + 1.0)

    def _join(self, until: float) -> None:
        with self._mutex:
            others = self._threads - {threading.current_thread()}
            threads = [thread for thread in others if thread.ident is not None]
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
        except RuntimeError:
            # There can be no more threads. After an interruption the thread may run all the same.
            with self._mutex:
                self._threads.discard(thread)
            raise

    def _callable(self, address: str, method: Method, kind: str) -> tuple[Any, grpc.Channel]:
        """The method at a node, and its channel, which ends when nobody has it any more."""
        key = (address, method.path)
        tls = None if self._certificates is None else self._certificates()
        with self._mutex:
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
                known = getattr(channel, kind)(
                    method.path, request_serializer=method.serialize, response_deserializer=method.parse
                )
                self._callables[key] = known
            return known, self._channels[address]

    def _connect(self, address: str, tls: Tls | None) -> grpc.Channel:
        if tls is None:
            return grpc.insecure_channel(address, options=OPTIONS)
        credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert)
        return grpc.secure_channel(address, credentials, options=OPTIONS)


class ThreadPending:
    """A call that another thread completes. That thread reads its outcome."""

    def __init__(self, call: Any, signal: Signal, aside: Aside, channel: grpc.Channel) -> None:
        self._call = call
        self._channel = channel
        self._signal = signal
        self._aside = aside
        self._outcome: Reply | RpcFailure | None = None
        call.add_done_callback(self._complete)

    def _complete(self, call: Any) -> None:
        try:
            self._outcome = Reply(call.result(), _leader(call.initial_metadata()))
        except grpc.RpcError as error:
            self._outcome = _failure(error)
        except grpc.FutureCancelledError:
            self._outcome = RpcFailure("CANCELLED", "the call was cancelled")
        self._signal.set()

    def is_done(self) -> bool:
        return self._outcome is not None

    async def reply(self) -> Reply:
        assert self._outcome is not None
        if isinstance(self._outcome, RpcFailure):
            raise self._outcome
        return self._outcome

    def cancel(self) -> None:
        if self._outcome is None:
            self._aside.run(self._call.cancel)


class ThreadStream:
    """A stream whose messages are read by a thread of their own, since a read has no limit of time."""

    def __init__(
        self,
        begin: Any,
        metadata: Any,
        signal: Signal,
        on_leader: Callable[[str | None], None],
        aside: Aside,
        channel: grpc.Channel,
    ) -> None:
        self._channel = channel
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._messages: deque[Any] = deque()
        self._room = ThreadSignal()
        self._aside = aside
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
        self._room.set()
        return message

    def failure(self) -> Exception | None:
        return None if self._messages else self._failure

    def cancel(self) -> None:
        self._is_cancelled = True
        self._requests.put(None)
        self._room.set()
        self._aside.run(self._call.cancel)

    def pump(self) -> None:
        """Reads until the stream ends: the body of its thread."""
        failure = RpcFailure("UNAVAILABLE", "it ended the stream")
        try:
            self._on_leader(_leader(self._call.initial_metadata()))
            for message in self._call:
                while len(self._messages) >= BUFFER_MAX and not self._is_cancelled:
                    self._room.wait_here(None)
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
