"""Where the cluster is, what to show to it and whom to trust: from arguments, from the environment, or from a profile, in this order.

The same as of the command line, `lockkeeper`: `LOCKKEEPER_ENDPOINTS`, `LOCKKEEPER_CA`, `LOCKKEEPER_CERT`, `LOCKKEEPER_KEY`,
`LOCKKEEPER_BEARER_TOKEN`, `LOCKKEEPER_BEARER_TOKEN_FILE`; `LOCKKEEPER_PROFILE`, or else `~/.config/lockkeeper/profile.toml`. What belongs
together comes from one place.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .._io import Tls
from ..errors import InvalidArgument
from .acquiring import LABEL_BYTES_MAX, Seconds, checked_text, checked_ttl, seconds
from .certificate_files import CertificateFiles
from .token_file import TokenFile, is_token

DEFAULT_ENDPOINTS = "127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103"

LIMIT_MAX = 24 * 3600.0

_KEYS = frozenset({"endpoints", "ca", "cert", "key", "bearer_token_file"})


@dataclass(frozen=True)
class Settings:
    """What a client is made with."""

    endpoints: str
    # Returns the certificates of this moment.
    certificates: Callable[[], Tls] | None
    # Returns the token of this moment. Shown nowhere.
    bearer: Callable[[], str] | None = field(repr=False)
    ttl: float
    label: str
    call_limit: float
    attempt_limit: float

    @classmethod
    def read(
        cls,
        endpoints: str | None,
        ca: str | os.PathLike[str] | None,
        cert: str | os.PathLike[str] | None,
        key: str | os.PathLike[str] | None,
        token: str | None,
        ttl: Seconds,
        label: str | None,
        call_limit: Seconds,
        attempt_limit: Seconds,
        environment: Mapping[str, str] | None = None,
    ) -> Settings:
        env = os.environ if environment is None else environment
        profile = _read_profile(env)
        named = endpoints or env.get("LOCKKEEPER_ENDPOINTS") or profile.get("endpoints") or DEFAULT_ENDPOINTS
        return cls(
            endpoints=named,
            certificates=_certificates(ca, cert, key, env, profile),
            bearer=_bearer(token, env, profile),
            ttl=checked_ttl(ttl),
            label=default_label() if label is None else checked_text("label", label, LABEL_BYTES_MAX),
            call_limit=_limit("call_limit", call_limit),
            attempt_limit=_limit("attempt_limit", attempt_limit),
        )

    @property
    def tls(self) -> Tls | None:
        """The certificates of this moment."""
        return None if self.certificates is None else self.certificates()

    @property
    def token(self) -> str | None:
        """The bearer token of this moment."""
        return None if self.bearer is None else self.bearer()


def default_label() -> str:
    """`host process-id program`, cut to what a label may have."""
    program = Path(sys.argv[0] if sys.argv and sys.argv[0] else sys.executable or "python").name
    label = f"{socket.gethostname()} {os.getpid()} {program}"
    return label.encode(errors="replace")[:LABEL_BYTES_MAX].decode(errors="ignore")


def _limit(name: str, value: Seconds) -> float:
    number = seconds(name, value, LIMIT_MAX)
    if number == 0:
        raise InvalidArgument(f"{name} is 0: no call could be answered; give seconds")
    return number


def _certificates(
    ca: str | os.PathLike[str] | None,
    cert: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
    env: Mapping[str, str],
    profile: Mapping[str, str],
) -> Callable[[], Tls] | None:
    ca = ca or env.get("LOCKKEEPER_CA") or profile.get("ca")
    if not cert and not key:
        cert, key = env.get("LOCKKEEPER_CERT"), env.get("LOCKKEEPER_KEY")
    if not cert and not key:
        cert, key = profile.get("cert"), profile.get("key")
    if bool(cert) != bool(key):
        raise InvalidArgument(
            "a certificate needs its key, and a key its certificate: give cert and key (LOCKKEEPER_CERT, LOCKKEEPER_KEY)"
        )
    if not ca:
        if cert:
            raise InvalidArgument("cert needs ca (LOCKKEEPER_CA): without it there is no TLS to show a certificate in")
        return None
    paths = tuple(os.fspath(path) for path in (ca, cert, key) if path)
    given = Tls(*(_read_file(path) for path in paths))
    # What comes through a pipe comes once.
    return CertificateFiles(paths, given) if all(Path(path).is_file() for path in paths) else lambda: given


def _bearer(token: str | None, env: Mapping[str, str], profile: Mapping[str, str]) -> Callable[[], str] | None:
    file = None
    if token is None:
        file = env.get("LOCKKEEPER_BEARER_TOKEN_FILE")
        if not file and "LOCKKEEPER_BEARER_TOKEN" in env:
            token = env["LOCKKEEPER_BEARER_TOKEN"]
        elif file := file or profile.get("bearer_token_file"):
            token = _read_file(file).decode(errors="replace").strip()
    if token is None:
        return None
    if not is_token(token):
        why = "the bearer token is empty, or has a blank or a character that is not printable ASCII: give it as it was made"
        raise InvalidArgument(why)
    given = token
    # What comes through a pipe comes once.
    return TokenFile(file, given) if file and Path(file).is_file() else lambda: given


def _read_file(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error


def _read_profile(env: Mapping[str, str]) -> dict[str, str]:
    named = env.get("LOCKKEEPER_PROFILE")
    if named:
        file = Path(named)
    else:
        folder = env.get("XDG_CONFIG_HOME") or (str(Path(env["HOME"]) / ".config") if env.get("HOME") else None)
        if folder is None:
            return {}
        file = Path(folder) / "lockkeeper/profile.toml"
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        if not named:
            return {}
        raise InvalidArgument(f"the profile {file} cannot be used: it does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the profile {file} cannot be used: {error}") from error
    try:
        profile = _parse_profile(text)
    except ValueError as error:
        raise InvalidArgument(f"the profile {file} cannot be used: {error}") from error
    return {name: value if name == "endpoints" else str(file.parent / value) for name, value in profile.items()}


_LINE = re.compile(r"""\s*(?:(?P<key>[A-Za-z_]+)\s*=\s*(?:"(?P<basic>[^"\\]*)"|'(?P<literal>[^']*)')\s*)?(?:\#.*)?""")


def _parse_profile(text: str) -> dict[str, str]:
    """A profile is a table of texts. Python 3.10 has no parser of TOML; there a line is `key = "text"`, without escapes."""
    profile: dict[str, str] = {}
    if sys.version_info >= (3, 11):
        import tomllib

        values = tomllib.loads(text)
    else:
        values = _parse_lines(text)
    for name, value in values.items():
        if name not in _KEYS:
            raise ValueError(f"{name!r} is no setting; the settings are {', '.join(sorted(_KEYS))}")
        if not isinstance(value, str):
            raise ValueError(f"{name!r} is not a text")
        profile[name] = value
    return profile


def _parse_lines(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(
                f'line {number} is not of the form key = "text"; quotes and escapes in a text need Python 3.11'
            )
        if match["key"]:
            value = match["basic"] if match["basic"] is not None else match["literal"]
            if match["key"] in values:
                raise ValueError(f"line {number}: {match['key']!r} is there twice")
            values[match["key"]] = value
    return values
