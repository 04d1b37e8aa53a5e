import { readFileSync } from "node:fs";
import { type AddressInfo, createConnection, createServer } from "node:net";
import { describe, expect, inject, onTestFinished, test } from "vitest";

import { Client } from "../../src/index.js";
import { Program } from "../support/programs.js";

const tls = () => inject("tls");
const pem = (file: string): string => readFileSync(file, "utf8");

describe("TLS", () => {
  test("by the environment of the command line", async () => {
    const { endpoints, ca, cert, key } = tls();
    const program = new Program("required.cjs", "", {
      LOCKKEEPER_ENDPOINTS: endpoints,
      LOCKKEEPER_CA: ca,
      LOCKKEEPER_CERT: cert,
      LOCKKEEPER_KEY: key,
    });
    expect(await program.end(), program.stderr).toBe(0);
    expect(program.lines).toEqual(["token bigint function"]);
    // Nothing of Node's about names and addresses.
    expect(program.stderr).toBe("");
  });

  test("shows a certificate, and holds a lock", async () => {
    const { endpoints, ca, cert, key } = tls();
    await using client = new Client({ endpoints, tls: { ca: pem(ca), cert: pem(cert), key: pem(key) } });
    await client.using("tls", {}, async (lock) => {
      expect((await client.get("tls")).holders[0]?.token).toBe(lock.token);
    });
  });

  test("with an authority that did not make the node's certificate says so", async () => {
    const { endpoints, cert, key } = tls();
    // Any other certificate: the client's own is by the same authority, and is none.
    await using client = new Client({ endpoints, callLimitMs: 1_000, tls: { ca: pem(cert), cert: pem(cert), key: pem(key) } });
    await expect(client.acquire("tls")).rejects.toMatchObject({
      code: "NO_CLUSTER",
      message: expect.stringContaining("LOCKKEEPER_CA") as unknown,
    });
  });

  test("by an address that the certificate does not name is refused, though its authority is trusted", async () => {
    const { endpoints, ca, cert, key } = tls();
    const port = Number(endpoints.slice(endpoints.lastIndexOf(":") + 1));
    const forwarder = createServer((socket) => {
      const node = createConnection(port, "127.0.0.1");
      const end = (): void => {
        socket.destroy();
        node.destroy();
      };
      socket.on("error", end).pipe(node).on("error", end).pipe(socket);
    });
    await new Promise<void>((resolve) => forwarder.listen(0, "127.0.0.9", resolve));
    onTestFinished(() => {
      forwarder.close();
    });
    const address = forwarder.address() as AddressInfo;

    const own = { ca: pem(ca), cert: pem(cert), key: pem(key) };
    await using client = new Client({ endpoints: `127.0.0.9:${address.port}`, callLimitMs: 1_000, tls: own });
    const said = expect.stringContaining("does not name the host") as unknown;
    await expect(client.get("tls")).rejects.toMatchObject({ code: "NO_CLUSTER", message: said });
  });

  test("without a certificate, where the node asks for one, says so", async () => {
    const { endpoints, ca } = tls();
    await using client = new Client({ endpoints, callLimitMs: 1_000, tls: { ca: pem(ca) } });
    await expect(client.acquire("tls")).rejects.toMatchObject({
      name: expect.stringMatching(/NoCluster|Refused|UnknownOutcome/) as unknown,
    });
  });

  test("is not found at a node without it, and a node with it is not reached without", async () => {
    const { endpoints, ca } = tls();
    await using secure = new Client({ endpoints: inject("endpoints"), callLimitMs: 1_000, tls: { ca: pem(ca) } });
    await expect(secure.acquire("tls")).rejects.toMatchObject({
      code: "NO_CLUSTER",
      message: expect.stringContaining("does not speak TLS") as unknown,
    });
    await using plain = new Client({ endpoints: endpoints.replaceAll("https://", ""), callLimitMs: 1_000 });
    await expect(plain.acquire("tls")).rejects.toMatchObject({ name: expect.stringMatching(/NoCluster|UnknownOutcome/) as unknown });
  });
});
