//! Requests between whose calls of the store others write.
//!
//! A read of several pages, and a transaction that is decided by reads, make several calls. Whatever others write in between, the answer is
//! the one that the same request would have had at one moment: of the tables that its calls have met, there is one on which it is answered
//! alike. So each request is one step for everybody, as etcd promises.

use lockkeeper_machine::{Command, KeyRange, Machine, Put, PutLease, Txn, TxnOperation, Value};
use proptest::{collection::vec, prelude::*};
use tokio::runtime::Builder;

use super::{Api, Memory, absent, compare, delete, operation, prefix, put, shown};
use crate::{
    key::from_wire,
    proto::etcdserverpb::{
        Compare, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, TxnResponse,
        compare::{CompareResult, TargetUnion},
        range_request::{SortOrder, SortTarget},
    },
};

/// More keys than a page has.
const KEYS: [&str; 7] = ["k/a", "k/b", "k/c", "k/d", "k/e", "k/f", "k/g"];

fn key() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(&KEYS[..])
}

fn value() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec!["1", "2"])
}

/// A write of another client.
fn other() -> impl Strategy<Value = Txn> {
    let key = || key().prop_map(|key| from_wire(key.as_bytes()).expect("a key"));
    let value = value().prop_map(|value| Value::new(value.as_bytes()).expect("short"));
    let put = |key, value| TxnOperation::Put(Put { key, value, lease: PutLease::None, claims: None });
    let write = prop_oneof![
        4 => (key(), value).prop_map(move |(key, value)| put(key, value)),
        2 => key().prop_map(TxnOperation::Delete),
        1 => Just(TxnOperation::DeleteRange(KeyRange::default())),
    ];
    write.prop_map(|write| Txn::new(vec![], vec![write], vec![]).expect("in bounds"))
}

/// A condition on one key, or on all.
fn condition() -> impl Strategy<Value = Compare> {
    let result = proptest::sample::select(vec![CompareResult::Equal, CompareResult::NotEqual]);
    let single = (key(), value(), result);
    let single = single.prop_map(|(key, value, result)| compare(key, result, TargetUnion::Value(value.into())));
    let all = |compare: Compare| Compare { range_end: prefix("k/").range_end, key: "k/".into(), ..compare };
    let is_single = prop_oneof![2 => Just(true), 1 => Just(false)];
    let any = prop_oneof![3 => single, 1 => key().prop_map(absent)];
    (any, is_single).prop_map(move |(compare, is_single)| if is_single { compare } else { all(compare) })
}

fn read() -> impl Strategy<Value = RangeRequest> {
    let sorted = (any::<bool>(), 0..9i64).prop_map(|(is_sorted, limit)| {
        let order = if is_sorted { SortOrder::Descend } else { SortOrder::None };
        let target = if is_sorted { SortTarget::Mod } else { SortTarget::Key };
        RangeRequest { limit, sort_order: order.into(), sort_target: target.into(), ..prefix("k/") }
    });
    let single = key().prop_map(|key| RangeRequest { key: key.into(), ..RangeRequest::default() });
    prop_oneof![2 => sorted, 1 => single]
}

fn simple_operation() -> impl Strategy<Value = RequestOp> {
    let keeps = (key(), any::<bool>());
    let keeping = keeps.prop_map(|(key, prev_kv)| PutRequest { ignore_value: true, prev_kv, ..put(key, "") });
    prop_oneof![
        2 => read().prop_map(operation),
        2 => (key(), value()).prop_map(|(key, value)| operation(PutRequest { prev_kv: true, ..put(key, value) })),
        1 => keeping.prop_map(operation),
        1 => Just(operation(delete("k/"))),
    ]
}

fn transaction() -> impl Strategy<Value = TxnRequest> {
    let branch = || vec(simple_operation(), 0..3);
    let inner = (vec(condition(), 0..2), branch(), branch());
    let inner = inner.prop_map(|(compare, success, failure)| TxnRequest { compare, success, failure }).boxed();
    let with_inner = || (branch(), proptest::option::of(inner.clone().prop_map(operation)));
    let outer = (vec(condition(), 0..3), with_inner(), with_inner());
    outer.prop_map(|(compare, (mut success, then), (mut failure, otherwise))| {
        success.extend(then);
        failure.extend(otherwise);
        TxnRequest { compare, success, failure }
    })
}

#[derive(Clone, Debug)]
enum Asked {
    Range(RangeRequest),
    Txn(TxnRequest),
}

/// Whether the compares of a transaction hold on a table, by a second and plain reading of what etcd's documentation says.
fn succeeds(asked: &Asked, table: &Machine) -> Option<bool> {
    let Asked::Txn(TxnRequest { compare, .. }) = asked else { return None };
    let holds = |compare: &Compare| {
        let range = crate::key::range(&compare.key, &compare.range_end).expect("a range");
        let values: Vec<_> = table.entries(&range).map(|(_, entry)| entry.value.clone()).collect();
        match &compare.target_union {
            Some(TargetUnion::Value(value)) => {
                let is_met =
                    |found: &Value| (found.as_bytes() == &value[..]) == (compare.result() == CompareResult::Equal);
                !values.is_empty() && values.iter().all(is_met)
            }
            // That there is none.
            _ => values.is_empty(),
        }
    };
    Some(compare.iter().all(holds))
}

/// What a client is told, without the revision that the store has at the moment.
#[derive(Clone, PartialEq, Debug)]
enum Told {
    Range(RangeResponse),
    Txn(TxnResponse),
    Error(String),
}

async fn ask(store: &Memory, asked: &Asked) -> Told {
    let api = Api::over(store.clone());
    match asked.clone() {
        Asked::Range(request) => match api.kv().range(request).await {
            Ok(answer) => Told::Range(RangeResponse { header: None, ..answer.into_inner() }),
            Err(status) => Told::Error(shown(&status)),
        },
        Asked::Txn(request) => match api.kv().txn(request).await {
            Ok(answer) => Told::Txn(TxnResponse { header: None, ..answer.into_inner() }),
            Err(status) => Told::Error(shown(&status)),
        },
    }
}

/// Asks while others write. Returns the answer, and the tables that the request met.
async fn ask_beside(store: &Memory, asked: &Asked, others: Vec<Txn>) -> (Told, Vec<Machine>) {
    store.interleave(others);
    let told = ask(store, asked).await;
    (told, store.met())
}

async fn is_one_step(before: Vec<Txn>, asked: Asked, others: Vec<Txn>) -> Result<(), TestCaseError> {
    let store = Memory::default();
    for write in before {
        store.apply(Command::Txn(write));
    }

    let (told, met) = ask_beside(&store, &asked, others).await;
    if met.is_empty() {
        return Err(TestCaseError::reject("it was refused before it was run"));
    }
    let mut possible = Vec::new();
    for table in met {
        let says = succeeds(&asked, &table);
        let alone = ask(&Memory::with_table(table), &asked).await;
        let is_as_compared = if let Told::Txn(answer) = &alone { says == Some(answer.succeeded) } else { true };
        if alone == told && is_as_compared {
            return Ok(());
        }
        possible.push(alone);
    }
    Err(TestCaseError::fail(format!("{asked:#?} was told {told:#?}, which is none of {possible:#?}")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, max_global_rejects: 15_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_request_is_one_step(
        before in vec(other(), 0..16),
        asked in prop_oneof![1 => read().prop_map(Asked::Range), 3 => transaction().prop_map(Asked::Txn)],
        others in vec(other(), 0..6),
    ) {
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
        runtime.block_on(is_one_step(before, asked, others))?;
    }
}
