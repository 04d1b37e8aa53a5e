"""A bearer token in a file, which is replaced while the client runs: Kubernetes writes a new token into the same file before the one of
before ends.

A call reads the file again if the last look at it was `REREAD` ago. The file is local and small: a read takes microseconds. What is copied
over a file comes in parts, so a change counts once the file is `SETTLING` old, or reads the same twice. A file that is missing, empty or
without a token leaves the last good token in use.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from typing import Final

from .clock import timer_now

log = logging.getLogger("lockkeeper")

REREAD: Final = 1.0
"""Shortest time between two looks at the file, seconds."""

SETTLING: Final = 0.2
"""Age at which a file is whole, and time after which one that is younger is read once more, seconds."""

BYTES_MAX: Final = 64 * 1024
"""No node takes a header of this size."""


def is_token(text: str) -> bool:
    """Whether a header of HTTP can carry it."""
    return bool(text) and all("!" <= character <= "~" for character in text)


class TokenFile:
    """Called, it returns the token that the file has now, or the last good one that it had. Never fails. Any thread may call it: what two
    of them do at once is done twice, and nobody waits for one whose file system hangs."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        token: str,
        now: Callable[[], float] = timer_now,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._token = token
        self._now = now
        self._wall = wall
        self._due = now() + REREAD
        self._changed: str | None = None
        self._is_usable = True

    def __call__(self) -> str:
        now = self._now()
        if now >= self._due:
            self._due = now + REREAD
            self._look()
        return self._token

    def _look(self) -> None:
        try:
            text, age = self._read()
        except (OSError, ValueError) as error:
            if self._is_usable:
                log.warning("the token file %s cannot be used, and its last token stays in use: %s", self._path, error)
            self._is_usable = False
            return
        self._is_usable = True

        if text == self._token:
            self._changed = None
        elif text == self._changed or age >= SETTLING:
            self._token = text
            self._changed = None
        else:
            self._changed = text
            self._due = self._now() + SETTLING

    def _read(self) -> tuple[str, float]:
        # What comes through a pipe comes once, and its end would be waited for.
        if not stat.S_ISREG(os.stat(self._path).st_mode):
            raise ValueError("it is not a regular file")
        with open(self._path, "rb") as file:
            age = self._wall() - os.fstat(file.fileno()).st_mtime
            text = file.read(BYTES_MAX).decode(errors="replace").strip()
        if not is_token(text):
            raise ValueError("it has no token")
        return text, age
