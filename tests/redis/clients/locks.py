"""Lock clients from PyPI, and by processes in other languages: refusal, release by others, waiting, extension, a dead holder, contention. Usage: see support.py."""

import asyncio
import os
import pathlib
import subprocess
import sys
import threading
import time

from support import contend, die_holding, eventually

import redis

NAME, ENDPOINT, SECONDS = sys.argv[1], sys.argv[2], float(sys.argv[3])
HOST, PORT = ENDPOINT.rsplit(":", 1)
PORT = int(PORT)
HERE = pathlib.Path(__file__).parent


def connect():
    return redis.Redis(host=HOST, port=PORT)


class RedisPy:
    """redis-py's `Lock`; other clients have the same one."""

    threads = 2
    can_extend = True
    is_freed_at_once = False

    def __init__(self, key, ttl):
        self.ttl = ttl
        self.lock = self.make(key)

    def make(self, key):
        return connect().lock(key, timeout=self.ttl, sleep=0.01, thread_local=False)

    def acquire(self):
        return bool(self.lock.acquire(blocking=False))

    def wait(self, seconds):
        return bool(self.lock.acquire(blocking=True, blocking_timeout=seconds))

    def release(self):
        self.lock.release()
        return True

    def release_of_others(self):
        self.lock.local.token = b"another"
        try:
            self.release()
        except Exception as error:
            assert "no longer owned" in str(error), error

    def extend(self):
        return bool(self.lock.extend(self.ttl, replace_ttl=True))


class Valkey(RedisPy):
    def make(self, key):
        import valkey

        return valkey.Valkey(host=HOST, port=PORT).lock(key, timeout=self.ttl, sleep=0.01, thread_local=False)


class DjangoRedis(RedisPy):
    threads = 1

    def make(self, key):
        from django.conf import settings

        if not settings.configured:
            cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": f"redis://{ENDPOINT}/0"}
            settings.configure(CACHES={"default": cache})
        from django.core.cache import cache

        return cache.lock(key, timeout=self.ttl, sleep=0.01, thread_local=False)


class RedisAsyncio(RedisPy):
    threads = 1

    def make(self, key):
        import redis.asyncio

        self.loop = asyncio.new_event_loop()
        client = redis.asyncio.Redis(host=HOST, port=PORT)
        return client.lock(key, timeout=self.ttl, sleep=0.01, thread_local=False)

    def acquire(self):
        return bool(self.loop.run_until_complete(self.lock.acquire(blocking=False)))

    def wait(self, seconds):
        return bool(self.loop.run_until_complete(self.lock.acquire(blocking=True, blocking_timeout=seconds)))

    def release(self):
        self.loop.run_until_complete(self.lock.release())
        return True

    def extend(self):
        return bool(self.loop.run_until_complete(self.lock.extend(self.ttl, replace_ttl=True)))


class PythonRedisLock(RedisPy):
    threads = 1

    def make(self, key):
        import redis_lock

        return redis_lock.Lock(connect(), key, expire=self.ttl)

    def wait(self, seconds):
        return self.lock.acquire(timeout=min(seconds, self.ttl))

    def release_of_others(self):
        import redis_lock

        try:
            self.release()
        except redis_lock.NotAcquired:
            return
        raise AssertionError("it has released another's")

    def extend(self):
        self.lock.extend(self.ttl)
        return True


class RedlockPy(RedisPy):
    threads = 1
    can_extend = False
    wait = None
    databases = (0,)

    def make(self, key):
        from redlock import Redlock

        self.key, self.held = key, None
        return Redlock([{"host": HOST, "port": PORT, "db": db} for db in self.databases], retry_count=1, retry_delay=0.01)

    def acquire(self):
        self.held = self.lock.lock(self.key, int(self.ttl * 1000)) or None
        return self.held is not None

    def release(self):
        self.lock.unlock(self.held)
        return True

    def release_of_others(self):
        from redlock import Lock

        self.lock.unlock(Lock(0, self.key, "another"))


class RedlockPyOfThree(RedlockPy):
    databases = (0, 1, 2)


class Pottery(RedisPy):
    threads = 1

    def make(self, key):
        from pottery import Redlock

        return Redlock(key=key, masters={connect()}, auto_release_time=self.ttl, num_extensions=100)

    def wait(self, seconds):
        return self.lock.acquire(blocking=True, timeout=seconds)

    def release_of_others(self):
        from pottery import ReleaseUnlockedLock

        try:
            self.release()
        except ReleaseUnlockedLock:
            return
        raise AssertionError("it has released another's")

    def extend(self):
        self.lock.extend()
        return True


class Walrus(RedisPy):
    threads = 1
    can_extend = False

    def make(self, key):
        from walrus import Database

        return Database(host=HOST, port=PORT).lock(key, ttl=int(self.ttl * 1000))

    def acquire(self):
        return bool(self.lock.acquire(block=False))

    def wait(self, seconds):
        return bool(self.lock.acquire(block=True))

    def release(self):
        return bool(self.lock.release())

    def release_of_others(self):
        assert not self.release(), "it has released another's"


class Tooz(RedisPy):
    threads = 1

    def make(self, key):
        from tooz import coordination

        self.coordinator = coordination.get_coordinator(f"redis://{ENDPOINT}?lock_timeout={int(self.ttl)}", f"{id(self)}".encode())
        self.coordinator.start()
        return self.coordinator.get_lock(key.encode())

    def wait(self, seconds):
        return bool(self.lock.acquire(blocking=True, timeout=seconds))

    def release(self):
        return self.lock.release()

    def release_of_others(self):
        assert not self.release(), "it has released another's"

    def extend(self):
        return self.lock.heartbeat()


class Portalocker(RedisPy):
    """A lock without keys: who has subscribed to a channel holds it, for as long as the connection lives."""

    threads = 1
    can_extend = False
    is_freed_at_once = True

    def make(self, key):
        from portalocker.redis import RedisLock

        return RedisLock(key, connection=connect(), check_interval=0.02)

    def attempt(self, **options):
        from portalocker.exceptions import LockException

        try:
            self.lock.acquire(**options)
        except LockException:
            return False
        return True

    def acquire(self):
        return self.attempt(timeout=0, fail_when_locked=True)

    def wait(self, seconds):
        return self.attempt(timeout=seconds, fail_when_locked=False)

    def release_of_others(self):
        self.release()


class PyRedisSemaphore(RedisPy):
    threads = 1

    def make(self, key):
        from redis_semaphore import Semaphore, SemaphoreConfig

        config = SemaphoreConfig(name=key, limit=1, lock_timeout=self.ttl, acquire_timeout=20)
        return Semaphore(connect(), config)

    def acquire(self):
        return bool(self.lock.acquire(blocking=False).success)

    def wait(self, seconds):
        return bool(self.lock.acquire(blocking=True).success)

    def release(self):
        return self.lock.release()

    def release_of_others(self):
        assert not self.release(), "it has released another's"

    def extend(self):
        return self.lock.refresh()


class SymfonyLock(RedisPy):
    """A client in another language: a process that is told what to do by lines."""

    threads = 1
    wait = None
    program = ("php", "-d", "error_reporting=0", "locks.php")

    def make(self, key):
        pipe = subprocess.PIPE
        return subprocess.Popen([*self.program, HOST, str(PORT), key, str(self.ttl)], stdin=pipe, stdout=pipe, text=True, cwd=HERE)

    def tell(self, what):
        self.lock.stdin.write(f"{what}\n")
        self.lock.stdin.flush()
        answer = self.lock.stdout.readline().strip()
        if answer not in ("0", "1"):
            raise RuntimeError(answer)
        return answer == "1"

    def acquire(self):
        return self.tell("acquire")

    def release(self):
        return self.tell("release")

    def release_of_others(self):
        self.tell("others")

    def extend(self):
        return self.tell("extend")


class RedisRb(SymfonyLock):
    program = ("ruby", "locks.rb")


class Redigo(SymfonyLock):
    program = (os.environ.get("REDIS_LOCKS_GO", ""),)


class RedisRs(SymfonyLock):
    program = (os.environ.get("REDIS_LOCKS_RUST", ""),)


class WithoutALock:
    """Two of them must be seen to overlap."""

    threads = 1

    def __init__(self, key, ttl):
        pass

    def wait(self, seconds):
        return True

    def release(self):
        return True


CLIENTS = {
    "without-a-lock": WithoutALock,
    "symfony-lock": SymfonyLock,
    "redis-rb": RedisRb,
    "redigo": Redigo,
    "redis-rs": RedisRs,
    "redis-py": RedisPy,
    "redis-py-asyncio": RedisAsyncio,
    "valkey": Valkey,
    "django-redis": DjangoRedis,
    "python-redis-lock": PythonRedisLock,
    "redlock-py": RedlockPy,
    "redlock-py-of-three": RedlockPyOfThree,
    "pottery": Pottery,
    "walrus": Walrus,
    "tooz": Tooz,
    "portalocker": Portalocker,
    "py-redis-semaphore": PyRedisSemaphore,
}
CLIENT = CLIENTS[NAME]


def key(name):
    return f"{NAME}-{name}"


def contender(process, place):
    # Longer than any election here.
    ttl = 15

    def work():
        lock = CLIENT(key("contended"), ttl)
        while not place.over.is_set():
            asked = time.monotonic()
            try:
                held = lock.wait(5) if lock.wait else lock.acquire()
            except Exception as error:
                # A leader dies meanwhile.
                print(f"{NAME}: acquire: {error!r}", file=sys.stderr)
                place.failed.value += 1
                time.sleep(0.1)
                continue
            if not held:
                time.sleep(0.02)
                continue
            # What a wait has cost is no part of the lease, but a wait is no longer than 5 s.
            if time.monotonic() - asked > ttl * 0.8:
                place.late.value += 1
            else:
                with place.enter(process):
                    pass
            try:
                lock.release()
            except Exception as error:
                print(f"{NAME}: release: {error!r}", file=sys.stderr)
                place.failed.value += 1
                lock = CLIENT(key("contended"), ttl)
            # The other one's turn: some clients have no order.
            time.sleep(0.01)

    failures = []

    def guarded():
        try:
            work()
        except BaseException as error:
            failures.append(error)
            print(f"{NAME}: {error!r}", file=sys.stderr)

    threads = [threading.Thread(target=guarded) for _ in range(CLIENT.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # By its end the main process sees it.
    sys.exit(1 if failures else 0)


def refuses():
    ann, bob = CLIENT(key("held"), 30), CLIENT(key("held"), 30)
    assert ann.acquire() and not bob.acquire(), "one holds it"
    bob.release_of_others()
    bob = CLIENT(key("held"), 30)
    assert not bob.acquire(), "who does not hold it does not release it"
    if not bob.wait:
        ann.release()
        assert bob.acquire(), "it is free"
        bob.release()
        print("refused while it is held; not released by others; free when released")
        return
    bob, waited = CLIENT(key("held"), 30), []

    def waiter():
        waited.append((bob.wait(20), time.monotonic()))

    thread = threading.Thread(target=waiter)
    thread.start()
    time.sleep(0.5)
    assert not waited, "it waits"
    ann.release()
    released = time.monotonic()
    thread.join(60)
    assert waited and waited[0][0], "the waiter has it"
    print(f"refused while it is held; not released by others; who waits had it {(waited[0][1] - released) * 1000:.0f} ms after the release")
    bob.release()


def extends():
    ttl = 3
    ann, bob = CLIENT(key("extended"), ttl), CLIENT(key("extended"), ttl)
    assert ann.acquire()
    until = time.monotonic() + ttl * 1.5
    while time.monotonic() < until:
        time.sleep(0.5)
        assert ann.extend() and not bob.acquire(), "it is extended"
    ann.release()
    assert bob.acquire(), "it is free"
    bob.release()
    print(f"extended beyond its {ttl} s")


def ends_with_its_holder():
    ttl = 2
    asked, died = die_holding(lambda: CLIENT(key("dead"), ttl).acquire())
    bob = CLIENT(key("dead"), ttl)
    eventually("it is free", bob.acquire)
    now = time.monotonic()
    if not CLIENT.is_freed_at_once:
        assert now - asked >= ttl, f"it lives for {ttl} s, and was free after {now - asked}"
    print(f"dead holder of {ttl} s: free {now - asked:.2f} s after it had asked, {now - died:.2f} s after its death")
    bob.release()


if __name__ == "__main__":
    contend(contender, SECONDS)
    refuses()
    if CLIENT.can_extend:
        extends()
    ends_with_its_holder()
