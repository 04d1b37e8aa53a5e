"""Writes that check the token, with SQLAlchemy 2.

The resource remembers the highest token that it has seen, in a column beside what the lock protects, and refuses a lower one. So a holder
that was paused within a write, and whose lock has passed on, cannot undo the work of the next one.

    with client.lock("seats/A5") as lock, engine.begin() as connection:
        result = connection.execute(fence(update(seats).where(seats.c.name == "A5").values(buyer=17), lock, seats.c.fence))
        require_fenced(result)

The column is a `BigInteger`, not null, 0 at first. It is for locks that are held exclusively: tokens of sharers and of permits are not
ordered.
"""

from __future__ import annotations

from typing import Any, Protocol

from sqlalchemy import ColumnElement, CursorResult, Delete, Result, Update

from .errors import InvalidArgument, StaleToken

__all__ = ["Fencing", "fence", "require_fenced"]


class Fencing(Protocol):
    """A lock of either client."""

    @property
    def token(self) -> int:
        """Its fencing token."""
        ...

    @property
    def is_exclusive(self) -> bool:
        """Whether nobody else holds it."""
        ...

    def raise_if_lost(self) -> None:
        """Raises `Lost` if it is lost."""
        ...


def fence(statement: Update, lock: Fencing, column: ColumnElement[int]) -> Update:
    """The update, which changes nothing where the column has a higher token than the lock's, and writes the token there.

    Fails with `Lost` if the lock is lost by now, and with `InvalidArgument` if it is not exclusive. Give the result to `require_fenced`.

    >>> with client.lock("seats/A5") as lock:
    ...     print(fence(update(seats).where(seats.c.name == "A5").values(buyer=17), lock, seats.c.fence))
    UPDATE seats SET buyer=:buyer, fence=:fence WHERE seats.name = :name_1 AND seats.fence <= :fence_1
    """
    if isinstance(statement, Delete) or not isinstance(statement, Update):
        kind = type(statement).__name__
        raise InvalidArgument(
            f"{kind} cannot be fenced: only an update keeps the token in its row; mark a row as deleted instead"
        )
    if not lock.is_exclusive:
        raise InvalidArgument(
            "the lock is shared or a permit, and such tokens are not ordered: fence with an exclusive lock"
        )
    lock.raise_if_lost()
    return statement.where(column <= lock.token).values({column: lock.token})


def require_fenced(result: Result[Any]) -> None:
    """Raises `StaleToken` if a fenced update changed no row: a holder with a higher token was here, or there is no such row.

    >>> with client.lock("seats/A5") as lock, engine.begin() as connection:
    ...     sell = update(seats).where(seats.c.name == "A5").values(buyer=17)
    ...     require_fenced(connection.execute(fence(sell, lock, seats.c.fence)))
    """
    if not isinstance(result, CursorResult):
        raise InvalidArgument(f"{type(result).__name__} does not count rows: give the result of the fenced update")
    if result.rowcount < 0:
        raise InvalidArgument(
            "the driver did not count the changed rows: send the fenced update as a statement of its own"
        )
    if result.rowcount == 0:
        why = "no row was changed: a holder with a higher token wrote it, or it does not exist"
        raise StaleToken(f"{why}; stop, and look who holds the lock")
