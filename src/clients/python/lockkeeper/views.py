"""What the cluster tells, in types of this package. Times left are seconds; what the protocol writes as 0 or as an empty text is `None`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, TypeAlias

from .errors import Malformed

__all__ = [
    "Change",
    "ChangeKind",
    "Changes",
    "Check",
    "Forced",
    "Holder",
    "Leader",
    "LockInfo",
    "Mode",
    "Progress",
    "State",
    "TooOld",
    "Waiter",
    "WatchMessage",
]

Mode: TypeAlias = Literal["exclusive", "shared", "permit"]
ChangeKind: TypeAlias = Literal[
    "granted", "released", "lost", "revoked", "queued", "left", "data", "delayed", "opened", "resized", "other"
]

_KINDS: tuple[ChangeKind, ...] = (
    "other",
    "granted",
    "released",
    "lost",
    "revoked",
    "queued",
    "left",
    "data",
    "delayed",
    "opened",
    "resized",
)


@dataclass(frozen=True, slots=True)
class Holder:
    """A holder of a lock."""

    token: int
    session_id: str
    label: str
    """The label of its session, for people: host, process, program."""
    mode: Mode | None
    """`None`: a mode that this version does not know."""
    since: datetime
    """When it was granted, by the wall clock of the leader at that time. For people only."""
    remaining: float
    """Time left until the grant is lost if its session is not renewed, seconds."""
    revoked_reason: str | None
    """The operator's reason if the grant is revoked."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """An acquire that waits for a lock."""

    ticket: int
    """Its place in the order of arrival: lower ones are served first."""
    session_id: str
    label: str
    mode: Mode | None
    since: datetime
    remaining: float | None
    """Time left until the wait is over, seconds; `None`: no limit."""


@dataclass(frozen=True, slots=True)
class LockInfo:
    """A lock: its holders, its queue and its data. One that does not exist is shown as free."""

    name: str
    mode: Mode | None
    permits: int | None
    """The size of a semaphore."""
    holders: tuple[Holder, ...]
    """The first holders, by token."""
    holder_count: int
    waiters: tuple[Waiter, ...]
    """The first waiters, in the order of the queue."""
    queue_length: int
    data: bytes | None
    keep_data: bool
    delay_remaining: float | None
    """Time left of its lock-delay, seconds; `None`: it has none."""

    @property
    def is_held(self) -> bool:
        """Whether it has a holder."""
        return self.holder_count > 0


@dataclass(frozen=True, slots=True)
class Check:
    """Whether a token holds a lock."""

    held: bool
    holder: Holder | None
    last_token: int | None
    """The highest token that was granted so far in the cluster."""


@dataclass(frozen=True, slots=True)
class Forced:
    """A grant that an operator revoked."""

    token: int
    session_id: str
    label: str
    remaining: float
    """Time left for the holder if it does not release, seconds; 0: the grant is over."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader of an election."""

    epoch: int
    """Higher than that of any earlier leader."""
    value: bytes
    """What it published last; empty if nothing."""
    label: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a lock."""

    name: str
    kind: ChangeKind
    token: int | None
    session_id: str | None
    label: str | None
    ticket: int | None
    reason: str | None
    """An operator's reason."""
    by: str | None
    """The operator's identity, if it is known."""
    data: bytes | None
    mode: Mode | None


@dataclass(frozen=True, slots=True)
class State:
    """A part of the present state. The first part replaces all that the reader knows."""

    locks: tuple[LockInfo, ...]
    index: int
    first: bool
    last: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one entry of the log."""

    changes: tuple[Change, ...]
    index: int
    more: bool
    """The entry has more changes than one message holds: the next message continues it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """There were no changes up to this index. It comes when a second passed without another message."""

    index: int


@dataclass(frozen=True, slots=True)
class TooOld:
    """The changes after the index that was asked for are no longer kept. The state follows."""

    after: int


WatchMessage: TypeAlias = State | Changes | Progress | TooOld


def holder_from_wire(wire: Any) -> Holder:
    return Holder(
        token=wire.token,
        session_id=_session_id("holder.session_id", wire.session_id),
        label=wire.label,
        mode=_mode(wire),
        since=_moment(wire.since_unix_ms),
        remaining=wire.remaining_ms / 1000,
        revoked_reason=wire.revoked_reason or None,
    )


def _waiter_from_wire(wire: Any) -> Waiter:
    return Waiter(
        ticket=wire.ticket,
        session_id=_session_id("waiter.session_id", wire.session_id),
        label=wire.label,
        mode=_mode(wire),
        since=_moment(wire.since_unix_ms),
        remaining=wire.remaining_ms / 1000 if wire.HasField("remaining_ms") else None,
    )


def lock_from_wire(wire: Any) -> LockInfo:
    if not wire.name:
        raise _malformed("lock.name", "")
    is_semaphore = wire.HasField("mode") and wire.mode.WhichOneof("kind") == "permit"
    return LockInfo(
        name=wire.name,
        mode=_mode(wire),
        permits=wire.mode.permit.limit if is_semaphore else None,
        holders=tuple(map(holder_from_wire, wire.holders)),
        holder_count=wire.holder_count,
        waiters=tuple(map(_waiter_from_wire, wire.waiters)),
        queue_length=wire.queue_length,
        data=wire.data if wire.HasField("data") else None,
        keep_data=wire.keep_data,
        delay_remaining=wire.delay_remaining_ms / 1000 or None,
    )


def check_from_wire(wire: Any) -> Check:
    holder = holder_from_wire(wire.holder) if wire.HasField("holder") else None
    return Check(wire.held, holder, wire.last_token or None)


def forced_from_wire(wire: Any) -> Forced:
    return Forced(wire.token, _session_id("forced.session_id", wire.session_id), wire.label, wire.remaining_ms / 1000)


def leader_from_lock(lock: LockInfo) -> Leader | None:
    """A sharer or a holder of a permit is one of several, and leads nobody."""
    holder = next(iter(lock.holders), None)
    if holder is None or holder.mode != "exclusive":
        return None
    return Leader(holder.token, lock.data or b"", holder.label, holder.session_id)


def _change_from_wire(wire: Any) -> Change:
    return Change(
        name=wire.name,
        kind=_KINDS[wire.kind] if wire.kind < len(_KINDS) else "other",
        token=wire.token or None,
        session_id=wire.session_id or None,
        label=wire.label or None,
        ticket=wire.ticket or None,
        reason=wire.reason or None,
        by=wire.by or None,
        data=wire.data if wire.HasField("data") else None,
        mode=_mode(wire),
    )


def watched_from_wire(wire: Any) -> WatchMessage | None:
    """`None`: a kind of message that only a later version knows."""
    what = wire.WhichOneof("what")
    if what == "state":
        state = wire.state
        return State(_each(state.locks, lock_from_wire), state.index, state.first, state.last)
    if what == "changes":
        return Changes(_each(wire.changes.changes, _change_from_wire), wire.changes.index, wire.changes.more)
    if what == "progress":
        return Progress(wire.progress.index)
    if what == "too_old":
        return TooOld(wire.too_old.after_index)
    return None


def _each(wires: Iterable[Any], convert: Any) -> tuple[Any, ...]:
    return tuple(map(convert, wires))


def _mode(wire: Any) -> Mode | None:
    kind = wire.mode.WhichOneof("kind") if wire.HasField("mode") else None
    return kind if kind in ("exclusive", "shared", "permit") else None


def _moment(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, timezone.utc)


def _session_id(field: str, value: str) -> str:
    if len(value) != 32:
        raise _malformed(field, value)
    return value


def _malformed(field: str, value: str) -> Malformed:
    why = f"the request was executed, but this client does not understand the reply: {field} is {value[:64]!r}"
    return Malformed(f"{why}: use a client of the nodes' version")
