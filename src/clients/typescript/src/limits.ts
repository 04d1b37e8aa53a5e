/** What an argument may be. What the cluster would refuse is refused here, before anything is sent, by a message that says what may be. */
import { Buffer } from "node:buffer";

import { InvalidArgument } from "./errors.js";

const NAME_BYTES_MAX = 512;
const DATA_BYTES_MAX = 16_384;
const LABEL_BYTES_MAX = 256;
const REASON_BYTES_MAX = 512;
const LOCKS_MAX = 64;
const PERMITS_MAX = 1_000_000;
const TTL_MS_MIN = 100;
const TTL_MS_MAX = 86_400_000;
const WAIT_MS_MAX = 604_800_000;
const LOCK_DELAY_MS_MAX = 3_600_000;

/** Characters of a value that a message shows. */
const SHOWN_MAX = 64;

function shown(text: string): string {
  const characters = Array.from(text);
  const cut = characters.length > SHOWN_MAX ? "…" : "";
  return JSON.stringify(characters.slice(0, SHOWN_MAX).join("") + cut);
}

/** A lone surrogate would be sent as U+FFFD, which is another name. */
function checkText(what: string, value: string): void {
  if (typeof value !== "string") {
    throw new InvalidArgument(`${what} is ${typeof value}, not a string`);
  }
  if (!value.isWellFormed()) {
    throw new InvalidArgument(`${what} ${shown(value)} has half of a surrogate pair: it cannot be written as UTF-8`);
  }
}

function checkBytes(what: string, value: string, bytesMax: number): void {
  const bytes = Buffer.byteLength(value);
  if (bytes > bytesMax) {
    throw new InvalidArgument(`${what} ${shown(value)} has ${bytes} bytes, more than ${bytesMax}: choose a shorter one`);
  }
}

export function checkName(name: string): string {
  checkText("the name", name);
  if (name === "") {
    throw new InvalidArgument("the name of a lock is empty: give at least one character");
  }
  if (name.includes("\0")) {
    throw new InvalidArgument(`the name ${shown(name)} has a NUL character: leave it out`);
  }
  checkBytes("the name", name, NAME_BYTES_MAX);
  return name;
}

const isList = (value: unknown): value is readonly string[] => Array.isArray(value);

export function checkNames(names: string | readonly string[]): readonly string[] {
  const list: unknown = typeof names === "string" ? [names] : names;
  if (!isList(list)) {
    throw new InvalidArgument(`the name of a lock is ${typeof names}: give a string, or a list of them`);
  }
  if (list.length === 0 || list.length > LOCKS_MAX) {
    throw new InvalidArgument(`an acquire names 1 to ${LOCKS_MAX} locks, not ${list.length}`);
  }
  list.forEach(checkName);

  const twice = list.find((name, place) => list.indexOf(name) !== place);
  if (twice !== undefined) {
    throw new InvalidArgument(`the name ${shown(twice)} is given twice: give each lock once`);
  }
  return list;
}

export function checkPrefix(prefix: string): string {
  checkText("the prefix", prefix);
  checkBytes("the prefix", prefix, NAME_BYTES_MAX);
  return prefix;
}

export function checkLabel(label: string): string {
  checkText("the label", label);
  checkBytes("the label", label, LABEL_BYTES_MAX);
  return label;
}

/** Cuts a label that was not chosen by anybody: a long name of a program must not let the open fail. */
export function cutLabel(label: string): string {
  let cut = label.toWellFormed();
  while (Buffer.byteLength(cut) > LABEL_BYTES_MAX) {
    cut = Array.from(cut).slice(0, -1).join("");
  }
  return cut;
}

export function checkReason(reason: string): string {
  checkText("the reason", reason);
  if (reason === "") {
    throw new InvalidArgument("the reason is empty: say why, for the holder and for the log");
  }
  checkBytes("the reason", reason, REASON_BYTES_MAX);
  return reason;
}

export function checkData(data: string | Uint8Array): Uint8Array {
  if (typeof data === "string") {
    checkText("the data", data);
  }
  const bytes = typeof data === "string" ? Buffer.from(data) : data;
  if (bytes.byteLength > DATA_BYTES_MAX) {
    throw new InvalidArgument(
      `the data have ${bytes.byteLength} bytes, more than ${DATA_BYTES_MAX}: keep them elsewhere, and their place here`,
    );
  }
  return bytes;
}

function checkRange(what: string, value: number, min: number, max: number, unit = ""): number {
  if (!Number.isInteger(value) || value < min || value > max) {
    throw new InvalidArgument(`${what} is ${value}${unit}: it must be a whole number from ${min} to ${max}${unit}`);
  }
  return value;
}

export const checkPermits = (permits: number): number => checkRange("permits", permits, 1, PERMITS_MAX);
export const checkTtl = (ttlMs: number): number => checkRange("ttlMs", ttlMs, TTL_MS_MIN, TTL_MS_MAX, " ms");
export const checkLimit = (what: string, ms: number): number => checkRange(what, ms, 1, TTL_MS_MAX, " ms");
export const checkLockDelay = (ms: number): number => checkRange("lockDelayMs", Math.ceil(ms), 0, LOCK_DELAY_MS_MAX, " ms");

/** `Infinity`: without an end. Rounded up: a wait of half a millisecond must not become 0, which means "do not wait". */
export const checkWait = (ms: number): number => (ms === Infinity ? ms : checkRange("waitMs", Math.ceil(ms), 0, WAIT_MS_MAX, " ms"));

export function checkToken(token: bigint): bigint {
  if (typeof token !== "bigint" || token < 1n || token >= 1n << 64n) {
    throw new InvalidArgument(`a token is a bigint from 1n on, not ${typeof token} ${String(token)}`);
  }
  return token;
}

const HTTP = "http://";
const HTTPS = "https://";
const PORT_MAX = 65_535;

/** An address as the client knows it: host:port. */
export function bareAddress(endpoint: string): string {
  const scheme = [HTTP, HTTPS].find((scheme) => endpoint.startsWith(scheme)) ?? "";
  return endpoint.slice(scheme.length).replace(/\/+$/, "");
}

export function isAddress(address: string): boolean {
  const colon = address.lastIndexOf(":");
  const host = address.slice(0, colon);
  const port = address.slice(colon + 1);
  return colon > 0 && !/[/\s@?#]/.test(host) && /^\d{1,5}$/.test(port) && Number(port) <= PORT_MAX;
}

/** The addresses of the nodes, each once. */
export function checkEndpoints(endpoints: string | readonly string[], isSecure: boolean): readonly string[] {
  const list = (typeof endpoints === "string" ? endpoints.split(",") : endpoints).map((endpoint) => endpoint.trim());
  const addresses = new Set<string>();
  for (const endpoint of list.filter((endpoint) => endpoint !== "")) {
    const address = bareAddress(endpoint);
    if (!isAddress(address)) {
      throw new InvalidArgument(`endpoint ${shown(endpoint)} is not of the form host:port, with a port of at most ${PORT_MAX}: correct it`);
    }
    if (endpoint.startsWith(HTTPS) && !isSecure) {
      throw new InvalidArgument(
        `endpoint ${shown(endpoint)} asks for TLS: name the authorities to trust (tls.ca, LOCKKEEPER_CA), or leave out https://`,
      );
    }
    addresses.add(address);
  }

  if (addresses.size === 0) {
    throw new InvalidArgument("no endpoint is given: name at least one node, as host:port");
  }
  return [...addresses];
}

/** Whether a header of HTTP can carry it. */
export function isBearerToken(token: string): boolean {
  return /^[\x21-\x7e]+$/.test(token);
}

/** What a header of HTTP can carry. The message does not show it. */
export function checkBearerToken(token: string): string {
  if (!isBearerToken(token)) {
    throw new InvalidArgument(
      "the bearer token is empty, or has a blank or a character that is not printable ASCII: give it as it was made",
    );
  }
  return token;
}
