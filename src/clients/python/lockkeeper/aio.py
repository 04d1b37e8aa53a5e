"""The client for asyncio, with the same names as `lockkeeper`.

    import lockkeeper.aio

    async with lockkeeper.aio.connect() as client:
        async with client.lock("jobs/nightly", wait=30) as lock:
            await write_report(fence=lock.token)

The body of an `async with` over a lock is cancelled when the lock is lost, and `lockkeeper.Lost` raised in its place. A client belongs to
the event loop in which it is used first.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ._client import _call_with, _check_pass_lock, _formatted, _one_of
from ._core.acquiring import Seconds, Wanted, checked_data, checked_name, seconds
from ._core.client import ClientCore
from ._core.session import Held
from ._core.settings import LIMIT_MAX, Settings
from ._core.watching import ObserverCore, WatchCore
from .errors import ClientClosed, Error, InvalidArgument, Loss, Lost, NotAcquired, OutcomeUnknown
from .views import Check, Forced, Leader, LockInfo, WatchMessage

__all__ = ["Client", "Election", "Leadership", "Lock", "LockRequest", "Observer", "Watch", "connect"]

log = logging.getLogger("lockkeeper")

P = ParamSpec("P")
T = TypeVar("T")


def connect(
    endpoints: str | None = None,
    *,
    ca: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    token: str | None = None,
    ttl: Seconds = 10.0,
    label: str | None = None,
    call_limit: Seconds = 10.0,
    attempt_limit: Seconds = 2.0,
) -> Client:
    """A client of a cluster, with the arguments and settings of `lockkeeper.connect`. Nothing is sent before it is used.

    >>> async with lockkeeper.aio.connect() as client:
    ...     (await client.get("reports/nightly")).is_held
    False
    """
    return Client(Settings.read(endpoints, ca, cert, key, token, ttl, label, call_limit, attempt_limit))


class Client:
    """A client of a cluster, for any number of tasks of one event loop. It has one session, in which all its locks are held.

    Close it at the end, or use it in an `async with`: what it holds is then free at once. Its calls fail as those of `lockkeeper.Client`. A
    call that is cancelled leaves no lock behind.

    >>> async with client.lock("reports/nightly") as lock:
    ...     lock.remaining > 0
    True
    """

    def __init__(self, settings: Settings) -> None:
        # gRPC is imported here: not with the package, and not by the first call, which would block the event loop for long.
        from ._io.loop import LoopIo

        self._make_io = LoopIo
        self._settings = settings
        self._made: ClientCore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False

    @property
    def _core(self) -> ClientCore:
        """Made on first use, since it belongs to the event loop that runs then."""
        loop = asyncio.get_running_loop()
        if self._made is None:
            if self._is_closed:
                raise ClientClosed("the client was closed: make another one with connect()")
            settings = self._settings
            self._made = ClientCore(settings, lambda: self._make_io(settings.certificates, settings.bearer))
            self._loop = loop
        if self._loop is not loop:
            raise InvalidArgument("this client belongs to another event loop: make one in this loop with connect()")
        return self._made

    def lock(
        self,
        *names: str,
        wait: Seconds | None = None,
        data: bytes | None = None,
        keep_data: bool = False,
        shared: bool = False,
        permits: int | None = None,
        must_exist: bool = False,
        lock_delay: Seconds = 0.0,
        on_lost: Callable[[Loss], None] | None = None,
    ) -> LockRequest:
        """A lock, or several, for an `async with`, with the options of `lockkeeper.Client.lock`. `on_lost` is called in the event loop.

        >>> async with client.lock("jobs/nightly", wait=30, data=b"on host a"):
        ...     (await client.get("jobs/nightly")).data
        b'on host a'
        """
        return LockRequest(
            self, Wanted.checked(names, wait, data, keep_data, shared, permits, must_exist, lock_delay), on_lost
        )

    def locked(
        self,
        name: str,
        *,
        skip: bool = False,
        wait: Seconds | None = None,
        pass_lock: str | None = None,
        **options: Any,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[T]]]:
        """A decorator for coroutines, as `lockkeeper.Client.locked`.

        >>> @client.locked("jobs/{name}", skip=True)
        ... async def run(name):
        ...     return f"{name} ran"
        >>> await run("nightly")
        'nightly ran'
        """
        waits = 0 if skip and wait is None else wait

        def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
            if not inspect.iscoroutinefunction(function):
                raise InvalidArgument(f"{function!r} is no coroutine: use the client of lockkeeper")
            signature = inspect.signature(function)
            _check_pass_lock(signature, pass_lock)

            @functools.wraps(function)
            async def under_lock(*args: P.args, **kwargs: P.kwargs) -> T:
                request = self.lock(_formatted(name, signature, args, kwargs), wait=waits, **options)
                try:
                    lock = await request.acquire()
                except NotAcquired:
                    if skip:
                        return None  # type: ignore[return-value]
                    raise
                async with lock:
                    result: T = await _call_with(function, args, kwargs, pass_lock, lock)
                    return result

            return under_lock

        return decorate

    async def get(self, name: str, *, stale: bool = False) -> LockInfo:
        """One lock, as `lockkeeper.Client.get`.

        >>> (await client.get("reports/nightly")).queue_length
        0
        """
        return await self._core.get(name, stale)

    async def list(self, prefix: str = "", *, stale: bool = False) -> AsyncIterator[LockInfo]:
        """The locks whose names begin with `prefix`, by name, as `lockkeeper.Client.list`.

        >>> async with client.lock("reports/daily"):
        ...     [lock.name async for lock in client.list("reports/")]
        ['reports/daily']
        """
        page_token = ""
        while True:
            locks, page_token = await self._core.list_page(prefix, page_token, stale)
            for lock in locks:
                yield lock
            if not page_token:
                return

    async def check(self, name: str, token: int) -> Check:
        """Whether this token holds this lock now, as `lockkeeper.Client.check`.

        >>> async with client.lock("jobs/nightly") as lock:
        ...     (await client.check("jobs/nightly", lock.token)).held
        True
        """
        return await self._core.check(name, token)

    async def force_release(
        self, name: str, reason: str, *, token: int | None = None, now: bool = False
    ) -> tuple[Forced, ...]:
        """Takes a lock from its holders, as `lockkeeper.Client.force_release`.

        >>> async with client.lock("jobs/nightly") as lock:
        ...     revoked = await client.force_release("jobs/nightly", "maintenance at 9", token=lock.token)
        ...     await asyncio.sleep(60)
        Traceback (most recent call last):
            ...
        lockkeeper.errors.Lost: an operator revoked the lock: maintenance at 9
        """
        return await self._core.force_release(name, reason, token, now)

    def watch(self, prefix: str = "", *, after: int = 0) -> Watch:
        """The present state of the locks under a prefix, then every change, for an `async for` that does not end.

        >>> async with client.watch("jobs/") as watch:
        ...     (await anext(watch)).locks
        ()
        """
        return Watch(WatchCore(self._core, prefix, after))

    def election(self, name: str) -> Election:
        """An election, as `lockkeeper.Client.election`.

        >>> election = client.election("schedulers")
        >>> async with election.campaign(b"10.0.0.7:9000"):
        ...     (await election.leader()).value
        b'10.0.0.7:9000'
        """
        return Election(self, checked_name(name))

    async def close(self) -> None:
        """Closes the session, as `lockkeeper.Client.close`. Afterwards no task and no connection is left.

        >>> client = lockkeeper.aio.connect()
        >>> await client.close()
        """
        self._is_closed = True
        if self._made is not None:
            await self._core.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<lockkeeper.aio.Client of {self._settings.endpoints}{' closed' if self._is_closed else ''}>"


class LockRequest:
    """Locks that are not acquired yet: enter it by `async with`, or await `acquire`. Each use needs one of its own.

    >>> async with client.lock("jobs/nightly", wait=0) as lock:
    ...     lock.names
    ('jobs/nightly',)
    """

    def __init__(self, client: Client, wanted: Wanted, on_lost: Callable[[Loss], None] | None) -> None:
        self._client = client
        self._wanted = wanted
        self._on_lost = on_lost
        self._entered: Lock | None = None

    async def acquire(self) -> Lock:
        """Acquires the locks without an `async with`: release it in a `finally`. Nothing is cancelled by its loss.

        >>> lock = await client.lock("jobs/nightly").acquire()
        >>> await lock.release()
        """
        return Lock(self._client, await self._client._core.acquire(self._wanted), self._on_lost)

    async def __aenter__(self) -> Lock:
        if self._entered is not None:
            raise InvalidArgument("this request is in use: call client.lock() again for another")
        lock = await self.acquire()
        self._entered = lock
        return await lock.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lock = self._entered
        self._entered = None
        if lock is not None:
            await lock.__aexit__(kind, error, traceback)

    def __repr__(self) -> str:
        return f"<lockkeeper.aio.LockRequest of {', '.join(self._wanted.names)}>"


class Lock:
    """Locks that are held. In its `async with` the body is cancelled when the lock is lost, and `Lost` raised in its place.

    A body that does not await is not cancelled: ask `raise_if_lost` or `remaining` there. They are right also where the event loop was
    blocked.

    >>> async with client.lock("jobs/nightly") as lock:
    ...     lock.raise_if_lost()
    ...     await lock.ensure(3) >= 3
    True
    """

    def __init__(self, client: Client, held: Held, on_lost: Callable[[Loss], None] | None) -> None:
        self._client = client
        self._held = held
        self._on_lost = on_lost
        self._task: asyncio.Task[Any] | None = None
        self._cancelled_for: Loss | None = None
        self._cancelling_before = 0
        self._lost: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        io = client._core.io
        held.on_lost(lambda loss: io.call_back(lambda: self._is_told(loss)))

    @property
    def token(self) -> int:
        """The fencing token, as `lockkeeper.Lock.token`."""
        return self._held.token

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the locks, sorted."""
        return self._held.wanted.names

    @property
    def is_exclusive(self) -> bool:
        """Whether nobody else holds them: they are neither shared nor permits."""
        return self._held.wanted.mode == "exclusive"

    @property
    def session_id(self) -> str:
        """The session in which it is held."""
        return self._held.session.id

    @property
    def place_lost(self) -> bool:
        """The acquire lost its place in the queue before it was granted."""
        return self._held.place_lost

    @property
    def remaining(self) -> float:
        """How long the lock may still be trusted, seconds. 0: it is lost, or was released.

        >>> async with client.lock("jobs/nightly") as lock:
        ...     lock.remaining > 5
        True
        """
        return self._held.remaining()

    @property
    def loss(self) -> Loss | None:
        """How it was lost; `None`: it is held."""
        return self._held.loss()

    def raise_if_lost(self) -> None:
        """Raises `Lost` if it is lost. Sends nothing.

        >>> async with client.lock("jobs/nightly") as lock:
        ...     lock.raise_if_lost()
        """
        self._held.raise_if_lost()

    async def lost(self) -> Loss:
        """Waits until the lock is lost. It never returns for one that the program released.

        >>> async def work(lock):
        ...     loss = await lock.lost()
        >>> async with client.lock("jobs/nightly") as lock:
        ...     task = asyncio.create_task(work(lock))
        >>> task.cancel()
        True
        """
        return await asyncio.shield(self._lost)

    async def ensure(self, min_left: Seconds) -> float:
        """Makes sure that the lock may be trusted for this long, as `lockkeeper.Lock.ensure`.

        >>> async with client.lock("jobs/nightly") as lock:
        ...     await lock.ensure(2) >= 2
        True
        """
        return await self._held.ensure(seconds("min_left", min_left, LIMIT_MAX))

    async def update(self, data: bytes | None, *, name: str | None = None, keep_data: bool = False) -> None:
        """Sets the data on the lock, or removes them (`None`), as `lockkeeper.Lock.update`.

        >>> async with client.lock("jobs/nightly") as lock:
        ...     await lock.update(b"half done")
        """
        name = _one_of(self.names, name)
        self._held.raise_if_lost()
        await self._held.session.update(self.token, name, checked_data(data), keep_data)

    async def release(self) -> None:
        """Releases the lock, as `lockkeeper.Lock.release`. A release that is cancelled goes on in the background.

        >>> lock = await client.lock("jobs/nightly").acquire()
        >>> await lock.release()
        """
        await self._held.release()

    async def __aenter__(self) -> Lock:
        self._task = asyncio.current_task()
        if self._task is not None and sys.version_info >= (3, 11):
            self._cancelling_before = self._task.cancelling()
        # It may have been lost since it was granted.
        if self._lost.done():
            self._cancel(self._lost.result())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = self._task
        self._task = None
        is_ours = self._cancelled_for is not None and task is not None and self._is_cancelled_by_us(task, error)
        loss = None if self._held.is_released else self._held.loss()
        if not self._held.is_released:
            await self._release_quietly(error is None or is_ours)
        if is_ours:
            raise Lost(self._cancelled_for or self._lost.result()) from error
        if loss is not None and error is None:
            raise Lost(loss)

    def _is_cancelled_by_us(self, task: asyncio.Task[Any], error: BaseException | None) -> bool:
        """Takes our cancellation back. `False`: somebody else cancelled the task too, or the body failed by itself."""
        if sys.version_info >= (3, 11):
            is_only_ours = task.uncancel() <= self._cancelling_before
            return is_only_ours and (error is None or isinstance(error, asyncio.CancelledError))
        # Python 3.10 does not count cancellations: one of somebody else at the same moment is taken for ours.
        return isinstance(error, asyncio.CancelledError)

    async def _release_quietly(self, is_told_otherwise: bool) -> None:
        try:
            await self.release()
        except (OutcomeUnknown, Lost) as failed:
            log.debug("the release of %s: %s", ", ".join(self.names), failed)
        except Error as failed:
            if is_told_otherwise and self._cancelled_for is None:
                raise
            log.warning("%s was lost before the body failed: %s", ", ".join(self.names), failed)

    def _is_told(self, loss: Loss) -> None:
        if self._lost.done() or self._held.is_released:
            return
        self._lost.set_result(loss)
        if self._on_lost is not None:
            self._on_lost(loss)
        self._cancel(loss)

    def _cancel(self, loss: Loss) -> None:
        if self._task is not None and self._cancelled_for is None:
            self._cancelled_for = loss
            self._task.cancel()

    def __repr__(self) -> str:
        state = self.loss or f"{self.remaining:.3f} s left"
        return f"<lockkeeper.aio.Lock of {', '.join(self.names)}, token {self.token}: {state}>"


class Watch(AsyncIterator[WatchMessage]):
    """The messages of a watch, as `lockkeeper.Watch`.

    >>> async with client.watch("jobs/") as watch:
    ...     (await anext(watch)).first
    True
    """

    def __init__(self, core: WatchCore) -> None:
        self._core = core

    @property
    def index(self) -> int:
        """The index up to which all changes were delivered; 0: the state is not complete."""
        return self._core.index

    async def __anext__(self) -> WatchMessage:
        message = await self._core.next()
        if message is None:
            raise StopAsyncIteration
        return message

    def close(self) -> None:
        """Ends it: its reader gets no more messages."""
        self._core.close()

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Election:
    """An election, as `lockkeeper.Election`.

    >>> print(await client.election("schedulers").leader())
    None
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def campaign(
        self,
        value: bytes = b"",
        *,
        wait: Seconds | None = None,
        lock_delay: Seconds = 0.0,
        on_lost: Callable[[Loss], None] | None = None,
    ) -> Leadership:
        """Stands for election, for an `async with`: its body runs while this program leads, and is cancelled when it leads no more.

        >>> async with client.election("schedulers").campaign(b"here", wait=30) as leadership:
        ...     leadership.epoch > 0
        True
        """
        return Leadership(self._client.lock(self.name, wait=wait, data=value, lock_delay=lock_delay, on_lost=on_lost))

    async def leader(self) -> Leader | None:
        """The present leader, linearizably; `None`: there is none."""
        return await self._client._core.leader(self.name)

    def observe(self) -> Observer:
        """The present leader (or `None`), then each change.

        >>> async with client.election("schedulers").observe() as observer:
        ...     print(await anext(observer))
        None
        """
        return Observer(ObserverCore(self._client._core, self.name))


class Leadership:
    """A candidacy, and the leadership that it becomes in its `async with`.

    >>> async with client.election("schedulers").campaign(b"starting") as leadership:
    ...     await leadership.proclaim(b"ready")
    ...     leadership.raise_if_lost()
    ...     await leadership.ensure(3) > leadership.remaining - 1, leadership.loss
    ...     await leadership.resign()
    (True, None)
    """

    def __init__(self, request: LockRequest) -> None:
        self._request = request
        self._lock: Lock | None = None

    async def win(self) -> Leadership:
        """Waits for the leadership without an `async with`: resign in a `finally`."""
        if self._lock is not None:
            raise InvalidArgument("this campaign was won before: call campaign() again for another")
        self._lock = await self._request.acquire()
        return self

    @property
    def lock(self) -> Lock:
        """The lock of this leadership."""
        if self._lock is None:
            raise InvalidArgument("this campaign is not won yet: enter it by `async with`")
        return self._lock

    @property
    def epoch(self) -> int:
        """Higher than that of any earlier leader: send it with every write."""
        return self.lock.token

    @property
    def remaining(self) -> float:
        """For how many seconds no other leader is possible."""
        return self.lock.remaining

    @property
    def loss(self) -> Loss | None:
        """How it was lost; `None`: this program leads."""
        return self.lock.loss

    def raise_if_lost(self) -> None:
        """Raises `Lost` if this program leads no more."""
        self.lock.raise_if_lost()

    async def ensure(self, min_left: Seconds) -> float:
        """As `Lock.ensure`."""
        return await self.lock.ensure(min_left)

    async def proclaim(self, value: bytes) -> None:
        """Replaces the value that observers see."""
        await self.lock.update(value)

    async def resign(self) -> None:
        """Gives up the leadership; the next candidate leads at once."""
        await self.lock.release()

    async def __aenter__(self) -> Leadership:
        await self.win()
        await self.lock.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.lock.__aexit__(kind, error, traceback)


class Observer(AsyncIterator["Leader | None"]):
    """The leaders of an election, in turn, as `lockkeeper.Observer`.

    >>> async with client.election("schedulers").observe() as observer:
    ...     print(await anext(observer))
    None
    """

    def __init__(self, core: ObserverCore) -> None:
        self._core = core

    async def __anext__(self) -> Leader | None:
        told = await self._core.next()
        if told is None:
            raise StopAsyncIteration
        return told[0]

    def close(self) -> None:
        """Ends it."""
        self._core.close()

    async def __aenter__(self) -> Observer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()
