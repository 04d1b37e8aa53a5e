"""Certificates in files, which are replaced while the client runs: they end within days or months, and whoever issues them writes new ones
into the same files.

A call looks at the files if the last look was `REREAD` ago. What is copied over a file comes in parts, and a certificate and its key are
two files, so a change counts once the files are `SETTLING` old, or read the same twice, and once they can be used together. Otherwise the
last good ones stay in use. Calls that are under way keep their connection; nodes end it when the certificate of its client does.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from typing import Final

from .._io import Tls
from .clock import timer_now

log = logging.getLogger("lockkeeper")

REREAD: Final = 2.0
"""Shortest time between two looks at the files, seconds."""

SETTLING: Final = 0.2
"""Age at which files are whole, and time after which those that are younger are read once more, seconds."""

BYTES_MAX: Final = 1 << 20
"""More is no certificate."""


class CertificateFiles:
    """Called, it returns the certificates that the files have now, or the last good ones: the same object for as long as they are the same.
    Never fails. Any thread may call it: what two of them do at once is done twice."""

    def __init__(
        self,
        paths: tuple[str, ...],
        tls: Tls,
        now: Callable[[], float] = timer_now,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._paths = paths
        self._tls = tls
        self._now = now
        self._wall = wall
        self._due = now() + REREAD
        self._changed: Tls | None = None
        self._refused = ""

    def __call__(self) -> Tls:
        now = self._now()
        if now >= self._due:
            self._due = now + REREAD
            self._look()
        return self._tls

    def _look(self) -> None:
        try:
            found, age = self._read()
            if found == self._tls:
                self._changed = None
            elif found == self._changed or age >= SETTLING:
                self._check(found)
                self._tls = found
                self._changed = None
                log.info("the certificates were read again from %s: new connections use them", ", ".join(self._paths))
            else:
                self._changed = found
                self._due = self._now() + SETTLING
            self._refused = ""
        except (OSError, ValueError) as error:
            # Once, since the files are looked at again and again.
            if str(error) != self._refused:
                log.warning("the certificates in %s cannot be used, and the last ones stay: %s", self._paths, error)
            self._refused = str(error)

    def _read(self) -> tuple[Tls, float]:
        contents = []
        age = float("inf")
        for path in self._paths:
            # What comes through a pipe comes once, and its end would be waited for.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise ValueError(f"{path} is not a regular file")
            with open(path, "rb") as file:
                age = min(age, self._wall() - os.fstat(file.fileno()).st_mtime)
                contents.append(file.read(BYTES_MAX))
        return Tls(*contents), age

    def _check(self, found: Tls) -> None:
        """Fails unless gRPC can use them. gRPC itself takes what cannot be, and then has no connection."""
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=found.ca.decode("ascii", "replace"))
        if found.cert is not None:
            _, cert, key = self._paths
            # A key with a password is none that this client can use; without one here, somebody would be asked for it.
            context.load_cert_chain(cert, key, password="")
            if self._read()[0] != found:
                raise ValueError("the files have changed again")
