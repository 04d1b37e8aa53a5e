"""The calls of the API by their paths, with their messages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from . import wire


@dataclass(frozen=True, slots=True)
class Method:
    """A call of the API."""

    path: str
    request: str
    response: str
    former: Method | None = None
    """Its former name, for a node of the version before, which knows it by that alone."""

    def serialize(self, message: Any) -> bytes:
        encoded: bytes = message.SerializeToString()
        return encoded

    @property
    def parse(self) -> Any:
        return _parser(self.response)


@cache
def _parser(response: str) -> Any:
    return getattr(wire, response).FromString


def _sessions(name: str, messages: str, former: Method | None = None) -> Method:
    return Method(f"/lockkeeper.v1.Sessions/{name}", f"{messages}Request", f"{messages}Response", former)


def _locks(name: str) -> Method:
    return Method(f"/lockkeeper.v1.Locks/{name}", f"{name}Request", f"{name}Response")


OPEN = _sessions("Open", "OpenSession")
RENEW = _sessions("Renew", "RenewSession")
KEEP_ALIVE = _sessions("KeepAlive", "KeepAlive")
CLOSE = _sessions("CloseSession", "CloseSession", former=_sessions("Close", "CloseSession"))
ACQUIRE = _locks("Acquire")
RELEASE = _locks("Release")
UPDATE = _locks("Update")
CHECK = _locks("Check")
GET = _locks("Get")
LIST = _locks("List")
WATCH = _locks("Watch")
FORCE_RELEASE = _locks("ForceRelease")
