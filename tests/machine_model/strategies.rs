//! What random histories are made of: values, and commands that fit the table as the model has it.

use lockkeeper::machine::*;
use proptest::{collection::vec, option, prelude::*};

use super::model::Model;

pub(super) fn names() -> Vec<LockName> {
    ["a", "b", "c", "d/e"].map(|name| LockName::new(name).unwrap()).into()
}

/// The name that most entries claim.
pub(super) fn claimed() -> LockName {
    LockName::new("d/entries").unwrap()
}

/// The names of locks, and of those of entries.
pub(super) fn all_names() -> Vec<LockName> {
    names().into_iter().chain([claimed()]).collect()
}

pub(super) fn session() -> impl Strategy<Value = SessionId> {
    (1..=6u128).prop_map(SessionId)
}

pub(super) fn data() -> impl Strategy<Value = Option<Data>> {
    option::of(vec(0..3u8, 0..2).prop_map(|data| Data::new(&data).unwrap()))
}

/// Mostly compatible ways to use a name, so that locks are shared.
pub(super) fn mode(name: &LockName) -> BoxedStrategy<Mode> {
    let permits = Mode::Permit(Permits::new(2).unwrap());
    let usual = if name.as_str() == "c" { Just(permits).boxed() } else { Just(Mode::Shared).boxed() };
    let other = if name.as_str() == "c" { Just(permits).boxed() } else { Just(Mode::Exclusive).boxed() };
    prop_oneof![6 => usual, 6 => other, 1 => Just(Mode::Permit(Permits::new(3).unwrap()))].boxed()
}

pub(super) fn acquire() -> impl Strategy<Value = Acquire> {
    let want = |name: LockName| {
        let must_exist = prop_oneof![6 => Just(false), 1 => Just(true)];
        (mode(&name), data(), any::<bool>(), must_exist).prop_map(move |(mode, data, keep_data, must_exist)| Want {
            name: name.clone(),
            mode,
            data,
            keep_data,
            must_exist,
        })
    };
    let wants = proptest::sample::subsequence(names(), 1..=3)
        .prop_flat_map(move |names| names.into_iter().map(want).collect::<Vec<_>>());
    let wait = prop_oneof![Just(Wait::Never), (1..300u64).prop_map(Wait::Millis), Just(Wait::Forever)];
    (wants, wait, prop_oneof![Just(0), 1..200u32])
        .prop_map(|(wants, wait, delay)| Acquire::new(wants, wait, delay).unwrap())
}

/// The ids that a client still cares about. Often old: the request arrives late.
pub(super) fn open_ids() -> impl Strategy<Value = OpenIds> {
    let all_from = |lowest| OpenIds::new(lowest, vec![]).unwrap();
    // Nearly all ids below are kept; otherwise soon none would be open in all views.
    let keeping = (2..25u64).prop_flat_map(|lowest| {
        let below: Vec<u64> = (1..lowest).collect();
        let fewest = below.len() - below.len().div_ceil(4);
        let kept = proptest::sample::subsequence(below.clone(), fewest..=below.len());
        kept.prop_map(move |kept| OpenIds::new(lowest, kept).unwrap())
    });
    prop_oneof![16 => Just(all_from(1)), 1 => (1..8u64).prop_map(all_from), 3 => keeping]
}

pub(super) fn request() -> impl Strategy<Value = Option<Request>> {
    option::of((1..30u64, open_ids()).prop_map(|(id, open)| Request { id, open }))
}

/// Mostly a token that is held, or was taken, with its session.
pub(super) fn held(model: &Model) -> BoxedStrategy<(SessionId, Token, LockName)> {
    let mut held: Vec<_> =
        model.grants.iter().map(|held| (held.session, held.token, held.acquire.wants()[0].name.clone())).collect();
    for (id, session) in &model.sessions {
        held.extend(session.taken.keys().map(|token| (*id, *token, names()[0].clone())));
    }
    let any = (session(), (1..60u64).prop_map(Token), proptest::sample::select(names()));
    if held.is_empty() { any.boxed() } else { prop_oneof![5 => proptest::sample::select(held), 1 => any].boxed() }
}

/// Mostly of a semaphore in use, to a size that fits one more holder or one fewer. The weight is higher where the size makes a difference.
pub(super) fn resize(model: &Model) -> (u32, BoxedStrategy<Command>) {
    let mut sizes = Vec::new();
    for view in names().into_iter().map(|name| model.lock(&name)) {
        if view.mode.and_then(Mode::permits).is_none() {
            continue;
        }
        let held = view.holders.len() as u32;
        if view.queue_length > 0 && view.delay_remaining_ms == 0 {
            sizes.extend(std::iter::repeat_n((view.name.clone(), held + 1), 4));
        }
        if held > 1 {
            sizes.push((view.name, held - 1));
        }
    }
    let any = (prop_oneof![3 => Just(names().remove(2)), 1 => proptest::sample::select(names())], 1..=4u32);
    let (weight, sizes) = if sizes.is_empty() {
        (2, any.boxed())
    } else {
        (22, prop_oneof![4 => proptest::sample::select(sizes), 1 => any].boxed())
    };
    let resize = |(name, permits)| Command::Resize { name, permits: Permits::new(permits).unwrap(), by: None };
    (weight, sizes.prop_map(resize).boxed())
}

/// Mostly a repetition of a request that is remembered.
pub(super) fn retry(model: &Model) -> BoxedStrategy<Command> {
    let mut remembered = Vec::new();
    for (session, state) in &model.sessions {
        for (id, (operation, _)) in &state.memory {
            let open = state.views.last().cloned().unwrap_or_default();
            let request = Some(Request { id: *id, open });
            if let Some(operation) = operation.clone() {
                remembered.push(Command::Session { session: *session, request, operation });
            }
        }
    }
    if remembered.is_empty() { Just(Command::Tick).boxed() } else { proptest::sample::select(remembered).boxed() }
}

/// Mostly the id of a request that is remembered; of those, mostly one that waits.
pub(super) fn taken_back(model: &Model) -> BoxedStrategy<(SessionId, u64)> {
    let mut waits = Vec::new();
    let mut others = Vec::new();
    for (session, state) in &model.sessions {
        for (id, (_, reply)) in &state.memory {
            let list = if matches!(reply, Reply::Queued(_)) { &mut waits } else { &mut others };
            list.push((*session, *id));
        }
    }
    let any = (session(), 1..30u64).boxed();
    let pick = |list: Vec<_>| if list.is_empty() { any.clone() } else { proptest::sample::select(list).boxed() };
    prop_oneof![3 => pick(waits), 2 => pick(others), 1 => any.clone()].boxed()
}
