"""The errors of the client. Each says what happened to the state of the cluster, and what to do.

| raised | what happened | then |
|---|---|---|
| `InvalidArgument` | nothing was sent | correct the argument |
| `NotAcquired` | busy, or not in time; nothing is held and nothing waits | it names the holder and the queue |
| `Lost` | the lock, or the session, is over | stop; acquire again |
| `Refused` | the cluster said no; nothing changed | see `reason` |
| `NotEnsured` | held, but the TTL is too short for the time that was asked for | connect with a longer `ttl` |
| `NoCluster` | no node answered in time; nothing was changed | try later |
| `OutcomeUnknown` | no answer; the request may have taken effect, or may yet | look before you try again |
| `Malformed` | answered with a value that this client does not understand | a client of the nodes' version |
| `StaleToken` | the resource has seen a higher token; nothing was written | stop |
| `ClientClosed` | the client was closed | make another one |
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .views import Holder

__all__ = [
    "ClientClosed",
    "Error",
    "InvalidArgument",
    "Loss",
    "LossReason",
    "Lost",
    "Malformed",
    "NoCluster",
    "NotAcquired",
    "NotEnsured",
    "OutcomeUnknown",
    "Refused",
    "StaleToken",
]


class Error(Exception):
    """The base of all errors of this package."""


class InvalidArgument(Error, ValueError):
    """An argument is out of range, or a setting cannot be used. Nothing was sent."""


class ClientClosed(Error):
    """The client was closed. Nothing was sent."""


class LossReason(str, enum.Enum):
    """How a lock was lost."""

    CLOSED = "closed"
    """The session was closed, by this program or by an operator."""
    EXPIRED = "expired"
    """The cluster received no renewal within the TTL. The lock is open to others."""
    UNKNOWN = "unknown"
    """The cluster does not know the session: it ended long ago."""
    OUT_OF_CONTACT = "out-of-contact"
    """No renewal was acknowledged before the deadline: no contact, or this process was stopped, suspended or busy."""
    REVOKED = "revoked"
    """An operator took the lock."""
    RELEASED = "released"
    """The program released it itself."""
    FORKED = "forked"
    """This process is a fork of the one that holds it."""


_SAID = {
    LossReason.CLOSED: "the session was closed",
    LossReason.EXPIRED: "the session expired: the cluster heard no renewal within the TTL",
    LossReason.UNKNOWN: "the cluster does not know the session: it ended long ago",
    LossReason.OUT_OF_CONTACT: "no renewal was acknowledged before the deadline (no contact with the cluster, or this process was stopped)",
    LossReason.REVOKED: "an operator revoked the lock",
    LossReason.RELEASED: "the lock was released",
    LossReason.FORKED: "this process was forked from the one that holds the lock: acquire it anew in this process",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """How a lock was lost.

    >>> str(lockkeeper.Loss(lockkeeper.LossReason.REVOKED, "maintenance at 9"))
    'an operator revoked the lock: maintenance at 9'
    """

    reason: LossReason
    text: str = ""
    """The operator's reason, if the lock was revoked."""

    def __str__(self) -> str:
        said = _SAID[self.reason]
        return f"{said}: {self.text}" if self.text else said


class Lost(Error):
    """The lock, or the session, is over: stop what the lock protects."""

    def __init__(self, loss: Loss) -> None:
        super().__init__(str(loss))
        self.loss = loss

    def __reduce__(self) -> tuple[type[Lost], tuple[Loss]]:
        return type(self), (self.loss,)


class NotAcquired(Error):
    """The locks are not available, or not in time. Nothing is held and nothing waits."""

    name: str
    """The first of the requested locks that was not available."""
    holder: Holder | None
    """One of its holders; `None` if it is closed by its delay, or others wait for it."""
    queue_length: int
    """How many wait for it."""
    delay_remaining: float | None
    """How long its delay keeps it closed, seconds."""
    waited: bool
    """Whether the wait reached its limit; `False`: it was not to wait."""
    place_lost: bool
    """The wait lost its place in the queue meanwhile, and began again at its end."""

    def __init__(
        self,
        name: str,
        holder: Holder | None = None,
        queue_length: int = 0,
        delay_remaining: float | None = None,
        waited: bool = False,
        place_lost: bool = False,
    ) -> None:
        super().__init__(name, holder, queue_length, delay_remaining, waited, place_lost)
        self.name = name
        self.holder = holder
        self.queue_length = queue_length
        self.delay_remaining = delay_remaining
        self.waited = waited
        self.place_lost = place_lost

    def __str__(self) -> str:
        if self.holder is not None:
            why = f"held by {self.holder.label!r} with token {self.holder.token}"
        elif self.delay_remaining is not None:
            why = f"closed for another {self.delay_remaining:.3f} s by its lock-delay"
        else:
            why = "others wait for it"
        queue = f", {self.queue_length} in the queue" if self.queue_length else ""
        return f"lock {self.name!r} was not acquired{' in time' if self.waited else ''}: {why}{queue}"


class Refused(Error):
    """The cluster refused the request. It changed nothing."""

    reason: str
    """The reason by its name in the protocol without `REASON_`, such as `MODE_MISMATCH`; empty if none was given."""
    details: Mapping[str, str]
    """The values concerned, by name: `lock`, `token`, `limit`."""

    def __init__(self, reason: str, message: str = "", details: Mapping[str, str] | None = None) -> None:
        super().__init__(reason, message, details)
        self.reason = reason
        self.message = message
        self.details = dict(details or {})

    def __str__(self) -> str:
        return self.message or f"the cluster refused the request: {self.reason or 'no reason given'}"


class NotEnsured(Error):
    """The lock is held, but may not be trusted for the time that was asked for: the session's TTL is too short."""

    def __init__(self, left: float, min_left: float) -> None:
        super().__init__(left, min_left)
        self.left = left
        self.min_left = min_left

    def __str__(self) -> str:
        left, wanted = self.left, self.min_left
        return f"the lock may be trusted for another {left:.3f} s, not for {wanted:.3f} s: connect with a longer ttl"


class NoCluster(Error):
    """No node answered before the limit of the call: none could be reached, or none knew a leader. Nothing was changed."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"no node of the cluster answered in time (last: {self.why}); nothing was changed: try again later"


class OutcomeUnknown(Error):
    """No answer before the limit of the call. The request may have taken effect, or may still take effect."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"no answer in time (last: {self.why}); the request may still take effect: look before trying again"


class Malformed(Error):
    """The cluster answered with a value that this client does not understand. The request was executed."""


class StaleToken(Error):
    """The resource has seen a higher token, or the row does not exist: nothing was written. Stop."""
