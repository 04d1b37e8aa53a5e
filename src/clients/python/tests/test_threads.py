"""The client for threads on a real cluster."""

from __future__ import annotations

import gc
import logging
import threading
import time

import pytest
from conftest import LONG, until

import lockkeeper
import lockkeeper.testing
from lockkeeper import Loss, LossReason


def our_threads() -> list[str]:
    """Threads of the client and of gRPC. Those of others have other names."""
    return [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]


def test_a_lock_is_held_within_its_body_and_free_after_it(client: lockkeeper.Client) -> None:
    with client.lock("jobs/nightly", wait=30, data=b"here") as lock:
        seen = client.get("jobs/nightly")
        assert (seen.holders[0].token, seen.data, seen.mode) == (lock.token, b"here", "exclusive")
        assert client.check("jobs/nightly", lock.token).held
        assert 5 < lock.remaining <= 9.9
        assert lock.ensure(1) > 1
        lock.raise_if_lost()
        lock.update(b"half", keep_data=True)
    assert not client.get("jobs/nightly").is_held
    assert client.get("jobs/nightly").data == b"half"
    assert (lock.remaining, lock.loss) == (0.0, Loss(LossReason.RELEASED))
    with client.lock("jobs/nightly") as next_one:
        assert next_one.token > lock.token


def test_what_is_not_acquired_names_the_holder_and_the_queue(client: lockkeeper.Client) -> None:
    with client.lock("a") as lock:
        with pytest.raises(lockkeeper.NotAcquired) as busy, client.lock("a", wait=0):
            pytest.fail("it is held")
        assert (busy.value.name, busy.value.waited, busy.value.queue_length) == ("a", False, 0)
        assert busy.value.holder is not None
        assert busy.value.holder.token == lock.token
        began = time.monotonic()
        with pytest.raises(lockkeeper.NotAcquired) as late, client.lock("a", wait=0.3):
            pytest.fail("it is held")
        assert late.value.waited
        assert time.monotonic() - began >= 0.3
        assert client.get("a").queue_length == 0


def test_a_waiter_is_granted_when_the_lock_is_free(client: lockkeeper.Client) -> None:
    got: list[int] = []

    def wait() -> None:
        with client.lock("a", wait=None) as lock:
            got.append(lock.token)

    with client.lock("a") as lock:
        thread = threading.Thread(target=wait)
        thread.start()
        until("it waits", lambda: client.get("a").queue_length == 1)
        assert got == []
    thread.join(LONG)
    assert got[0] > lock.token


def test_sharers_permits_and_several_names(client: lockkeeper.Client) -> None:
    with client.lock("s", shared=True) as one, client.lock("s", shared=True, wait=0) as two:
        assert not one.is_exclusive
        assert client.get("s").holder_count == 2
        with pytest.raises(lockkeeper.NotAcquired):
            client.lock("s", wait=0).acquire()
        assert two.token > one.token
    with client.lock("p", permits=2), client.lock("p", permits=2, wait=0):
        assert client.get("p").permits == 2
        with pytest.raises(lockkeeper.NotAcquired):
            client.lock("p", permits=2, wait=0).acquire()
        with pytest.raises(lockkeeper.Refused) as refused:
            client.lock("p", permits=3, wait=0).acquire()
        assert refused.value.reason == "MODE_MISMATCH"
    with client.lock("b", "a") as both:
        assert both.names == ("a", "b")
        assert client.get("a").holders[0].token == client.get("b").holders[0].token == both.token
        with pytest.raises(lockkeeper.InvalidArgument, match="say which one"):
            both.update(b"x")
        both.update(b"x", name="b")
        assert client.get("b").data == b"x"
    assert [lock.name for lock in client.list("") if lock.is_held] == []


@pytest.mark.parametrize("name", ["ä/ö ü", "🔒", "a\nb", "a%2Fb", "..", "/", " ", "{}", "x" * 512, "\x7f\x01"])
def test_names_may_have_odd_characters(client: lockkeeper.Client, name: str) -> None:
    with client.lock(name, wait=0) as lock:
        assert client.get(name).holders[0].token == lock.token
        assert [lock.name for lock in client.list(name)] == [name]


def test_the_decorator_formats_the_name_skips_and_passes_the_lock(client: lockkeeper.Client) -> None:
    @client.locked("jobs/{name}", skip=True, pass_lock="lock")
    def run(name: str, lock: lockkeeper.Lock | None = None) -> str:
        assert lock is not None
        assert lock.names == (f"jobs/{name}",)
        return "ran"

    assert run("nightly") == "ran"
    assert run(name="daily") == "ran"
    with client.lock("jobs/nightly"):
        assert run("nightly") is None
        assert run("daily") == "ran"

    @client.locked("jobs/{missing}")
    def wrong(name: str) -> None: ...

    with pytest.raises(lockkeeper.InvalidArgument, match="missing"):
        wrong("x")
    with pytest.raises(lockkeeper.InvalidArgument, match="no parameter 'lock'"):
        client.locked("a", pass_lock="lock")(lambda: None)


def test_an_exception_of_the_body_releases_and_is_not_replaced(client: lockkeeper.Client) -> None:
    with pytest.raises(ZeroDivisionError), client.lock("a"):
        raise ZeroDivisionError
    assert not client.get("a").is_held
    with pytest.raises(ZeroDivisionError), client.lock("a") as lock:
        client.force_release("a", "because", token=lock.token, now=True)
        raise ZeroDivisionError


def test_a_revoked_lock_is_lost_at_once_with_the_reason(client: lockkeeper.Client) -> None:
    told: list[Loss] = []
    with (
        pytest.raises(lockkeeper.Lost) as lost,
        client.lock("a", on_lost=told.append) as lock,
        client.lock("other") as other,
    ):
        forced = client.force_release("a", "maintenance at 9", token=lock.token)
        assert [one.token for one in forced] == [lock.token]
        until("it is told", lambda: told)
        assert lock.loss == Loss(LossReason.REVOKED, "maintenance at 9")
        assert lock.remaining > 0, "that is the time to stop"
        with pytest.raises(lockkeeper.Lost):
            lock.raise_if_lost()
        with pytest.raises(lockkeeper.Lost):
            lock.ensure(0.1)
        assert other.loss is None
    assert str(lost.value) == "an operator revoked the lock: maintenance at 9"
    assert told == [Loss(LossReason.REVOKED, "maintenance at 9")]
    assert not client.get("a").is_held


def test_a_release_is_made_once_and_has_one_outcome(client: lockkeeper.Client) -> None:
    told: list[Loss] = []
    lock = client.lock("a", on_lost=told.append).acquire()
    lock.release()
    lock.release()
    lock = client.lock("a").acquire()
    client.force_release("a", "because", now=True)
    until("it is told", lambda: lock.loss)
    for _ in range(2):
        with pytest.raises(lockkeeper.Lost, match="because"):
            lock.release()
    assert told == []


def test_one_that_is_dropped_is_released_in_the_background(client: lockkeeper.Client) -> None:
    client.lock("a").acquire()
    gc.collect()
    until("it is free", lambda: not client.get("a").is_held)


def test_a_session_lives_longer_than_its_ttl(short: lockkeeper.Client) -> None:
    with short.lock("a") as lock:
        end = time.monotonic() + 6
        while time.monotonic() < end:
            lock.raise_if_lost()
            time.sleep(0.05)
        assert lock.remaining > 0


def test_ensure_renews_only_if_it_must_and_says_when_the_ttl_is_too_short(short: lockkeeper.Client) -> None:
    with short.lock("a") as lock:
        assert lock.ensure(0.1) > 0.1
        until("a part of the ttl has passed", lambda: lock.remaining < 3.9)
        assert lock.ensure(2) > 2
        with pytest.raises(lockkeeper.NotEnsured, match="longer ttl"):
            lock.ensure(5)


def test_an_election_has_one_leader_and_observers_see_each(client: lockkeeper.Client) -> None:
    election = client.election("schedulers")
    with election.observe() as observer:
        assert next(observer) is None
        with election.campaign(b"one") as first:
            seen = next(observer)
            assert seen is not None
            assert (seen.epoch, seen.value) == (first.epoch, b"one")
            assert election.leader() == seen
            first.proclaim(b"uno")
            changed = next(observer)
            assert changed is not None
            assert changed.value == b"uno"
            with pytest.raises(lockkeeper.NotAcquired):
                election.campaign(b"two", wait=0).win()
        assert next(observer) is None
        second = election.campaign(b"two").win()
        assert second.epoch > first.epoch
        second.resign()


def test_a_watch_shows_the_state_and_each_change_and_ends_from_another_thread(client: lockkeeper.Client) -> None:
    with client.lock("w/a") as lock, client.watch("w/") as watch:
        state = next(watch)
        assert isinstance(state, lockkeeper.State)
        assert [(one.name, one.holders[0].token) for one in state.locks] == [("w/a", lock.token)]
        with client.lock("w/b") as other:
            kinds = []
            while ("granted", "w/b", other.token) not in kinds:
                message = next(watch)
                if isinstance(message, lockkeeper.Changes):
                    kinds += [(change.kind, change.name, change.token) for change in message.changes]
        assert watch.index > 0
        timer = threading.Timer(0.2, watch.close)
        timer.start()
        for _ in watch:
            pass
        timer.join()


def test_a_hundred_threads_share_one_session(client: lockkeeper.Client) -> None:
    inside = 0
    most = 0
    tokens: list[int] = []
    sessions: set[str] = set()

    def work() -> None:
        nonlocal inside, most
        with client.lock("hot", wait=LONG) as lock:
            inside += 1
            most = max(most, inside)
            tokens.append(lock.token)
            sessions.add(lock.session_id)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert (most, len(tokens), len(sessions)) == (1, 100, 1)
    assert tokens == sorted(tokens)


def test_closing_ends_waits_and_leaves_no_thread(
    cluster: lockkeeper.testing.Cluster, client: lockkeeper.Client
) -> None:
    until("no thread of another test", lambda: our_threads() == [])
    other = cluster.connect()
    lost: list[BaseException] = []

    def wait() -> None:
        try:
            other.lock("a", wait=None).acquire()
        except lockkeeper.Error as error:
            lost.append(error)

    with client.lock("a"):
        held = other.lock("b").acquire()
        waiting = threading.Thread(target=wait)
        waiting.start()
        until("it waits", lambda: client.get("a").queue_length == 1)
        watch = other.watch("")
        next(watch)
        other.close()
        other.close()
        waiting.join(LONG)
        assert isinstance(lost[0], lockkeeper.Lost)
        assert lost[0].loss.reason is LossReason.CLOSED
        assert held.loss == Loss(LossReason.CLOSED)
        assert (client.get("a").queue_length, client.get("b").is_held) == (0, False)
    client.close()
    until(f"no thread is left: {our_threads()}", lambda: our_threads() == [])
    for call in (lambda: other.get("a"), lambda: other.lock("a").acquire(), lambda: next(watch)):
        with pytest.raises(lockkeeper.ClientClosed):
            call()


def test_debug_logging_shows_the_life_of_a_session(
    cluster: lockkeeper.testing.Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "lockkeeper")
    with cluster.connect(ttl=6) as client, client.lock("a"):
        until("it is renewed", lambda: "renewed" in caplog.text)
    with cluster.connect(token="not-to-be-seen") as client, pytest.raises(lockkeeper.Refused) as refused:
        client.get("a")
    assert refused.value.reason == "UNAUTHENTICATED"
    assert "not-to-be-seen" not in str(refused.value)
    for word in ("opened, ttl 6.000 s", "granted a, token", "renewed", "released token", "closed"):
        assert word in caplog.text
    assert "not-to-be-seen" not in caplog.text


def test_a_cluster_that_is_not_there_is_said_so() -> None:
    with lockkeeper.connect("127.0.0.1:1", call_limit=0.5) as client:
        with pytest.raises(lockkeeper.NoCluster, match=r"127\.0\.0\.1:1: .*refused.*try again later"):
            client.get("a")
        with pytest.raises(lockkeeper.NoCluster):
            client.lock("a", wait=0).acquire()
        with pytest.raises(lockkeeper.NoCluster):
            next(client.watch(""))
