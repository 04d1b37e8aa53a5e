/** Whom a client trusts, and what it shows. */
import { createSecureContext } from "node:tls";

import { type ChannelCredentials, credentials } from "@grpc/grpc-js";
import { Buffer } from "node:buffer";

import { InvalidArgument } from "./errors.js";

/**
 * Certificates, as PEM. With a certificate of its own, the client is known to the cluster by the name in it.
 *
 * @example
 * ```ts
 * import { readFileSync } from "node:fs";
 * import { Client, type TlsOptions } from "@lockkeeper/client";
 *
 * export function secure(): Client {
 *   const tls: TlsOptions = { ca: readFileSync("ca.pem") };
 *   return new Client({ endpoints: "10.0.0.1:7101", tls, bearerToken: "s3cret" });
 * }
 * ```
 */
export interface TlsOptions {
  /** The authorities to trust. */
  readonly ca: string | Uint8Array;
  /** The certificate to show, with those between it and its authority; needs `key`. */
  readonly cert?: string | Uint8Array;
  /** The private key of `cert`. */
  readonly key?: string | Uint8Array;
}

const toBuffer = (pem: string | Uint8Array): Buffer => Buffer.from(pem);

export function channelCredentials(tls: TlsOptions | undefined): ChannelCredentials {
  if (tls === undefined) {
    return credentials.createInsecure();
  }

  const { ca, cert, key } = tls;
  if ((cert === undefined) !== (key === undefined)) {
    throw new InvalidArgument("tls.cert and tls.key belong together: give both, or none");
  }
  const own = cert === undefined || key === undefined ? {} : { cert: toBuffer(cert), key: toBuffer(key) };
  const authorities = toBuffer(ca);
  if (!authorities.includes("-----BEGIN CERTIFICATE-----")) {
    throw new InvalidArgument("tls.ca has no certificate: give the authorities to trust, as PEM");
  }
  try {
    createSecureContext({ ca: authorities, ...own });
  } catch (error) {
    throw new InvalidArgument(`the certificates cannot be used: ${error instanceof Error ? error.message : String(error)}`, {
      cause: error,
    });
  }
  return "cert" in own ? credentials.createSsl(authorities, own.key, own.cert) : credentials.createSsl(authorities);
}
