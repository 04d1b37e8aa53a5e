"""Watches: the present state of the locks under a prefix, then each change, across the loss of a node and a change of leader.

A watch goes on after the highest index that it knows in full. An observer of an election is a watch that keeps the state of one lock.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..errors import ClientClosed, Error, NoCluster
from ..views import Change, Changes, Leader, State, WatchMessage, leader_from_lock, watched_from_wire
from . import wire
from .acquiring import NAME_BYTES_MAX, checked_name, checked_text
from .backoff import Backoff
from .clock import timer_now
from .failures import Again, NotNow, RpcFailure, judge
from .methods import WATCH

if TYPE_CHECKING:
    from .._io import Stream
    from .client import ClientCore

log = logging.getLogger("lockkeeper")

SILENCE_MAX = 10.0
"""Longest silence of an open stream, seconds: a node sends its progress every second."""


class WatchCore:
    """The messages of one watch, in turn."""

    def __init__(self, client: ClientCore, prefix: str, after: int) -> None:
        self._client = client
        self._prefix = checked_text("prefix", prefix, NAME_BYTES_MAX)
        self.index = after
        self._signal = client.io.signal()
        self._stream: Stream | None = None
        self._node = ""
        self._heard_at = 0.0
        self._is_silent = True
        self._failing_since: float | None = None
        self._failures = 0
        self._backoff = Backoff()
        self.is_closed = False

    async def next(self) -> WatchMessage | None:
        """The next message; `None`: the watch was closed. After an error the next call tries again."""
        while not self.is_closed:
            if self._client.is_closed:
                raise ClientClosed("the client was closed: make another one with connect()")
            stream = self._stream or self._open()
            wire_message = stream.take()
            if wire_message is not None:
                self._note(wire_message)
                message = watched_from_wire(wire_message)
                if message is not None:
                    return message
                continue
            failure = stream.failure()
            silent_for = timer_now() - self._heard_at
            # A node that has not said a word is given up sooner: the next one may be alive.
            limit = self._client.settings.attempt_limit if self._is_silent else SILENCE_MAX
            if failure is None and silent_for < limit:
                await self._signal.wait(limit - silent_for)
                continue
            await self._go_on_elsewhere(failure)
        return None

    def close(self) -> None:
        """Ends the watch, from any thread."""
        self.is_closed = True
        if self._stream is not None:
            self._stream.cancel()
        self._signal.set()

    def _open(self) -> Stream:
        caller = self._client.caller
        self._node = caller.nodes.preferred()
        self._heard_at = timer_now()
        self._is_silent = True
        # The API's watch takes one request; a stream of one message is the same on the wire.
        stream = caller.io.stream(self._node, WATCH, self._signal, caller.nodes.note_leader)
        stream.send(wire.WatchRequest(prefix=self._prefix, after_index=self.index))
        stream.finish()
        self._stream = stream
        return stream

    async def _go_on_elsewhere(self, failure: Exception | None) -> None:
        """Pauses where all nodes had their turn. Fails with a refusal, or when no node has answered within the limit of a call."""
        assert self._stream is not None
        self._stream.cancel()
        self._stream = None
        nodes = self._client.caller.nodes
        why = "it was silent"
        if failure is not None:
            judged = judge(failure) if isinstance(failure, RpcFailure) else failure
            if isinstance(judged, Error):
                raise judged
            why = (
                judged.why
                if isinstance(judged, Again)
                else str(judged.refused if isinstance(judged, NotNow) else judged)
            )
        log.debug("the watch of %r at %s broke off after index %d: %s", self._prefix, self._node, self.index, why)
        # In this order: an error may name the node itself as the leader, which does not answer.
        nodes.note_leader(failure.leader if isinstance(failure, RpcFailure) else None)
        nodes.pass_over(self._node)
        now = timer_now()
        if self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since >= self._client.settings.call_limit:
            self._failing_since = None
            raise NoCluster(f"{self._node}: {why}")
        self._failures += 1
        if self._failures % nodes.count() == 0:
            await self._client.caller.pause(self._backoff.next(), None)

    def _note(self, message: Any) -> None:
        """Where to go on. In the middle of a state there is no such index."""
        self._heard_at = timer_now()
        self._is_silent = False
        self._failing_since = None
        self._failures = 0
        self._backoff = Backoff()
        what = message.WhichOneof("what")
        if what == "state":
            self.index = message.state.index if message.state.last else 0
        elif what == "changes" and not message.changes.more:
            self.index = message.changes.index
        elif what == "progress":
            self.index = message.progress.index
        elif what == "too_old":
            self.index = 0


class ObserverCore:
    """The present leader of an election, then each change."""

    def __init__(self, client: ClientCore, name: str) -> None:
        self._client = client
        self._name = checked_name(name)
        self._watch = WatchCore(client, name, 0)
        self._holder: Leader | None = None
        self._data: bytes | None = None
        self._epoch_max = 0
        self._is_changed = False
        self._told: Leader | None = None
        self._has_told = False

    async def next(self) -> tuple[Leader | None] | None:
        """The leader, or nobody, each time that this changes; `None`: the observer was closed."""
        while True:
            try:
                message = await self._watch.next()
            except Error:
                # Begins with the state again, so the leader is told anew.
                self._watch = WatchCore(self._client, self._name, 0)
                self._has_told = False
                raise
            if message is None:
                return None
            if not self._hear(message):
                continue
            self._is_changed = False
            leader = self._leader()
            epoch = self._epoch_max if leader is None else leader.epoch
            # Nodes do not go back behind what they told. If one did, nothing is told until it has caught up.
            if epoch < self._epoch_max or (self._has_told and leader == self._told):
                continue
            self._epoch_max = epoch
            self._told = leader
            self._has_told = True
            return (leader,)

    def close(self) -> None:
        self._watch.close()

    def _leader(self) -> Leader | None:
        holder = self._holder
        return None if holder is None else Leader(holder.epoch, self._data or b"", holder.label, holder.session_id)

    def _hear(self, message: WatchMessage) -> bool:
        """Whether there is news of the lock after this message."""
        if isinstance(message, State):
            if message.first:
                # Sorted by name: the lock is the first of all names that begin with its own, or absent.
                lock = next((lock for lock in message.locks[:1] if lock.name == self._name), None)
                self._data = None if lock is None else lock.data
                self._holder = None if lock is None else leader_from_lock(lock)
                self._is_changed = False
            return message.first
        if isinstance(message, Changes):
            ours = [change for change in message.changes if change.name == self._name]
            for change in ours:
                self._apply(change)
            self._is_changed = self._is_changed or bool(ours)
            # A grant and its value may stand in two parts of one entry: only what is so after the last part is told.
            return self._is_changed and not message.more
        return False

    def _apply(self, change: Change) -> None:
        if change.kind == "granted" and change.mode == "exclusive" and change.token and change.session_id:
            self._holder = Leader(change.token, b"", change.label or "", change.session_id)
        elif change.kind in ("released", "lost"):
            if self._holder is not None and self._holder.epoch == change.token:
                self._holder = None
        elif change.kind == "data":
            self._data = change.data
