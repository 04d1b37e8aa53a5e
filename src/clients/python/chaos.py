"""A program for `lockkeeper chaos run --program`: both clients contend for locks under faults, and the run's checker judges what they saw.

    lockkeeper chaos run --program 'PYTHON src/clients/python/chaos.py'

What a client may claim is recorded as it claims it: its sessions, each renewal with the moment of its sending, its losses. Locks are new
every few seconds, so that the history of each stays short enough for the search for an order.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import lockkeeper
import lockkeeper.aio
from lockkeeper import LossReason
from lockkeeper._core import session as sessions
from lockkeeper._core.clock import boot_now
from lockkeeper._core.lease import Lease, deadline_after

BASE_NS = int(os.environ["LOCKKEEPER_HISTORY_BASE_NS"])
THREADS = 3
TASKS = 3
TTLS = (1.0, 2.0)
ROUND_SECONDS = 3
OVER = threading.Event()


class History:
    """The lines of this program."""

    def __init__(self) -> None:
        self._file = open(os.environ["LOCKKEEPER_HISTORY"], "a", encoding="utf-8")  # noqa: SIM115
        self._turn = threading.Lock()

    def add(self, process: str, kind: str, what: str, lock: str | None = None, **value: Any) -> None:
        with self._turn:
            line = {"time_ns": time.monotonic_ns() - BASE_NS, "process": process, "type": kind, "f": what}
            if lock is not None:
                line["lock"] = lock
            if value:
                line["value"] = value
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


HISTORY = History()


def history_ns(moment: float) -> int:
    """A moment of the client's clock, on the history's."""
    return time.monotonic_ns() - BASE_NS - int((boot_now() - moment) * 1e9)


class RecordedLease(Lease):
    """Tells each renewal that it takes."""

    told: Callable[[float], None] | None = None

    def __init__(self, sent: float, ttl: float) -> None:
        super().__init__(sent, ttl)
        self.opened_sent = sent

    def renewed(self, sent: float, ttl: float) -> None:
        super().renewed(sent, ttl)
        if self.told is not None:
            self.told(sent)


# In the place of the one that a session would make.
setattr(sessions, "Lease", RecordedLease)  # noqa: B010


class Worker:
    """What one process of the history does, with either client."""

    def __init__(self, process: str, client: Any, ttl: float) -> None:
        self._process = process
        self._client = client
        self._ttl = ttl
        self._recorded: set[str] = set()
        self._is_closing = False

    def expect_close(self) -> None:
        """From here on a close is this worker's own, and is not told as a loss. Call it before the close."""
        self._is_closing = True

    async def once(self, awaited: Callable[[Any], Any], pause: Callable[[float], Any]) -> None:
        """One hold."""
        session = await self._client._core.session()
        self._record(session)
        name = f"python/{int(time.monotonic()) // ROUND_SECONDS}/{random.choice('ab')}"
        wait = random.choice((0, 0, random.uniform(0.01, 1.5), 3.0))
        shared = random.random() < 0.3
        said = {"wait": {"at_most_ms": int(wait * 1000)}} if wait else {}
        mode = {"mode": "shared"} if shared else {}
        HISTORY.add(self._process, "invoke", "acquire", name, session=session.id, **mode, **said)
        held: list[int] = [0]
        request = self._client.lock(
            name, wait=wait, shared=shared, on_lost=lambda loss: self._lost(session.id, loss, held[0])
        )
        try:
            lock = await awaited(request.acquire())
        except lockkeeper.Error as error:
            self._failed("acquire", error)
            raise
        held[0] = lock.token
        HISTORY.add(self._process, "ok", "acquire", token=lock.token, place_lost=lock.place_lost)
        await pause(random.choice((0.0, 0.01, 0.05, self._ttl * 0.7)))
        HISTORY.add(self._process, "invoke", "release", name, session=lock.session_id, token=lock.token)
        try:
            await awaited(lock.release())
        except lockkeeper.Error as error:
            self._failed("release", error)
            raise
        HISTORY.add(self._process, "ok", "release")

    def _record(self, session: Any) -> None:
        """The open of a session, its renewals from here on, and its end."""
        if session.id in self._recorded:
            return
        self._recorded.add(session.id)
        lease: RecordedLease = session.lease
        HISTORY.add(self._process, "invoke", "open", session=session.id, ttl_ms=int(self._ttl * 1000))
        trusted = int(deadline_after(0.0, session.ttl) * 1000)
        HISTORY.add(self._process, "ok", "open", ttl_ms=trusted, sent_ns=history_ns(lease.opened_sent))
        lease.told = lambda sent: HISTORY.add(
            self._process, "info", "renewed", session=session.id, sent_ns=history_ns(sent)
        )
        lease.listen(lambda: self._ended(session.id, lease))

    def _ended(self, session_id: str, lease: RecordedLease) -> None:
        loss = lease.loss()
        # A close by somebody else is told: the run's checker asks who began it.
        is_own = self._is_closing and loss is not None and loss.reason is LossReason.CLOSED
        if loss is not None and not is_own:
            self._lost(session_id, loss, None)

    def _lost(self, session_id: str, loss: lockkeeper.Loss, token: int | None) -> None:
        # Only a revocation concerns one grant; the rest is told of its session.
        if token is not None and loss.reason is not LossReason.REVOKED:
            return
        grant: dict[str, Any] = {} if token is None else {"token": token}
        why = loss.reason.value.replace("-", "_")
        HISTORY.add(self._process, "info", "lost", session=session_id, why=why, **grant)

    def _failed(self, what: str, error: lockkeeper.Error) -> None:
        if isinstance(error, lockkeeper.NotAcquired):
            reason = "place_lost" if error.place_lost else "timed_out" if error.waited else "busy"
            HISTORY.add(self._process, "fail", what, reason=reason)
        elif isinstance(error, lockkeeper.Refused):
            HISTORY.add(self._process, "fail", what, reason=error.reason.lower())
        elif isinstance(error, lockkeeper.NoCluster):
            HISTORY.add(self._process, "fail", what, reason="unavailable")
        else:
            HISTORY.add(self._process, "info", what, reason=str(error))


async def at_once(value: Any) -> Any:
    return value


async def later(awaitable: Any) -> Any:
    return await awaitable


async def sleep_here(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251


def thread(number: int) -> None:
    from lockkeeper._io.threads import run

    for life in itertools.count():
        if OVER.is_set():
            return
        ttl = random.choice(TTLS)
        with lockkeeper.connect(ttl=ttl, call_limit=5, attempt_limit=1) as client:
            worker = Worker(f"python-threads-{number}-{life}", client, ttl)
            try:
                for _ in range(random.randrange(10, 60)):
                    if OVER.is_set():
                        break
                    try:
                        run(worker.once(at_once, sleep_here))
                    except lockkeeper.NotAcquired:
                        pass
                    except lockkeeper.Error as error:
                        print(f"thread {number}: {error}", file=sys.stderr)
                        time.sleep(0.1)
            finally:
                worker.expect_close()


async def task(number: int) -> None:
    for life in itertools.count():
        if OVER.is_set():
            return
        ttl = random.choice(TTLS)
        async with lockkeeper.aio.connect(ttl=ttl, call_limit=5, attempt_limit=1) as client:
            worker = Worker(f"python-asyncio-{number}-{life}", client, ttl)
            try:
                for _ in range(random.randrange(10, 60)):
                    if OVER.is_set():
                        break
                    try:
                        await worker.once(later, asyncio.sleep)
                    except lockkeeper.NotAcquired:
                        pass
                    except lockkeeper.Error as error:
                        print(f"task {number}: {error}", file=sys.stderr)
                        await asyncio.sleep(0.1)
            finally:
                worker.expect_close()


async def tasks() -> None:
    await asyncio.gather(*(task(number) for number in range(TASKS)))


def main() -> None:
    workers = [threading.Thread(target=thread, args=(number,)) for number in range(THREADS)]
    workers.append(threading.Thread(target=lambda: asyncio.run(tasks())))
    for worker in workers:
        worker.start()
    sys.stdin.read()
    OVER.set()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
