// Uses a client in each way, closes it, and must end by itself.
// @ts-check
import { connect } from "@lockkeeper/client";

const before = process.getActiveResourcesInfo();
console.log("resources", JSON.stringify(before.filter((name) => /Time|Immediate|TCP|TLS|Worker|DNS|ADDR/i.test(name))));

const how = process.argv[2];
const client = connect({ ttlMs: 2_000, callLimitMs: 3_000 });
switch (how) {
  case "unused":
    break;
  case "held":
    // Not released: the close does it.
    await client.acquire("exits/held");
    await client.close();
    break;
  case "waiting": {
    const holder = connect({ ttlMs: 2_000 });
    await holder.acquire("exits/waiting");
    const waiting = client.acquire("exits/waiting").catch((/** @type {unknown} */ error) => console.log("waiting", String(error)));
    const watching = (async () => {
      for await (const message of client.watch("")) {
        console.log(message.kind);
      }
    })();
    const observing = (async () => {
      for await (const leader of client.election("exits/waiting").observe()) {
        console.log("leader", leader?.epoch);
      }
    })();
    // Without a look at what became of them.
    await new Promise((resolve) => setTimeout(resolve, 300));
    await client.close();
    await Promise.all([waiting, watching, observing]);
    await holder.close();
    break;
  }
  case "no-cluster": {
    const nowhere = connect({ endpoints: "127.0.0.1:1", callLimitMs: 500 });
    await nowhere.acquire("a").catch((error) => console.log("error", error.code));
    await nowhere.close();
    break;
  }
  default:
    throw new Error(`unknown: ${how}`);
}
console.log("closed");
