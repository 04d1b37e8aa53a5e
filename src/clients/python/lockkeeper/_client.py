"""The client for programs with threads."""

from __future__ import annotations

import functools
import inspect
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from ._core.acquiring import Seconds, Wanted, checked_data, checked_name, seconds
from ._core.client import ClientCore
from ._core.session import Held
from ._core.settings import LIMIT_MAX, Settings
from ._core.watching import ObserverCore, WatchCore
from .errors import Error, InvalidArgument, Loss, Lost, NotAcquired, OutcomeUnknown
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
    """A client of a cluster. Nothing is sent before it is used.

    What is not given comes from the environment or the profile, as for the command line: `LOCKKEEPER_ENDPOINTS`, `LOCKKEEPER_CA`,
    `LOCKKEEPER_CERT`, `LOCKKEEPER_KEY`, `LOCKKEEPER_BEARER_TOKEN`, `LOCKKEEPER_BEARER_TOKEN_FILE`, `LOCKKEEPER_PROFILE` or
    `~/.config/lockkeeper/profile.toml`.

    `endpoints`: `host:port` of each node, separated by commas; one that answers is enough. `ca`, `cert`, `key`: files in PEM; with `ca` the
    connections are TLS. `token`: a bearer token. `ttl`: how long a lock stays closed after this program died, 0.1 s to a day. `label`: a
    name for people; by default host, process and program. `call_limit`: how long a call may take in all; `attempt_limit`: how long one node
    has for it.

    Fails with `InvalidArgument`.

    >>> client = lockkeeper.connect()
    >>> client.get("reports/nightly").is_held
    False
    >>> client.close()
    """
    return Client(Settings.read(endpoints, ca, cert, key, token, ttl, label, call_limit, attempt_limit))


class Client:
    """A client of a cluster, for any number of threads. It has one session, opened with the first acquire, in which all its locks are held.

    Close it at the end, or use it in a `with`: what it holds is then free at once. A client that is not closed is closed at the end of the
    program, for at most two seconds.

    After a fork the child has no lock: those of the parent are lost there (`LossReason.FORKED`) and stay with the parent. The client itself
    can be used in the child if the parent has not used it before the fork; otherwise gRPC does not promise to work there (see the README).

    All calls fail with `NoCluster` if no node answered within the limit of a call, with `OutcomeUnknown` if the request may have taken
    effect, with `Refused` if the cluster said no, with `InvalidArgument` if an argument is out of range, and with `ClientClosed`.

    >>> with lockkeeper.connect() as client:
    ...     with client.lock("reports/nightly") as lock:
    ...         lock.remaining > 0
    True
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._begin()
        _clients.add(self)

    def _begin(self) -> None:
        # gRPC is imported here, not with the package: it takes a while.
        from ._io.threads import ThreadIo

        settings = self._settings
        self._core = ClientCore(settings, lambda: ThreadIo(settings.certificates, settings.bearer))
        self._finalizer = weakref.finalize(self, _close_at_exit, self._core, os.getpid())

    def _begin_after_fork(self) -> None:
        """In the child: the connections, the threads and the mutexes of the parent are of no use here, and must not be touched."""
        _left_by_forks.append(self._core)
        self._finalizer.detach()
        was_closed = self._core.is_closed
        self._begin()
        self._core.is_closed = was_closed

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
        """A lock, for a `with`; or several, which are granted together or not at all, in whatever order they are named.

        `wait`: for how many seconds to wait; `None`: for ever; 0: not at all. `data`: up to 16 KiB that all can read, gone with the lock
        unless `keep_data`. `shared`: together with any number of other sharers. `permits`: one of so many places; all name the same number.
        `must_exist`: refused where the lock is neither held, awaited or delayed nor carries data. `lock_delay`: how long the lock stays
        closed after this holder was lost, for resources that cannot check tokens; an hour at most. `on_lost`: called once, in a thread of
        its own, when the lock is lost.

        Entering fails with `NotAcquired`, and with `Lost` if the session is lost during the wait. Leaving raises `Lost` if the lock was
        lost meanwhile and the body did not fail by itself.

        >>> with client.lock("jobs/nightly", wait=30, data=b"on host a") as lock:
        ...     client.get("jobs/nightly").data
        b'on host a'

        >>> with client.lock("accounts/ann", "accounts/bob") as both:
        ...     both.names
        ('accounts/ann', 'accounts/bob')

        >>> with client.lock("printers", permits=3, wait=0), client.lock("catalogue", shared=True):
        ...     pass
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
    ) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """A decorator: the function runs while it holds the lock.

        `name` may have arguments of the function in braces. `skip`: where others hold the lock the function is not called, and `None`
        returned; it then does not wait, unless `wait` says for how long. `pass_lock`: the name of the parameter that gets the `Lock`. Other
        options as of `lock`.

        >>> @client.locked("jobs/{name}", skip=True, pass_lock="lock")
        ... def run(name, lock=None):
        ...     return f"{name} ran"
        >>> run("nightly")
        'nightly ran'
        >>> with client.lock("jobs/nightly"):
        ...     run("nightly")
        """
        waits = 0 if skip and wait is None else wait

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            if inspect.iscoroutinefunction(function):
                raise InvalidArgument(f"{function.__qualname__} is a coroutine: use the client of lockkeeper.aio")
            signature = inspect.signature(function)
            _check_pass_lock(signature, pass_lock)

            @functools.wraps(function)
            def under_lock(*args: P.args, **kwargs: P.kwargs) -> T:
                request = self.lock(_formatted(name, signature, args, kwargs), wait=waits, **options)
                try:
                    lock = request.acquire()
                except NotAcquired:
                    if skip:
                        return None  # type: ignore[return-value]
                    raise
                with lock:
                    result: T = _call_with(function, args, kwargs, pass_lock, lock)
                    return result

            return under_lock

        return decorate

    def get(self, name: str, *, stale: bool = False) -> LockInfo:
        """One lock: its first 1,000 holders and waiters, and its data. Linearizable, unless `stale`: then any node answers from its own
        table.

        >>> client.get("reports/nightly").queue_length
        0
        """
        return self._run(self._core.get(name, stale))

    def list(self, prefix: str = "", *, stale: bool = False) -> Iterator[LockInfo]:
        """The locks whose names begin with `prefix`, by name. Each page of 1,000 is linearizable; several are not one snapshot.

        >>> with client.lock("reports/daily"), client.lock("reports/nightly"):
        ...     [lock.name for lock in client.list("reports/")]
        ['reports/daily', 'reports/nightly']
        """
        page_token = ""
        while True:
            locks, page_token = self._run(self._core.list_page(prefix, page_token, stale))
            yield from locks
            if not page_token:
                return

    def check(self, name: str, token: int) -> Check:
        """Whether this token holds this lock now, linearizably. The answer can be out of date when it is acted on: a resource that
        remembers the highest token has no such gap.

        >>> with client.lock("jobs/nightly") as lock:
        ...     client.check("jobs/nightly", lock.token).held
        True
        """
        return self._run(self._core.check(name, token))

    def force_release(
        self, name: str, reason: str, *, token: int | None = None, now: bool = False
    ) -> tuple[Forced, ...]:
        """Takes a lock from its holders: an operator's call. Each is told the reason; the lock opens when it is released, or at the
        holder's deadline.

        `token`: only this grant. `now`: at once, for a holder that is known to be dead. Without a token it is not repeated once its outcome
        is unknown.

        >>> with client.lock("jobs/nightly") as lock:
        ...     revoked = client.force_release("jobs/nightly", "maintenance at 9", token=lock.token)
        ...     while True:
        ...         lock.raise_if_lost()
        Traceback (most recent call last):
            ...
        lockkeeper.errors.Lost: an operator revoked the lock: maintenance at 9
        """
        return self._run(self._core.force_release(name, reason, token, now))

    def watch(self, prefix: str = "", *, after: int = 0) -> Watch:
        """The present state of the locks under a prefix, then every change, as an iterator that does not end. `after`: to go on after the
        `index` of an earlier watch of this prefix.

        >>> with client.watch("jobs/") as watch, client.lock("jobs/nightly"):
        ...     state = next(watch)
        >>> type(state).__name__
        'State'
        """
        return Watch(WatchCore(self._core, prefix, after))

    def election(self, name: str) -> Election:
        """An election: its leader is the holder of the lock of this name.

        >>> election = client.election("schedulers")
        >>> with election.campaign(b"10.0.0.7:9000") as leadership:
        ...     election.leader().value
        b'10.0.0.7:9000'
        """
        return Election(self, checked_name(name))

    def close(self) -> None:
        """Closes the session: all that it holds is free, all that waits fails with `Lost`. Afterwards no thread and no connection is left.

        If the cluster does not answer within the limit of a call, the session expires by itself. A second close does nothing.

        >>> client = lockkeeper.connect()
        >>> client.close()
        """
        self._finalizer.detach()
        self._run(self._core.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " closed" if self._core.is_closed else ""
        return f"<lockkeeper.Client of {','.join(self._core.caller.nodes.configured)}{state}>"

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        from ._io.threads import run

        return run(work)


class LockRequest:
    """Locks that are not acquired yet: enter it by `with`, or call `acquire`. It can be used again, and by several threads.

    >>> request = client.lock("jobs/nightly", wait=0)
    >>> with request as lock:
    ...     lock.names
    ('jobs/nightly',)
    """

    def __init__(self, client: Client, wanted: Wanted, on_lost: Callable[[Loss], None] | None) -> None:
        self._client = client
        self._wanted = wanted
        self._on_lost = on_lost
        self._entered = threading.local()

    def acquire(self) -> Lock:
        """Acquires the locks without a `with`: release it in a `finally`. One that is dropped is released in the background.

        >>> lock = client.lock("jobs/nightly").acquire()
        >>> lock.release()
        """
        client = self._client
        lock = Lock(client, client._run(client._core.acquire(self._wanted)))
        if self._on_lost is not None:
            lock._call_on_lost(self._on_lost)
        return lock

    def __enter__(self) -> Lock:
        lock = self.acquire()
        stack = self._entered.__dict__.setdefault("locks", [])
        stack.append(lock)
        return lock

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lock: Lock = self._entered.locks.pop()
        lock.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        return f"<lockkeeper.LockRequest of {', '.join(self._wanted.names)}>"


class Lock:
    """Locks that are held. The cluster gives them to nobody else while `remaining` is above 0.

    A process that is paused within a write does not notice that its time passes: send `token` with the write, and let the resource refuse a
    lower one.

    >>> with client.lock("jobs/nightly") as lock:
    ...     lock.raise_if_lost()
    ...     lock.ensure(3) >= 3
    True
    """

    def __init__(self, client: Client, held: Held) -> None:
        self._client = client
        self._held = held

    @property
    def token(self) -> int:
        """The fencing token: higher than that of any earlier grant in the cluster, for ever.

        >>> with client.lock("jobs/nightly") as first:
        ...     pass
        >>> with client.lock("jobs/nightly") as second:
        ...     second.token > first.token
        True
        """
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
        """The acquire lost its place in the queue before it was granted: its connection was broken for too long."""
        return self._held.place_lost

    @property
    def remaining(self) -> float:
        """How long the lock may still be trusted, seconds, by a clock that counts suspension. 0: it is lost, or was released.

        >>> with client.lock("jobs/nightly") as lock:
        ...     lock.remaining > 5
        True
        >>> lock.remaining
        0.0
        """
        return self._held.remaining()

    @property
    def loss(self) -> Loss | None:
        """How it was lost; `None`: it is held. A revoked lock counts as lost at once, though it stays closed for `remaining`: the time to
        stop.

        >>> with client.lock("jobs/nightly") as lock:
        ...     print(lock.loss)
        None
        >>> print(lock.loss)
        the lock was released
        """
        return self._held.loss()

    def raise_if_lost(self) -> None:
        """Raises `Lost` if it is lost. Sends nothing: call it as often as you like.

        >>> with client.lock("jobs/nightly") as lock:
        ...     for part in range(3):
        ...         lock.raise_if_lost()
        """
        self._held.raise_if_lost()

    def ensure(self, min_left: Seconds) -> float:
        """Makes sure that the lock may be trusted for this long from now, and returns for how many seconds it may. Renews only if it must.

        Fails with `Lost`, or with `NotEnsured` if the client's `ttl` is too short for it.

        >>> with client.lock("jobs/nightly") as lock:
        ...     lock.ensure(2) >= 2
        True
        """
        return self._client._run(self._held.ensure(seconds("min_left", min_left, LIMIT_MAX)))

    def update(self, data: bytes | None, *, name: str | None = None, keep_data: bool = False) -> None:
        """Sets the data on the lock, or removes them (`None`). `name`: which one, of several.

        Fails with `Lost`, or with `Refused` and `NOT_HELD`.

        >>> with client.lock("jobs/nightly") as lock:
        ...     lock.update(b"half done", keep_data=True)
        >>> client.get("jobs/nightly").data
        b'half done'
        """
        name = _one_of(self.names, name)
        self._held.raise_if_lost()
        self._client._run(self._held.session.update(self.token, name, checked_data(data), keep_data))

    def release(self) -> None:
        """Releases the lock; from the call on it counts as released. At the end of a `with` this is done by itself.

        Fails with `Lost` if it was lost before. With `OutcomeUnknown` at the limit of a call: the release goes on in the background until
        nothing is held. A second release sends nothing and has the outcome of the first.

        >>> lock = client.lock("jobs/nightly").acquire()
        >>> lock.release()
        """
        self._client._run(self._held.release())

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Released within the body: then there is nothing to say.
        if self._held.is_released:
            return
        loss = self._held.loss()
        try:
            self.release()
        except OutcomeUnknown as unknown:
            log.warning("the release of %s is not confirmed yet: %s", ", ".join(self.names), unknown)
        except Error as failed:
            if error is None:
                raise
            log.warning("%s was lost before the body failed: %s", ", ".join(self.names), failed)
        if loss is not None and error is None:
            raise Lost(loss)

    def _call_on_lost(self, callback: Callable[[Loss], None]) -> None:
        io = self._client._core.io
        self._held.on_lost(lambda loss: io.call_back(lambda: callback(loss)))

    def __repr__(self) -> str:
        state = self.loss or f"{self.remaining:.3f} s left"
        return f"<lockkeeper.Lock of {', '.join(self.names)}, token {self.token}: {state}>"


class Watch(Iterator[WatchMessage]):
    """The messages of a watch. It survives the loss of a node without leaving out a change; close it, or use it in a `with`.

    `next` fails with `NoCluster` if no node answered within the limit of a call, and with `Refused`; the one after it tries again.

    >>> with client.watch("jobs/") as watch:
    ...     next(watch).locks
    ()
    """

    def __init__(self, core: WatchCore) -> None:
        self._core = core

    @property
    def index(self) -> int:
        """The index up to which all changes were delivered; 0: the state is not complete."""
        return self._core.index

    def __next__(self) -> WatchMessage:
        from ._io.threads import run

        message = run(self._core.next())
        if message is None:
            raise StopIteration
        return message

    def close(self) -> None:
        """Ends it, also from another thread: its reader gets no more messages."""
        self._core.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Election:
    """An election: a lock and its data. Who holds it leads, the data say where the leader is, and the token is the epoch of its term.

    >>> print(client.election("schedulers").leader())
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
        """Stands for election, for a `with`: its body runs while this program leads, after all earlier candidates are gone.

        `value`: up to 16 KiB that observers see. The other options are those of `Client.lock`.

        >>> with client.election("schedulers").campaign(b"here", wait=30) as leadership:
        ...     leadership.epoch > 0
        True
        """
        request = self._client.lock(self.name, wait=wait, data=value, lock_delay=lock_delay, on_lost=on_lost)
        return Leadership(request)

    def leader(self) -> Leader | None:
        """The present leader, linearizably; `None`: there is none."""
        return self._client._run(self._client._core.leader(self.name))

    def observe(self) -> Observer:
        """The present leader (or `None`), then each change, as an iterator that does not end. One that is slow hears the latest.

        >>> with client.election("schedulers").observe() as observer:
        ...     print(next(observer))
        None
        """
        return Observer(ObserverCore(self._client._core, self.name))


class Leadership:
    """A candidacy, and the leadership that it becomes in its `with`.

    >>> with client.election("schedulers").campaign(b"starting") as leadership:
    ...     leadership.proclaim(b"ready")
    ...     leadership.raise_if_lost()
    ...     leadership.ensure(3) > leadership.remaining - 1, leadership.loss
    ...     leadership.resign()
    (True, None)
    """

    def __init__(self, request: LockRequest) -> None:
        self._request = request
        self._lock: Lock | None = None

    def win(self) -> Leadership:
        """Waits for the leadership without a `with`: resign in a `finally`."""
        if self._lock is not None:
            raise InvalidArgument("this campaign was won before: call campaign() again for another")
        self._lock = self._request.acquire()
        return self

    @property
    def lock(self) -> Lock:
        """The lock of this leadership."""
        if self._lock is None:
            raise InvalidArgument("this campaign is not won yet: enter it by `with`")
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

    def ensure(self, min_left: Seconds) -> float:
        """As `Lock.ensure`."""
        return self.lock.ensure(min_left)

    def proclaim(self, value: bytes) -> None:
        """Replaces the value that observers see."""
        self.lock.update(value)

    def resign(self) -> None:
        """Gives up the leadership; the next candidate leads at once. At the end of a `with` this is done by itself."""
        self.lock.release()

    def __enter__(self) -> Leadership:
        return self.win()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.lock.__exit__(kind, error, traceback)


class Observer(Iterator["Leader | None"]):
    """The leaders of an election, in turn. Epochs never go down, and a leader is never shown with the value of the one before.

    >>> with client.election("schedulers").observe() as observer:
    ...     print(next(observer))
    None
    """

    def __init__(self, core: ObserverCore) -> None:
        self._core = core

    def __next__(self) -> Leader | None:
        from ._io.threads import run

        told = run(self._core.next())
        if told is None:
            raise StopIteration
        return told[0]

    def close(self) -> None:
        """Ends it, also from another thread."""
        self._core.close()

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _one_of(names: tuple[str, ...], name: str | None) -> str:
    if name is None and len(names) > 1:
        raise InvalidArgument(f"several locks are held: say which one by name=, of {', '.join(names)}")
    if name is None:
        name = next(iter(names))
    return checked_name(name)


def _check_pass_lock(signature: inspect.Signature, pass_lock: str | None) -> None:
    if pass_lock is not None and pass_lock not in signature.parameters:
        raise InvalidArgument(
            f"the function has no parameter {pass_lock!r}: name one that gets the lock, or leave out pass_lock"
        )


def _formatted(name: str, signature: inspect.Signature, args: Any, kwargs: Any) -> str:
    bound = signature.bind_partial(*args, **kwargs)
    bound.apply_defaults()
    try:
        return name.format(**bound.arguments)
    except (KeyError, IndexError) as missing:
        raise InvalidArgument(f"the name {name!r} asks for {missing}, which is no argument of the function") from None


def _call_with(function: Any, args: Any, kwargs: Any, pass_lock: str | None, lock: Any) -> Any:
    given = kwargs if pass_lock is None else {**kwargs, pass_lock: lock}
    return function(*args, **given)


def _close_at_exit(core: ClientCore, process: int) -> None:
    """For a client that was dropped, or is open at the end of the program. It must not hold the end up for long."""
    if os.getpid() != process or core.is_closed:
        return
    from ._io.threads import run

    core.limit_closing()
    try:
        run(core.close())
    except Exception as error:
        log.debug("a client was not closed in order: %s", error)


_clients: weakref.WeakSet[Client] = weakref.WeakSet()
_left_by_forks: list[ClientCore] = []


def _after_fork() -> None:
    for client in list(_clients):
        client._begin_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
