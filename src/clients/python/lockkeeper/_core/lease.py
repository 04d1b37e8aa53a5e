"""Until when a session may be trusted, and how it was lost.

The deadline is the moment at which the last acknowledged open or renewal was *sent*, plus the TTL, less a margin for clock rates. The
cluster stamps that request after the sending and ends the session one TTL after the stamp: later than the client stops trusting it.

Whoever looks compares the clock with the deadline, in its own thread: so a look is right also when the thread that renews was starved, or
the whole process was stopped. The first look after the deadline ends the session, and no later answer revives it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from ..errors import Loss, LossReason, Lost
from .clock import boot_now

MARGIN_MIN = 0.010
"""The margin is one percent of the TTL, and at least this: seconds."""


def deadline_after(sent: float, ttl: float) -> float:
    """Until when a renewal that was sent at `sent` may be trusted."""
    return sent + max(0.0, ttl - max(ttl / 100, MARGIN_MIN))


@dataclass(slots=True)
class _Revoked:
    reason: str
    deadline: float
    is_taken: bool = False


class Lease:
    """The lease of a session, as its client may trust it. For any thread."""

    def __init__(self, sent: float, ttl: float, now: Callable[[], float] = boot_now) -> None:
        self._now = now
        self._deadline = deadline_after(sent, ttl)
        self._ended: Loss | None = None
        self._revoked: dict[int, _Revoked] = {}
        self._to_acknowledge: list[int] = []
        self._listeners: dict[int, Callable[[], None]] = {}
        self._numbers = count()
        self._mutex = threading.Lock()
        self._process = os.getpid()

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that opened the session. Its mutex may be held for ever here."""
        return os.getpid() != self._process

    def renewed(self, sent: float, ttl: float) -> None:
        """Answers may arrive late, twice and in any order: the deadline never moves back, and what is over stays so."""
        with self._mutex:
            if self._ended is None:
                self._deadline = max(self._deadline, deadline_after(sent, ttl))

    def revoked(self, token: int, reason: str, remaining: float, counted_from: float | None = None) -> None:
        """An operator took a grant. The earliest deadline counts, and the first reason; later renewals do not extend it."""
        begun = self._now() if counted_from is None else counted_from
        with self._mutex:
            deadline = min(begun + remaining, self._deadline)
            known = self._revoked.setdefault(token, _Revoked(reason, deadline))
            known.deadline = min(known.deadline, deadline)
            if remaining == 0 and not known.is_taken:
                known.is_taken = True
                self._to_acknowledge.append(token)
        self._tell()

    def next_to_acknowledge(self) -> int | None:
        """A grant that is over by force, and whose release the cluster waits for. Each is returned once."""
        with self._mutex:
            return self._to_acknowledge.pop(0) if self._to_acknowledge else None

    def forget(self, token: int) -> None:
        """The grant was released."""
        with self._mutex:
            self._revoked.pop(token, None)
            if token in self._to_acknowledge:
                self._to_acknowledge.remove(token)

    def end(self, loss: Loss) -> bool:
        """Ends the session. The first reason stays; returns whether this was the first."""
        with self._mutex:
            is_first = self._ended is None
            if is_first:
                self._ended = loss
        if is_first:
            self._tell()
        return is_first

    def remaining(self, token: int | None = None) -> float:
        """How long the session, or this grant of it, may still be trusted: seconds. Zero: it is lost, and stays so."""
        # A look takes the mutex if the deadline has passed, and tells the listeners, which are the parent's.
        if self.is_foreign:
            return 0.0
        # The clock is read once: what is not over has some time left.
        now = self._now()
        if self._ended is None and self._deadline <= now:
            self._end_if_over()
        if self._ended is not None:
            return 0.0
        revoked = None if token is None else self._revoked.get(token)
        deadline = self._deadline if revoked is None else min(revoked.deadline, self._deadline)
        return max(0.0, deadline - now)

    def loss(self, token: int | None = None) -> Loss | None:
        """How the session, or this grant of it, was lost; `None`: it may be trusted. A revoked grant counts as lost at once."""
        if self.is_foreign:
            return Loss(LossReason.FORKED)
        revoked = None if token is None else self._revoked.get(token)
        if revoked is not None:
            return Loss(LossReason.REVOKED, revoked.reason)
        if self._ended is None and self._deadline <= self._now():
            self._end_if_over()
        return self._ended

    def _end_if_over(self) -> None:
        """An acknowledgement may have come in between."""
        with self._mutex:
            is_over = self._ended is None and self._deadline <= self._now()
            if is_over:
                self._ended = Loss(LossReason.OUT_OF_CONTACT)
        if is_over:
            self._tell()

    def raise_if_lost(self, token: int | None = None) -> None:
        loss = self.loss(token)
        if loss is not None:
            raise Lost(loss)

    @property
    def is_ended(self) -> bool:
        """Whether it was ended. A deadline that passed without a look has not ended it yet."""
        return self._ended is not None

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Generator[None]:
        """Calls `listener` at each loss, from any thread. It must not block."""
        number = self.listen(listener)
        try:
            yield
        finally:
            self.unlisten(number)

    def listen(self, listener: Callable[[], None]) -> int:
        with self._mutex:
            number = next(self._numbers)
            self._listeners[number] = listener
        return number

    def unlisten(self, number: int) -> None:
        if self.is_foreign:
            return
        with self._mutex:
            self._listeners.pop(number, None)

    def _tell(self) -> None:
        with self._mutex:
            listeners = list(self._listeners.values())
        for listener in listeners:
            listener()
