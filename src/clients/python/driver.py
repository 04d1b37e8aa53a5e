"""The driver of the conformance suite (`src/clients/conformance`): does what it is told on standard input, with one of the two clients.

driver.py             the client for threads: a thread for each step
driver.py --asyncio   the one for asyncio: a task for each step
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import lockkeeper
import lockkeeper.aio
from lockkeeper._core.requests import Requests
from lockkeeper._io.threads import run

Step = dict[str, Any]
Outcome = dict[str, Any]

BEGUN_LIMIT = 0.1
"""How long the next step waits for this one to have begun, seconds."""


async def value_of(result: Any) -> Any:
    """With threads a call has the value, with asyncio it is to be awaited."""
    return await result if inspect.isawaitable(result) else result


class Driver:
    """The steps, for either client. With threads its coroutines never suspend."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._client: Any = None
        self._locks: dict[str, Any] = {}
        self._writing = threading.Lock()
        self.is_threaded = module is lockkeeper
        # Starts work beside the steps: a reader of a watch.
        self.beside: Callable[[Any], None]
        self.cancel: Callable[[int], bool] = lambda _: False

    def say(self, line: dict[str, Any]) -> None:
        with self._writing:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()

    async def obey(self, step: Step) -> None:
        try:
            outcome = await self._outcome(step)
        except asyncio.CancelledError:
            outcome = {"outcome": "cancelled"}
        except lockkeeper.NotAcquired as busy:
            holder = None if busy.holder is None else busy.holder.token
            outcome = {"outcome": "not-acquired", "waited": busy.waited, "name": busy.name, "holder": holder}
            outcome["queue"] = busy.queue_length
        except lockkeeper.NotEnsured as short:
            outcome = {"outcome": "not-ensured", "remaining_ms": int(short.left * 1000)}
        except lockkeeper.Error as error:
            outcome = {"outcome": "failed", **failure(error)}
        self.say({"step": step["step"], **outcome})

    async def _outcome(self, step: Step) -> Outcome:
        do = getattr(self, "do_" + step["do"].replace("-", "_"), None)
        if do is None:
            return {"outcome": "unsupported"}
        outcome: Outcome = await do(step)
        return outcome

    async def do_connect(self, step: Step) -> Outcome:
        self._client = self._module.connect(
            step["endpoints"],
            ttl=step["ttl_ms"] / 1000,
            call_limit=step["call_limit_ms"] / 1000,
            attempt_limit=step["attempt_limit_ms"] / 1000,
            label=step["label"],
        )
        return {"outcome": "connected"}

    async def do_acquire(self, step: Step) -> Outcome:
        data = step.get("data")
        request = self._client.lock(
            *step["names"],
            wait=seconds(step["wait_ms"]),
            data=None if data is None else data.encode(),
            keep_data=step.get("keep_data", False),
            shared=step["mode"] == "shared",
            permits=step.get("permits") if step["mode"] == "permits" else None,
            must_exist=step.get("must_exist", False),
            lock_delay=(step.get("lock_delay_ms") or 0) / 1000,
            on_lost=lambda loss: self._told(step["lock"], loss),
        )
        lock = await value_of(request.acquire())
        self._locks[step["lock"]] = lock
        return {"outcome": "granted", "token": lock.token, "place_lost": lock.place_lost}

    async def do_campaign(self, step: Step) -> Outcome:
        campaign = self._client.election(step["name"]).campaign(
            step["value"].encode(),
            wait=seconds(step["wait_ms"]),
            on_lost=lambda loss: self._told(step["lock"], loss),
        )
        leadership = await value_of(campaign.win())
        self._locks[step["lock"]] = leadership
        return {"outcome": "granted", "token": leadership.epoch, "place_lost": leadership.lock.place_lost}

    async def do_cancel(self, step: Step) -> Outcome:
        return {"outcome": "done"} if self.cancel(step["of"]) else {"outcome": "unsupported"}

    async def do_release(self, step: Step) -> Outcome:
        await value_of(self._locks[step["lock"]].release())
        return {"outcome": "released"}

    async def do_resign(self, step: Step) -> Outcome:
        await value_of(self._locks[step["lock"]].resign())
        return {"outcome": "released"}

    async def do_remaining(self, step: Step) -> Outcome:
        lock = self._locks[step["lock"]]
        left = lock.remaining
        loss = lock.loss
        return {
            "outcome": "remaining",
            "remaining_ms": int(left * 1000),
            "lost": None if loss is None else loss.reason.value,
        }

    async def do_ensure(self, step: Step) -> Outcome:
        left = await value_of(self._locks[step["lock"]].ensure(step["min_left_ms"] / 1000))
        return {"outcome": "ensured", "remaining_ms": int(left * 1000)}

    async def do_update(self, step: Step) -> Outcome:
        data = None if step["data"] is None else step["data"].encode()
        lock = self._locks[step["lock"]]
        await value_of(lock.update(data, name=step["name"], keep_data=step.get("keep_data", False)))
        return {"outcome": "updated"}

    async def do_proclaim(self, step: Step) -> Outcome:
        await value_of(self._locks[step["lock"]].proclaim(step["value"].encode()))
        return {"outcome": "proclaimed"}

    async def do_get(self, step: Step) -> Outcome:
        lock = await value_of(self._client.get(step["name"]))
        data = None if lock.data is None else lock.data.decode()
        holders = [holder.token for holder in lock.holders]
        return {"outcome": "lock", "holders": holders, "queue": lock.queue_length, "data": data}

    async def do_force_release(self, step: Step) -> Outcome:
        forced = await value_of(self._client.force_release(step["name"], step["reason"], token=step["token"]))
        return {"outcome": "forced", "count": len(forced)}

    async def do_leader(self, step: Step) -> Outcome:
        leader = await value_of(self._client.election(step["name"]).leader())
        return {"outcome": "leader", **shown(leader)}

    async def do_observe(self, step: Step) -> Outcome:
        observer = self._client.election(step["name"]).observe()
        self.beside(
            self._read(observer, lambda leader: self.say({"event": "leader", "of": step["as"], **shown(leader)}))
        )
        return {"outcome": "observing"}

    async def do_watch(self, step: Step) -> Outcome:
        held: list[str] = []

        def tell(message: Any) -> None:
            if isinstance(message, lockkeeper.State):
                if message.first:
                    held.clear()
                held.extend(lock.name for lock in message.locks if lock.is_held)
                if message.last:
                    self.say({"event": "state", "of": step["as"], "names": sorted(held)})
            elif isinstance(message, lockkeeper.Changes):
                for change in message.changes:
                    told = {"kind": change.kind, "name": change.name, "token": change.token}
                    self.say({"event": "change", "of": step["as"], **told})

        self.beside(self._read(self._client.watch(step["prefix"]), tell))
        return {"outcome": "watching"}

    async def _read(self, messages: Any, tell: Callable[[Any], None]) -> None:
        while True:
            try:
                tell(await value_of(messages.__next__() if self.is_threaded else messages.__anext__()))
            except (StopIteration, StopAsyncIteration, lockkeeper.ClientClosed):
                return
            except lockkeeper.Error as error:
                print(f"a watch: {error}", file=sys.stderr)

    async def do_close(self, step: Step) -> Outcome:
        await self.close()
        return {"outcome": "closed"}

    async def close(self) -> None:
        if self._client is not None:
            await value_of(self._client.close())

    def _told(self, lock: str, loss: lockkeeper.Loss) -> None:
        self.say({"event": "lost", "lock": lock, "reason": loss.reason.value, "text": loss.text})


def seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def shown(leader: lockkeeper.Leader | None) -> dict[str, Any]:
    if leader is None:
        return {"epoch": None, "value": None}
    return {"epoch": leader.epoch, "value": leader.value.decode()}


def failure(error: lockkeeper.Error) -> dict[str, Any]:
    text = str(error)
    if isinstance(error, lockkeeper.Refused):
        return {"kind": "refused", "reason": error.reason, "text": text}
    if isinstance(error, lockkeeper.Lost):
        return {"kind": "lost", "reason": error.loss.reason.value, "text": text}
    if isinstance(error, lockkeeper.ClientClosed):
        return {"kind": "lost", "reason": "closed", "text": text}
    kinds = {
        lockkeeper.NoCluster: "no-reply",
        lockkeeper.OutcomeUnknown: "unknown",
        lockkeeper.InvalidArgument: "invalid",
    }
    return {
        "kind": next((kind for of, kind in kinds.items() if isinstance(error, of)), "unknown"),
        "reason": None,
        "text": text,
    }


def with_threads() -> None:
    driver = Driver(lockkeeper)
    driver.beside = lambda work: threading.Thread(target=run, args=(work,), daemon=True).start()
    begun = threading.Event()
    begin = Requests.begin

    def noted(requests: Requests) -> int:
        number = begin(requests)
        begun.set()
        return number

    # Steps are begun in their order: the next one waits until this one has its request id, or its outcome.
    Requests.begin = noted  # type: ignore[method-assign, assignment]

    def obey(step: Step) -> None:
        run(driver.obey(step))
        begun.set()

    for line in sys.stdin:
        step = json.loads(line)
        if step["do"] in ("connect", "remaining", "observe", "watch"):
            obey(step)
            continue
        begun.clear()
        threading.Thread(target=obey, args=(step,), daemon=True).start()
        begun.wait(BEGUN_LIMIT)
    run(driver.close())


async def with_asyncio() -> None:
    driver = Driver(lockkeeper.aio)
    beside: set[asyncio.Task[None]] = set()
    steps: dict[int, asyncio.Task[None]] = {}
    driver.beside = lambda work: beside.add(asyncio.create_task(work))

    def cancel(of: int) -> bool:
        steps[of].cancel()
        return True

    driver.cancel = cancel
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        step = json.loads(line)
        steps[step["step"]] = asyncio.create_task(driver.obey(step))
        # It begins before the next step is read.
        await asyncio.sleep(0)
    await driver.close()


if __name__ == "__main__":
    if "--asyncio" in sys.argv[1:]:
        asyncio.run(with_asyncio())
    else:
        with_threads()
