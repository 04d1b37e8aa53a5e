"""Watches PostgreSQL under Patroni: which servers are primaries, and whose the leader key is.

patroni_watch.py ENDPOINTS KEY NAME=PORT... writes a line of JSON whenever something changed.

A server that was promoted remains a primary until its next start. So each of its starts was a primary at least from the first answer that
said so to the question of the last one. Two such times of different servers that overlap are two primaries at once, without any guess.
"""

import base64
import itertools
import json
import sys
import threading
import time
import urllib.request

import psycopg2

endpoints, key, *servers = sys.argv[1:]
endpoints = endpoints.split(",")
PAUSE = 0.05
QUESTION = """
    SELECT pg_is_in_recovery(), pg_postmaster_start_time()::text, (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming')
"""
lock = threading.Lock()
# By name: "primary", "replica" or None; the replicas that it streams to.
roles, streaming = {}, {}
# By name and start: since when, and until when it was a primary for certain.
tenures = {}
# Whose the leader key is, and its create revision.
owner = None
# What went wrong: text.
troubles = []


def watch(name, port):
    connection = None
    while True:
        role, replicas = None, 0
        try:
            if connection is None:
                connection = psycopg2.connect(
                    host="127.0.0.1", port=port, user="postgres", dbname="postgres", connect_timeout=2,
                    options="-c statement_timeout=2000",
                )
                connection.autocommit = True
            asked = time.monotonic()
            with connection.cursor() as cursor:
                cursor.execute(QUESTION)
                is_replica, start, replicas = cursor.fetchone()
            answered = time.monotonic()
            role = "replica" if is_replica else "primary"
        except psycopg2.Error:
            if connection is not None:
                connection.close()
            connection = None
        with lock:
            roles[name], streaming[name] = role, replicas
            if role == "primary":
                since, _ = tenures.setdefault((name, start), (answered, asked))
                tenures[name, start] = (since, asked)
                for (other, _), (begin, end) in tenures.items():
                    if other != name and max(begin, since) < min(end, asked):
                        troubles.append(f"{name} and {other} are primaries at once")
        time.sleep(PAUSE)


def watch_key():
    global owner
    body = json.dumps({"key": base64.b64encode(key.encode()).decode()}).encode()
    for endpoint in itertools.cycle(endpoints):
        try:
            with urllib.request.urlopen(f"http://{endpoint}/v3/kv/range", body, timeout=2) as answer:
                found = json.load(answer).get("kvs", [])
        except (OSError, ValueError):
            time.sleep(PAUSE)
            continue
        now = (base64.b64decode(found[0]["value"]).decode(), int(found[0]["create_revision"])) if found else None
        with lock:
            last = max((token for _, token in owners), default=0)
            if now is not None and now not in owners:
                if now[1] <= last:
                    troubles.append(f"{now} is the owner after {owners}")
                owners.append(now)
            owner = now
        time.sleep(PAUSE)


owners = []
for server in servers:
    threading.Thread(target=watch, args=server.split("="), daemon=True).start()
threading.Thread(target=watch_key, daemon=True).start()
said = None
while True:
    with lock:
        primaries = [name for name, role in roles.items() if role == "primary"]
        says = {
            "primaries": primaries,
            "replicas": sorted(name for name, role in roles.items() if role == "replica"),
            "streaming": sum(streaming[name] for name in primaries),
            "owner": owner and owner[0],
            "token": owner and owner[1],
            "owners": [name for name, _ in itertools.groupby(name for name, _ in owners)],
            "promoted": [name for name, _ in itertools.groupby(name for name, _ in tenures)],
            "troubles": troubles[:3],
        }
    if says != said:
        said = says
        print(json.dumps(says), flush=True)
    time.sleep(PAUSE / 2)
