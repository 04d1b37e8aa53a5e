"""What a failed attempt says: whether the request may have taken effect, and whether another attempt may succeed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import Error, Loss, LossReason, Lost, Refused
from . import wire

DOMAIN = "lockkeeper.v1"
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"

# Of the transport, or of a proxy between client and node: another attempt may succeed.
_AGAIN = frozenset({"UNAVAILABLE", "UNKNOWN", "CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "INTERNAL"})

# By the identity, its rights and its limits, or by the cluster as a whole.
_FROM_OUTSIDE = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_OWNER", "LIMIT_REACHED", "CLUSTER_VERSION"})

# For a cause that seldom goes away before the limit of a call.
_NOT_NOW = frozenset({"DISK_SPACE_LOW"})


@dataclass(eq=False)
class RpcFailure(Exception):
    """A call to one node failed, as the transport tells it."""

    code: str
    """The name of the gRPC code."""
    message: str
    details: bytes = b""
    """`google.rpc.Status`, if the node sent it."""
    leader: str | None = None
    never_sent: bool = False
    """There was no connection to send it on."""


@dataclass(eq=False)
class Again(Exception):
    """Another attempt may succeed."""

    unknown: bool
    """The request may have taken effect."""
    node_answers: bool
    """The node answered: there is no leader, or it is busy."""
    why: str


@dataclass(eq=False)
class NotNow(Exception):
    """Not executed, for a cause that seldom goes away before the limit of a call."""

    refused: Refused


def timed_out() -> RpcFailure:
    return RpcFailure("DEADLINE_EXCEEDED", "it did not answer in time")


def leader_moved() -> Again:
    return Again(unknown=True, node_answers=True, why="another node leads now")


def judge(failure: RpcFailure) -> Again | NotNow | Error:
    """What to make of the failure of an attempt."""
    info = _error_info(failure.details)
    if info is None:
        return _without_details(failure)
    details = dict(info.metadata)
    retry = details.pop("retry", "no")
    if retry == "safe" and info.reason not in _NOT_NOW:
        return Again(unknown=False, node_answers=True, why=failure.message)
    if retry == "same-id":
        return Again(unknown=True, node_answers=True, why=failure.message)
    if info.reason == "REVOKED":
        return Lost(Loss(LossReason.REVOKED, details.get("revoked_reason", "")))
    refused = Refused(info.reason, failure.message, details)
    return NotNow(refused) if retry == "safe" else refused


def is_from_outside(refused: Refused) -> bool:
    """Whether a node may refuse a request so before it looks for an earlier copy of it. Such a refusal does not say that the earlier copy
    had no effect."""
    # The table looks first whether it remembers the request, and then for a place for its reply.
    if refused.details.get("limit") == "replies_per_session":
        return False
    return refused.reason in _FROM_OUTSIDE


def loss_from(refused: Refused) -> Loss | None:
    """The loss of the session that a refusal implies."""
    reason = {
        "SESSION_UNKNOWN": LossReason.UNKNOWN,
        "SESSION_EXPIRED": LossReason.EXPIRED,
        "SESSION_CLOSED": LossReason.CLOSED,
    }.get(refused.reason)
    return None if reason is None else Loss(reason)


def _without_details(failure: RpcFailure) -> Again | Error:
    if failure.code in _AGAIN:
        return Again(unknown=not failure.never_sent, node_answers=False, why=_explained(failure.message))
    return Refused("", f"{failure.message} ({failure.code})")


def _explained(message: str) -> str:
    """The transport's words, with what to do where they do not say it."""
    if "CERTIFICATE_VERIFY_FAILED" in message:
        return f"{message}; the node's certificate is not vouched for by the authorities that this client trusts: check ca (LOCKKEEPER_CA)"
    if "WRONG_VERSION_NUMBER" in message:
        return f"{message}; the node speaks no TLS: leave out ca (LOCKKEEPER_CA), or turn TLS on at the node"
    return message


def _error_info(details: bytes) -> Any:
    if not details:
        return None
    from google.protobuf.message import DecodeError

    try:
        status = wire.Status.FromString(details)
        found = [wire.ErrorInfo.FromString(detail.value) for detail in status.details if detail.type_url == ERROR_INFO]
    except DecodeError:
        # A proxy may have written something else there.
        return None
    return next((info for info in found if info.domain == DOMAIN), None)
