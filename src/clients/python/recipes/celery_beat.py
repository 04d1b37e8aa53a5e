"""Celery: beat on several hosts, of which one sends.

    celery -A shop beat --scheduler celery_beat:ElectedScheduler

Each host runs beat with this scheduler. The one that holds the lock sends; when it ends or dies, the next one takes over: at once, or after
the TTL. A beat that is paused past its deadline sends no more; what it had begun to send it may still send, so tasks that must not run
twice check for that themselves.
"""

from __future__ import annotations

from typing import Any

from celery.beat import PersistentScheduler

import lockkeeper

LOCK = "celery/beat"
LOOK_AGAIN = 1.0
"""How soon a beat that only stands by asks again, seconds."""


class ElectedScheduler(PersistentScheduler):  # type: ignore[misc]
    """Celery's own scheduler, which sends only while it holds the lock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Before the rest, which may close it.
        self._client = lockkeeper.connect()
        self._lock: lockkeeper.Lock | None = None
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Sends what is due, and says after how many seconds to come again."""
        if not self._leads():
            return LOOK_AGAIN
        seconds: float = super().tick(*args, **kwargs)
        return seconds

    def apply_entry(self, entry: Any, producer: Any = None) -> None:
        """One tick may send many tasks: the lock is looked at before each."""
        if self._leads():
            super().apply_entry(entry, producer)

    def close(self) -> None:
        super().close()
        self._client.close()

    def _leads(self) -> bool:
        if self._lock is None or self._lock.loss is not None:
            self._lock = None
            try:
                self._lock = self._client.lock(LOCK, wait=0).acquire()
            except lockkeeper.NotAcquired:
                return False
            except lockkeeper.Error as error:
                self.app.log.get_default_logger().warning("beat stands by: %s", error)
                return False
        return True
