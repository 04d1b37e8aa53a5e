"""`fence` with a real SQLAlchemy, on SQLite."""

from __future__ import annotations

import pytest
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, create_engine, delete, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

import lockkeeper
from lockkeeper.sqlalchemy import fence, require_fenced

METADATA = MetaData()
SEATS = Table(
    "seats",
    METADATA,
    Column("name", String, primary_key=True),
    Column("buyer", Integer),
    Column("fence", BigInteger, nullable=False, default=0),
)


@pytest.fixture
def engine() -> Engine:
    engine = create_engine("sqlite://")
    METADATA.create_all(engine)
    with engine.begin() as connection:
        connection.execute(SEATS.insert().values(name="A5", fence=0))
    return engine


class Old:
    """A holder that does not know yet that its lock has passed on."""

    is_exclusive = True

    def __init__(self, token: int) -> None:
        self.token = token

    def raise_if_lost(self) -> None: ...


def sell(engine: Engine, lock: Old | lockkeeper.Lock, buyer: int) -> None:
    statement = update(SEATS).where(SEATS.c.name == "A5").values(buyer=buyer)
    with engine.begin() as connection:
        require_fenced(connection.execute(fence(statement, lock, SEATS.c.fence)))


def row(engine: Engine) -> tuple[int, int]:
    with engine.connect() as connection:
        buyer, token = connection.execute(select(SEATS.c.buyer, SEATS.c.fence)).one()
        return buyer, token


def test_a_later_holder_fences_an_earlier_one(client: lockkeeper.Client, engine: Engine) -> None:
    with client.lock("seats/A5") as lock:
        old = Old(lock.token)
        sell(engine, lock, 1)
        sell(engine, lock, 2)
        assert row(engine) == (2, lock.token)
    with client.lock("seats/A5") as lock:
        sell(engine, lock, 3)
        with pytest.raises(lockkeeper.StaleToken, match="higher token"):
            sell(engine, old, 4)
        assert row(engine) == (3, lock.token)


def test_a_lock_that_is_lost_or_not_exclusive_fences_nothing(client: lockkeeper.Client, engine: Engine) -> None:
    lock = client.lock("seats/A5").acquire()
    lock.release()
    with pytest.raises(lockkeeper.Lost):
        sell(engine, lock, 1)
    with client.lock("seats", shared=True) as shared, pytest.raises(lockkeeper.InvalidArgument, match="not ordered"):
        sell(engine, shared, 1)
    with pytest.raises(lockkeeper.InvalidArgument, match="cannot be fenced"):
        fence(delete(SEATS), Old(1), SEATS.c.fence)  # type: ignore[arg-type]


def test_a_session_of_the_orm_works_too(client: lockkeeper.Client, engine: Engine) -> None:
    with client.lock("seats/A5") as lock, Session(engine) as session:
        statement = update(SEATS).where(SEATS.c.name == "A5").values(buyer=9)
        require_fenced(session.execute(fence(statement, lock, SEATS.c.fence)))
        session.commit()
        assert row(engine) == (9, lock.token)
        with pytest.raises(lockkeeper.InvalidArgument, match="does not count rows"):
            require_fenced(session.execute(select(SEATS)).scalars())  # type: ignore[arg-type]


def test_an_update_whose_rows_were_not_counted_is_no_proof(client: lockkeeper.Client, engine: Engine) -> None:
    with client.lock("seats/A5") as lock, engine.begin() as connection:
        statement = update(SEATS).where(SEATS.c.name == "A5").values(buyer=9)
        result = connection.execute(fence(statement, lock, SEATS.c.fence))
        # As drivers answer that do not count, for statements with several sets of values.
        result.context._rowcount = -1
        with pytest.raises(lockkeeper.InvalidArgument, match="did not count"):
            require_fenced(result)
