// Contenders for one lock, and for a leadership, with npm's etcd3 as it is: as contenders.py.

const assert = require("assert");
const readline = require("readline");

const { Etcd3, EtcdLockFailedError } = require("etcd3");

const CONTENDERS = 8;
const endpoint = process.argv[2];
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const counts = { before: 0, after: 0, overlaps: 0, errors: 0 };
const before = Array(CONTENDERS).fill(0);
const after = Array(CONTENDERS).fill(0);
let inside = 0;
let told = false;

async function contend(number) {
  const client = new Etcd3({ hosts: endpoint });
  while (Math.min(...after) === 0) {
    const lock = client.lock("jobs").ttl(3);
    try {
      await lock.acquire();
    } catch (error) {
      counts.errors += error instanceof EtcdLockFailedError ? 0 : 1;
      await pause(5);
      continue;
    }
    inside += 1;
    counts.overlaps += inside > 1 ? 1 : 0;
    await pause(2);
    inside -= 1;
    (told ? after : before)[number] += 1;
    await lock.release().catch(() => (counts.errors += 1));
    await pause(20);
  }
  client.close();
}

async function lost() {
  const client = new Etcd3({ hosts: endpoint });
  const lease = client.lease(30);
  const won = new Promise((resolve) => client.election("chief").campaign("one").once("elected", resolve));
  await won;
  assert.equal(await client.election("chief").leader(), "one");
  const observer = await client.election("chief").observe();
  assert.equal(observer.leader(), "one");
  await lease.put("lost").value("one");
  const watcher = await client.watch().key("lost").create();
  const deleted = new Promise((resolve) => watcher.once("delete", resolve));
  await lease.revoke();
  await deleted;
  assert.equal(await client.get("lost"), null);
}

async function main() {
  const contenders = before.map((_, number) => contend(number));
  while (Math.min(...before) === 0) await pause(10);
  console.log("contending");
  await new Promise((resolve) => readline.createInterface({ input: process.stdin }).once("line", resolve));
  told = true;
  await Promise.all(contenders);
  await lost();
  const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
  console.log(JSON.stringify({ ...counts, before: sum(before), after: sum(after) }));
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
