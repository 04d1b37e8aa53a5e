use proptest::prelude::*;

use super::*;

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..5)
}

fn reply() -> impl Strategy<Value = RedisReply> {
    let leaf = prop_oneof![
        bytes().prop_map(RedisReply::Status),
        bytes().prop_map(RedisReply::Error),
        bytes().prop_map(RedisReply::Bulk),
        bytes().prop_map(RedisReply::Verbatim),
        any::<i64>().prop_map(RedisReply::Integer),
        (-1e9..1e9).prop_map(RedisReply::Double),
        Just(RedisReply::Nil),
        Just(RedisReply::NilArray),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        let items = proptest::collection::vec(inner.clone(), 0..4);
        let pairs = proptest::collection::vec((inner.clone(), inner), 0..4);
        prop_oneof![
            items.clone().prop_map(RedisReply::Array),
            items.clone().prop_map(RedisReply::Set),
            items.prop_map(RedisReply::Push),
            pairs.clone().prop_map(RedisReply::Map),
            pairs.prop_map(RedisReply::Pairs),
        ]
    })
}

fn unit() -> impl Strategy<Value = CommandUnit> {
    let list = || proptest::collection::vec(bytes(), 1..4);
    let script = (bytes(), "[0-9a-f]{40}", list(), list(), any::<bool>()).prop_map(
        |(source, sha1, keys, arguments, is_read_only)| {
            let source = source.into();
            UnitCall::Script(ScriptInvocation { source, sha1, keys, arguments, is_read_only })
        },
    );
    let call = prop_oneof![list().prop_map(UnitCall::Command), script];
    let watched = proptest::collection::vec((bytes(), any::<u64>()), 0..3);
    (0..16_u8, "[a-zé]{0,5}", watched, any::<bool>(), proptest::collection::vec(call, 0..4)).prop_map(
        |(database, holder, watched, is_transaction, calls)| CommandUnit {
            database,
            holder,
            watched,
            is_transaction,
            calls,
        },
    )
}

proptest! {
    #[test]
    fn a_unit_is_read_as_it_was_written(unit in unit()) {
        prop_assert_eq!(CommandUnit::decode(&unit.encode()), Some(unit));
    }

    #[test]
    fn an_outcome_is_read_as_it_was_written(replies in proptest::collection::vec(reply(), 0..4), database in 0..16_u8) {
        let outcome = UnitOutcome::Done { replies, database };
        prop_assert_eq!(UnitOutcome::decode(&outcome.encode()), Some(outcome));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let bytes = [&[FORM], &bytes[..]].concat();
        let _ = CommandUnit::decode(&bytes);
        let _ = UnitOutcome::decode(&bytes);
    }
}

#[test]
fn failures_keep_their_kind() {
    let text = || "why".to_owned();
    for outcome in [
        UnitOutcome::Abandoned,
        UnitOutcome::Refused(text()),
        RedisStoreError::Overloaded(text()).into(),
        RedisStoreError::Denied(text()).into(),
        RedisStoreError::TooLarge(text()).into(),
        RedisStoreError::Full(text()).into(),
        RedisStoreError::Unavailable(text()).into(),
        RedisStoreError::Unknown(text()).into(),
    ] {
        assert_eq!(UnitOutcome::decode(&outcome.encode()), Some(outcome));
    }
}

#[test]
fn replies_that_are_too_deep_are_refused() {
    let mut reply = RedisReply::Nil;
    for _ in 0..DEPTH_MAX {
        reply = RedisReply::Array(vec![reply]);
    }
    let outcome = UnitOutcome::Done { replies: vec![reply], database: 0 };
    assert_eq!(UnitOutcome::decode(&outcome.encode()), None);
}

/// It is committed by then.
#[test]
fn the_deepest_result_of_a_script_is_read() {
    let mut reply = RedisReply::Integer(1);
    for _ in 0..128 {
        reply = RedisReply::Array(vec![reply]);
    }
    let outcome = UnitOutcome::Done { replies: vec![reply], database: 0 };
    assert_eq!(UnitOutcome::decode(&outcome.encode()), Some(outcome));
}
