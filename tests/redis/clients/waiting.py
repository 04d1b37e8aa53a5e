"""Clients that wait at several nodes while leaders die: the order of blocking pops, channels, and Sentinels. See run.py."""

import os
import pathlib
import subprocess
import sys
import threading
import time
import traceback

from cluster import leader, wait_for

import redis
import redis.sentinel

HERE = pathlib.Path(__file__).parent


def connect(node, **options):
    host, port = node.endpoint.rsplit(":", 1)
    return redis.Redis(host=host, port=int(port), **options)


class Waiter:
    """Waits at a node for an item."""

    def __init__(self, name, node):
        self.name, self.item, self.at = name, None, 0.0
        self.thread = threading.Thread(target=self.wait, args=(node,))
        self.thread.start()

    def wait(self, node):
        client = connect(node, socket_timeout=90)
        self.item = client.blpop(["line"], timeout=60)
        self.at = time.monotonic()


def served_in_order_of_arrival(cluster):
    leads = leader(cluster)
    others = [node for node in cluster if node is not leads]
    waiters = []
    # At two followers in turn, each after the one before it has arrived.
    for name, node in zip("abcd", others * 2):
        waiters.append(Waiter(name, node))
        time.sleep(0.7)
    assert all(waiter.item is None for waiter in waiters), "they wait"
    leads.kill()
    leader(others)
    pusher = connect(others[0])
    items = [b"1", b"2", b"3", b"4"]
    for item in items:
        wait_for("the push is acknowledged", lambda: push(pusher, item))
        wait_for(f"item {item} is had", lambda: any(waiter.item == (b"line", item) for waiter in waiters))
    for waiter in waiters:
        waiter.thread.join(60)
    had = {waiter.name: waiter.item[1] for waiter in waiters}
    leads.restart()
    assert [had[name] for name in "abcd"] == items, had
    print("       BLPOP at two nodes, the leader killed while four wait: served in the order of arrival", flush=True)


def push(client, item):
    try:
        return client.rpush("line", item)
    except redis.BusyLoadingError:
        return 0


def channels_span_the_nodes(cluster):
    subscribers = [connect(node).pubsub() for node in cluster]
    for subscriber in subscribers:
        subscriber.subscribe("news")
        confirmed = subscriber.get_message(timeout=30)
        assert confirmed["type"] == "subscribe", confirmed
    for n, node in enumerate(cluster):
        client = connect(node)
        assert client.pubsub_numsub("news") == [(b"news", 3)], client.pubsub_numsub("news")
        assert client.publish("news", f"{n}") == 3
    for subscriber in subscribers:
        had = []
        until = time.monotonic() + 30
        while len(had) < 3 and time.monotonic() < until:
            message = subscriber.get_message(timeout=1)
            had += [message["data"]] if message else []
        assert had == [b"0", b"1", b"2"], had
        subscriber.close()
    print("       SUBSCRIBE at three nodes, PUBLISH at each: 3 receivers, 3 messages each, in order; NUMSUB 3 everywhere", flush=True)


def sentinels_find_the_node_that_leads(cluster):
    addresses = [node.endpoint.rsplit(":", 1) for node in cluster]
    sentinel = redis.sentinel.Sentinel([(host, int(port)) for host, port in addresses], socket_timeout=2)
    programs = {"redis-py": None}
    if os.environ.get("NODE_PATH"):
        programs |= {name: None for name in ("ioredis", "node-redis")}
    for name in programs:
        if name != "redis-py":
            arguments = ["node", "sentinels.cjs", name, *(node.endpoint for node in cluster)]
            pipe = subprocess.PIPE
            programs[name] = subprocess.Popen(arguments, cwd=HERE, stdin=pipe, stdout=pipe, text=True)
            assert programs[name].stdout.readline() == "1\n", f"{name}: it counts"
    client = sentinel.master_for("mymaster", socket_timeout=2)
    assert client.incr("redis-py") == 1
    for count in (2, 3):
        leads = leader(cluster)
        leads.kill()
        leader([node for node in cluster if node is not leads])
        killed = time.monotonic()
        wait_for("redis-py counts again", lambda: counts(client))
        took = [f"redis-py {time.monotonic() - killed:.1f} s"]
        for name, program in programs.items():
            if program:
                program.stdin.write("\n")
                program.stdin.flush()
                said = program.stdout.readline()
                assert said and int(said) >= count, f"{name}: {said!r}"
                took.append(f"{name} {time.monotonic() - killed:.1f} s")
        leads.restart()
        print(f"       Sentinels, leader killed: commands go on after the election: {', '.join(took)}", flush=True)
    for name, program in programs.items():
        if program:
            program.stdin.close()
            assert program.wait(30) == 0, name


def counts(client):
    try:
        return client.incr("redis-py")
    except redis.RedisError:
        return 0


def run(cluster):
    """Whether all held."""
    is_good = True
    for case in (served_in_order_of_arrival, channels_span_the_nodes, sentinels_find_the_node_that_leads):
        try:
            case(cluster)
            print(f"ok     {case.__name__}", flush=True)
        except Exception:
            is_good = False
            print(f"FAILED {case.__name__}\n{traceback.format_exc()}", file=sys.stdout, flush=True)
    return is_good
