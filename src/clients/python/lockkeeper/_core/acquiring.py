"""What an acquire asks for, checked before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from math import ceil, isfinite
from typing import Any, TypeAlias

from ..errors import InvalidArgument
from ..views import Mode
from . import wire
from .calls import RetryPolicy
from .clock import timer_now

Seconds: TypeAlias = float | timedelta

NAME_BYTES_MAX = 512
DATA_BYTES_MAX = 16 * 1024
NAMES_MAX = 64
PERMITS_MAX = 1_000_000
WAIT_MAX = 7 * 24 * 3600.0
LOCK_DELAY_MAX = 3600.0
TTL_MIN = 0.1
TTL_MAX = 24 * 3600.0
LABEL_BYTES_MAX = 256
REASON_BYTES_MAX = 512


@dataclass(frozen=True)
class Wanted:
    """An acquire: its locks, their mode, its wait."""

    names: tuple[str, ...]
    wait: float | None
    """Seconds; `None`: for ever; 0: not at all."""
    mode: Mode = "exclusive"
    permits: int | None = None
    data: bytes | None = None
    keep_data: bool = False
    must_exist: bool = False
    lock_delay: float = 0.0

    @classmethod
    def checked(
        cls,
        names: tuple[str, ...],
        wait: Seconds | None,
        data: bytes | None,
        keep_data: bool,
        shared: bool,
        permits: int | None,
        must_exist: bool,
        lock_delay: Seconds,
    ) -> Wanted:
        if not names:
            raise InvalidArgument("there is no name: name the lock, or several")
        if len(names) > NAMES_MAX or len(set(names)) != len(names):
            raise InvalidArgument(
                f"{len(names)} names: at most {NAMES_MAX} locks are acquired at once, each named once"
            )
        if shared and permits is not None:
            raise InvalidArgument("a lock is shared or has permits, not both: leave one of them out")
        if permits is not None and not 1 <= permits <= PERMITS_MAX:
            raise InvalidArgument(f"{permits} permits: a semaphore has 1 to {PERMITS_MAX}")
        checked_data(data)
        return cls(
            names=tuple(sorted(map(checked_name, names))),
            wait=None if wait is None else seconds("wait", wait, WAIT_MAX),
            mode="shared" if shared else "exclusive" if permits is None else "permit",
            permits=permits,
            data=data,
            keep_data=keep_data,
            must_exist=must_exist,
            lock_delay=seconds("lock_delay", lock_delay, LOCK_DELAY_MAX),
        )

    def policy(self, usual: RetryPolicy) -> RetryPolicy:
        """A waiting call gets the usual limit on top of its wait: time to find a leader and to receive the answer."""
        if self.wait == 0:
            return usual
        limit = None if self.wait is None or usual.limit is None else usual.limit + self.wait
        return replace(usual, limit=limit, attempt_limit=None)

    def is_in_time(self, began: float) -> bool:
        return self.wait is None or timer_now() - began < self.wait

    def message(self, session_id: str, request: Any, elapsed: float) -> Any:
        locks = [self._want(name) for name in self.names]
        message = wire.AcquireRequest(
            session_id=session_id, request=request, locks=locks, lock_delay_ms=ceil(self.lock_delay * 1000)
        )
        if self.wait is None:
            message.wait_forever = True
        elif self.wait > 0:
            message.wait_ms = max(1, ceil(self.wait * 1000) - int(elapsed * 1000))
        return message

    def _want(self, name: str) -> Any:
        want = wire.Want(name=name, data=self.data, keep_data=self.keep_data, must_exist=self.must_exist)
        if self.permits is None:
            getattr(want.mode, self.mode).SetInParent()
        else:
            want.mode.permit.limit = self.permits
        return want


def seconds(argument: str, value: Seconds, limit: float) -> float:
    """A duration in seconds, within its limit."""
    number = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not isfinite(number) or not 0 <= number <= limit:
        raise InvalidArgument(f"{argument} {value} is out of range: give 0 to {limit:g} seconds")
    return number


def checked_name(name: str) -> str:
    size = len(_encoded("name", name))
    if not 1 <= size <= NAME_BYTES_MAX or "\0" in name:
        raise InvalidArgument(
            f"name {name[:64]!r} of {size} bytes: a lock's name is 1 to {NAME_BYTES_MAX} bytes of UTF-8 without NUL"
        )
    return name


def checked_data(data: bytes | None) -> bytes | None:
    if data is not None and not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidArgument(f"data are bytes, not {type(data).__name__}: encode them")
    if data is not None and len(data) > DATA_BYTES_MAX:
        raise InvalidArgument(f"{len(data)} bytes of data: a lock carries at most {DATA_BYTES_MAX}")
    return data


def checked_text(argument: str, text: str, most: int, least: int = 0) -> str:
    size = len(_encoded(argument, text))
    if not least <= size <= most:
        raise InvalidArgument(f"{argument} of {size} bytes: give {least} to {most} bytes of UTF-8")
    return text


def checked_ttl(ttl: Seconds) -> float:
    number = seconds("ttl", ttl, TTL_MAX)
    if number < TTL_MIN:
        raise InvalidArgument(f"ttl {ttl} is out of range: give {TTL_MIN:g} to {TTL_MAX:g} seconds")
    return number


def _encoded(argument: str, text: str) -> bytes:
    if not isinstance(text, str):
        raise InvalidArgument(f"{argument} is a text, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{argument} {text[:64]!r} is no UTF-8: {error.reason}") from None
