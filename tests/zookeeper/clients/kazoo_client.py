"""kazoo, and tooz over it. Usage: see support.py."""

import sys
import threading
import time
import uuid

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import BadVersionError, LockTimeout, NodeExistsError, NoNodeError
from kazoo.recipe.barrier import Barrier, DoubleBarrier
from kazoo.recipe.cache import TreeCache
from kazoo.recipe.watchers import ChildrenWatch, DataWatch

from support import contend, eventually, say, until_input_ends

CLIENT, MODE, CONNECT, PATH, *FILE = sys.argv[1:]
HOLD_SECONDS = 4
CONTEND_SECONDS = 20


def connect(seconds, **options):
    client = KazooClient(CONNECT, timeout=seconds, connection_retry={"max_tries": -1, "max_delay": 0.5}, **options)
    client.start(60)
    return client


def run_at_once(*works):
    """Runs each in a thread, and fails if one fails."""
    failures = []

    def guard(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guard, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it ends"
    if failures:
        raise failures[0]


def catch_up(client):
    """Its server may be behind that of another client, whose work is looked at next."""
    client.sync(PATH)


class KazooLock:
    """A lock that says whether its client lost the session, in which case there is nothing to give back."""

    def __init__(self, client):
        self.lock = client.Lock(PATH, "me")
        self.acquire = self.lock.acquire

    def release(self):
        if self.lock.is_acquired:
            assert self.lock.release(), "it is given back"
        else:
            self.lock.cancel()
            # What an interrupted acquire left behind.
            for name in self.lock.client.retry(self.lock.client.get_children, PATH):
                if name.startswith(self.lock.prefix):
                    self.lock.client.retry(self.lock.client.delete, f"{PATH}/{name}")


def tooz_coordinator(name, seconds):
    from tooz import coordination

    coordinator = coordination.get_coordinator(f"kazoo://{CONNECT}?timeout={seconds}", name.encode())
    coordinator.start(start_heart=True)
    return coordinator


class ToozLock:
    def __init__(self, coordinator):
        self.lock = coordinator.get_lock(PATH.strip("/").replace("/", "-").encode())

    def acquire(self):
        assert self.lock.acquire(blocking=True)

    def release(self):
        if self.lock.acquired:
            assert self.lock.release()


def contend_mode():
    if CLIENT == "tooz":
        coordinator = tooz_coordinator(uuid.uuid4().hex, CONTEND_SECONDS)
        return contend(lambda: ToozLock(coordinator), FILE[0])
    client = connect(CONTEND_SECONDS)
    client.add_listener(lambda state: say("lost") if state == KazooState.LOST else None)
    return contend(lambda: KazooLock(client), FILE[0])


def hold_mode():
    over = until_input_ends()
    client = connect(HOLD_SECONDS)
    client.add_listener(lambda state: say(state.lower()))
    client.Lock(PATH, "holder").acquire()
    say("held", f"{client.client_id[0]:#x}")
    over.wait()
    return 0


def lock(one, two):
    ann, bob = one.Lock(f"{PATH}/lock", "ann"), two.Lock(f"{PATH}/lock", "bob")
    assert ann.acquire() and not bob.acquire(blocking=False), "one holds it"
    catch_up(one)
    assert ann.contenders() == ["ann"], ann.contenders()
    waited = []
    waiter = threading.Thread(target=lambda: waited.append(bob.acquire(timeout=30)))
    waiter.start()
    eventually("it queues", lambda: ann.contenders() == ["ann", "bob"])
    assert not waited and ann.release()
    waiter.join(60)
    assert waited == [True] and bob.release()
    catch_up(one)
    assert one.get_children(f"{PATH}/lock") == [], "nothing is left"


def lock_that_gives_up(one, two):
    ann, bob = one.Lock(f"{PATH}/given-up", "ann"), two.Lock(f"{PATH}/given-up", "bob")
    ann.acquire()
    try:
        bob.acquire(timeout=0.3)
        raise AssertionError("it is held")
    except LockTimeout:
        pass
    catch_up(one)
    left = one.get_children(f"{PATH}/given-up")
    assert len(left) == 1, f"only the holder's node is left: {left}"
    # Another thread takes the wait back.
    carl = two.Lock(f"{PATH}/given-up", "carl")
    from kazoo.exceptions import CancelledError

    refused = []

    def wait():
        try:
            carl.acquire()
        except CancelledError as error:
            refused.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually("it queues", lambda: len(one.get_children(f"{PATH}/given-up")) == 2)
    carl.cancel()
    thread.join(60)
    catch_up(one)
    assert refused and one.get_children(f"{PATH}/given-up") == left, "what is cancelled leaves nothing"
    ann.release()


def read_and_write_locks(one, two):
    path = f"{PATH}/shared"
    first, second, writer = one.ReadLock(path), two.ReadLock(path), two.WriteLock(path)
    assert first.acquire() and second.acquire(), "readers share"
    assert not writer.acquire(blocking=False), "a writer does not"
    first.release()
    second.release()
    assert writer.acquire() and not first.acquire(blocking=False), "a writer excludes readers"
    writer.release()
    catch_up(one)
    assert one.get_children(path) == []


def semaphore(one, two):
    places = [client.Semaphore(f"{PATH}/semaphore", max_leases=2) for client in (one, two, one)]
    assert places[0].acquire() and places[1].acquire() and not places[2].acquire(blocking=False), "two places"
    places[0].release()
    assert places[2].acquire(timeout=30)
    places[1].release()
    places[2].release()


def election(one, two):
    led, may_end = [], threading.Event()

    def lead(name):
        led.append(name)
        eventually("it may end", may_end.is_set)

    elections = [one.Election(f"{PATH}/election", "one"), two.Election(f"{PATH}/election", "two")]
    threads = [threading.Thread(target=elections[n].run, args=(lead, n)) for n in range(2)]
    for thread in threads:
        thread.start()
    eventually("both take part", lambda: len(elections[0].contenders()) == 2)
    eventually("one leads", lambda: led)
    assert len(led) == 1, "one alone"
    may_end.set()
    for thread in threads:
        thread.join(60)
    assert sorted(led) == [0, 1], "one after the other"


def party(one, two):
    for kind in ("Party", "ShallowParty"):
        path = f"{PATH}/{kind}"
        here, there = getattr(one, kind)(path, "ann"), getattr(two, kind)(path, "bob")
        here.join()
        there.join()
        eventually("both take part", lambda: len(here) == 2 and sorted(here) == ["ann", "bob"])
        there.leave()
        eventually("it has left", lambda: list(here) == ["ann"])
        here.leave()


def barriers(one, two):
    barrier, told = Barrier(one, f"{PATH}/barrier"), []
    barrier.create()
    catch_up(two)
    thread = threading.Thread(target=lambda: told.append(Barrier(two, f"{PATH}/barrier").wait(30)))
    thread.start()
    assert not Barrier(two, f"{PATH}/barrier").wait(0.3), "it stands"
    barrier.remove()
    thread.join(60)
    assert told == [True]
    entered = []

    def pass_through(client):
        double = DoubleBarrier(client, f"{PATH}/double", 2)
        double.enter()
        entered.append(time.monotonic())
        double.leave()

    run_at_once(lambda: pass_through(one), lambda: pass_through(two))
    assert len(entered) == 2


def queues(one, two):
    queue = one.Queue(f"{PATH}/queue")
    for n in range(20):
        queue.put(b"%d" % n, priority=100 - n % 2)
    catch_up(two)
    taken = [two.Queue(f"{PATH}/queue").get() for _ in range(20)]
    assert taken == [b"%d" % n for n in [*range(1, 20, 2), *range(0, 20, 2)]], taken
    locking = one.LockingQueue(f"{PATH}/locking")
    locking.put_all([b"a", b"b"])
    assert locking.get(30) == b"a"
    other = two.LockingQueue(f"{PATH}/locking")
    assert other.get(30) == b"b", "what another one has locked is passed over"
    assert locking.consume() and other.consume()
    catch_up(one)
    assert len(locking) == 0


def counter(one, two):
    def count(client):
        mine = client.Counter(f"{PATH}/counter")
        for _ in range(20):
            mine += 1

    run_at_once(*[lambda client=client: count(client) for client in (one, two, one, two)])
    catch_up(one)
    assert one.Counter(f"{PATH}/counter").value == 80, "no step is lost"


def leases(one, two):
    from datetime import timedelta

    assert one.NonBlockingLease(f"{PATH}/lease", timedelta(seconds=30), identifier="one")
    assert not two.NonBlockingLease(f"{PATH}/lease", timedelta(seconds=30), identifier="two")
    many = [one.MultiNonBlockingLease(2, f"{PATH}/leases", timedelta(seconds=30), identifier=f"m{n}") for n in range(3)]
    assert [bool(lease) for lease in many] == [True, True, False]


def watches(one, two):
    data, children, path = [], [], f"{PATH}/watched"
    DataWatch(one, path, lambda value, stat: data.append(value))
    two.create(path, b"1")
    eventually("created", lambda: data[-1:] == [b"1"])
    ChildrenWatch(one, path, lambda names: children.append(sorted(names)))
    for n in range(5):
        two.set(path, b"%d" % (n + 2))
        two.create(f"{path}/{n}")
    eventually("the newest", lambda: data[-1] == b"6" and children[-1:] == [list("01234")])
    two.delete(path, recursive=True)
    eventually("deleted", lambda: data[-1] is None)


def tree_cache(one, two):
    two.ensure_path(f"{PATH}/tree/a")
    cache = TreeCache(one, f"{PATH}/tree")
    cache.start()
    eventually("it is read", lambda: cache.get_children(f"{PATH}/tree") == {"a"})
    for n in range(10):
        two.create(f"{PATH}/tree/a/{n}", b"%d" % n)
    two.set(f"{PATH}/tree/a/3", b"changed")
    two.delete(f"{PATH}/tree/a/4")
    wanted = {*map(str, range(10))} - {"4"}
    eventually("it follows", lambda: cache.get_children(f"{PATH}/tree/a") == wanted)
    eventually("and data", lambda: cache.get_data(f"{PATH}/tree/a/3").data == b"changed")
    cache.close()


def partitioner(one, two):
    share_of = {"time_boundary": 1, "set": set("abcdef")}
    shares = [client.SetPartitioner(f"{PATH}/partition", identifier=name, **share_of) for name, client in (("one", one), ("two", two))]

    def shared():
        # Who was first has all of it, until it hears of the other one and gives it back.
        for share in shares:
            assert not share.failed
            if share.release:
                share.release_set()
            elif not share.acquired:
                share.wait_for_acquire(0.2)
        return all(share.acquired for share in shares) and [len(list(share)) for share in shares] == [3, 3]

    eventually("each has its part", shared)
    assert sorted([*shares[0], *shares[1]]) == list("abcdef")
    for share in shares:
        share.finish()


def transactions(one, two):
    one.create(f"{PATH}/txn", b"0")
    txn = one.transaction()
    txn.check(f"{PATH}/txn", version=0)
    txn.create(f"{PATH}/txn/a", b"")
    txn.set_data(f"{PATH}/txn", b"1")
    txn.delete(f"{PATH}/txn/a")
    results = txn.commit()
    assert results[0] is True and results[1] == f"{PATH}/txn/a" and results[2].version == 1, results
    txn = two.transaction()
    txn.create(f"{PATH}/txn/b")
    txn.check(f"{PATH}/txn", version=7)
    txn.create(f"{PATH}/txn/c")
    results = txn.commit()
    catch_up(two)
    assert isinstance(results[1], BadVersionError) and two.get_children(f"{PATH}/txn") == [], results


def operations(one, two):
    path = f"{PATH}/plain"
    name, stat = one.create(path, b"x", ephemeral=True, include_data=True)
    assert name == path and stat.ephemeralOwner == one.client_id[0]
    try:
        two.create(path)
        raise AssertionError("it exists")
    except NodeExistsError:
        pass
    one.delete(path)
    catch_up(two)
    try:
        two.get(path)
        raise AssertionError("it does not exist")
    except NoNodeError:
        pass
    assert one.server_version() >= (3, 4), one.server_version()
    pending = [one.create_async(f"{PATH}/many-", sequence=True) for _ in range(200)]
    made = [call.get(60) for call in pending]
    assert made == sorted(made) and len(set(made)) == 200, "in the order in which they were sent"


def acl(one, two):
    from kazoo.security import make_digest_acl

    owner = connect(CONTEND_SECONDS, auth_data=[("digest", "ann:secret")])
    owner.create(f"{PATH}/secret", b"x", acl=[make_digest_acl("ann", "secret", all=True)])
    assert owner.get(f"{PATH}/secret")[0] == b"x"
    from kazoo.exceptions import NoAuthError

    catch_up(two)
    for call in (two.get, lambda path: two.set(path, b"y")):
        try:
            call(f"{PATH}/secret")
            raise AssertionError("a stranger may not")
        except NoAuthError:
            pass
    owner.delete(f"{PATH}/secret")
    owner.stop()


def closed_session(one, two):
    third = connect(HOLD_SECONDS)
    path = f"{PATH}/of-third"
    third.create(path, ephemeral=True)
    seen = threading.Event()
    catch_up(two)
    assert two.exists(path, watch=lambda event: seen.set())
    third.stop()
    catch_up(one)
    assert not one.exists(path), "gone when its session is closed"
    assert seen.wait(60), "and its watcher is told"


def chroot(one, two):
    one.ensure_path(f"{PATH}/root")
    below = KazooClient(CONNECT + f"{PATH}/root", timeout=CONTEND_SECONDS)
    below.start(60)
    below.create("/in", b"y")
    catch_up(one)
    assert one.get(f"{PATH}/root/in")[0] == b"y" and below.get_children("/") == ["in"]
    below.stop()


def tooz_recipes():
    ann, bob = tooz_coordinator("ann", CONTEND_SECONDS), tooz_coordinator("bob", CONTEND_SECONDS)
    mine, other = ann.get_lock(b"l"), bob.get_lock(b"l")
    assert mine.acquire() and not other.acquire(blocking=False) and mine.release() and other.acquire() and other.release()
    say("ok lock")
    ann.create_group(b"g").get()
    ann.join_group(b"g", capabilities=b"a").get()
    bob.join_group(b"g").get()
    # Its server may be behind the other one's.
    eventually("both are members", lambda: sorted(ann.get_members(b"g").get()) == [b"ann", b"bob"])
    bob.leave_group(b"g").get()
    eventually("one has left", lambda: set(ann.get_members(b"g").get()) == {b"ann"})
    say("ok group")
    led = []
    ann.watch_elected_as_leader(b"g", lambda event: led.append(event.member_id))

    def leads():
        ann.run_watchers()
        return led

    eventually("it leads", leads)
    eventually("the other one hears of it", lambda: bob.get_leader(b"g").get() == b"ann")
    say("ok leader")
    ann.stop()
    bob.stop()
    return 0


RECIPES = [
    operations,
    lock,
    lock_that_gives_up,
    read_and_write_locks,
    semaphore,
    election,
    party,
    barriers,
    queues,
    counter,
    leases,
    watches,
    tree_cache,
    partitioner,
    transactions,
    acl,
    closed_session,
    chroot,
]


def recipes_mode():
    if CLIENT == "tooz":
        return tooz_recipes()
    one, two = connect(CONTEND_SECONDS), connect(CONTEND_SECONDS)
    one.ensure_path(PATH)
    failed = 0
    for recipe in RECIPES:
        try:
            recipe(one, two)
            say("ok", recipe.__name__)
        except Exception as error:
            failed = 1
            import traceback

            traceback.print_exc()
            say("FAILED", recipe.__name__, repr(error))
    one.stop()
    two.stop()
    return failed


if __name__ == "__main__":
    sys.exit({"contend": contend_mode, "hold": hold_mode, "recipes": recipes_mode}[MODE]())
