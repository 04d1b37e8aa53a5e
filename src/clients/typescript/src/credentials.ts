/** Whom a client trusts, and what it shows. */
import { Buffer } from "node:buffer";
import { isIP } from "node:net";
import { type PeerCertificate, type SecureContext, checkServerIdentity, createSecureContext } from "node:tls";

import { type ChannelCredentials, type ChannelOptions, credentials } from "@grpc/grpc-js";

import { InvalidArgument, messageOf } from "./errors.js";

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

/** How one node is connected to. */
export interface Connection {
  readonly credentials: ChannelCredentials;
  readonly options: ChannelOptions;
}

/** Whether a text in PEM has a certificate. */
export function hasCertificate(pem: string | Uint8Array): boolean {
  return toBuffer(pem).includes("-----BEGIN CERTIFICATE-----");
}

/**
 * How each node is connected to, by its address: in the same way, and by the same object, for as long as `tls` returns the same. Fails with
 * {@link InvalidArgument}; later it does not fail, if what `tls` returns can be used.
 */
export function connections(tls: (() => TlsOptions) | undefined): (address: string) => Connection {
  if (tls === undefined) {
    const insecure = { credentials: credentials.createInsecure(), options: {} };
    return () => insecure;
  }

  let present = tls();
  let context = secureContext(present);
  const known = new Map<string, Connection>();
  return (address) => {
    const now = tls();
    if (now !== present) {
      context = secureContext(now);
      present = now;
      known.clear();
    }
    let connection = known.get(address);
    if (connection === undefined) {
      connection = secure(context, address);
      known.set(address, connection);
    }
    return connection;
  };
}

function secureContext({ ca, cert, key }: TlsOptions): SecureContext {
  if ((cert === undefined) !== (key === undefined)) {
    throw new InvalidArgument("tls.cert and tls.key belong together: give both, or none");
  }
  const own = cert === undefined || key === undefined ? {} : { cert: toBuffer(cert), key: toBuffer(key) };
  const authorities = toBuffer(ca);
  if (!hasCertificate(authorities)) {
    throw new InvalidArgument("tls.ca has no certificate: give the authorities to trust, as PEM");
  }

  try {
    return createSecureContext({ ca: authorities, ...own });
  } catch (error) {
    throw new InvalidArgument(`the certificates cannot be used: ${messageOf(error)}`, { cause: error });
  }
}

/** A name that nobody has. */
const NO_NAME = "address.invalid";

function secure(context: SecureContext, address: string): Connection {
  const host = address.slice(0, address.lastIndexOf(":")).replace(/^\[(.*)\]$/, "$1");
  if (isIP(host) === 0) {
    return { credentials: credentials.createFromSecureContext(context), options: {} };
  }

  // For an IP address, TLS has no server name to send (RFC 6066), but grpc-js sends the address as one, which Node warns of. A name
  // has to be sent instead; the certificate must be for the address all the same.
  const checkAddress = (_: string, certificate: PeerCertificate): Error | undefined => checkServerIdentity(host, certificate);
  return {
    credentials: credentials.createFromSecureContext(context, { checkServerIdentity: checkAddress }),
    options: { "grpc.ssl_target_name_override": NO_NAME },
  };
}
