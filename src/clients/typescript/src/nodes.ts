/**
 * The nodes of the cluster, and which of them leads.
 *
 * While no leader is known, the configured ones are asked in turn, and then the members that the cluster last named: all that were
 * configured may have been replaced since.
 */
import { bareAddress, isAddress } from "./limits.js";
import { type Dial, Node } from "./node.js";

/** Nodes that were learned and are remembered. Far more than a cluster has. */
const LEARNED_MAX = 32;

export class Nodes {
  readonly #dial: Dial;
  readonly #configured: readonly Node[];
  /** The members that the cluster last named, without the configured ones. */
  #members: readonly Node[] = [];
  readonly #learned = new Map<string, Node>();
  #leader: Node | undefined;
  /** Which node to ask next while no leader is known: a place among the configured ones and the members. */
  #next: number;
  readonly #leaderListeners = new Set<(leader: Node) => void>();

  /** `first`: 0 to 1, selects the node that is asked first, so that clients spread over the nodes. */
  constructor(addresses: readonly string[], dial: Dial, first: number = Math.random()) {
    this.#dial = dial;
    this.#configured = addresses.map((address) => new Node(address, dial));
    this.#next = Math.floor(first * this.#configured.length);
  }

  get count(): number {
    return this.#configured.length + this.#members.length;
  }

  get endpoints(): readonly string[] {
    return this.#configured.map(({ address }) => address);
  }

  /** The node to ask now: the leader, or the next in turn while none is known. */
  preferred(): Node {
    if (this.#leader !== undefined) {
      return this.#leader;
    }
    const known = [...this.#configured, ...this.#members];
    const node = known[this.#next % known.length];
    if (node === undefined) {
      throw new Error("a client has at least one node");
    }
    return node;
  }

  /** The leader that an answer names. What is no address is a fault of the node: the client goes on with those that it knows. */
  noteLeader(named: string | undefined): void {
    const address = bareAddress(named ?? "");
    if (address === this.#leader?.address || !isAddress(address)) {
      return;
    }
    const leader = this.#get(address);
    this.#leader = leader;
    for (const listener of [...this.#leaderListeners]) {
      listener(leader);
    }
  }

  /** The members that the cluster names. */
  noteMembers(named: readonly string[]): void {
    const addresses = named.slice(0, LEARNED_MAX).map(bareAddress).filter(isAddress);
    const isNew = (address: string): boolean => this.#configured.every((node) => node.address !== address);
    this.#members = addresses.filter(isNew).map((address) => this.#get(address));
  }

  /** Passes over a node that did not answer or knows no leader. */
  passOver(node: Node): void {
    if (this.#leader === node) {
      this.#leader = undefined;
    }
    const known = [...this.#configured, ...this.#members];
    const place = known.indexOf(node);
    if (place >= 0) {
      this.#next = (place + 1) % known.length;
    }
  }

  isLedByOtherThan(node: Node): boolean {
    return this.#leader !== undefined && this.#leader !== node;
  }

  /** Calls back for each leader that is named from now on. Returns a function that ends it. */
  onLeader(listener: (leader: Node) => void): () => void {
    this.#leaderListeners.add(listener);
    return () => {
      this.#leaderListeners.delete(listener);
    };
  }

  close(): void {
    for (const node of [...this.#configured, ...this.#learned.values()]) {
      node.close();
    }
  }

  #get(address: string): Node {
    const known = this.#configured.find((node) => node.address === address) ?? this.#learned.get(address);
    if (known !== undefined) {
      return known;
    }
    if (this.#learned.size >= LEARNED_MAX) {
      this.#forgetLearned();
    }
    const node = new Node(address, this.#dial);
    this.#learned.set(address, node);
    return node;
  }

  /** A cluster that names so many nodes one after the other has moved: those that are not in use are closed. */
  #forgetLearned(): void {
    for (const [address, node] of this.#learned) {
      if (node !== this.#leader && !this.#members.includes(node)) {
        this.#learned.delete(address);
        node.close();
      }
    }
  }
}
