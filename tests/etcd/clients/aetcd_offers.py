"""What aetcd offers beside its locks, which contenders.py takes: leases, and watches of a key, of a prefix, from the past and for once.

    aetcd_offers.py HOST:PORT NAME
"""

import asyncio
import sys

import aetcd

endpoint, name = sys.argv[1], sys.argv[2].encode()
host, port = endpoint.rsplit(":", 1)


async def offers():
    async with aetcd.Client(host=host, port=int(port), timeout=20) as client:
        lease = await client.lease(60)
        key = name + b"/key"
        watch = await client.watch_prefix(name + b"/", prev_kv=True)
        first = (await client.put(key, b"one", lease=lease)).header.revision
        await client.put(key, b"two", lease=lease)
        assert (await client.get(key)).value == b"two"
        assert await lease.granted_ttl() == 60 and 0 < await lease.remaining_ttl() <= 60
        assert list(await lease.keys()) == [key]
        assert (await lease.refresh()).TTL == 60
        assert await client.replace(key, b"two", b"three")
        assert not await client.replace(key, b"two", b"four")
        # Replaced without its lease, it is to have it again.
        await client.put(key, b"five", lease=lease)
        await lease.revoke()
        assert await client.get(key) is None

        seen = []
        async for event in watch:
            seen.append((event.kind, event.kv.value, event.prev_kv and event.prev_kv.value))
            if event.kind == aetcd.rtypes.EventKind.DELETE:
                await watch.cancel()
        put, delete = aetcd.rtypes.EventKind.PUT, aetcd.rtypes.EventKind.DELETE
        values = [b"one", b"two", b"three", b"five"]
        assert [(kind, value) for kind, value, _ in seen] == [(put, value) for value in values] + [(delete, b"")], seen
        assert [previous or b"" for _, _, previous in seen] == [b""] + values, seen

        # The past again, without its puts.
        deleted = await client.watch_once(key, timeout=20, start_revision=first, kind=delete)
        assert deleted.kind == delete and deleted.kv.key == key
        try:
            await client.watch_once(key, timeout=1)
            raise AssertionError("nothing more was to happen")
        except aetcd.exceptions.WatchTimeoutError:
            pass


asyncio.run(offers())
