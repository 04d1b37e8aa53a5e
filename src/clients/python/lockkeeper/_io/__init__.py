"""How a client waits: with threads (`threads`) or with asyncio (`loop`).

`Io` is what both offer to `lockkeeper._core`. Its coroutines suspend with asyncio; with threads they block and never suspend.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from .._core.methods import Method

__all__ = ["Io", "Pending", "Reply", "Signal", "Stream", "Tls"]


@dataclass(frozen=True)
class Tls:
    """The contents of the files: authorities, own certificate, own key."""

    ca: bytes
    cert: bytes | None = None
    key: bytes | None = None


@dataclass(frozen=True)
class Reply:
    """The answer of a node, and the leader that it named."""

    message: Any
    leader: str | None


class Signal(Protocol):
    """Wakes one coroutine that waits."""

    def set(self) -> None:
        """From any thread."""
        ...

    async def wait(self, timeout: float | None) -> None:
        """Until it was set since the last wait, or for `timeout` seconds."""
        ...


class Pending(Protocol):
    """A call under way."""

    def is_done(self) -> bool: ...

    async def reply(self) -> Reply:
        """Once it is done. Fails with `RpcFailure`."""
        ...

    def cancel(self) -> None:
        """Breaks it off, unless it is done."""
        ...


class Stream(Protocol):
    """A stream of messages to and from a node."""

    def send(self, message: Any) -> None: ...

    def finish(self) -> None:
        """No more is sent."""
        ...

    def take(self) -> Any | None:
        """The next message that has arrived; `None`: none is there now."""
        ...

    def failure(self) -> Exception | None:
        """Why it ended, once all its messages are taken; `None`: it goes on."""
        ...

    def cancel(self) -> None: ...


class Io(Protocol):
    """Calls to nodes, waits, and work in the background."""

    async def call(self, address: str, method: Method, request: Any, timeout: float) -> Reply:
        """One short call. Fails with `RpcFailure`, after `timeout` seconds at the latest."""
        ...

    def start(self, address: str, method: Method, request: Any, signal: Signal) -> Pending:
        """A call that may take long. Sets the signal when it is done."""
        ...

    def stream(self, address: str, method: Method, signal: Signal, on_leader: Callable[[str | None], None]) -> Stream:
        """Sets the signal with each message, and at the end."""
        ...

    def signal(self) -> Signal: ...

    def mutex(self) -> AbstractAsyncContextManager[Any]:
        """The one mutex of the client: held while a session is opened."""
        ...

    def spawn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs the work in the background."""
        ...

    def call_back(self, callback: Callable[[], None]) -> None:
        """Runs a callback of the program's in the background, from any thread."""
        ...

    async def close(self, limit: float) -> None:
        """Ends the work in the background, within about `limit` seconds, and closes all connections."""
        ...
