"""Locks with fencing tokens: the client of Lockkeeper, a replicated lock service.

    import lockkeeper

    with lockkeeper.connect() as client:
        with client.lock("jobs/nightly", wait=30) as lock:
            write_report(fence=lock.token)

`lockkeeper.aio` has the same names for asyncio, `lockkeeper.testing` a cluster for tests, `lockkeeper.sqlalchemy` writes that check the
token.

Importing this package connects to nothing, starts no thread, and does not import gRPC.
"""

from ._client import Client, Election, Leadership, Lock, LockRequest, Observer, Watch, connect
from .errors import (
    ClientClosed,
    Error,
    InvalidArgument,
    Loss,
    LossReason,
    Lost,
    Malformed,
    NoCluster,
    NotAcquired,
    NotEnsured,
    OutcomeUnknown,
    Refused,
    StaleToken,
)
from .views import (
    Change,
    Changes,
    Check,
    Forced,
    Holder,
    Leader,
    LockInfo,
    Progress,
    State,
    TooOld,
    Waiter,
    WatchMessage,
)

__all__ = [
    "Change",
    "Changes",
    "Check",
    "Client",
    "ClientClosed",
    "Election",
    "Error",
    "Forced",
    "Holder",
    "InvalidArgument",
    "Leader",
    "Leadership",
    "Lock",
    "LockInfo",
    "LockRequest",
    "Loss",
    "LossReason",
    "Lost",
    "Malformed",
    "NoCluster",
    "NotAcquired",
    "NotEnsured",
    "Observer",
    "OutcomeUnknown",
    "Progress",
    "Refused",
    "StaleToken",
    "State",
    "TooOld",
    "Waiter",
    "Watch",
    "WatchMessage",
    "connect",
]
