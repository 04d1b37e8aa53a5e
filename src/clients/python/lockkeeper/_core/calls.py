"""One request, repeated where that is safe, until it is answered or its limit has passed.

Attempts go to the leader if it is known, otherwise to the nodes in turn; the leader that an answer names gets the next attempt at once.
After a node that does not answer the next one is asked without a pause, until all had their turn. A refusal by the cluster is never
repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import NoCluster, OutcomeUnknown, Refused
from .backoff import Backoff
from .clock import timer_now
from .failures import Again, NotNow, RpcFailure, is_from_outside, judge, leader_moved, timed_out
from .lease import Lease
from .methods import Method
from .nodes import Nodes

if TYPE_CHECKING:
    from .._io import Io, Reply

LEADER_SETTLES = 0.100
"""In a waiting call, the shortest time between two changes of leader: while two nodes disagree on it, the call must not alternate between
them."""


@dataclass(frozen=True)
class RetryPolicy:
    """How a request is repeated. Times are seconds."""

    limit: float | None
    """Of the whole call. `None`: as long as the session lives."""
    attempt_limit: float | None
    """Of one attempt. `None`: the call may wait at the node; only a broken connection or a change of leader ends the attempt."""
    repeats_unknown: bool = True
    """Also when the outcome of an attempt is unknown: the request is idempotent or has a request id."""
    reads: bool = False
    """It only reads, so an unknown outcome does not matter."""


class Caller:
    """What all calls of a client share."""

    def __init__(self, io: Io, nodes: Nodes, call_limit: float, attempt_limit: float) -> None:
        self.io = io
        self.nodes = nodes
        self.call_limit = call_limit
        self.policy = RetryPolicy(call_limit, attempt_limit)
        self.read_policy = replace(self.policy, reads=True)
        self.once_policy = RetryPolicy(call_limit, call_limit, repeats_unknown=False)

    async def call(
        self, policy: RetryPolicy, method: Method, request: Callable[[], Any], lease: Lease | None = None
    ) -> Any:
        """Sends what `request` makes, anew for each attempt, until a node answers; with a lease, until that is lost."""
        until = None if policy.limit is None else timer_now() + policy.limit
        progress = _Progress()
        said: str | None = None
        while True:
            if lease is not None:
                lease.raise_if_lost()
            node = self.nodes.preferred()
            try:
                return await self._attempt(node, policy, until, method, request(), lease)
            except Refused as refused:
                # An earlier attempt may have taken effect, and another one would be answered the same.
                if progress.unknown and is_from_outside(refused):
                    raise OutcomeUnknown(f"{node}: {refused}") from None
                raise
            except NotNow as failure:
                # An earlier attempt may have taken effect: then this answer does not say that nothing happened.
                if not progress.unknown:
                    raise failure.refused from None
                why = f"{node}: {failure.refused}"
                progress.note(False, True, self.nodes.is_led_by_other_than(node))
            except Again as failure:
                why = f"{node}: {failure.why}"
                unknown = failure.unknown and not policy.reads
                progress.note(unknown, failure.node_answers, self.nodes.is_led_by_other_than(node))
            if lease is not None:
                lease.raise_if_lost()
            if progress.unknown and not policy.repeats_unknown:
                raise OutcomeUnknown(why)

            # An attempt that the limit cut short says less than the one before it.
            if said is not None and until is not None and timer_now() >= until:
                why = said
            pause = progress.pause(self.nodes.count())
            if until is not None and timer_now() + pause >= until:
                raise OutcomeUnknown(why) if progress.unknown else NoCluster(why)
            said = why
            await self.pause(pause, lease)

    async def pause(self, seconds: float, lease: Lease | None) -> None:
        """Waits, or until the session is lost."""
        if seconds <= 0:
            return
        signal = self.io.signal()
        with ExitStack() as listening:
            if lease is not None:
                listening.enter_context(lease.listening(signal.set))
            if lease is None or not lease.is_ended:
                await signal.wait(seconds)

    async def _attempt(
        self, node: str, policy: RetryPolicy, until: float | None, method: Method, request: Any, lease: Lease | None
    ) -> Any:
        try:
            if policy.attempt_limit is None:
                reply = await self._waiting(node, until, method, request, lease)
            else:
                reply = await self._short(node, policy.attempt_limit, until, method, request, lease)
        except RpcFailure as failure:
            judged = judge(failure)
            if isinstance(judged, Again):
                self.nodes.pass_over(node)
            self.nodes.note_leader(failure.leader)
            raise judged from None
        self.nodes.note_leader(reply.leader)
        return reply.message

    async def _short(
        self, node: str, limit: float, until: float | None, method: Method, request: Any, lease: Lease | None
    ) -> Reply:
        timeout = limit
        if until is not None:
            timeout = min(timeout, until - timer_now())
        if lease is not None:
            timeout = min(timeout, lease.remaining())
        # A call without time would fail before it is sent; its outcome would be unknown all the same.
        timeout = max(timeout, 0.001)
        try:
            return await self.io.call(node, method, request, timeout)
        except RpcFailure as failure:
            if failure.code != "UNIMPLEMENTED" or method.former is None:
                raise
        return await self.io.call(node, method.former, request, timeout)

    async def _waiting(
        self, node: str, until: float | None, method: Method, request: Any, lease: Lease | None
    ) -> Reply:
        signal = self.io.signal()
        with ExitStack() as listening:
            listening.enter_context(self.nodes.listening(signal.set))
            if lease is not None:
                listening.enter_context(lease.listening(signal.set))
            pending = self.io.start(node, method, request, signal)
            settled_at = timer_now() + LEADER_SETTLES
            try:
                while not pending.is_done():
                    # The task that renews notices the deadline and sets the signal: this wait needs no timer of its own.
                    if lease is not None:
                        lease.raise_if_lost()
                    now = timer_now()
                    if until is not None and now >= until:
                        raise timed_out()
                    wake_at = until
                    if self.nodes.is_led_by_other_than(node):
                        if now >= settled_at:
                            raise leader_moved()
                        wake_at = settled_at if until is None else min(settled_at, until)
                    await signal.wait(None if wake_at is None else wake_at - now)
                return await pending.reply()
            finally:
                pending.cancel()


class _Progress:
    """The state of a call after its attempts so far."""

    def __init__(self) -> None:
        self.unknown = False
        self._passed_over = 0
        self._leader_named = False
        self._followed = False
        self._backoff = Backoff()

    def note(self, unknown: bool, node_answers: bool, leader_named: bool) -> None:
        self.unknown = self.unknown or unknown
        self._leader_named = leader_named
        if not node_answers:
            self._passed_over += 1

    def pause(self, nodes: int) -> float:
        """None after a node that did not answer or that named the leader, but only so often in a row."""
        if self._leader_named and not self._followed:
            self._followed = True
            return 0.0
        if 1 <= self._passed_over < nodes:
            return 0.0
        self._passed_over = 0
        self._followed = False
        return self._backoff.next()
