/** The settings of this process: what is said in the program, in the environment, or in a profile, in this order. As the command line. */
import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { env } from "node:process";

import { parse } from "smol-toml";

import type { TlsFiles } from "./certificate-files.js";
import { Client, type ClientOptions } from "./client.js";
import { InvalidArgument, messageOf } from "./errors.js";

/** The nodes that `lockkeeper dev` and a cluster of three on this machine have by default. */
const DEFAULT_ENDPOINTS = "127.0.0.1:7101,127.0.0.1:7102,127.0.0.1:7103";

/**
 * What {@link connect} takes from the environment where it is left out.
 *
 * @example
 * ```ts
 * import { connect, type ConnectOptions } from "@lockkeeper/client";
 *
 * const options: ConnectOptions = { ttlMs: 30_000, log: (event) => console.debug(event.message) };
 * await using client = connect(options);
 * ```
 */
export type ConnectOptions = Partial<ClientOptions>;

/**
 * A client with the settings that the command line has too:
 *
 * | setting | environment | profile |
 * |---|---|---|
 * | the nodes | `LOCKKEEPER_ENDPOINTS` | `endpoints` |
 * | authorities to trust, a PEM file: connect by TLS | `LOCKKEEPER_CA` | `ca` |
 * | a certificate to show, and its key | `LOCKKEEPER_CERT`, `LOCKKEEPER_KEY` | `cert`, `key` |
 * | a file with a bearer token | `LOCKKEEPER_BEARER_TOKEN_FILE` | `bearer_token_file` |
 * | the bearer token itself | `LOCKKEEPER_BEARER_TOKEN` | |
 *
 * The profile is the file that `LOCKKEEPER_PROFILE` names, else `lockkeeper/profile.toml` in `$XDG_CONFIG_HOME` or `~/.config`. Without
 * any of it, the nodes are those of a cluster on this machine, ports 7101 to 7103. Options that are given here count first.
 *
 * Reads files; sends nothing. Fails with {@link InvalidArgument}, which says which setting is wrong.
 *
 * @example
 * ```ts
 * import { connect } from "@lockkeeper/client";
 *
 * await using client = connect();
 * await client.using("reports/nightly", {}, async (lock) => console.log("token", lock.token));
 * ```
 */
export function connect(options: ConnectOptions = {}): Client {
  const profile = readProfile();
  const { endpoints, source } = chooseEndpoints(options, profile);
  const tlsFiles = options.tls === undefined ? (options.tlsFiles ?? findTlsFiles(profile)) : undefined;
  const bearer = options.bearerToken === undefined && options.bearerTokenFile === undefined ? bearerOptions(profile) : {};
  try {
    return new Client({
      ...options,
      endpoints,
      ...(tlsFiles === undefined ? {} : { tlsFiles }),
      ...bearer,
    });
  } catch (error) {
    throw error instanceof InvalidArgument && error.message.startsWith("endpoint")
      ? new InvalidArgument(`${error.message} (${source})`, { cause: error })
      : error;
  }
}

const PROFILE_KEYS = ["endpoints", "ca", "cert", "key", "bearer_token_file"] as const;

/** A file with what would otherwise be said in each environment. Relative paths in it are relative to its directory. */
interface Profile {
  readonly file: string;
  readonly values: Partial<Record<(typeof PROFILE_KEYS)[number], string>>;
}

function readProfile(): Profile {
  const named = setting("LOCKKEEPER_PROFILE");
  const folder = setting("XDG_CONFIG_HOME") ?? join(homedir(), ".config");
  const file = named ?? join(folder, "lockkeeper", "profile.toml");
  const wrong = (error: unknown): InvalidArgument =>
    new InvalidArgument(`the profile ${file} cannot be used: ${messageOf(error)}`, { cause: error });

  let text: string;
  try {
    text = readFileSync(file, "utf8");
  } catch (error) {
    if (named === undefined && (error as NodeJS.ErrnoException).code === "ENOENT") {
      return { file, values: {} };
    }
    throw wrong(error);
  }

  try {
    return { file, values: checkProfile(parse(text)) };
  } catch (error) {
    throw wrong(error);
  }
}

function checkProfile(table: Readonly<Record<string, unknown>>): Profile["values"] {
  const values: Profile["values"] = {};
  for (const [key, value] of Object.entries(table)) {
    const known = PROFILE_KEYS.find((known) => known === key);
    if (known === undefined) {
      throw new Error(`it has an unknown key ${JSON.stringify(key)}; the keys are ${PROFILE_KEYS.join(", ")}`);
    }
    if (typeof value !== "string") {
      throw new Error(`${key} is no string`);
    }
    values[known] = value;
  }
  return values;
}

function chooseEndpoints(options: ConnectOptions, { file, values }: Profile): { endpoints: string | readonly string[]; source: string } {
  if (options.endpoints !== undefined) {
    return { endpoints: options.endpoints, source: "from the option endpoints" };
  }
  const named = env["LOCKKEEPER_ENDPOINTS"];
  if (named !== undefined) {
    return { endpoints: named, source: "from LOCKKEEPER_ENDPOINTS" };
  }
  if (values.endpoints !== undefined) {
    return { endpoints: values.endpoints, source: `from ${file}` };
  }
  return { endpoints: DEFAULT_ENDPOINTS, source: "the default: LOCKKEEPER_ENDPOINTS is not set" };
}

/** What belongs together comes from one place. */
function findTlsFiles({ file, values }: Profile): TlsFiles | undefined {
  const near = (path: string | undefined): string | undefined => (path === undefined ? undefined : resolve(dirname(file), path));
  const ca = setting("LOCKKEEPER_CA") ?? near(values.ca);
  let cert = setting("LOCKKEEPER_CERT");
  let key = setting("LOCKKEEPER_KEY");
  if (cert === undefined && key === undefined) {
    cert = near(values.cert);
    key = near(values.key);
  }

  if ((cert === undefined) !== (key === undefined)) {
    throw new InvalidArgument(
      "a certificate needs its key, and a key its certificate: set LOCKKEEPER_CERT and LOCKKEEPER_KEY both, or none",
    );
  }
  if (ca === undefined) {
    if (cert !== undefined) {
      throw new InvalidArgument("LOCKKEEPER_CERT needs LOCKKEEPER_CA: without it there is no TLS to show a certificate in");
    }
    return undefined;
  }
  return cert === undefined || key === undefined ? { ca } : { ca, cert, key };
}

function bearerOptions({ file, values }: Profile): Pick<ClientOptions, "bearerToken" | "bearerTokenFile"> {
  const named = setting("LOCKKEEPER_BEARER_TOKEN_FILE");
  if (named !== undefined) {
    return { bearerTokenFile: named };
  }
  const bearerToken = env["LOCKKEEPER_BEARER_TOKEN"];
  if (bearerToken !== undefined) {
    return { bearerToken };
  }
  const profiled = values.bearer_token_file;
  return profiled === undefined ? {} : { bearerTokenFile: resolve(dirname(file), profiled) };
}

/** A variable that is empty counts as not set. */
function setting(name: string): string | undefined {
  const value = env[name];
  return value === "" ? undefined : value;
}
