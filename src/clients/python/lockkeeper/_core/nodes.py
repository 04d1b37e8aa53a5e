"""The nodes of the cluster and the present leader, by their addresses."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from itertools import count

from ..errors import InvalidArgument

LEARNED_MAX = 32
"""Far more than a cluster has members."""


class Nodes:
    """The configured nodes, and those that the cluster named. For any thread.

    While no leader is known, the configured ones are asked in turn, and then the members that the cluster last named: all that were
    configured may have been replaced since.
    """

    def __init__(self, endpoints: str, is_secure: bool) -> None:
        self._configured: list[str] = []
        for endpoint in filter(None, (part.strip() for part in endpoints.split(","))):
            if endpoint.startswith("https://") and not is_secure:
                why = f"endpoint {endpoint!r} asks for TLS: name the authorities to trust (ca, LOCKKEEPER_CA), or leave out https://"
                raise InvalidArgument(why)
            address = _bare(endpoint)
            if not _is_address(address):
                raise InvalidArgument(
                    f"endpoint {endpoint!r} is not of the form host:port, with a port of at most 65535: correct it"
                )
            if address not in self._configured:
                self._configured.append(address)
        if not self._configured:
            raise InvalidArgument("there is no endpoint: give host:port of each node, separated by commas")
        # Clients spread over the nodes.
        self._next = random.randrange(len(self._configured))
        self._members: list[str] = []
        self._leader: str | None = None
        self._listeners: dict[int, Callable[[], None]] = {}
        self._numbers = count()
        self._mutex = threading.Lock()

    @property
    def configured(self) -> tuple[str, ...]:
        return tuple(self._configured)

    def count(self) -> int:
        return len(self._configured) + len(self._members)

    def preferred(self) -> str:
        """The node to ask now: the leader, or the next in turn while none is known."""
        with self._mutex:
            if self._leader is not None:
                return self._leader
            known = self._configured + self._members
            return known[self._next % len(known)]

    def note_leader(self, named: str | None) -> None:
        """An answer named the leader. A name that is no address is a fault of the node, and changes nothing."""
        if named is None or not _is_address(_bare(named)):
            return
        with self._mutex:
            is_new = self._leader != _bare(named)
            self._leader = _bare(named)
            listeners = list(self._listeners.values()) if is_new else []
        for listener in listeners:
            listener()

    def note_members(self, named: Iterable[str]) -> None:
        members = [_bare(address) for address in named][:LEARNED_MAX]
        with self._mutex:
            self._members = [address for address in members if address not in self._configured and _is_address(address)]

    def pass_over(self, address: str) -> None:
        """The node did not answer, or knows no leader."""
        with self._mutex:
            if self._leader == address:
                self._leader = None
            known = self._configured + self._members
            if address in known:
                self._next = (known.index(address) + 1) % len(known)

    def is_led_by_other_than(self, address: str) -> bool:
        return self._leader is not None and self._leader != address

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Generator[None]:
        """Calls `listener` when another leader is known, from any thread. It must not block."""
        with self._mutex:
            number = next(self._numbers)
            self._listeners[number] = listener
        try:
            yield
        finally:
            with self._mutex:
                self._listeners.pop(number, None)


def _bare(endpoint: str) -> str:
    return endpoint.removeprefix("http://").removeprefix("https://").rstrip("/")


def _is_address(address: str) -> bool:
    host, colon, port = address.rpartition(":")
    return bool(host and colon and "/" not in host and port.isascii() and port.isdigit() and int(port) < 65_536)
