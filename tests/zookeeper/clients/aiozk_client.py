"""aiozk, an asyncio client of its own. Usage: see support.py."""

import asyncio
import sys

import aiozk

from support import enter, say, until_input_ends

CLIENT, MODE, CONNECT, PATH, *FILE = sys.argv[1:]


async def connect(seconds):
    client = aiozk.ZKClient(CONNECT, session_timeout=seconds)
    await asyncio.wait_for(client.start(), 60)
    return client


async def contend_mode():
    over = until_input_ends()
    client = await connect(20)
    await client.ensure_path(PATH)
    while not over.is_set():
        try:
            async with client.recipes.Lock(PATH):
                await asyncio.to_thread(enter, FILE[0])
                say("tenure")
        except FileExistsError:
            say("overlap")
            return 1
        except Exception as error:
            say("failed", repr(error))
            await asyncio.sleep(0.2)
        await asyncio.sleep(0.005)
    return 0


async def recipe(name, work):
    try:
        await asyncio.wait_for(work, 60)
        say("ok", name)
        return 0
    except Exception as error:
        import traceback

        traceback.print_exc()
        say("FAILED", name, repr(error))
        return 1


async def refused(lock):
    try:
        await lock.acquire(timeout=0.3)
    except aiozk.exc.TimeoutError:
        return
    raise AssertionError("it is held")


async def lock(one, two):
    here, there = one.recipes.Lock(f"{PATH}/lock"), two.recipes.Lock(f"{PATH}/lock")
    await here.acquire(timeout=30)
    await refused(there)
    # Its server may be behind the other one's.
    while len(await one.get_children(f"{PATH}/lock")) != 1:
        await asyncio.sleep(0.01)
    await here.release()
    await there.acquire(timeout=30)
    await there.release()
    assert await two.get_children(f"{PATH}/lock") == []


async def shared_lock(one, two):
    here, there = one.recipes.SharedLock(f"{PATH}/shared"), two.recipes.SharedLock(f"{PATH}/shared")
    await here.reader_lock.acquire(timeout=30)
    await there.reader_lock.acquire(timeout=30)
    await there.reader_lock.release()
    await refused(there.writer_lock)
    await here.reader_lock.release()
    await there.writer_lock.acquire(timeout=30)
    await refused(here.reader_lock)
    await there.writer_lock.release()


async def election(one, two):
    led = []
    candidates = [client.recipes.LeaderElection(f"{PATH}/election") for client in (one, two)]
    for n, candidate in enumerate(candidates):
        await candidate.volunteer()
        led.append(n)
        if n == 0:
            await candidate.wait_for_leadership(timeout=30)
            assert candidate.has_leadership and not candidates[1].has_leadership
    await candidates[0].resign()
    await candidates[1].wait_for_leadership(timeout=30)
    await candidates[1].resign()


async def barriers(one, two):
    await one.recipes.Barrier(f"{PATH}/barrier").create()
    # The other one's server may be behind.
    while not await two.exists(f"{PATH}/barrier"):
        await asyncio.sleep(0.01)
    waiting = asyncio.create_task(two.recipes.Barrier(f"{PATH}/barrier").wait(timeout=30))
    await asyncio.sleep(0.2)
    assert not waiting.done(), "it stands"
    await one.recipes.Barrier(f"{PATH}/barrier").lift()
    await waiting

    async def pass_through(client):
        barrier = client.recipes.DoubleBarrier(f"{PATH}/double", 2)
        await barrier.enter(timeout=30)
        await barrier.leave(timeout=30)

    await asyncio.gather(pass_through(one), pass_through(two))


async def transaction(one, two):
    await one.create(f"{PATH}/txn", b"0")
    txn = one.begin_transaction()
    txn.check_version(f"{PATH}/txn", version=0)
    txn.create(f"{PATH}/txn/a")
    txn.set_data(f"{PATH}/txn", b"1")
    result = await txn.commit()
    assert result and result.created == {f"{PATH}/txn/a"}, result
    txn = two.begin_transaction()
    txn.create(f"{PATH}/txn/b")
    txn.check_version(f"{PATH}/txn", version=9)
    assert not await txn.commit()
    assert await two.get_children(f"{PATH}/txn") == ["a"]


async def recipes_mode():
    one, two = await connect(20), await connect(20)
    await one.ensure_path(PATH)
    failed = 0
    for work in (lock, shared_lock, election, barriers, transaction):
        failed |= await recipe(work.__name__, work(one, two))
    await one.close()
    await two.close()
    return failed


if __name__ == "__main__":
    sys.exit(asyncio.run({"contend": contend_mode, "recipes": recipes_mode}[MODE]()))
