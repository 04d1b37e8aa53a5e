"""The client for asyncio on a real cluster."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from conftest import LONG

import lockkeeper
import lockkeeper.aio
import lockkeeper.testing
from lockkeeper import Loss, LossReason

Body = Callable[[lockkeeper.aio.Client], Coroutine[Any, Any, None]]


def with_client(cluster: lockkeeper.testing.Cluster, body: Body, **options: Any) -> None:
    """Runs the body in a loop of its own, and sees that no task is left."""

    async def main() -> None:
        async with lockkeeper.aio.connect(cluster.endpoints, **options) as client:
            await asyncio.wait_for(body(client), LONG)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main(), debug=False)


async def until(what: str, condition: Callable[[], Awaitable[object]]) -> None:
    end = time.monotonic() + LONG
    while not await condition():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.005)


async def is_free(client: lockkeeper.aio.Client, name: str) -> bool:
    seen = await client.get(name)
    return not seen.is_held and seen.queue_length == 0


def test_a_lock_is_held_within_its_body_and_free_after_it(cluster: lockkeeper.testing.Cluster) -> None:
    async def body(client: lockkeeper.aio.Client) -> None:
        async with client.lock("a", wait=30, data=b"here") as lock:
            seen = await client.get("a")
            assert (seen.holders[0].token, seen.data) == (lock.token, b"here")
            assert (await client.check("a", lock.token)).held
            assert await lock.ensure(1) > 1
            with pytest.raises(lockkeeper.NotAcquired):
                await client.lock("a", wait=0).acquire()
            await lock.update(b"half")
            assert [one.name async for one in client.list("a")] == ["a"]
        assert await is_free(client, "a")
        assert lock.loss == Loss(LossReason.RELEASED)

    with_client(cluster, body)


def test_a_loss_cancels_the_body_with_lost(cluster: lockkeeper.testing.Cluster) -> None:
    told: list[Loss] = []

    async def body(client: lockkeeper.aio.Client) -> None:
        began = time.monotonic()
        with pytest.raises(lockkeeper.Lost, match="maintenance at 9"):
            async with client.lock("a", on_lost=told.append) as lock:
                await client.force_release("a", "maintenance at 9", token=lock.token)
                await asyncio.Event().wait()
        assert time.monotonic() - began < LONG / 2, "by the loss, and not by the limit of the test"
        assert told == [Loss(LossReason.REVOKED, "maintenance at 9")]
        # The task goes on as if it had never been cancelled.
        await asyncio.sleep(0)
        assert await is_free(client, "a")
        # A body that ends before the cancellation reaches it hears of the loss all the same.
        with pytest.raises(lockkeeper.Lost):
            async with client.lock("a") as lock:
                await client.force_release("a", "again", token=lock.token)
                while lock.loss is None:
                    time.sleep(0.01)  # noqa: ASYNC251
                    await asyncio.sleep(0)

    with_client(cluster, body)


def test_a_loss_of_the_outer_lock_passes_the_inner_one(cluster: lockkeeper.testing.Cluster) -> None:
    async def body(client: lockkeeper.aio.Client) -> None:
        with pytest.raises(lockkeeper.Lost, match="outer"):
            async with client.lock("outer"), client.lock("inner"):
                await client.force_release("outer", "outer")
                await asyncio.Event().wait()
        assert await is_free(client, "inner")
        with pytest.raises(lockkeeper.Lost, match="inner"):
            async with client.lock("outer") as outer, client.lock("inner"):
                await client.force_release("inner", "inner")
                await asyncio.Event().wait()
        assert outer.loss == Loss(LossReason.RELEASED)

    with_client(cluster, body)


def test_a_cancellation_by_others_is_not_taken_for_a_loss(cluster: lockkeeper.testing.Cluster) -> None:
    async def body(client: lockkeeper.aio.Client) -> None:
        entered = asyncio.Event()

        async def work() -> None:
            async with client.lock("a"):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until("it is free", lambda: is_free(client, "a"))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(work(), 0.2)
        await until("it is free", lambda: is_free(client, "a"))
        with pytest.raises(ZeroDivisionError):
            async with client.lock("a"):
                raise ZeroDivisionError
        assert await is_free(client, "a")

    with_client(cluster, body)


def test_an_acquire_that_is_cancelled_in_flight_leaves_no_grant_and_no_wait(
    cluster: lockkeeper.testing.Cluster,
) -> None:
    async def body(client: lockkeeper.aio.Client) -> None:
        await client.lock("warm", wait=0).acquire()
        granted = 0
        for turn in range(60):
            wait = (0, 5.0, None)[turn % 3]
            task = asyncio.create_task(client.lock("a", wait=wait).acquire())
            await asyncio.sleep(turn * 0.0003)
            task.cancel()
            try:
                lock = await task
            except asyncio.CancelledError:
                continue
            except lockkeeper.NotAcquired:
                continue
            granted += 1
            await lock.release()
        await until("nothing is left", lambda: is_free(client, "a"))
        async with client.lock("a") as held:
            waits = [asyncio.create_task(client.lock("a").acquire()) for _ in range(20)]
            await until("all wait", lambda: queued(client, "a", 20))
            for wait_task in waits:
                wait_task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            await until("nobody waits", lambda: queued(client, "a", 0))
            assert held.loss is None

    with_client(cluster, body)


async def queued(client: lockkeeper.aio.Client, name: str, length: int) -> bool:
    return (await client.get(name)).queue_length == length


def test_a_client_that_closes_ends_waits_and_bodies(cluster: lockkeeper.testing.Cluster) -> None:
    async def body(client: lockkeeper.aio.Client) -> None:
        other = lockkeeper.aio.connect(cluster.endpoints)
        entered = asyncio.Event()

        async def work() -> None:
            async with other.lock("b"):
                entered.set()
                await asyncio.Event().wait()

        async with client.lock("a"):
            waiting = asyncio.create_task(other.lock("a").acquire())
            working = asyncio.create_task(work())
            await entered.wait()
            await until("it waits", lambda: queued(client, "a", 1))
            await other.close()
            for task in (waiting, working):
                with pytest.raises(lockkeeper.Lost, match="closed"):
                    await task
        assert await is_free(client, "b")
        with pytest.raises(lockkeeper.ClientClosed):
            await other.get("a")

    with_client(cluster, body)


def test_a_loop_that_was_blocked_past_the_deadline_finds_the_lock_lost(cluster: lockkeeper.testing.Cluster) -> None:
    async def body(client: lockkeeper.aio.Client) -> None:
        with pytest.raises(lockkeeper.Lost, match="before the deadline"):
            async with client.lock("a") as lock:
                time.sleep(2.2)  # noqa: ASYNC251
                # The very next line: no task of ours has run.
                assert lock.remaining == 0.0
                assert lock.loss == Loss(LossReason.OUT_OF_CONTACT)
                await asyncio.Event().wait()
        async with client.lock("a") as again:
            assert again.session_id != lock.session_id

    with_client(cluster, body, ttl=2.0)


def test_the_decorator_elections_and_watches(cluster: lockkeeper.testing.Cluster) -> None:
    async def body(client: lockkeeper.aio.Client) -> None:
        @client.locked("jobs/{name}", skip=True, pass_lock="lock")
        async def run(name: str, lock: lockkeeper.aio.Lock | None = None) -> int:
            assert lock is not None
            return lock.token

        assert await run("nightly") > 0
        async with client.lock("jobs/nightly"):
            assert await run("nightly") is None
        with pytest.raises(lockkeeper.InvalidArgument, match="no coroutine"):
            client.locked("a")(lambda: None)  # type: ignore[arg-type, return-value]
        election = client.election("schedulers")
        async with election.observe() as observer:
            assert await anext(observer) is None
            async with election.campaign(b"one") as leadership:
                seen = await anext(observer)
                assert seen == await election.leader()
                assert seen is not None
                assert seen.epoch == leadership.epoch
                await leadership.proclaim(b"uno")
                changed = await anext(observer)
                assert changed is not None
                assert changed.value == b"uno"
        async with client.lock("w/a"), client.watch("w/") as watch:
            state = await anext(watch)
            assert isinstance(state, lockkeeper.State)
            assert [one.name for one in state.locks] == ["w/a"]

    with_client(cluster, body)


def test_a_hundred_tasks_share_one_session_and_no_thread_is_ours(cluster: lockkeeper.testing.Cluster) -> None:
    async def body(client: lockkeeper.aio.Client) -> None:
        inside = 0
        sessions: set[str] = set()
        tokens: list[int] = []

        async def work() -> None:
            nonlocal inside
            async with client.lock("hot") as lock:
                assert inside == 0
                inside += 1
                sessions.add(lock.session_id)
                tokens.append(lock.token)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(*(work() for _ in range(100)))
        assert (len(sessions), tokens) == (1, sorted(tokens))
        assert len(tokens) == 100
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("lockkeeper")] == []

    with_client(cluster, body)


def test_a_client_belongs_to_one_loop(cluster: lockkeeper.testing.Cluster) -> None:
    client = lockkeeper.aio.connect(cluster.endpoints)
    asyncio.run(use_and_keep(client))

    async def elsewhere() -> None:
        with pytest.raises(lockkeeper.InvalidArgument, match="another event loop"):
            await client.get("a")

    asyncio.run(elsewhere())


async def use_and_keep(client: lockkeeper.aio.Client) -> None:
    await client.get("a")
