"""A session: the client's lease with the cluster, and what is done in it."""

from __future__ import annotations

import logging
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..errors import Error, InvalidArgument, Loss, LossReason, Lost, NotAcquired, NotEnsured, OutcomeUnknown, Refused
from ..views import holder_from_wire
from . import wire
from .acquiring import Wanted
from .backoff import Backoff
from .calls import Caller, RetryPolicy
from .clock import boot_now, timer_now
from .failures import loss_from
from .lease import Lease
from .methods import ACQUIRE, CLOSE, OPEN, RELEASE, RENEW, UPDATE, Method
from .requests import Requests

log = logging.getLogger("lockkeeper")

# These say that nothing is held, or that the same release would always be refused.
_RELEASED = frozenset({"NOT_HELD", "INVALID_ARGUMENT", "REQUEST_STALE", "REQUEST_REUSED"})


class Session:
    """A session that is open. `keep_alive.run` renews it."""

    def __init__(self, caller: Caller, session_id: str, ttl: float, lease: Lease) -> None:
        self.caller = caller
        self.id = session_id
        self.ttl = ttl
        self.lease = lease
        self.requests = Requests()
        # Grants that were dropped without a release. The collector of garbage may run within any lock, so it only notes them here.
        self.dropped: deque[Held] = deque()

    def release_dropped(self) -> None:
        """Releases in the background what was dropped."""
        while self.dropped:
            held = self.dropped.popleft()
            names = ", ".join(held.wanted.names)
            log.warning(
                "session %s: %s was dropped while it was held, token %d: releasing it", self.id, names, held.token
            )
            held.release_in_background()

    async def call(self, policy: RetryPolicy, method: Method, request: Callable[[], Any]) -> Any:
        """A request of the session, until it is answered or the session is lost. A refusal can be the first word of a loss."""
        try:
            return await self.caller.call(policy, method, request, self.lease)
        except Refused as refused:
            loss = loss_from(refused)
            if loss is None:
                raise
            self.lease.end(loss)
            raise Lost(self.lease.loss() or loss) from None

    async def renew(self) -> None:
        """Renews it once, beside the renewals in the background."""
        sent = 0.0

        def request() -> Any:
            nonlocal sent
            # The answer belongs to the last attempt, so its sending counts. The clock is read before it.
            sent = boot_now()
            return wire.RenewSessionRequest(session_id=self.id)

        answer = await self.call(self.caller.policy, RENEW, request)
        for revoked in answer.revoked:
            self.lease.revoked(revoked.token, revoked.reason, revoked.remaining_ms / 1000, counted_from=sent)
        # With more revoked grants than one answer names, the extension would also concern those that it does not name.
        if not answer.more_revoked:
            self.lease.renewed(sent, answer.ttl_ms / 1000)

    async def ensure(self, token: int, min_left: float) -> float:
        """Makes sure that a grant may be trusted for this long, and returns for how long it may."""
        if self.lease.loss(token) is None and self.lease.remaining(token) < min_left:
            await self.renew()
        self.lease.raise_if_lost(token)
        left = self.lease.remaining(token)
        if left < min_left:
            raise NotEnsured(left, min_left)
        return left

    async def update(self, token: int, name: str, data: bytes | None, keep_data: bool) -> None:
        request_id = self.requests.begin()

        def request() -> Any:
            ids = self.requests.message(request_id)
            return wire.UpdateRequest(
                session_id=self.id, request=ids, token=token, name=name, data=data, keep_data=keep_data
            )

        try:
            await self.call(self.caller.policy, UPDATE, request)
        except Lost as lost:
            if lost.loss.reason is LossReason.REVOKED:
                # This answer can come before the word of it on the stream.
                self.lease.revoked(token, lost.loss.text, 0)
            raise
        finally:
            self.requests.end(request_id)

    async def acquire(self, wanted: Wanted) -> Held:
        """Acquires locks. An acquire that ends without a decision, also by an interruption, is released in the background."""
        began = timer_now()
        backoff = Backoff()
        place_lost = False
        while True:
            request_id = self.requests.begin()
            is_decided = False
            try:
                answer = await self._send_acquire(wanted, request_id, began)
                outcome = answer.WhichOneof("outcome")
                is_decided = outcome is not None
                if outcome == "granted":
                    return Held(self, wanted, answer.granted.token, place_lost)
                if outcome is None:
                    raise OutcomeUnknown("the answer has no outcome that this version knows")
                raise _not_acquired(getattr(answer, outcome), outcome == "timed_out", place_lost)
            except OutcomeUnknown:
                raise
            except Refused as refused:
                is_decided = True
                # The call was broken for too long. The caller still wants the locks: to the end of the queue.
                if refused.reason != "WAIT_CANCELLED" or not wanted.is_in_time(began):
                    raise
                place_lost = True
            except Error:
                is_decided = True
                raise
            finally:
                if is_decided:
                    self.requests.end(request_id)
                else:
                    self.abandon(request_id)
            await self.caller.pause(backoff.next(), self.lease)

    async def _send_acquire(self, wanted: Wanted, request_id: int, began: float) -> Any:
        def request() -> Any:
            # The first attempt that arrives sets the limit of the wait; a repetition must not extend it.
            return wanted.message(self.id, self.requests.message(request_id), timer_now() - began)

        return await self.call(wanted.policy(self.caller.policy), ACQUIRE, request)

    def abandon(self, request_id: int) -> None:
        """Releases an acquire whose caller is gone. Its id stays outstanding until then, so that the cluster keeps the reply."""

        async def work() -> None:
            release = Release(self, acquire_request_id=request_id)
            outcome = await release.run(None)
            self.requests.end(request_id)
            log.debug("session %s: abandoned acquire %d: %s", self.id, request_id, outcome or "released")

        if not self.lease.is_foreign:
            self.caller.io.spawn("lockkeeper-release", work)

    async def close(self, limit: float | None = None) -> None:
        """Tells the cluster that the session is over. A session that was over before is closed."""
        request = wire.CloseSessionRequest(session_id=self.id)
        policy = self.caller.policy if limit is None else replace(self.caller.policy, limit=limit)
        try:
            await self.caller.call(policy, CLOSE, lambda: request)
        except Refused as refused:
            if loss_from(refused) is None:
                raise
        log.debug("session %s: closed", self.id)

    def close_in_background(self) -> None:
        """Best effort: otherwise the session expires."""

        async def work() -> None:
            try:
                await self.close()
            except Error as error:
                log.debug("session %s: not closed, it expires by itself: %s", self.id, error)

        self.caller.io.spawn("lockkeeper-close", work)


class Release:
    """A release, repeated under one request id until nothing is held."""

    def __init__(self, session: Session, token: int | None = None, acquire_request_id: int | None = None) -> None:
        self._session = session
        self._token = token
        self._acquire_request_id = acquire_request_id
        self._request_id = session.requests.begin()

    async def run(self, limit: float | None) -> Error | None:
        """The outcome. Fails with `OutcomeUnknown` after `limit` seconds; then it can be run again, as the same request."""
        session = self._session
        until = None if limit is None else timer_now() + limit
        backoff = Backoff()
        while True:
            left = None if until is None else max(0.001, until - timer_now())
            policy = replace(session.caller.policy, limit=left)
            try:
                await session.call(policy, RELEASE, self._message)
                outcome: Error | None = None
            except Lost as lost:
                outcome = lost
            except Refused as refused:
                if refused.reason not in _RELEASED:
                    log.warning("session %s: a release was refused, and is tried again: %s", session.id, refused)
                    await session.caller.pause(backoff.next(), session.lease)
                    if until is not None and timer_now() >= until:
                        raise OutcomeUnknown(f"the release was refused: {refused}") from None
                    continue
                outcome = refused
            except Error as error:
                if limit is None and session.lease.loss() is None and not isinstance(error, InvalidArgument):
                    continue
                raise OutcomeUnknown(f"{error}; the release goes on in the background") from error
            session.requests.end(self._request_id)
            return outcome

    def _message(self) -> Any:
        session = self._session
        ids = session.requests.message(self._request_id)
        if self._token is not None:
            return wire.ReleaseRequest(session_id=session.id, request=ids, token=self._token)
        return wire.ReleaseRequest(session_id=session.id, request=ids, acquire_request_id=self._acquire_request_id)


class Held:
    """A grant of this process, until it is released. For any thread."""

    def __init__(self, session: Session, wanted: Wanted, token: int, place_lost: bool) -> None:
        self.session = session
        self.wanted = wanted
        self.token = token
        self.place_lost = place_lost
        self._is_released = False
        self._outcome: Error | None = None
        self._is_settled = False
        self._waiting: list[Callable[[], None]] = []
        self._mutex = threading.Lock()
        self._listener: int | None = None
        # The outcome of the release is known, or work in the background sees to it.
        self._is_in_hand = False
        log.debug("session %s: granted %s, token %d", session.id, ", ".join(wanted.names), token)

    def loss(self) -> Loss | None:
        if self.session.lease.is_foreign:
            return Loss(LossReason.FORKED)
        return Loss(LossReason.RELEASED) if self._is_released else self.session.lease.loss(self.token)

    def remaining(self) -> float:
        return 0.0 if self._is_released else self.session.lease.remaining(self.token)

    def raise_if_lost(self) -> None:
        loss = self.loss()
        if loss is not None:
            raise Lost(loss)

    async def ensure(self, min_left: float) -> float:
        self.raise_if_lost()
        return await self.session.ensure(self.token, min_left)

    def on_lost(self, told: Callable[[Loss], None]) -> None:
        """Calls `told` once when the grant is lost, from any thread; never after the release has begun. It must not block."""
        once = threading.Lock()
        # A listener must not keep a grant from being dropped.
        weak = weakref.ref(self)

        def look() -> None:
            held = weak()
            loss = None if held is None or held._is_released else held.session.lease.loss(held.token)
            if loss is not None and once.acquire(blocking=False):
                told(loss)

        self._listener = self.session.lease.listen(look)
        look()

    @property
    def is_released(self) -> bool:
        """Whether its release has begun."""
        return self._is_released

    def __del__(self) -> None:
        # It is there only once the constructor has run to its end. False also where a release was interrupted as it began.
        if getattr(self, "_is_in_hand", True) is False and not self.session.lease.is_foreign:
            self.session.dropped.append(self)

    def begin_release(self) -> bool:
        """From here on it counts as released. Returns whether this call began it."""
        with self._mutex:
            begins = not self._is_released
            self._is_released = True
        if begins and self._listener is not None:
            self.session.lease.unlisten(self._listener)
        return begins

    async def release(self) -> None:
        """Releases it. Fails with `Lost` or `Refused` if it was lost before, with `OutcomeUnknown` at the limit of the call; then, and
        when this is interrupted, the release goes on in the background. A second release has the outcome of the first."""
        if self.session.lease.is_foreign:
            raise Lost(Loss(LossReason.FORKED))
        if not self.begin_release():
            return await self._outcome_of_first()
        release = None
        try:
            release = Release(self.session, token=self.token)
            outcome = await release.run(self.session.caller.call_limit)
        except BaseException:
            self._go_on(release or Release(self.session, token=self.token))
            raise
        self._settle(outcome)
        if self._outcome is not None:
            raise self._outcome
        return None

    def release_in_background(self) -> None:
        """For a grant that was dropped."""
        self.begin_release()
        if not self.session.lease.is_foreign and not self.session.lease.is_ended:
            self._go_on(Release(self.session, token=self.token))

    def _go_on(self, release: Release) -> None:
        async def work() -> None:
            self._settle(await release.run(None))

        self.session.caller.io.spawn("lockkeeper-release", work)
        self._is_in_hand = True

    def _settle(self, outcome: Error | None) -> None:
        loss = self.session.lease.loss(self.token)
        if isinstance(outcome, Refused) and loss is not None and loss.reason is LossReason.REVOKED:
            outcome = Lost(loss)
        self.session.lease.forget(self.token)
        with self._mutex:
            self._outcome = outcome
            self._is_settled = True
            self._is_in_hand = True
            waiting = list(self._waiting)
        for wake in waiting:
            wake()
        log.debug("session %s: released token %d: %s", self.session.id, self.token, outcome or "confirmed")

    async def _outcome_of_first(self) -> None:
        signal = self.session.caller.io.signal()
        with self._mutex:
            self._waiting.append(signal.set)
        until = timer_now() + self.session.caller.call_limit
        while not self._is_settled:
            left = until - timer_now()
            if left <= 0:
                raise OutcomeUnknown(
                    "no confirmation within the limit of a call; the release goes on in the background"
                )
            await signal.wait(left)
        if self._outcome is not None:
            raise self._outcome


async def open_session(caller: Caller, ttl: float, label: str) -> Session:
    """Opens a session. Opens another one while the opened one has ended before its answer came, within the limit of a call."""
    until = timer_now() + caller.call_limit
    while True:
        try:
            return await _open_once(caller, ttl, label)
        except (Refused, Lost) as error:
            is_over = isinstance(error, Lost) or loss_from(error) is not None
            if not is_over or timer_now() >= until:
                raise
            log.debug("a session ended before it was known to be open; opening another one: %s", error)


async def _open_once(caller: Caller, ttl: float, label: str) -> Session:
    request = wire.OpenSessionRequest(session_id=secrets.token_hex(16), ttl_ms=round(ttl * 1000), label=label)
    # It is not known which attempt is answered: the first one gives the earlier deadline.
    sent = boot_now()
    answer = await caller.call(caller.policy, OPEN, lambda: request)
    in_force = answer.ttl_ms / 1000
    session = Session(caller, request.session_id, in_force, Lease(sent, in_force))
    log.debug("session %s: opened, ttl %.3f s", session.id, in_force)
    # The open took long: renew now, rather than begin with a lease that is about to end.
    if session.lease.remaining() < in_force / 2:
        await session.renew()
    return session


def _not_acquired(busy: Any, waited: bool, place_lost: bool) -> NotAcquired:
    holder = holder_from_wire(busy.holder) if busy.HasField("holder") else None
    return NotAcquired(busy.name, holder, busy.queue_length, busy.delay_remaining_ms / 1000 or None, waited, place_lost)
