/**
 * Certificates in files, which are replaced while the client runs: they end within days or months, and whoever issues them writes new ones
 * into the same files.
 *
 * A request looks at the files if the last look was {@link REREAD_MS} ago. What is copied over a file comes in parts, and a certificate and
 * its key are two files, so a change counts once the files are {@link SETTLING_MS} old, or read the same twice, and once they can be used
 * together. Otherwise the last good ones stay in use. Requests that are under way keep their connection; nodes end it when the certificate
 * of its client does.
 */
import { readFileSync, statSync } from "node:fs";
import { createSecureContext } from "node:tls";

import { type TlsOptions, hasCertificate } from "./credentials.js";
import { InvalidArgument, messageOf } from "./errors.js";
import { monotonicMs } from "./timers.js";
import type { TokenClocks } from "./token-file.js";

/** Shortest time between two looks at the files. */
const REREAD_MS = 2_000;
/** Age at which files are whole, and time after which those that are younger are read once more. */
const SETTLING_MS = 200;
/** More is no certificate. */
const FILE_BYTES_MAX = 1024 * 1024;

/**
 * The PEM files of {@link TlsOptions}, by their paths.
 *
 * @example
 * ```ts
 * import { Client, type TlsFiles } from "@lockkeeper/client";
 *
 * export function secure(): Client {
 *   const tlsFiles: TlsFiles = { ca: "/certs/ca.pem", cert: "/certs/tls.crt", key: "/certs/tls.key" };
 *   return new Client({ endpoints: "10.0.0.1:7101", tlsFiles });
 * }
 * ```
 */
export interface TlsFiles {
  /** The authorities to trust. */
  readonly ca: string;
  /** The certificate to show, with those between it and its authority; needs `key`. */
  readonly cert?: string;
  /** The private key of `cert`. */
  readonly key?: string;
}

/** What the files have. */
interface FileContents {
  readonly tls: TlsOptions;
  /** Whether they are regular files. */
  readonly areFiles: boolean;
  /** When the last of them was written, in milliseconds since 1970. */
  readonly writtenMs: number;
}

export class CertificateFiles {
  readonly #files: TlsFiles;
  readonly #clocks: TokenClocks;
  #tls: TlsOptions;
  #changed: TlsOptions | undefined;
  #dueMs: number;

  /** Reads the files. Fails with {@link InvalidArgument} where one cannot be read. */
  constructor(files: TlsFiles, clocks: TokenClocks = { monotonicMs, wallMs: () => Date.now() }) {
    this.#files = files;
    this.#clocks = clocks;
    const { tls, areFiles } = read(files);
    this.#tls = tls;
    // What comes through a pipe comes once, and its end would be waited for.
    this.#dueMs = areFiles ? clocks.monotonicMs() + REREAD_MS : Number.POSITIVE_INFINITY;
  }

  /** What the files have now, or the last good ones: the same object for as long as they are the same. */
  get tls(): TlsOptions {
    const now = this.#clocks.monotonicMs();
    if (now >= this.#dueMs) {
      this.#dueMs = now + REREAD_MS;
      this.#look(now);
    }
    return this.#tls;
  }

  #look(now: number): void {
    const found = this.#read();
    if (found === undefined || isSame(found.tls, this.#tls)) {
      this.#changed = undefined;
    } else if (
      (this.#changed !== undefined && isSame(found.tls, this.#changed)) ||
      this.#clocks.wallMs() - found.writtenMs >= SETTLING_MS
    ) {
      this.#changed = undefined;
      if (isUsable(found.tls)) {
        this.#tls = found.tls;
      }
    } else {
      this.#changed = found.tls;
      this.#dueMs = now + SETTLING_MS;
    }
  }

  #read(): FileContents | undefined {
    try {
      const paths = [this.#files.ca, this.#files.cert, this.#files.key];
      const areFiles = paths.every((path) => path === undefined || statSync(path).isFile());
      return areFiles ? read(this.#files) : undefined;
    } catch {
      // One of them is not there for a moment.
      return undefined;
    }
  }
}

function read(files: TlsFiles): FileContents {
  let areFiles = true;
  let writtenMs = 0;
  const contents = (path: string): string => {
    try {
      const status = statSync(path);
      areFiles &&= status.isFile();
      writtenMs = Math.max(writtenMs, status.mtimeMs);
      if (status.size > FILE_BYTES_MAX) {
        throw new Error(`it has ${status.size} bytes, and a certificate has at most ${FILE_BYTES_MAX}`);
      }
      return readFileSync(path, "utf8");
    } catch (error) {
      throw new InvalidArgument(`cannot read ${path}: ${messageOf(error)}`, { cause: error });
    }
  };

  const ca = contents(files.ca);
  const cert = files.cert === undefined ? {} : { cert: contents(files.cert) };
  const key = files.key === undefined ? {} : { key: contents(files.key) };
  return { tls: { ca, ...cert, ...key }, areFiles, writtenMs };
}

function isSame(one: TlsOptions, other: TlsOptions): boolean {
  return one.ca === other.ca && one.cert === other.cert && one.key === other.key;
}

/** Whether they are whole, and the key is that of the certificate. */
function isUsable({ ca, cert, key }: TlsOptions): boolean {
  try {
    const own = cert === undefined || key === undefined ? {} : { cert: cert.toString(), key: key.toString() };
    createSecureContext({ ca: ca.toString(), ...own });
    // Node takes an empty text for none.
    return hasCertificate(ca) && (cert === undefined || (hasCertificate(cert) && key !== ""));
  } catch {
    return false;
  }
}
