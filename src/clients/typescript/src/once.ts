/** Something that happens at most once, as those see it who only wait for it. */
export interface Happening<out T> {
  readonly happened: boolean;
  readonly value: T | undefined;
  /** Calls the listener once, at once if it has happened. Returns a function that takes the listener away. */
  on(listener: (value: T) => void): () => void;
}

/**
 * Something that happens at most once.
 *
 * An `AbortSignal` would do, but Node warns of a leak when many calls listen to one, and it carries no type of its value.
 */
export class Once<T> implements Happening<T> {
  #value: { readonly value: T } | undefined;
  readonly #listeners = new Set<(value: T) => void>();

  get happened(): boolean {
    return this.#value !== undefined;
  }

  get value(): T | undefined {
    return this.#value?.value;
  }

  /** Happens now, unless it has happened before. Listeners run before this returns, in the order of their arrival. */
  fire(value: T): void {
    if (this.#value !== undefined) {
      return;
    }

    this.#value = { value };
    const listeners = [...this.#listeners];
    this.#listeners.clear();
    for (const listener of listeners) {
      listener(value);
    }
  }

  on(listener: (value: T) => void): () => void {
    if (this.#value !== undefined) {
      listener(this.#value.value);
      return () => undefined;
    }

    // A wrapper, so that one function can listen twice.
    const entry = (value: T): void => {
      listener(value);
    };
    this.#listeners.add(entry);
    return () => {
      this.#listeners.delete(entry);
    };
  }
}
