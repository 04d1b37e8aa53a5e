"""Clients for `lockkeeper chaos run --program`: redis-py's `Lock`, a semaphore of one in a sorted set, and registers; judged with the run.

A tenure begins with the command that took the lock, and lasts as long as its time to live or its last extension. redis-py sends a command
again by itself, and does not say when it sent it last: what took longer than most of the lease is given back, and is no tenure. The token
is that of the lock (`GET lockkeeper:token:KEY`). The semaphore is a script that drops who is late by the time of the leader, counts, and
adds; with it, it writes a string that has a token. A register is set by a script if it has the expected value, or by WATCH, MULTI and EXEC,
and read.
"""

import contextlib
import itertools
import os
import random
import sys
import time

sys.path.append(os.path.join(os.path.dirname(__file__), "../../dynamodb/clients"))

import redis
from chaos_history import HISTORY, OVER, finish, present, speaks, until_over
from redis.exceptions import LockError, LockNotOwnedError, RedisError, WatchError
from redis.lock import Lock

ENDPOINTS = os.environ["LOCKKEEPER_REDIS_ENDPOINTS"].split(",")
ERRORS = (RedisError, OSError)
LEASE = 2.0
HOLDERS, SEMAPHORES, SETTERS = 3, 3, 4
# Operations of all setters after which they use the next register: a search for an order takes 200.
KEY_LIFE = 100
OPERATIONS = itertools.count()

ENTER = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)
if redis.call('ZCARD', KEYS[1]) > 0 then return false end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
-- A string that was absent, or had another value, has a token of its own.
redis.call('GET', KEYS[1] .. ':last')
redis.call('SET', KEYS[1] .. ':last', ARGV[1], 'PX', ARGV[2])
return 1
"""
SET = "if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('set', KEYS[1], ARGV[2]) return 1 else return 0 end"


def connect(endpoint):
    host, port = endpoint.rsplit(":", 1)
    return redis.Redis(host=host, port=int(port), decode_responses=True)


class NotedLock(Lock):
    """redis-py's lock, which says when it asked for the lock last."""

    def do_acquire(self, token):
        self.sent = HISTORY.now()
        return super().do_acquire(token)


def is_late(sent):
    return HISTORY.now() - sent > LEASE * 0.8e9


def taken(process, session, sent, lock, token):
    HISTORY.add(process, "invoke", "open", sent, session=session, ttl_ms=int(LEASE * 1000))
    HISTORY.add(process, "ok", "open", sent)
    HISTORY.add(process, "invoke", "acquire", sent, lock=lock, session=session)
    HISTORY.add(process, "ok", "acquire", lock=lock, token=token)


def given_back(process, session, token, give_back):
    """Gives a lock back by `give_back`, which says whether it was still its holder's."""
    HISTORY.add(process, "invoke", "release", session=session, token=token)
    try:
        is_own = give_back()
    except ERRORS as error:
        HISTORY.add(process, "info", "release", reason=type(error).__name__)
        raise
    if is_own:
        HISTORY.add(process, "ok", "release")
    else:
        # Or it was, and the client sent this again by itself after the answer was lost.
        HISTORY.add(process, "info", "release", reason="not held any more")


def holder(number):
    process, tenures = f"redis-lock-{number}", itertools.count()
    speaks(process, "redis")

    def work(endpoint):
        client = connect(endpoint)
        while not OVER.is_set():
            key = random.choice("ab")
            lock = NotedLock(client, key, timeout=LEASE, sleep=0.02, blocking_timeout=5)
            if not lock.acquire():
                continue
            # Its time may be over by now; then the token is another one's, or there is none.
            value, token = client.pipeline().get(key).get(f"lockkeeper:token:{key}").execute()
            if is_late(lock.sent) or value != lock.local.token.decode():
                with contextlib.suppress(LockNotOwnedError):
                    lock.release()
                continue
            session, token = f"{process}/{next(tenures)}", int(token)
            taken(process, session, lock.sent, f"redis/0/{key}", token)

            def give_back():
                try:
                    lock.release()
                except LockNotOwnedError:
                    return False
                return True

            for _ in range(random.randrange(3)):
                time.sleep(random.choice((0.0, 0.01, 0.05, LEASE * 0.4)))
                sent = HISTORY.now()
                try:
                    lock.extend(LEASE, replace_ttl=True)
                except LockError:
                    HISTORY.add(process, "info", "lost", session=session, why="expired")
                    break
                HISTORY.add(process, "info", "renewed", session=session, sent_ns=sent)
            given_back(process, session, token, give_back)

    return until_over(ENDPOINTS, ERRORS, work)


def semaphore(number):
    process, tenures = f"redis-semaphore-{number}", itertools.count()
    speaks(process, "redis")

    def work(endpoint):
        client = connect(endpoint)
        enter = client.register_script(ENTER)
        while not OVER.is_set():
            key, session = random.choice(("sa", "sb")), f"{process}/{next(tenures)}"
            sent = HISTORY.now()
            if enter(keys=[key], args=[session, int(LEASE * 1000)]) is None:
                time.sleep(random.random() * 0.05)
                continue
            value, token = client.pipeline().get(f"{key}:last").get(f"lockkeeper:token:{key}:last").execute()
            if is_late(sent) or value != session:
                client.zrem(key, session)
                continue
            token = int(token)
            taken(process, session, sent, f"redis/0/{key}", token)
            time.sleep(random.choice((0.0, 0.01, 0.05, LEASE * 0.4)))
            given_back(process, session, token, lambda: client.zrem(key, session) == 1)

    return until_over(ENDPOINTS, ERRORS, work)


def setter(number):
    process = f"redis-key-{number}"

    def change(client, name, before, after, by_script):
        """Sets a register if it has the expected value."""
        if before is None:
            return client.set(name, after, nx=True)
        if by_script:
            return client.eval(SET, 1, name, before, after)
        with client.pipeline() as pipeline:
            pipeline.watch(name)
            if pipeline.get(name) != str(before):
                return False
            pipeline.multi()
            pipeline.set(name, after)
            try:
                pipeline.execute()
            except WatchError:
                return False
        return True

    def work(endpoint):
        # A command that is sent again by itself says nothing of its first effect.
        host, port = endpoint.rsplit(":", 1)
        client = redis.Redis(host=host, port=int(port), decode_responses=True, retry=None)
        known = {}
        while not OVER.is_set():
            name = f"r{next(OPERATIONS) // KEY_LIFE}"
            register = f"redis/0/{name}"
            if random.random() < 0.4:
                HISTORY.add(process, "invoke", "read", lock=register)
                try:
                    value = client.get(name)
                except ERRORS as error:
                    HISTORY.add(process, "fail", "read", reason=type(error).__name__)
                    raise
                known[name] = None if value is None else int(value)
                HISTORY.add(process, "ok", "read", **present(value=known[name]))
            else:
                before = known.get(name)
                # Always another value: a write of the same one fails those that WATCH the key, and is no change for the checker.
                after = ((before or 0) + random.randrange(1, 1000)) % 1000
                HISTORY.add(process, "invoke", "set", lock=register, **present(**{"from": before}, to=after))
                try:
                    is_set = change(client, name, before, after, random.random() < 0.5)
                except ERRORS as error:
                    # Whether it took effect is not known, and it may still.
                    HISTORY.add(process, "info", "set", reason=type(error).__name__)
                    raise
                if is_set:
                    HISTORY.add(process, "ok", "set")
                    known[name] = after
                else:
                    HISTORY.add(process, "fail", "set", reason="not_equal")
                    known.pop(name, None)
            time.sleep(random.random() * 0.05)

    return until_over(ENDPOINTS, ERRORS, work)


def main():
    threads = [holder(number) for number in range(HOLDERS)]
    threads += [semaphore(number) for number in range(SEMAPHORES)]
    threads += [setter(number) for number in range(SETTERS)]
    finish(threads)


if __name__ == "__main__":
    main()
