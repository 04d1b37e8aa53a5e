//! Writes that are sent together: their answers, and the order in which they take effect.

use super::{
    Rig,
    client::{Body, Client, drop_ref, write_create},
};
use crate::{ZookeeperTxn, ZookeeperWrite, tree::ZnodePath, wire::Opcode};

/// A write of a client.
#[derive(Clone, Copy, Debug)]
enum Sent {
    Create(&'static str, i32),
    Delete(&'static str, i32),
    Set(&'static str, i32),
}

const PATHS: [&str; 6] = ["/a", "/b", "/a/c", "/a/d", "/b/e", "/b/n-"];

impl Sent {
    /// Any write, by a number.
    fn drawn(number: u64) -> Self {
        let draw = |by: u64, of: u64| usize::try_from(number / by % of).unwrap();
        let path = PATHS[draw(16, 6)];
        let version = [-1, -1, 0, 1][draw(128, 4)];
        match draw(1, 8) {
            0..=3 if path.ends_with('-') => Self::Create(path, 2),
            0..=3 => Self::Create(path, i32::from(path.len() > 2 && draw(1024, 2) == 0)),
            4..=6 => Self::Delete(path, version),
            _ => Self::Set(path, version),
        }
    }

    fn request(self, client: &mut Client) -> (i32, Vec<u8>) {
        match self {
            Self::Create(path, flags) => client.request(Opcode::CREATE, |out| write_create(out, path, b"", flags)),
            Self::Delete(path, version) => {
                client.request(Opcode::DELETE, |out| drop_ref(out.string(path).int(version)))
            }
            Self::Set(path, version) => {
                client.request(Opcode::SET_DATA, |out| drop_ref(out.string(path).buffer(None).int(version)))
            }
        }
    }

    /// Sends writes at once. Returns their xids.
    async fn send(all: &[Self], client: &mut Client) -> Vec<i32> {
        let (xids, bytes): (Vec<_>, Vec<_>) = all.iter().map(|write| write.request(client)).unzip();
        client.send_raw(&bytes.concat()).await;
        xids
    }

    /// What of a reply is the same at any time.
    fn shown(self, reply: Result<(i64, Vec<u8>), i32>) -> Result<String, i32> {
        let (_, body) = reply?;
        Ok(match self {
            Self::Create(..) => Body(&body).string(),
            Self::Set(..) => Body(&body).stat().version.to_string(),
            Self::Delete(..) => String::new(),
        })
    }
}

fn drawn(seed: u64) -> Vec<Sent> {
    let mut number = seed;
    let mut next = || {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Sent::drawn(number >> 24)
    };
    (0..40).map(|_| next()).collect()
}

#[tokio::test]
async fn what_is_sent_together_is_answered_as_what_is_sent_one_after_the_other() {
    let mut most = 0;
    for seed in 0..40 {
        let sent = drawn(seed);
        let alone = Rig::new(1).await;
        let mut client = alone.client().await;
        let mut expected = Vec::new();
        for write in &sent {
            let xids = Sent::send(&[*write], &mut client).await;
            expected.push(write.shown(client.reply(xids[0]).await));
        }

        let together = Rig::new(1).await;
        let mut client = together.client().await;
        let xids = Sent::send(&sent, &mut client).await;
        for ((write, xid), expected) in sent.iter().zip(xids).zip(expected) {
            assert_eq!(write.shown(client.reply(xid).await), expected, "{write:?} of seed {seed}");
        }
        most = most.max(together.cluster.together());
    }
    assert!(most > 2, "{most} were under way at the same time");
}

#[tokio::test]
async fn nothing_takes_effect_before_what_was_sent_before_it() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    for path in ["/a", "/b"] {
        client.create(path, b"", 0).await.unwrap();
    }
    let key = |path| ZnodePath::parse(path).unwrap().key();
    let stored = |path| rig.cluster.stored(&key(path)).unwrap();

    // Others write the parent of the first one, as often as it is planned.
    let put = ZookeeperWrite::Put { key: key("/a"), value: stored("/a").value };
    let txn = ZookeeperTxn { writes: vec![put], ..ZookeeperTxn::default() };
    rig.cluster.intrude(vec![txn]);
    let sent = [Sent::Create("/a/c", 0), Sent::Create("/b/e", 0), Sent::Create("/b/n-", 2)];
    let xids = Sent::send(&sent, &mut client).await;
    for xid in xids {
        client.reply(xid).await.unwrap();
    }
    let created = ["/a/c", "/b/e", "/b/n-0000000001"].map(|path| stored(path).created);
    assert!(created.is_sorted(), "{created:?}");
    assert_eq!(rig.cluster.together(), 3);
}

/// Two clients that delete the same node: for the second one there is none, and what it has sent behind that is done all the same.
#[tokio::test]
async fn a_node_that_others_have_deleted_is_told_missing() {
    let rig = Rig::new(1).await;
    let mut client = rig.client().await;
    for path in ["/a", "/b"] {
        client.create(path, b"", 0).await.unwrap();
    }
    let gone = ZookeeperWrite::Delete { key: ZnodePath::parse("/a").unwrap().key() };
    rig.cluster.intrude(vec![ZookeeperTxn { writes: vec![gone], ..ZookeeperTxn::default() }]);
    let xids = Sent::send(&[Sent::Delete("/a", -1), Sent::Create("/b/e", 0)], &mut client).await;
    assert_eq!(client.reply(xids[0]).await, Err(-101));
    client.reply(xids[1]).await.unwrap();
    assert_eq!(rig.cluster.together(), 2);
}
