//! A search for a sequential order that explains the observations, after Wing and Gong, and Lowe ("Testing for
//! linearizability", 2017).
//!
//! A step takes effect at one moment between its start and its end. A step with an unknown outcome may take effect at any moment after its
//! start, or never. The search walks forward in time, tries every step that may come next, and remembers each visited pair of steps and
//! state. A step that does not change the state and is possible now is taken without a branch, because it cannot exclude another one.
//!
//! The search is written here, because existing crates do not support steps that may never happen, and depend on a benchmark harness.

use std::{collections::HashSet, hash::Hash};

/// The effect of steps on a state.
pub(super) trait Model {
    type Step;
    type State: Clone + Eq + Hash;

    /// The state after the step, or `None` if the step is not possible now.
    fn apply(&self, state: &Self::State, step: &Self::Step) -> Option<Self::State>;

    /// Whether the step never changes the state.
    fn reads(step: &Self::Step) -> bool;

    /// The rank of a step. Steps with a rank happen in the order of their ranks: a step is not tried while a needed one of lower rank is
    /// left.
    fn rank(&self, step: &Self::Step) -> Option<u64>;
}

/// A step and its possible time.
#[derive(Clone, Debug)]
pub(super) struct Timed<S> {
    pub(super) step: S,
    pub(super) begin_ns: u64,
    /// The end of the time, or `u64::MAX` if the step may never happen.
    pub(super) end_ns: u64,
}

impl<S> Timed<S> {
    fn is_needed(&self) -> bool {
        self.end_ns != u64::MAX
    }
}

/// The result of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SearchOutcome {
    /// There is an order.
    Found,
    /// There is no order.
    None,
    /// The budget of tries is exhausted.
    TooLong,
}

/// Maximum number of operations of one lock or register that are searched.
pub(super) const OPERATIONS_MAX: usize = 200;

/// Maximum number of steps in a sequence that is searched.
pub(super) const STEPS_MAX: usize = 512;

type Bits = [u64; STEPS_MAX / 64];

/// Searches for an order with at most `tries_max` tries. The steps are sorted by start, and there are at most [`STEPS_MAX`].
pub(super) fn search<M: Model>(model: &M, start: M::State, steps: &[Timed<M::Step>], tries_max: u64) -> SearchOutcome {
    if steps.len() > STEPS_MAX {
        return SearchOutcome::TooLong;
    }

    let mut seen: HashSet<(Bits, M::State)> = HashSet::new();
    let mut stack = vec![([0; STEPS_MAX / 64], start)];
    let mut tries = 0;

    while let Some((mut taken, state)) = stack.pop() {
        tries += 1;
        if tries > tries_max {
            return SearchOutcome::TooLong;
        }

        let next = loop {
            let next = candidates(steps, &taken);
            let free =
                next.iter().find(|at| M::reads(&steps[**at].step) && model.apply(&state, &steps[**at].step).is_some());
            match free {
                Some(at) => set(&mut taken, *at),
                None => break next,
            }
        };

        if steps.iter().enumerate().all(|(at, step)| has(&taken, at) || !step.is_needed()) {
            return SearchOutcome::Found;
        }
        if !seen.insert((taken, state.clone())) {
            continue;
        }

        // The top of the stack, which is tried first, is the step with the earliest end.
        let lowest = lowest_rank(model, steps, &taken);
        let in_turn =
            |at: &usize| !M::reads(&steps[*at].step) && model.rank(&steps[*at].step).is_none_or(|rank| rank <= lowest);
        let mut next: Vec<_> = next.into_iter().filter(in_turn).collect();
        next.sort_unstable_by_key(|at| std::cmp::Reverse(steps[*at].end_ns));

        for at in next {
            if let Some(after) = model.apply(&state, &steps[at].step) {
                let mut taken = taken;
                set(&mut taken, at);
                stack.push((taken, after));
            }
        }
    }
    SearchOutcome::None
}

/// The lowest rank of the needed steps that are left.
fn lowest_rank<M: Model>(model: &M, steps: &[Timed<M::Step>], taken: &Bits) -> u64 {
    let left = steps.iter().enumerate().filter(|(at, step)| step.is_needed() && !has(taken, *at));
    left.filter_map(|(_, step)| model.rank(&step.step)).min().unwrap_or(u64::MAX)
}

/// The steps that may come next: no other step that is left ended before they began.
fn candidates<S>(steps: &[Timed<S>], taken: &Bits) -> Vec<usize> {
    let left = || steps.iter().enumerate().filter(|(at, _)| !has(taken, *at));
    let first_end = left().map(|(_, step)| step.end_ns).min().unwrap_or(u64::MAX);
    left().take_while(|(_, step)| step.begin_ns <= first_end).map(|(at, _)| at).collect()
}

fn has(bits: &Bits, at: usize) -> bool {
    bits[at / 64] & (1 << (at % 64)) != 0
}

fn set(bits: &mut Bits, at: usize) {
    bits[at / 64] |= 1 << (at % 64);
}
