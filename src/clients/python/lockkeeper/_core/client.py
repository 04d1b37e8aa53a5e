"""The state of a client that both façades share: its settings, its nodes, and its one session."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import ClientClosed, Error, InvalidArgument, Loss, LossReason
from ..views import (
    Check,
    Forced,
    Leader,
    LockInfo,
    check_from_wire,
    forced_from_wire,
    leader_from_lock,
    lock_from_wire,
)
from . import keep_alive, wire
from .acquiring import NAME_BYTES_MAX, REASON_BYTES_MAX, Wanted, checked_name, checked_text
from .calls import Caller
from .methods import CHECK, FORCE_RELEASE, GET, LIST
from .nodes import Nodes
from .session import Held, Session, open_session
from .settings import Settings

if TYPE_CHECKING:
    from .._io import Io

log = logging.getLogger("lockkeeper")

BACKGROUND_LIMIT = 2.0
"""How long closing waits for work in the background, seconds."""


class ClientCore:
    """Sends nothing before it is used. Opens a session with the first acquire, and another one after that is lost."""

    def __init__(self, settings: Settings, make_io: Callable[[], Io]) -> None:
        self.settings = settings
        nodes = Nodes(settings.endpoints, settings.certificates is not None)
        self.io = make_io()
        self.caller = Caller(self.io, nodes, settings.call_limit, settings.attempt_limit)
        self._session: Session | None = None
        self._closing_limit: float | None = None
        self.is_closed = False

    async def session(self) -> Session:
        """The session, opened if there is none that is alive."""
        session = self._alive()
        if session is not None:
            return session
        async with self.io.mutex():
            session = self._alive()
            if session is None:
                session = await open_session(self.caller, self.settings.ttl, self.settings.label)
                self._session = session
                if self.is_closed:
                    session.lease.end(Loss(LossReason.CLOSED))
                opened = session
                self.io.spawn("lockkeeper-renewal", lambda: keep_alive.run(opened))
        return session

    def _alive(self) -> Session | None:
        if self.is_closed:
            raise ClientClosed("the client was closed: make another one with connect()")
        session = self._session
        return session if session is not None and session.lease.loss() is None else None

    async def acquire(self, wanted: Wanted) -> Held:
        session = await self.session()
        return await session.acquire(wanted)

    async def get(self, name: str, stale: bool, page_size: int = 0) -> LockInfo:
        request = wire.GetRequest(name=checked_name(name), stale=stale, page_size=page_size)
        answer = await self._read(GET, request)
        return lock_from_wire(answer.lock)

    async def leader(self, name: str) -> Leader | None:
        # Only the holder is needed; the queue can be long.
        return leader_from_lock(await self.get(name, stale=False, page_size=1))

    async def list_page(self, prefix: str, page_token: str, stale: bool) -> tuple[list[LockInfo], str]:
        checked_text("prefix", prefix, NAME_BYTES_MAX)
        answer = await self._read(LIST, wire.ListRequest(prefix=prefix, page_token=page_token, stale=stale))
        return [lock_from_wire(lock) for lock in answer.locks], answer.next_page_token

    async def check(self, name: str, token: int) -> Check:
        if token < 1:
            raise InvalidArgument(f"token {token}: the first grant of a cluster has token 1")
        return check_from_wire(await self._read(CHECK, wire.CheckRequest(name=checked_name(name), token=token)))

    async def force_release(self, name: str, reason: str, token: int | None, now: bool) -> tuple[Forced, ...]:
        checked_name(name)
        checked_text("reason", reason, REASON_BYTES_MAX, least=1)
        self._alive()
        # Without a token a repetition could revoke a grant that began after the first attempt.
        policy = self.caller.once_policy if token is None else self.caller.policy
        forced: list[Forced] = []
        after = up_to = 0
        while True:
            request = wire.ForceReleaseRequest(
                name=name, token=token or 0, reason=reason, now=now, after_token=after, up_to_token=up_to
            )
            answer = await self.caller.call(policy, FORCE_RELEASE, partial(_same, request))
            forced.extend(map(forced_from_wire, answer.forced))
            if not answer.more_up_to_token or not answer.forced:
                return tuple(forced)
            up_to = answer.more_up_to_token
            after = answer.forced[-1].token

    async def _read(self, method: Any, request: Any) -> Any:
        self._alive()
        return await self.caller.call(self.caller.read_policy, method, lambda: request)

    async def close(self) -> None:
        """Closes the session, and with it all that it holds. A cluster that does not answer lets it expire instead."""
        if self.is_closed:
            return
        self.is_closed = True
        session = self._session
        if session is not None:
            was_lost = session.lease.loss() is not None
            session.lease.end(Loss(LossReason.CLOSED))
            if not was_lost:
                await self._close_session(session)
        await self.io.close(BACKGROUND_LIMIT)

    def limit_closing(self) -> None:
        """Closing takes about two seconds at most, from here on: at the end of a program."""
        self._closing_limit = BACKGROUND_LIMIT

    async def _close_session(self, session: Session) -> None:
        try:
            await session.close(self._closing_limit)
        except Error as error:
            log.warning("session %s: the cluster did not confirm its end, it expires by itself: %s", session.id, error)


def _same(request: Any) -> Any:
    return request
