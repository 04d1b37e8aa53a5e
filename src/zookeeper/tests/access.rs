//! Access lists, identities, and the policy of the store.

use super::{
    Rig,
    client::{Body, Client, Told, drop_ref},
    until,
};
use crate::{
    tree::ClientIdentities,
    wire::{AclEntry, JuteWriter, Opcode},
};

const NO_AUTH: i32 = -102;
const INVALID_ACL: i32 = -114;

pub(super) fn entry(permissions: i32, scheme: &str, id: &str) -> AclEntry {
    AclEntry { permissions, scheme: scheme.to_owned(), id: id.to_owned() }
}

pub(super) async fn create_with(client: &mut Client, path: &str, acl: &[AclEntry]) -> Result<(), i32> {
    let write = |out: &mut JuteWriter| {
        out.string(path).buffer(None);
        AclEntry::write_list(acl, out);
        out.int(0);
    };
    client.ask(Opcode::CREATE, write).await.map(|_| ())
}

pub(super) async fn authenticate(client: &mut Client, scheme: &str, credentials: &[u8]) -> Result<(), i32> {
    let sent = client.send(Opcode::AUTH, |out| drop_ref(out.int(0).string(scheme).buffer(Some(credentials)))).await;
    client.reply(sent).await.map(|(zxid, _)| assert_eq!(zxid, 0))
}

async fn read_acl(client: &mut Client, path: &str) -> Result<Vec<AclEntry>, i32> {
    let (_, body) = client.ask(Opcode::GET_ACL, |out| drop_ref(out.string(path))).await?;
    let mut body = Body(&body);
    Ok((0..body.int()).map(|_| entry(body.int(), &body.string(), &body.string())).collect())
}

#[tokio::test]
async fn lists_that_cannot_be_are_refused() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    let bad = [
        vec![],
        vec![entry(31, "world", "somebody")],
        vec![entry(31, "unknown", "x")],
        vec![entry(31, "digest", "no-colon")],
        vec![entry(31, "ip", "300.1.2.3")],
        vec![entry(31, "ip", "10.0.0.0/33")],
        vec![entry(31, "auth", "")],
        vec![entry(31, "x509", "")],
        vec![entry(31, "world", "anyone"), entry(1, "digest", "x")],
        vec![entry(1, "x509", &"x".repeat(2_000))],
        (0..300).map(|number| entry(1, "x509", &number.to_string())).collect(),
    ];
    for acl in bad {
        assert_eq!(create_with(&mut client, "/a", &acl).await, Err(INVALID_ACL), "{acl:?}");
    }

    // Lists whose entries stand for all identities of a client, each time: they are not compared one by one before they are counted.
    for number in 0..32 {
        authenticate(&mut client, "digest", format!("user{number}:hush").as_bytes()).await.unwrap();
    }
    let own = |number: i32| entry(number, "auth", "");
    let same = vec![own(31); 60_000];
    assert_eq!(create_with(&mut client, "/a", &same).await, Err(INVALID_ACL));
    let different: Vec<_> = (0..60_000).map(own).collect();
    assert_eq!(create_with(&mut client, "/a", &different).await, Err(INVALID_ACL));
    let nine: Vec<_> = (1..10).map(own).collect();
    assert_eq!(create_with(&mut client, "/a", &nine).await, Err(INVALID_ACL));
    create_with(&mut client, "/a", &nine[1..]).await.unwrap();
}

#[tokio::test]
async fn a_digest_opens_what_it_closed() {
    let rig = Rig::new(1).await;
    let mut owner = rig.client().await;
    let mut other = rig.client().await;
    authenticate(&mut owner, "digest", b"ann:hush").await.unwrap();
    create_with(&mut owner, "/own", &[entry(31, "auth", ""), entry(1, "world", "anyone")]).await.unwrap();
    let acl = read_acl(&mut owner, "/own").await.unwrap();
    assert_eq!(acl[0].scheme, "digest");
    let (user, hash) = acl[0].id.split_once(':').unwrap();
    assert_eq!((user, hash.len()), ("ann", 28));

    // Others read it, and no more; they do not see the hash.
    assert_eq!(read_acl(&mut other, "/own").await.unwrap()[0].id, "ann:x");
    other.get("/own", false).await.unwrap();
    assert_eq!(other.set("/own", b"", -1).await, Err(NO_AUTH));
    assert_eq!(other.create("/own/x", b"", 0).await, Err(NO_AUTH));
    owner.create("/own/x", b"", 0).await.unwrap();
    assert_eq!(other.delete("/own/x", -1).await, Err(NO_AUTH));
    assert_eq!(other.delete("/own/none", -1).await, Err(NO_AUTH), "nobody learns what is missing, as in ZooKeeper");
    authenticate(&mut other, "digest", b"ann:hush").await.unwrap();
    other.delete("/own/x", -1).await.unwrap();
    let (_, body) = other.ask(Opcode::WHO_AM_I, |_| {}).await.unwrap();
    let mut body = Body(&body);
    assert_eq!(body.int(), 2);
    assert_eq!((body.string(), body.string()), ("ip".to_owned(), "127.0.0.1".to_owned()));
    assert_eq!((body.string(), body.string()), ("digest".to_owned(), "ann".to_owned()));
}

#[tokio::test]
async fn rights_are_those_of_each_operation() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    for (path, permissions) in [("/r", 1), ("/w", 2), ("/c", 4), ("/d", 8), ("/a", 16)] {
        create_with(&mut client, path, &[entry(permissions, "ip", "127.0.0.0/8")]).await.unwrap();
    }
    let may = |result: Result<(), i32>| match result {
        Ok(()) => true,
        Err(NO_AUTH) => false,
        Err(other) => panic!("{other}"),
    };
    let mut rights = Vec::new();
    for path in ["/r", "/w", "/c", "/d", "/a"] {
        let check = |out: &mut JuteWriter| drop_ref(out.string(path).int(-1));
        let acl = |out: &mut JuteWriter| {
            out.string(path);
            AclEntry::write_list(&[entry(16, "ip", "127.0.0.1")], out);
            out.int(-1);
        };
        rights.push([
            may(client.get(path, false).await.map(|_| ())),
            may(client.children(path, false).await.map(|_| ())),
            may(client.ask(Opcode::CHECK, check).await.map(|_| ())),
            may(read_acl(&mut client, path).await.map(|_| ())),
            may(client.set(path, b"", -1).await.map(|_| ())),
            may(client.create(&format!("{path}/x"), b"", 0).await.map(|_| ())),
            may(client.ask(Opcode::SET_ACL, acl).await.map(|_| ())),
        ]);
        client.exists(path, false).await.unwrap();
    }
    let expected = [
        [true, true, true, true, false, false, false],
        [false, false, false, false, true, false, false],
        [false, false, false, false, false, true, false],
        [false, false, false, false, false, false, false],
        [false, false, false, true, false, false, true],
    ];
    assert_eq!(rights, expected);
    // To delete, a right of the parent is needed.
    assert_eq!(client.delete("/c/x", -1).await, Err(NO_AUTH));
    client.delete("/d", -1).await.unwrap();
}

#[tokio::test]
async fn a_proof_that_is_none_is_told_and_then_the_connection_ends() {
    let rig = Rig::new(1).await;
    for (scheme, credentials) in [("digest", &b"\xff:x"[..]), ("sasl", b""), ("x509", b"")] {
        let mut client = rig.client().await;
        // More than it reads, so that a close without care would be a reset.
        client.send(Opcode::AUTH, |out| drop_ref(out.int(0).string(scheme).buffer(Some(credentials)))).await;
        client.send(Opcode::CREATE, |out| drop_ref(out.string("/x").buffer(Some(&[0; 100_000])))).await;
        assert!(matches!(client.next().await, Some(Told::Reply { xid: -4, error: -115, .. })));
        assert_eq!(client.next().await, None);
    }
}

#[tokio::test]
async fn credentials_without_a_colon_are_those_of_a_user_by_this_name() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    authenticate(&mut client, "digest", b"secret").await.unwrap();
    create_with(&mut client, "/own", &[entry(31, "auth", "")]).await.unwrap();
    // printf secret | openssl sha1 -binary | base64
    let expected = entry(31, "digest", "secret:5en6G6MezRroT3XKqkdPOmY/BfQ=");
    assert_eq!(read_acl(&mut client, "/own").await.unwrap(), [expected]);
}

#[test]
fn addresses_and_certificates_are_identities() {
    let value = |acl: Vec<AclEntry>| crate::tree::ZnodeValue { acl: acl.into(), ..crate::tree::ZnodeValue::system() };
    let client = ClientIdentities::new("10.1.2.3".parse().unwrap(), Some("CN=ann".to_owned()));
    for (scheme, id, is_meant) in [
        ("ip", "10.1.2.3", true),
        ("ip", "10.0.0.0/8", true),
        ("ip", "10.0.0.0/16", false),
        ("ip", "0.0.0.0/0", true),
        ("ip", "::/0", false),
        ("x509", "CN=ann", true),
        ("x509", "CN=bob", false),
        ("digest", "CN=ann", false),
        ("world", "anyone", true),
    ] {
        let checked = client.check(&value(vec![entry(1, scheme, id)]), 1);
        assert_eq!(checked.is_ok(), is_meant, "{scheme} {id}");
        assert!(client.check(&value(vec![entry(1, scheme, id)]), 2).is_err());
    }
    let own = client.complete(&[entry(31, "auth", "")]).unwrap();
    assert_eq!(own, [entry(31, "x509", "CN=ann")]);
    let mapped = ClientIdentities::new("::ffff:10.1.2.3".parse().unwrap(), None);
    assert!(mapped.check(&value(vec![entry(1, "ip", "10.1.2.3")]), 1).is_ok());
}

#[tokio::test]
async fn strangers_are_refused_until_they_prove_who_they_are() {
    let rig = Rig::new(1).await;
    rig.cluster.add_user("ann", "hush");
    let mut client = rig.client().await;
    client.ask(Opcode::PING, |_| {}).await.unwrap();
    assert_eq!(client.create("/a", b"", 0).await, Err(NO_AUTH));
    assert_eq!(client.exists("/", false).await, Err(NO_AUTH));
    // A user of its own is one for access lists alone.
    authenticate(&mut client, "digest", b"ann:wrong").await.unwrap();
    assert_eq!(client.exists("/", false).await, Err(NO_AUTH));
    authenticate(&mut client, "digest", b"ann:hush").await.unwrap();
    client.create("/a", b"", 0).await.unwrap();
}

#[tokio::test]
async fn a_connection_ends_when_the_password_of_its_client_counts_no_more() {
    let rig = Rig::new(1).await;
    rig.cluster.add_user("ann", "hush");
    rig.cluster.add_user("bob", "hidden");
    let mut ann = rig.client().await;
    authenticate(&mut ann, "digest", b"ann:hush").await.unwrap();
    ann.create("/a", b"", 1).await.unwrap();
    let mut bob = rig.client().await;
    authenticate(&mut bob, "digest", b"bob:hidden").await.unwrap();
    rig.cluster.withdraw_user("ann");
    assert_eq!(ann.next().await, None);
    bob.exists("/a", false).await.expect("her session is not over yet");
    let mut again = rig.again(0, &ann).await.expect("it lives");
    authenticate(&mut again, "digest", b"ann:hush").await.unwrap();
    assert_eq!(again.exists("/a", false).await, Err(NO_AUTH));
}

#[tokio::test]
async fn an_identity_has_as_many_connections_as_it_may() {
    let rig = Rig::new(1).await;
    rig.cluster.add_user("ann", "hush");
    rig.cluster.limit_connections(1);
    let mut first = rig.client().await;
    authenticate(&mut first, "digest", b"ann:hush").await.unwrap();
    authenticate(&mut first, "digest", b"ann:hush").await.unwrap();
    let mut second = rig.client().await;
    second.send(Opcode::AUTH, |out| drop_ref(out.int(0).string("digest").buffer(Some(b"ann:hush")))).await;
    assert_eq!(second.next().await, None);
    drop(first);
    loop {
        let mut third = rig.client().await;
        third.send(Opcode::AUTH, |out| drop_ref(out.int(0).string("digest").buffer(Some(b"ann:hush")))).await;
        if third.next().await.is_some() {
            break;
        }
    }
}

#[tokio::test]
async fn a_session_belongs_to_the_identity_that_is_proven_first_and_counts_for_its_limit() {
    let rig = Rig::new(2).await;
    rig.cluster.add_user("ann", "hush");
    rig.cluster.add_user("bob", "hidden");
    rig.cluster.limit_sessions(1);
    let ann = Some("ann".to_owned());
    let mut first = rig.client().await;
    assert_eq!(rig.cluster.owners(), [None]);
    authenticate(&mut first, "digest", b"ann:hush").await.unwrap();
    assert_eq!(rig.cluster.owners(), std::slice::from_ref(&ann));

    // Where it goes on, it is hers already, and no one's whom its client may be besides.
    let mut moved = rig.again(1, &first).await.expect("it lives");
    authenticate(&mut moved, "digest", b"ann:hush").await.unwrap();
    authenticate(&mut moved, "digest", b"bob:hidden").await.unwrap();
    assert_eq!(rig.cluster.owners(), std::slice::from_ref(&ann));

    // One too many is closed without an answer, and its session ends with it.
    let mut second = rig.client().await;
    second.send(Opcode::AUTH, |out| drop_ref(out.int(0).string("digest").buffer(Some(b"ann:hush")))).await;
    assert_eq!(second.next().await, None);
    until("its session ends", || rig.cluster.owners() == [ann.clone()]).await;
    let mut bob = rig.client().await;
    authenticate(&mut bob, "digest", b"bob:hidden").await.expect("another identity is not concerned");
}

/// Strangers could fill the table with sessions; whoever comes back to a session of its own may have nodes.
#[tokio::test]
async fn the_session_of_a_stranger_ends_with_its_connection_but_not_one_that_was_taken_up_again() {
    let rig = Rig::new(1).await;
    rig.cluster.add_user("ann", "hush");
    let stranger = rig.client().await;
    let mut ann = rig.client().await;
    authenticate(&mut ann, "digest", b"ann:hush").await.unwrap();
    let again = rig.again(0, &ann).await.unwrap();
    assert_eq!(rig.cluster.sessions().len(), 2);
    let gone = stranger.session();
    drop((stranger, again));
    until("it ends", || !rig.cluster.sessions().contains(&gone)).await;

    // Whose connection ends later is gone too: by then, the end of that one has been seen.
    let later = rig.client().await;
    let gone_later = later.session();
    drop(later);
    until("it ends", || !rig.cluster.sessions().contains(&gone_later)).await;
    assert!(rig.cluster.sessions().contains(&ann.session()));
}

#[tokio::test]
async fn what_the_policy_forbids_is_neither_read_nor_watched_nor_written() {
    let rig = Rig::new(1).await;
    rig.cluster.forbid("hidden");
    let mut client = rig.client().await;
    for path in ["/hidden", "/hidden/x"] {
        assert_eq!(client.get(path, true).await, Err(NO_AUTH));
        assert_eq!(client.exists(path, true).await, Err(NO_AUTH));
        assert_eq!(client.children(path, true).await, Err(NO_AUTH));
        assert_eq!(client.create(path, b"", 0).await, if path == "/hidden" { Err(NO_AUTH) } else { Err(-101) });
        let watch = |out: &mut JuteWriter| drop_ref(out.string(path).int(1));
        assert_eq!(client.ask(Opcode::ADD_WATCH, watch).await, Err(NO_AUTH));
    }
    assert_eq!(rig.ports[0].stats().watches, 0);
}
