/**
 * Request ids: they make repeated requests happen once (RIFL: Lee et al., SOSP'15).
 *
 * The session at the cluster keeps its replies to all ids that may still be repeated. So an id is outstanding until its answer has
 * arrived or its caller is gone, and never again after that; and each message names all that are outstanding, future ids included.
 */
import type { RequestId } from "./generated/lockkeeper/v1/locks.js";

/** An outstanding id is listed by itself once the newest is further ahead than this, so that the lowest of the others can advance. */
const LAG_MAX = 64;

/** The replies that the cluster remembers of a session. */
const LISTED_MAX = 1_024;

/** A request whose answer may still be asked for. */
export interface Outstanding {
  readonly id: number;
  /** Its id, and what is outstanding now. */
  message(): RequestId;
  /** Its answer is known, or nobody wants it. */
  end(): void;
}

/** The ids of one session. */
export class Requests {
  #last = 0;
  /** In rising order: a set keeps the order in which its values were added. */
  readonly #outstanding = new Set<number>();

  begin(): Outstanding {
    this.#last += 1;
    const id = this.#last;
    this.#outstanding.add(id);
    return {
      id,
      message: () => ({ id: BigInt(id), ...this.#wanted() }),
      end: () => {
        this.#outstanding.delete(id);
      },
    };
  }

  #wanted(): { lowest: bigint; kept: bigint[] } {
    const kept: bigint[] = [];
    for (const id of this.#outstanding) {
      if (id >= this.#last - LAG_MAX || kept.length >= LISTED_MAX) {
        return { lowest: BigInt(id), kept };
      }
      kept.push(BigInt(id));
    }
    return { lowest: BigInt(this.#last + 1), kept };
  }
}
