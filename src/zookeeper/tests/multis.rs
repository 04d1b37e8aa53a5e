//! Writes that happen together, or not at all.

use super::{
    Rig,
    client::{Body, Client, drop_ref, write_create},
};
use crate::{
    ZookeeperTxn, ZookeeperWrite,
    wire::{JuteWriter, Opcode, ZnodeStat},
};

enum Op<'a> {
    Create(&'a str, i32),
    CreateWithStat(&'a str),
    Container(&'a str),
    Delete(&'a str, i32),
    Set(&'a str, &'a [u8], i32),
    Check(&'a str, i32),
}

#[derive(Debug, PartialEq)]
enum Done {
    Path(i32, String),
    PathWithStat(String, u64),
    Stat(i32, usize),
    Nothing(i32),
    Error(i32),
}

fn write_ops(out: &mut JuteWriter, ops: &[Op<'_>]) {
    let mut header = |opcode: Opcode, body: &dyn Fn(&mut JuteWriter)| {
        out.multi_header(opcode, false, -1);
        body(out);
    };
    for op in ops {
        match op {
            Op::Create(path, flags) => header(Opcode::CREATE, &|out| write_create(out, path, b"", *flags)),
            Op::CreateWithStat(path) => header(Opcode::CREATE_WITH_STAT, &|out| write_create(out, path, b"", 0)),
            Op::Container(path) => header(Opcode::CREATE_CONTAINER, &|out| write_create(out, path, b"", 4)),
            Op::Delete(path, version) => header(Opcode::DELETE, &|out| drop_ref(out.string(path).int(*version))),
            Op::Set(path, data, version) => {
                header(Opcode::SET_DATA, &|out| drop_ref(out.string(path).buffer(Some(data)).int(*version)));
            }
            Op::Check(path, version) => header(Opcode::CHECK, &|out| drop_ref(out.string(path).int(*version))),
        }
    }
    out.multi_header(Opcode::NONE, true, -1);
}

fn read_results(body: &[u8]) -> Vec<Done> {
    let mut body = Body(body);
    let mut results = Vec::new();
    loop {
        let (opcode, is_end, error) = (body.int(), body.bool(), body.int());
        if is_end {
            assert_eq!((opcode, error), (-1, -1));
            assert!(body.0.is_empty());
            return results;
        }
        results.push(match opcode {
            1 => Done::Path(1, body.string()),
            15 => {
                let path = body.string();
                Done::PathWithStat(path, body.stat().created)
            }
            5 => {
                let ZnodeStat { version, data_bytes, .. } = body.stat();
                Done::Stat(version, data_bytes)
            }
            -1 => {
                assert_eq!(body.int(), error, "the error stands twice");
                Done::Error(error)
            }
            other => Done::Nothing(other),
        });
    }
}

async fn multi(client: &mut Client, ops: &[Op<'_>]) -> Vec<Done> {
    let (_, body) = client.ask(Opcode::MULTI, |out| write_ops(out, ops)).await.expect("the header says 0");
    read_results(&body)
}

fn errors(codes: &[i32]) -> Vec<Done> {
    codes.iter().map(|code| Done::Error(*code)).collect()
}

#[tokio::test]
async fn all_is_done_at_one_zxid_and_later_ones_see_earlier_ones() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    let ops = [
        Op::Create("/a", 0),
        Op::Check("/a", 0),
        Op::Set("/a", b"xy", 0),
        Op::CreateWithStat("/a/b"),
        Op::Create("/a/n-", 2),
        Op::Container("/a/c"),
        Op::Delete("/a/b", 0),
        Op::Set("/a", b"xyz", 1),
    ];
    let results = multi(&mut client, &ops).await;
    let zxid = u64::try_from(client.zxid).unwrap();
    let expected = [
        Done::Path(1, "/a".to_owned()),
        Done::Nothing(13),
        Done::Stat(1, 2),
        Done::Path(1, "/a/b".to_owned()),
        Done::Path(1, "/a/n-0000000001".to_owned()),
        Done::PathWithStat("/a/c".to_owned(), zxid),
        Done::Nothing(2),
        Done::Stat(2, 3),
    ];
    assert_eq!(results, expected);
    let (data, stat) = client.get("/a", false).await.unwrap();
    assert_eq!(data, b"xyz");
    assert_eq!((stat.created, stat.modified, stat.children_modified), (zxid, zxid, zxid));
    assert_eq!((stat.children, stat.child_version, stat.version), (2, 4, 2));
}

#[tokio::test]
async fn a_failed_multi_says_which_one_failed_and_does_nothing() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    client.create("/a", b"", 0).await.unwrap();
    client.create("/a/b", b"", 0).await.unwrap();
    let before = rig.cluster.revision();
    for (ops, codes) in [
        (vec![Op::Check("/a", 1), Op::Create("/x", 0)], vec![-103, -2]),
        (vec![Op::Create("/x", 0), Op::Check("/no", 0), Op::Create("/y", 0)], vec![0, -101, -2]),
        (vec![Op::Create("/x", 0), Op::Create("/x", 0)], vec![0, -110]),
        (vec![Op::Create("/x", 0), Op::Create("/a", 0), Op::Check("/no", 0)], vec![0, -110, -2]),
        (vec![Op::Create("/x", 1), Op::Create("/x/y", 0)], vec![0, -108]),
        (vec![Op::Check("/a", 0), Op::Delete("/a", 0)], vec![0, -111]),
        (vec![Op::Create("/x", 0), Op::Create("/x/y", 0), Op::Delete("/x", -1)], vec![0, 0, -111]),
        (vec![Op::Set("/a", b"", 0), Op::Set("/a", b"", 0)], vec![0, -103]),
        (vec![Op::Delete("/a/b", 0), Op::Set("/a/b", b"", 0)], vec![0, -101]),
        (vec![Op::Create("/x", 0), Op::Create("/no/y", 0)], vec![0, -101]),
        (vec![Op::Create("/x", 0), Op::Create("bad", 0)], vec![0, -8]),
        (vec![Op::Check("/a", 0)], vec![]),
    ] {
        let results = multi(&mut client, &ops).await;
        if codes.is_empty() {
            assert_eq!(results, [Done::Nothing(13)]);
        } else {
            assert_eq!(results, errors(&codes));
        }
    }
    assert_eq!(multi(&mut client, &[]).await, []);
    assert_eq!(rig.cluster.revision(), before);
}

#[tokio::test]
async fn a_node_may_be_written_many_times_in_one_multi() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    client.create("/a", b"old", 0).await.unwrap();
    // Deleted and made again: another node.
    let results = multi(&mut client, &[Op::Set("/a", b"x", 0), Op::Delete("/a", 1), Op::Create("/a", 0)]).await;
    assert_eq!(results, [Done::Stat(1, 1), Done::Nothing(2), Done::Path(1, "/a".to_owned())]);
    let stat = client.exists("/a", false).await.unwrap();
    assert_eq!((stat.version, stat.created), (0, u64::try_from(client.zxid).unwrap()));

    // Made and deleted: nothing is left but the parent's number.
    let made = |parent: ZnodeStat| (parent.children, parent.child_version);
    let before = made(client.exists("/", false).await.unwrap());
    multi(&mut client, &[Op::Create("/b", 0), Op::Set("/b", b"1", 0), Op::Delete("/b", 1)]).await;
    assert_eq!(client.exists("/b", false).await, Err(-101));
    let after = made(client.exists("/", false).await.unwrap());
    assert_eq!(after, (before.0, before.1 + 2));

    // Made, deleted and made again: the store takes one put of a key, and what was made below it meanwhile is not in its way.
    let ops =
        [Op::Create("/b", 0), Op::Create("/b/c", 0), Op::Delete("/b/c", 0), Op::Delete("/b", 0), Op::Create("/b", 0)];
    let results = multi(&mut client, &ops).await;
    assert_eq!(results.last(), Some(&Done::Path(1, "/b".to_owned())));
    assert_eq!(client.exists("/b", false).await.unwrap().children, 0);
    // Of a node that is there already, the first of them fails.
    let results = multi(&mut client, &[Op::Create("/b", 0), Op::Delete("/b", 0), Op::Create("/b", 0)]).await;
    assert_eq!(results, [Done::Error(-110), Done::Error(-2), Done::Error(-2)]);

    let results = multi(
        &mut client,
        &[Op::Delete("/a", -1), Op::Create("/a", 0), Op::Delete("/a", 0), Op::Create("/a", 1), Op::Set("/a", b"e", 0)],
    )
    .await;
    assert_eq!(results.last(), Some(&Done::Stat(1, 1)));
    let (data, stat) = client.get("/a", false).await.unwrap();
    assert_eq!((&data[..], stat.owner), (&b"e"[..], client.session()));
}

#[tokio::test]
async fn trees_are_deleted_by_the_thousand() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    client.create("/t", b"", 0).await.unwrap();
    let names: Vec<String> = (0..999).map(|number| format!("/t/{number}")).collect();
    let creates: Vec<_> = names.iter().map(|name| Op::Create(name, 0)).collect();
    assert_eq!(multi(&mut client, &creates).await.len(), 999);
    let mut deletes: Vec<_> = names.iter().map(|name| Op::Delete(name, -1)).collect();
    deletes.push(Op::Delete("/t", -1));
    let results = multi(&mut client, &deletes).await;
    assert!(results.iter().all(|done| *done == Done::Nothing(2)), "{results:?}");
    assert_eq!(client.exists("/t", false).await, Err(-101));

    // More than the store takes is refused as a whole, and the connection stays.
    let checks: Vec<_> = (0..2_000).map(|_| Op::Create("/t-", 2)).collect();
    let results = multi(&mut client, &checks).await;
    assert_eq!((results.len(), &results[0], &results[1]), (2_000, &Done::Error(-8), &Done::Error(-2)));
}

#[tokio::test]
async fn nodes_that_are_large_together_are_planned_again_and_told_apart() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    client.create("/small", b"", 0).await.unwrap();
    let large = ["/a", "/b", "/c", "/d", "/e"];
    for path in large {
        client.create(path, &[0; 350_000], 0).await.unwrap();
    }

    // The store shows no refusal with all of these, and the one that fails is told all the same.
    let mut ops = vec![Op::Set("/small", b"", -1)];
    ops.extend(large.map(|path| Op::Check(path, if path == "/e" { 7 } else { 0 })));
    assert_eq!(multi(&mut client, &ops).await, errors(&[0, 0, 0, 0, 0, -103]));

    // Another client writes right before, twice: the same multi is planned in the state that it has left.
    let stored = rig.cluster.stored(b"zookeeper\0small").unwrap();
    let put = ZookeeperWrite::Put { key: b"zookeeper\0small".to_vec(), value: stored.value };
    rig.cluster.intrude(vec![ZookeeperTxn { writes: vec![put], ..ZookeeperTxn::default() }; 2]);
    let mut ops = vec![Op::Set("/small", b"new", -1)];
    ops.extend(large.map(|path| Op::Check(path, 0)));
    let mut expected = vec![Done::Stat(1, 3)];
    expected.extend(large.map(|_| Done::Nothing(13)));
    assert_eq!(multi(&mut client, &ops).await, expected);
    assert_eq!(client.get("/small", false).await.unwrap().0, b"new");
}

#[tokio::test]
async fn a_multi_reads_as_many_nodes_as_the_store_compares() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    let parents: Vec<String> = (0..513).map(|number| format!("/p{number}")).collect();
    let leaves: Vec<String> = parents.iter().map(|parent| format!("{parent}/leaf")).collect();
    for names in [&parents, &leaves] {
        let creates: Vec<_> = names.iter().map(|name| Op::Create(name, 0)).collect();
        assert_eq!(multi(&mut client, &creates).await.len(), 513);
    }

    // Each delete reads a node and its parent: of 513 leaves with parents of their own, one more than fits.
    let deletes: Vec<_> = leaves.iter().map(|name| Op::Delete(name, -1)).collect();
    let results = multi(&mut client, &deletes).await;
    assert_eq!((&results[0], &results[1]), (&Done::Error(-8), &Done::Error(-2)));
    let results = multi(&mut client, &deletes[..512]).await;
    assert!(results.iter().all(|done| *done == Done::Nothing(2)), "{results:?}");

    // Parents that go with their leaves are read once.
    let mut deletes = vec![Op::Delete(&leaves[512], -1)];
    deletes.extend(parents.iter().map(|name| Op::Delete(name, -1)));
    let results = multi(&mut client, &deletes).await;
    assert!(results.iter().all(|done| *done == Done::Nothing(2)), "{results:?}");
}

#[tokio::test]
async fn reads_together_have_each_their_own_outcome() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    client.create("/a", b"ab", 0).await.unwrap();
    client.create("/a/b", b"", 0).await.unwrap();
    let write = |out: &mut JuteWriter| {
        out.multi_header(Opcode::GET_DATA, false, -1).string("/a").bool(false);
        out.multi_header(Opcode::GET_DATA, false, -1).string("/no").bool(false);
        out.multi_header(Opcode::GET_CHILDREN, false, -1).string("/a").bool(false);
        out.multi_header(Opcode::NONE, true, -1);
    };
    let (_, body) = client.ask(Opcode::MULTI_READ, write).await.unwrap();
    let mut body = Body(&body);
    assert_eq!((body.int(), body.bool(), body.int()), (4, false, 0));
    assert_eq!(body.buffer().unwrap(), b"ab");
    assert_eq!(body.stat().children, 1);
    assert_eq!((body.int(), body.bool(), body.int(), body.int()), (-1, false, -101, -101));
    assert_eq!((body.int(), body.bool(), body.int()), (8, false, 0));
    assert_eq!(body.strings(), ["b"]);
    assert_eq!((body.int(), body.bool(), body.int()), (-1, true, -1));
}
