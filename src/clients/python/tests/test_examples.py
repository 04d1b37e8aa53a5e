"""Runs the examples of the docstrings and of the guide, and sees that each public name has one."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import inspect
import io
import sys
import time
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, create_engine, update

import lockkeeper
import lockkeeper.aio
import lockkeeper.errors
import lockkeeper.sqlalchemy
import lockkeeper.testing
from lockkeeper.sqlalchemy import fence, require_fenced

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
GUIDE = Path(__file__).parent.parent / "docs/guide.md"

# Data, described field by field, and iterators whose class has the example.
WITHOUT_EXAMPLE = {"names", "is_exclusive", "session_id", "place_lost", "index", "win", "lock", "epoch"}


def members(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """The public functions and classes of a module, and the methods and properties of the classes."""
    for name in module.__all__:
        thing = getattr(module, name)
        if not (inspect.isclass(thing) or inspect.isfunction(thing)):
            continue
        yield f"{module.__name__}.{name}", thing
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            for attribute, value in vars(thing).items():
                if not attribute.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                    yield f"{module.__name__}.{name}.{attribute}", value


MODULES = (lockkeeper, lockkeeper.aio, lockkeeper.errors, lockkeeper.sqlalchemy, lockkeeper.testing)
EVERY = {name: thing for module in MODULES for name, thing in members(module)}
PARSER = doctest.DocTestParser()


def documented(name: str) -> list[doctest.Example]:
    doc = inspect.getdoc(EVERY[name]) or ""
    return PARSER.get_examples(doc)


def sections() -> dict[str, list[doctest.Example]]:
    """The examples of each section of the guide. In one section they go on from each other, except after an error."""
    parts: dict[str, list[doctest.Example]] = {}
    for section in GUIDE.read_text().split("\n## ")[1:]:
        title = section.splitlines()[0]
        for number, block in enumerate(section.split("```python\n")[1:]):
            parts[f"{title} {number}"] = PARSER.get_examples(block.split("```")[0])
    return parts


def run(cluster: lockkeeper.testing.Cluster, name: str, examples: list[doctest.Example], is_async: bool) -> None:
    metadata = MetaData()
    columns = (Column("name", String, primary_key=True), Column("buyer", Integer), Column("fence", BigInteger))
    seats = Table("seats", metadata, *columns)
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(seats.insert().values(name="A5", fence=0))
    names: dict[str, Any] = {
        "asyncio": asyncio,
        "engine": engine,
        "fence": fence,
        "lockkeeper": lockkeeper,
        "require_fenced": require_fenced,
        "seats": seats,
        "time": time,
        "update": update,
    }

    async def all_of_them() -> None:
        with cluster.connect() as operator, contextlib.ExitStack() as stack:
            names["operator"] = operator
            client: Any
            client = lockkeeper.aio.connect() if is_async else stack.enter_context(lockkeeper.connect(label="example"))
            names["client"] = client
            for number, example in enumerate(examples):
                got = await outcome(example, names, f"<{name} {number}>")
                if example.exc_msg is not None:
                    wanted = example.exc_msg
                    got = got.splitlines()[-1] + "\n" if got else got
                else:
                    wanted = example.want
                matches = doctest.OutputChecker().check_output(wanted, got, FLAGS)
                assert matches, f"{name}: {example.source}is to print\n{wanted}but printed\n{got}"
            if is_async:
                await client.close()

    asyncio.run(all_of_them())
    with cluster.connect() as client:
        left = [lock.name for lock in client.list() if lock.data is not None]
        for lock in left:
            with client.lock(lock) as again:
                again.update(None)
    engine.dispose()


async def outcome(example: doctest.Example, names: dict[str, Any], place: str) -> str:
    """What an example prints, or the last line of its traceback."""
    code = compile(example.source, place, "single", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    printed = io.StringIO()
    display = sys.displayhook
    sys.displayhook = lambda value: None if value is None else print(repr(value))
    try:
        with contextlib.redirect_stdout(printed):
            waits = eval(code, names)
            if inspect.isawaitable(waits):
                await waits
    except Exception as error:
        return printed.getvalue() + "".join(traceback.format_exception_only(type(error), error))
    finally:
        sys.displayhook = display
    return printed.getvalue()


@pytest.fixture(autouse=True)
def environment(cluster: lockkeeper.testing.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKKEEPER_ENDPOINTS", cluster.endpoints)


@pytest.mark.parametrize("name", [name for name in EVERY if documented(name)])
def test_the_example_of(name: str, cluster: lockkeeper.testing.Cluster) -> None:
    run(cluster, name, documented(name), name.startswith("lockkeeper.aio"))


@pytest.mark.parametrize("name", list(sections()))
def test_the_guides(name: str, cluster: lockkeeper.testing.Cluster) -> None:
    run(cluster, name, sections()[name], name.startswith("asyncio"))


def test_each_public_name_is_documented_and_has_an_example() -> None:
    guide = GUIDE.read_text()
    for name, thing in EVERY.items():
        assert inspect.getdoc(thing), f"{name} has no docstring"
        whole, last = name.rsplit(".", 1)
        of_class = inspect.getdoc(EVERY[whole]) or "" if whole in EVERY else ""
        # Fields of data and errors are used in the guide; short properties in the example of their class.
        is_shown = bool(documented(name)) or last in guide or last in of_class or last in WITHOUT_EXAMPLE
        assert is_shown, f"{name} has no example"


def test_both_clients_have_the_same_names() -> None:
    def public(module: types.ModuleType, name: str) -> set[str]:
        return {attribute for attribute in vars(getattr(module, name)) if not attribute.startswith("_")}

    for name in lockkeeper.aio.__all__:
        if name != "connect":
            here, there = public(lockkeeper, name), public(lockkeeper.aio, name)
            assert here <= there, name
            assert there - here <= {"lost"}, name
