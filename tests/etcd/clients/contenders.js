// Contenders for a lock, and its holders, with npm's etcd3 as it is: as contenders.py, where CLIENT is `lock` or `election`. In place of
// `contend` or `hold`, `offers` runs through what else the client offers.

const assert = require("assert");
const readline = require("readline");

const { Etcd3, EtcdLockFailedError } = require("etcd3");

const [kind, endpoint, role, name, apart] = process.argv.slice(2);
const CONTENDERS = 8;
// Seconds. One that holds the lock to see that it keeps it is not to lose it on a busy machine.
const TTL = role === "contend" ? 3 : 8;
// The longest attempt, the pause before the next one of a client that does not wait, a tenure, and the pause after it, ms.
const [ATTEMPT, RETRY, TENURE, PAUSE] = [1000, 100, 10, 300];
// A candidate that has waited for this time campaigns anew, and is counted, ms.
const STUCK = 30000;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const client = new Etcd3({ hosts: endpoint });

/** It does not wait: a lock that is held is an attempt that failed. */
class Lock {
  constructor(name) {
    this.lock = client.lock(name).ttl(TTL);
  }

  async acquire() {
    try {
      await this.lock.acquire();
      return true;
    } catch (error) {
      if (!(error instanceof EtcdLockFailedError)) throw error;
      await pause(RETRY);
      return false;
    }
  }

  // What tells its holder is that its lease is lost, but the lock does not show its lease.
  async keep() {
    const [entry] = (await client.get(name).exec()).kvs;
    return entry !== undefined && entry.lease === (await this.lock.leaseId());
  }

  async release() {
    await this.lock.release();
  }
}

class Election {
  constructor(name) {
    this.election = client.election(name, TTL);
  }

  /** Waits at the most for as long as an attempt, and goes on with the next one. */
  async acquire() {
    this.campaign ??= this.campaigned();
    if (Date.now() - this.campaign.began > STUCK) {
      seen.stuck += 1;
      if (role === "contend") throw new Error("it waits and waits");
      await this.release();
      return false;
    }
    const is = await Promise.race([this.campaign.state, pause(ATTEMPT)]);
    if (is instanceof Error) throw is;
    return is === "elected";
  }

  campaigned() {
    const campaign = this.election.campaign("one");
    campaign.began = Date.now();
    campaign.state = new Promise((resolve) => {
      campaign.once("elected", () => resolve("elected"));
      campaign.on("error", (error) => {
        campaign.isLost = true;
        resolve(error);
      });
    });
    return campaign;
  }

  async keep() {
    return !this.campaign.isLost;
  }

  async release() {
    const campaign = this.campaign;
    this.campaign = undefined;
    await campaign?.resign();
  }

  cancel() {
    return this.release();
  }
}

const Contender = { lock: Lock, election: Election }[kind];
const seen = { tenures: 0, overlaps: 0, late: 0, errors: 0, stuck: 0 };
// Who had the lock in this round.
let had = [];
let round = 0;
let inside = 0;
let isOver = false;

async function contendAs(number) {
  let contender;
  while (!isOver) {
    const asked = round;
    const began = Date.now();
    try {
      contender ??= new Contender(apart ? `${name}-${number}` : name);
      if (!(await contender.acquire())) continue;
      if (Date.now() - began < TTL * 800) {
        inside += 1;
        seen.overlaps += inside > 1 ? 1 : 0;
        await pause(TENURE);
        inside -= 1;
        seen.tenures += 1;
        if (asked === round) had.push(number);
      } else {
        seen.late += 1;
      }
      await contender.release();
    } catch (error) {
      // There was no leader, or a connection broke. What it may have ends with its lease, which it must not renew any more.
      seen.errors += 1;
      console.error(`contender ${number}: ${error}`);
      await contender?.release().catch(() => undefined);
      contender = undefined;
      await pause(100);
    }
    // The others have their turn: the lock knows no queue.
    await pause(PAUSE);
  }
}

async function contend() {
  const contenders = Array.from({ length: CONTENDERS }, (_, number) => contendAs(number));
  for (;;) {
    while (had.length < CONTENDERS || new Set(had).size < CONTENDERS / 2) await pause(10);
    console.log(JSON.stringify(seen));
    if ((await input.next()).done) break;
    [round, had] = [round + 1, []];
  }
  isOver = true;
  await Promise.race([Promise.all(contenders), pause(10000)]);
}

async function hold() {
  let isTold = false;
  input.next().then(() => (isTold = true));
  const contender = new Contender(name);
  console.log("waiting");
  while (!(await contender.acquire())) {
    if (isTold) {
      await contender.cancel?.();
      return console.log("cancelled");
    }
  }
  console.log("held");
  while (!isTold) {
    if (!(await contender.keep())) return console.log("lost");
    await pause(100);
  }
  await contender.release();
  console.log("released");
}

/** A leader and its observer; a lease, a key with it and its watcher. */
async function offers() {
  const election = client.election(name);
  await election.campaign("one").wait();
  assert.equal(await election.leader(), "one");
  const observer = await election.observe();
  assert.equal(observer.leader(), "one");
  const lease = client.lease(30);
  await lease.put(`${name}-key`).value("one");
  const watcher = await client.watch().key(`${name}-key`).create();
  const deleted = new Promise((resolve) => watcher.once("delete", resolve));
  await lease.revoke();
  await deleted;
  assert.equal(await client.get(`${name}-key`), null);
}

({ contend, hold, offers })[role]().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
