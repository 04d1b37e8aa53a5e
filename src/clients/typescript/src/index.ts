/**
 * The client of Lockkeeper for Node: locks with fencing tokens, elections and watches.
 *
 * @packageDocumentation
 */
export type { AcquireOptions } from "./acquire.js";
export type { TlsFiles } from "./certificate-files.js";
export { Client, type ClientOptions, type ForceReleaseOptions, type ReadOptions } from "./client.js";
export { connect, type ConnectOptions } from "./connect.js";
export type { TlsOptions } from "./credentials.js";
export { type CampaignOptions, Election, type Leader, Leadership, type ObserveOptions } from "./election.js";
export {
  type ErrorCode,
  InvalidArgument,
  LockkeeperError,
  type LossReason,
  Lost,
  Malformed,
  NoCluster,
  NotAcquired,
  NotEnsured,
  Refused,
  UnknownOutcome,
} from "./errors.js";
export { Lock, type UpdateOptions } from "./lock.js";
export type { Log, LogEvent } from "./log.js";
export type { Busy, Change, CheckAnswer, Forced, Holder, LockInfo, LockMode, Waiter, WatchMessage } from "./views.js";
export { Watch, type WatchOptions } from "./watch.js";
