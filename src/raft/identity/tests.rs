//! Directories of this node, of others and of nobody.

use std::fs;

use rand::{SeedableRng, rngs::StdRng};

use super::*;

fn cluster(id: &str) -> ClusterId {
    id.parse().expect("a cluster id")
}

fn open(directory: &std::path::Path, cluster_id: &str, node_id: u64) -> Result<Identity, IdentityError> {
    Identity::open_or_create(directory, &cluster(cluster_id), node_id, &mut StdRng::seed_from_u64(node_id))
}

fn founder(node_id: u64) -> Member {
    let incarnation = Incarnation::draw(&mut StdRng::seed_from_u64(node_id));
    let addresses = Addresses { peer_address: format!("n{node_id}:1"), client_address: format!("n{node_id}:2") };
    Member { node_id, incarnation, addresses: Some(addresses) }
}

#[tokio::test]
async fn is_the_same_after_a_restart() {
    let home = tempfile::tempdir().expect("a directory");
    let directory = home.path().join("a/b");
    let first = open(&directory, "blue", 1).expect("an empty directory is taken");
    assert_eq!((first.stage(), first.founders()), (Stage::New, None));

    first.found(vec![founder(1), founder(2)]).await.expect("written");
    let second = open(&directory, "blue", 1).expect("its own directory");
    assert_eq!(second.incarnation(), first.incarnation());
    assert_eq!(second.stage(), Stage::Founding);
    let founders = second.founders().expect("founding");
    assert_eq!(founders[&2].client_address, "n2:2");

    second.founded(FirstEntry::Written).await.expect("written");
    second.meet(4, founder(4).incarnation).await.expect("written");
    let third = open(&directory, "blue", 1).expect("its own directory");
    assert_eq!((third.stage(), third.founders()), (Stage::Member, None));
    assert_eq!(third.known(2), Some(founder(2).incarnation));
    assert_eq!(third.known(4), Some(founder(4).incarnation));
    assert_eq!(third.known(5), None);
}

#[test]
fn refuses_the_directory_of_another() {
    let home = tempfile::tempdir().expect("a directory");
    open(home.path(), "blue", 1).expect("an empty directory is taken");

    let error = open(home.path(), "red", 1).expect_err("another cluster's");
    assert!(matches!(error, IdentityError::OtherCluster { .. }));
    assert!(error.to_string().contains(&home.path().display().to_string()), "{error}");
    let error = open(home.path(), "blue", 2).expect_err("another node's");
    assert!(matches!(error, IdentityError::OtherNode { found: 1, expected: 2, .. }));
}

#[test]
fn refuses_a_directory_with_something_else() {
    let home = tempfile::tempdir().expect("a directory");
    fs::write(home.path().join("identity.toml.new"), "unfini").expect("written");
    fs::create_dir(home.path().join("lost+found")).expect("made");
    open(home.path(), "blue", 1).expect("what a crash or a file system leaves does not count");

    fs::rename(home.path().join(FILE_NAME), home.path().join("photo.jpg")).expect("renamed");
    let error = open(home.path(), "blue", 1).expect_err("somebody else's");
    assert!(matches!(error, IdentityError::Foreign { .. }));
    assert!(error.to_string().contains("name an empty directory"), "{error}");
}

#[test]
fn refuses_a_damaged_file() {
    let home = tempfile::tempdir().expect("a directory");
    open(home.path(), "blue", 1).expect("an empty directory is taken");
    let path = home.path().join(FILE_NAME);
    let text = fs::read_to_string(&path).expect("read");

    for damaged in ["", &text[..text.len() / 2], &text.replace("format = 1", "format = 2")] {
        fs::write(&path, damaged).expect("written");
        let error = open(home.path(), "blue", 1).expect_err("not what was written");
        assert!(matches!(error, IdentityError::Damaged { .. }), "{error}");
    }
}

#[tokio::test]
async fn knows_an_impostor() {
    let identity = Identity::in_memory(&cluster("blue"), 1, &mut StdRng::seed_from_u64(1));
    // Before there is a cluster, anybody may still start over.
    identity.meet(2, founder(7).incarnation).await.expect("not recorded");
    assert_eq!(identity.known(2), None);

    identity.found(vec![founder(1), founder(2)]).await.expect("founded");
    identity.meet(2, founder(2).incarnation).await.expect("the one that is known");
    let error = identity.meet(2, founder(7).incarnation).await.expect_err("another");
    assert!(error.to_string().contains("remove member 2 and add it with a new id"), "{error}");
}

#[tokio::test]
async fn notices_a_lost_log() {
    let home = tempfile::tempdir().expect("a directory");
    let identity = open(home.path(), "blue", 1).expect("an empty directory is taken");
    identity.check_log(None).expect("nothing was in it");
    identity.found(vec![founder(1)]).await.expect("founded");
    identity.check_log(None).expect("the first entry may not be written yet");
    identity.founded(FirstEntry::Written).await.expect("founded");
    assert!(matches!(identity.check_log(None), Err(IdentityError::LogLost { committed_index: 0, .. })));

    identity.record_committed(70).await.expect("written");
    identity.record_committed(60).await.expect("changes nothing");
    let identity = open(home.path(), "blue", 1).expect("its own directory");
    identity.check_log(Some(70)).expect("whole");
    let error = identity.check_log(Some(69)).expect_err("cut short");
    assert!(error.to_string().contains("entry 69"), "{error}");
}

#[tokio::test]
async fn a_write_that_nobody_waits_for_any_more_is_not_met_by_another() {
    let home = tempfile::tempdir().expect("a directory");
    let identity = open(home.path(), "blue", 1).expect("an empty directory is taken");
    identity.join().await.expect("written");
    for pair in 1..100 {
        // Polled once, and dropped: the file is being written by now.
        let broken_off = identity.meet(2 * pair, founder(2 * pair).incarnation);
        let _ = tokio::time::timeout(std::time::Duration::ZERO, broken_off).await;
        identity.meet(2 * pair + 1, founder(2 * pair + 1).incarnation).await.expect("written");
    }
    let again = open(home.path(), "blue", 1).expect("its own directory");
    assert_eq!(*again.record.borrow(), *identity.record.borrow());
    assert_eq!(again.record.borrow().known(2), Some(founder(2).incarnation), "what had begun was ended");
}
