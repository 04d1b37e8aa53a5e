"""Request ids: they make repeated requests one request (RIFL: Lee et al., SOSP'15).

The session at the cluster keeps its replies to all ids that may still be repeated. So an id is outstanding until its answer has arrived or
its caller is gone, and never again; and each message names all ids that are outstanding at its sending.

Usually the lowest is enough. An id that lags far behind the newest, such as that of an acquire that waits for hours, is listed separately,
so that the lowest of the others can advance.
"""

from __future__ import annotations

import threading
from typing import Any

from . import wire

LAG_MAX = 64
"""An outstanding id is listed separately once the newest is further ahead than this."""

KEPT_MAX = 1024
"""The cluster takes no longer list."""


class Requests:
    """The ids of one session. For any thread."""

    def __init__(self) -> None:
        self._last = 0
        # A dictionary keeps the order of insertion, and ids rise.
        self._outstanding: dict[int, None] = {}
        self._mutex = threading.Lock()

    def begin(self) -> int:
        """A new id, outstanding until `end`."""
        with self._mutex:
            self._last += 1
            self._outstanding[self._last] = None
            return self._last

    def end(self, request_id: int) -> None:
        """Its answer has arrived, or nobody will ask for it again. Twice is no error."""
        with self._mutex:
            self._outstanding.pop(request_id, None)

    def message(self, request_id: int) -> Any:
        """The id, and those that are outstanding at this moment."""
        with self._mutex:
            lowest = self._last + 1
            kept: list[int] = []
            for outstanding in self._outstanding:
                if outstanding < self._last - LAG_MAX and len(kept) < KEPT_MAX:
                    kept.append(outstanding)
                else:
                    lowest = outstanding
                    break
        return wire.RequestId(id=request_id, lowest=lowest, kept=kept)
