"""Renews a session in the background, and hears of its losses.

One stream to one node, one renewal every third of the TTL, or up to a tenth of that earlier. If a renewal is not answered in time, or the
stream ends, the next node gets a new stream. The deadline is watched here too: the session ends when it passes, and no later answer revives
it; the cluster is then told, best effort, so that the locks open before the TTL has passed there.
"""

from __future__ import annotations

import logging
import random
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ..errors import Loss, LossReason
from . import wire
from .backoff import Backoff
from .clock import LOOK_AGAIN, boot_now, timer_now
from .failures import RpcFailure
from .methods import KEEP_ALIVE
from .session import Release, Session

if TYPE_CHECKING:
    from .._io import Signal

log = logging.getLogger("lockkeeper")

UNANSWERED_MAX = 8
"""Sent renewals whose answers are still expected."""

ANSWER_LIMIT_MAX = 2.0

_ENDS = {1: LossReason.CLOSED, 2: LossReason.EXPIRED}


async def run(session: Session) -> None:
    """Keeps the session alive until it has ended."""
    lease = session.lease
    signal = session.caller.io.signal()
    try:
        with lease.listening(signal.set):
            await _keep_alive(session, signal)
    except BaseException:
        # Nobody renews it from here on, and nobody would wake those who wait for its end.
        lease.end(Loss(LossReason.OUT_OF_CONTACT))
        raise
    loss = lease.loss()
    if loss is None or loss.reason is LossReason.OUT_OF_CONTACT:
        session.close_in_background()
    if loss is not None and loss.reason is not LossReason.CLOSED:
        log.warning("session %s: lost: %s", session.id, loss)


async def _keep_alive(session: Session, signal: Signal) -> None:
    nodes = session.caller.nodes
    backoff = Backoff()
    failed = 0
    acknowledging = _Acknowledging(session)
    while session.lease.loss() is None:
        node = nodes.preferred()
        stream = _Renewals(session, node, signal, acknowledging)
        try:
            why = await stream.run()
        finally:
            stream.close()
        log.debug("session %s: the stream of renewals to %s ended: %s", session.id, node, why)
        # In this order: an error may name the node itself as the leader, which does not answer.
        nodes.note_leader(stream.leader_at_end)
        nodes.pass_over(node)
        if stream.is_answered:
            backoff = Backoff()
            failed = 0
        else:
            failed += 1
        if failed >= nodes.count():
            failed = 0
            await _pause(session, signal, min(backoff.next(), session.ttl / 3))


async def _pause(session: Session, signal: Signal, seconds: float) -> None:
    until = timer_now() + seconds
    while session.lease.loss() is None and timer_now() < until:
        await signal.wait(min(until - timer_now(), session.lease.remaining(), LOOK_AGAIN))


class _Renewals:
    """The renewals on one stream."""

    def __init__(self, session: Session, node: str, signal: Signal, acknowledging: _Acknowledging) -> None:
        self._session = session
        self._signal = signal
        self._acknowledging = acknowledging
        self._sequence = 0
        # When each unanswered renewal was sent, by its sequence.
        self._unanswered: OrderedDict[int, float] = OrderedDict()
        self._answer_by: float | None = None
        self._renew_at = 0.0
        self.is_answered = False
        self.leader_at_end: str | None = None
        caller = session.caller
        self._stream = caller.io.stream(node, KEEP_ALIVE, signal, caller.nodes.note_leader)

    async def run(self) -> str:
        """Runs until the stream is of no more use; returns why."""
        lease = self._session.lease
        self._renew()
        while True:
            # Answers first: one that was received while this process was stopped may still save the session.
            while (message := self._stream.take()) is not None:
                self._heed(message)
            self._acknowledging.begin()
            self._session.release_dropped()
            loss = lease.loss()
            if loss is not None:
                return str(loss)
            failure = self._stream.failure()
            if failure is not None:
                self.leader_at_end = failure.leader if isinstance(failure, RpcFailure) else None
                return failure.message if isinstance(failure, RpcFailure) else str(failure)
            now = timer_now()
            if self._answer_by is not None and now >= self._answer_by:
                return "it did not answer in time"
            if now >= self._renew_at:
                self._renew()
            wake_at = self._renew_at if self._answer_by is None else min(self._renew_at, self._answer_by)
            await self._signal.wait(max(0.0, min(wake_at - timer_now(), lease.remaining(), LOOK_AGAIN)))

    def close(self) -> None:
        self._stream.cancel()

    def _renew(self) -> None:
        interval = self._session.ttl / 3
        self._renew_at = timer_now() + interval * random.uniform(0.9, 1.0)
        self._sequence += 1
        # The clock is read before the sending: in the other order the deadline would be too late.
        sent = boot_now()
        self._stream.send(wire.KeepAliveRequest(session_id=self._session.id, sequence=self._sequence))
        if len(self._unanswered) == UNANSWERED_MAX:
            self._unanswered.popitem(last=False)
        self._unanswered[self._sequence] = sent
        if self._answer_by is None:
            self._answer_by = timer_now() + self._answer_limit()

    def _answer_limit(self) -> float:
        """The interval and this limit leave time for three more nodes."""
        return min(self._session.ttl / 6, ANSWER_LIMIT_MAX)

    def _heed(self, message: Any) -> None:
        if message.session_id != self._session.id:
            return
        what = message.WhichOneof("what")
        lease = self._session.lease
        if what == "renewed":
            if message.renewed.members:
                self._session.caller.nodes.note_members(message.renewed.members)
            self._acknowledge(message.renewed.sequence, message.renewed.ttl_ms / 1000)
        elif what == "revoked":
            revoked = message.revoked
            lease.revoked(revoked.token, revoked.reason, revoked.remaining_ms / 1000)
            log.warning("session %s: token %d was revoked: %s", self._session.id, revoked.token, revoked.reason)
        elif what == "ended":
            lease.end(Loss(_ENDS.get(message.ended.why, LossReason.UNKNOWN)))

    def _acknowledge(self, sequence: int, ttl: float) -> None:
        sent = self._unanswered.get(sequence)
        if sent is None:
            return
        self.is_answered = True
        # Earlier revocations came before this answer, on the same stream.
        self._session.lease.renewed(sent, ttl)
        for earlier in [known for known in self._unanswered if known <= sequence]:
            del self._unanswered[earlier]
        self._answer_by = timer_now() + self._answer_limit() if self._unanswered else None
        log.debug("session %s: renewed, %.3f s left", self._session.id, self._session.lease.remaining())


class _Acknowledging:
    """Releases grants that are over by force, one after the other, so that the cluster drops its record of them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_running = False

    def begin(self) -> None:
        if self._is_running:
            return
        token = self._session.lease.next_to_acknowledge()
        if token is not None:
            self._is_running = True
            self._session.caller.io.spawn("lockkeeper-release", lambda: self._work(token))

    async def _work(self, token: int | None) -> None:
        try:
            while token is not None:
                # Acknowledged, released by its holder meanwhile, or the session is over: in each case nothing is left to do.
                await Release(self._session, token=token).run(None)
                token = self._session.lease.next_to_acknowledge()
        finally:
            self._is_running = False
