//! Reads, puts, deletes and compaction.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::*;
use crate::{
    error::Error,
    key,
    proto::etcdserverpb::{
        CompactionRequest, LeaseGrantRequest, LeaseLeasesRequest,
        range_request::{SortOrder, SortTarget},
    },
    range::RangeView,
};

#[tokio::test]
async fn a_put_has_a_revision_and_shows_what_was_there() {
    let api = Api::new();
    let mut kv = api.kv();
    let first = kv.put(put("a", "1")).await.unwrap().into_inner().header.unwrap().revision;
    let second = kv.put(PutRequest { prev_kv: true, ..put("a", "2") }).await.unwrap().into_inner();
    let header = second.header.unwrap();
    assert_eq!((header.revision, header.cluster_id, header.member_id, header.raft_term), (first + 1, 7, 1, 3));
    let before = second.prev_kv.unwrap();
    assert_eq!((before.value, before.version, before.mod_revision), (b"1".to_vec(), 1, first));
    let read = kv.range(RangeRequest { key: b"a".into(), ..Default::default() }).await.unwrap().into_inner();
    let [found] = &read.kvs[..] else { panic!("{read:?}") };
    assert_eq!((found.create_revision, found.mod_revision, found.version), (first, first + 1, 2));
    assert_eq!((read.count, read.more, read.header.unwrap().revision), (1, false, first + 1));
    let past = RangeRequest { key: b"a".into(), revision: first, ..Default::default() };
    let past = kv.range(past).await.unwrap().into_inner();
    assert_eq!((&past.kvs[0].value[..], past.header.unwrap().revision), (&b"1"[..], first + 1));
}

#[tokio::test]
async fn a_put_keeps_the_value_or_the_lease_that_it_is_told_to_keep() {
    let api = Api::new();
    let mut kv = api.kv();
    api.lease().lease_grant(LeaseGrantRequest { ttl: 60, id: 77 }).await.unwrap();
    kv.put(PutRequest { lease: 77, ..put("a", "1") }).await.unwrap();
    kv.put(PutRequest { ignore_lease: true, ..put("a", "2") }).await.unwrap();
    let read = kv.range(prefix("a")).await.unwrap().into_inner().kvs.remove(0);
    assert_eq!((&read.value[..], read.lease, read.version), (&b"2"[..], 77, 2));
    kv.put(PutRequest { ignore_value: true, ..put("a", "") }).await.unwrap();
    let read = kv.range(prefix("a")).await.unwrap().into_inner().kvs.remove(0);
    assert_eq!((&read.value[..], read.lease, read.version), (&b"2"[..], 0, 3));
    for request in
        [PutRequest { ignore_lease: true, ..put("none", "x") }, PutRequest { ignore_value: true, ..put("none", "") }]
    {
        let error = kv.put(request).await.unwrap_err();
        assert_eq!(shown(&error), "3 etcdserver: key not found");
    }
}

#[tokio::test]
async fn reads_filter_sort_and_limit_in_this_order() {
    let api = Api::new();
    let mut kv = api.kv();
    // More than a page, each key created in the reverse order of its name, and the even ones written once more.
    for number in (0..10).rev() {
        kv.put(put(&format!("k{number}"), &format!("v{}", 9 - number))).await.unwrap();
    }
    for number in (0..10).step_by(2) {
        kv.put(put(&format!("k{number}"), "w")).await.unwrap();
    }
    let mut read = async |request: RangeRequest| kv.range(request).await.unwrap().into_inner();
    let sorted = |order: SortOrder, target: SortTarget, limit| RangeRequest {
        sort_order: order.into(),
        sort_target: target.into(),
        limit,
        ..prefix("k")
    };
    let all = read(prefix("k")).await;
    assert_eq!((all.kvs.len(), all.count, all.more), (10, 10, false));
    let limited = read(RangeRequest { limit: 3, ..prefix("k") }).await;
    assert_eq!((keys(&limited), limited.count, limited.more), (vec!["k0".into(), "k1".into(), "k2".into()], 10, true));
    let first = read(sorted(SortOrder::Ascend, SortTarget::Create, 1)).await;
    assert_eq!((keys(&first), first.count, first.more), (vec!["k9".to_owned()], 10, true));
    let last = read(sorted(SortOrder::Descend, SortTarget::Create, 2)).await;
    assert_eq!(keys(&last), ["k0", "k1"]);
    assert_eq!(keys(&read(sorted(SortOrder::Descend, SortTarget::Mod, 1)).await), ["k8"]);
    assert_eq!(keys(&read(sorted(SortOrder::Descend, SortTarget::Key, 1)).await), ["k9"]);
    assert_eq!(keys(&read(sorted(SortOrder::None, SortTarget::Version, 1)).await), ["k1"]);
    assert_eq!(keys(&read(sorted(SortOrder::Ascend, SortTarget::Value, 1)).await), ["k9"]);
    let created = all.kvs.iter().find(|kv| kv.key == b"k5").unwrap().create_revision;
    let older = RangeRequest { max_create_revision: created - 1, ..sorted(SortOrder::Descend, SortTarget::Create, 1) };
    assert_eq!(keys(&read(older).await), ["k6"]);
    let counted = read(RangeRequest { count_only: true, ..prefix("k") }).await;
    assert_eq!((counted.kvs.len(), counted.count), (0, 10));
    let bare = read(RangeRequest { keys_only: true, ..prefix("k") }).await;
    assert!(bare.kvs.iter().all(|kv| kv.value.is_empty() && kv.create_revision > 0));
    let none = read(RangeRequest { range_end: b"a".into(), ..prefix("k") }).await;
    assert_eq!((none.kvs.len(), none.count), (0, 0));
}

#[tokio::test]
async fn deletes_count_and_show_what_they_delete() {
    let api = Api::new();
    let mut kv = api.kv();
    for number in 0..6 {
        kv.put(put(&format!("k{number}"), "v")).await.unwrap();
    }
    kv.put(put("other", "v")).await.unwrap();
    let one = DeleteRangeRequest { key: b"k0".into(), prev_kv: true, ..Default::default() };
    let one = kv.delete_range(one).await.unwrap().into_inner();
    assert_eq!((one.deleted, one.prev_kvs.len()), (1, 1));
    let all = kv.delete_range(DeleteRangeRequest { prev_kv: true, ..delete("k") }).await.unwrap().into_inner();
    assert_eq!((all.deleted, all.prev_kvs.len()), (5, 5));
    let revision = all.header.unwrap().revision;
    let none = kv.delete_range(DeleteRangeRequest { prev_kv: true, ..delete("k") }).await.unwrap().into_inner();
    assert_eq!((none.deleted, none.prev_kvs.len(), none.header.unwrap().revision), (0, 0, revision));
}

#[tokio::test]
async fn more_keys_than_one_transaction_may_delete_are_deleted_in_parts() {
    let api = Api::new();
    let mut kv = api.kv();
    for part in 0..12 {
        let success = (0..100).map(|number| operation(put(&format!("k{part:02}{number:02}"), ""))).collect();
        kv.txn(TxnRequest { success, ..Default::default() }).await.unwrap();
    }
    let all = kv.delete_range(delete("k")).await.unwrap().into_inner();
    assert_eq!(all.deleted, 1200);
    assert_eq!(kv.range(prefix("k")).await.unwrap().into_inner().count, 0);
}

/// The parts before it have deleted some keys, so the client must not be told that nothing happened.
#[tokio::test(start_paused = true)]
async fn a_deletion_that_fails_after_a_part_may_have_taken_effect() {
    let api = Api::new();
    let mut kv = api.kv();
    for n in 0..1030 {
        kv.put(put(&format!("many/{n}"), "")).await.unwrap();
    }

    // Each part begins with a read of a second: the leader is lost within the second one.
    api.store.read_slowly(Duration::from_secs(1));
    let losing = async {
        sleep(Duration::from_millis(1500)).await;
        api.store.be_leaderless(true);
    };
    let (deleted, ()) = tokio::join!(kv.delete_range(delete("many/")), losing);
    assert_eq!(shown(&deleted.unwrap_err()), "14 etcdserver: request timed out");

    api.store.be_leaderless(false);
    api.store.read_slowly(Duration::ZERO);
    assert!((1..1030).contains(&kv.range(prefix("many/")).await.unwrap().into_inner().count));
}

#[tokio::test]
async fn compaction_forgets_the_past() {
    let api = Api::new();
    let mut kv = api.kv();
    let mut revision = 0;
    for value in ["1", "2", "3"] {
        revision = kv.put(put("a", value)).await.unwrap().into_inner().header.unwrap().revision;
    }
    kv.compact(CompactionRequest { revision: revision - 1, physical: false }).await.unwrap();
    let read = |revision| RangeRequest { revision, ..prefix("a") };
    assert_eq!(kv.range(read(revision - 1)).await.unwrap().into_inner().kvs[0].value, b"2");
    let compacted = "11 etcdserver: mvcc: required revision has been compacted";
    assert_eq!(shown(&kv.range(read(revision - 2)).await.unwrap_err()), compacted);
    // Nor is the compacted revision itself compacted again.
    for revision in [revision - 1, revision - 2, -1] {
        let again = kv.compact(CompactionRequest { revision, physical: false }).await.unwrap_err();
        assert_eq!(shown(&again), compacted, "{revision}");
    }
    let future = "11 etcdserver: mvcc: required revision is a future revision";
    assert_eq!(shown(&kv.range(read(revision + 1)).await.unwrap_err()), future);
    let ahead = kv.compact(CompactionRequest { revision: revision + 1, physical: false }).await.unwrap_err();
    assert_eq!(shown(&ahead), future);
}

#[tokio::test]
async fn bad_requests_get_etcds_errors() {
    let mut kv = Api::new().kv();
    let empty = "3 etcdserver: key is not provided";
    assert_eq!(shown(&kv.range(RangeRequest::default()).await.unwrap_err()), empty);
    assert_eq!(shown(&kv.put(PutRequest::default()).await.unwrap_err()), empty);
    assert_eq!(shown(&kv.delete_range(DeleteRangeRequest::default()).await.unwrap_err()), empty);
    let sort = kv.range(RangeRequest { sort_target: 9, ..prefix("a") }).await.unwrap_err();
    assert_eq!(shown(&sort), "3 etcdserver: invalid sort option");
    let value = kv.put(PutRequest { ignore_value: true, ..put("a", "1") }).await.unwrap_err();
    assert_eq!(shown(&value), "3 etcdserver: value is provided");
    let lease = kv.put(PutRequest { ignore_lease: true, lease: 1, ..put("a", "1") }).await.unwrap_err();
    assert_eq!(shown(&lease), "3 etcdserver: lease is provided");
    let lease = kv.put(PutRequest { lease: 5, ..put("a", "1") }).await.unwrap_err();
    assert_eq!(shown(&lease), "5 etcdserver: requested lease not found");
    let large = kv.put(put("a", &"x".repeat(2 << 20))).await.unwrap_err();
    assert_eq!(shown(&large), "3 etcdserver: request is too large");
    let long = kv.put(put(&"k".repeat(4096), "")).await.unwrap_err();
    assert_eq!(shown(&long), "3 etcdserver: request is too large");
    assert_eq!(kv.range(prefix("a")).await.unwrap().into_inner().count, 0, "nothing was written");
}

#[tokio::test]
async fn a_range_that_ends_before_it_begins_has_no_keys() {
    let mut kv = Api::new().kv();
    for key in ["a", "b", "c"] {
        kv.put(put(key, "v")).await.unwrap();
    }
    for end in ["a", "b"] {
        let range = RangeRequest { key: b"b".into(), range_end: end.into(), ..Default::default() };
        let read = kv.range(range).await.unwrap().into_inner();
        assert_eq!((read.count, read.kvs.len(), read.more), (0, 0, false), "{end}");
        let delete = DeleteRangeRequest { key: b"b".into(), range_end: end.into(), prev_kv: true };
        assert_eq!(kv.delete_range(delete.clone()).await.unwrap().into_inner().deleted, 0, "{end}");
        // What the range deletes is no duplicate of what is put.
        let success = vec![operation(delete), operation(put("b", "w"))];
        assert!(kv.txn(TxnRequest { success, ..Default::default() }).await.unwrap().into_inner().succeeded, "{end}");
    }
    assert_eq!(kv.range(prefix("b")).await.unwrap().into_inner().kvs[0].version, 3);
}

#[tokio::test]
async fn a_request_that_asks_for_a_leader_is_refused_without_one() {
    let api = Api::new();
    api.store.be_leaderless(true);
    let mut request = tonic::Request::new(prefix("a"));
    request.metadata_mut().insert("hasleader", "true".parse().unwrap());
    assert_eq!(shown(&api.kv().range(request).await.unwrap_err()), "14 etcdserver: no leader");
}

#[tokio::test]
async fn a_read_of_keys_keeps_no_values_and_has_the_limit_of_all_answers() {
    let api = Api::new();
    api.kv().put(put("a", "a value")).await.unwrap();
    let entry = api.store.machine().entry(&key::from_wire(b"a").unwrap()).unwrap();
    let keys_only = RangeRequest { keys_only: true, ..prefix("a") };
    let kept = Arc::strong_count(&entry);

    let mut view = RangeView::new(&keys_only);
    let mut number = 0..;
    let mut found = || (key::from_wire(format!("{:02000}", number.next().unwrap()).as_bytes()).unwrap(), entry.clone());
    view.add((0..2000).map(|_| found())).unwrap();
    assert_eq!(Arc::strong_count(&entry), kept);
    let too_large = view.add((0..200).map(|_| found())).unwrap_err();
    assert!(matches!(too_large, Error::AnswerTooLarge { .. }), "{too_large}");

    // What is sorted by values has to keep them until the end.
    let by_value = RangeRequest { sort_target: SortTarget::Value.into(), ..keys_only };
    let mut view = RangeView::new(&by_value);
    view.add([(key::from_wire(b"b").unwrap(), entry.clone())]).unwrap();
    assert_eq!(view.answer().kvs[0].value, b"");
}

#[tokio::test]
async fn a_deletion_shows_what_it_deletes_or_deletes_nothing() {
    let mut kv = Api::new().kv();
    // Four of them are more than one transaction shows, and eleven more than an answer has.
    let large = "x".repeat(390 << 10);
    for number in 10..21 {
        kv.put(put(&format!("a{number}"), &large)).await.unwrap();
    }
    let with_former = |prefix| DeleteRangeRequest { prev_kv: true, ..delete(prefix) };

    let error = kv.delete_range(with_former("a")).await.unwrap_err();
    assert_eq!(shown(&error), "8 etcdserver: the answer has more than 4194304 bytes: ask for fewer keys, with a limit");
    assert_eq!(kv.range(RangeRequest { count_only: true, ..prefix("a") }).await.unwrap().into_inner().count, 11);

    kv.delete_range(delete("a2")).await.unwrap();
    kv.delete_range(delete("a19")).await.unwrap();
    let deleted = kv.delete_range(with_former("a")).await.unwrap().into_inner();
    assert_eq!((deleted.deleted, deleted.prev_kvs.len()), (9, 9));
    assert!(deleted.prev_kvs.iter().all(|kv| kv.value == large.as_bytes()));
    assert_eq!(kv.range(prefix("a")).await.unwrap().into_inner().count, 0);
}

#[tokio::test]
async fn a_read_that_may_be_old_is_answered_without_a_leader() {
    let api = Api::new();
    let mut kv = api.kv();
    let first = kv.put(put("a", "old")).await.unwrap().into_inner().header.unwrap().revision;
    api.store.lag(true);
    kv.put(put("a", "new")).await.unwrap();
    api.store.be_leaderless(true);

    let one = RangeRequest { key: b"a".to_vec(), ..RangeRequest::default() };
    for request in [prefix("a"), one] {
        let old = RangeRequest { serializable: true, ..request.clone() };
        let answer = kv.range(old.clone()).await.unwrap().into_inner();
        assert_eq!(answer.kvs[0].value, b"old");
        assert_eq!(answer.header.unwrap().revision, first);

        let error = kv.range(request).await.unwrap_err();
        assert_eq!(shown(&error), "14 etcdserver: no leader");
        // A revision of the past is known to the leader for certain.
        kv.range(RangeRequest { revision: first, ..old }).await.unwrap_err();
    }
}

/// Each of them is in memory several times while it is made.
#[tokio::test]
async fn answers_of_several_pages_take_turns_and_smaller_ones_do_not_wait() {
    let api = Api::new();
    let mut kv = api.kv();
    for number in 10..20 {
        kv.put(put(&format!("a{number}"), "")).await.unwrap();
    }
    api.lease().lease_grant(LeaseGrantRequest { ttl: 60, id: 77 }).await.unwrap();

    // Another answer is being made.
    let turn = Arc::clone(api.store.answers()).acquire_owned().await.unwrap();
    let mut large = Box::pin(async { api.kv().range(prefix("a")).await });
    let mut leases = Box::pin(async { api.lease().lease_leases(LeaseLeasesRequest {}).await });
    let some = RangeRequest { range_end: b"a15".into(), ..prefix("a") };
    for small in [some, RangeRequest { key: b"a10".into(), ..Default::default() }] {
        let answer = tokio::select! {
            biased;
            large = &mut large => panic!("it has no turn: {large:?}"),
            leases = &mut leases => panic!("it has no turn: {leases:?}"),
            answer = kv.range(small) => answer.unwrap().into_inner(),
        };
        assert!((1..=5).contains(&answer.count), "{answer:?}");
    }

    drop(turn);
    assert_eq!(large.await.unwrap().into_inner().kvs.len(), 10);
    assert_eq!(leases.await.unwrap().into_inner().leases.len(), 1);
    assert_eq!(api.store.answers().available_permits(), 1, "it is free behind the answers");
}
