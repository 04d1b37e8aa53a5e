//! Directories of this node, of others, and with foreign files.

use std::fs;

use rand::{SeedableRng, rngs::StdRng};

use super::*;

fn cluster(id: &str) -> ClusterId {
    id.parse().expect("a cluster id")
}

fn open(directory: &std::path::Path, cluster_id: &str, node_id: u64) -> Result<NodeIdentity, IdentityError> {
    NodeIdentity::open_or_create(directory, &cluster(cluster_id), node_id, &mut StdRng::seed_from_u64(node_id))
}

/// A further start of node 1, up to the opening of its log.
fn started(directory: &std::path::Path, seed: u64) -> NodeIdentity {
    let random = &mut StdRng::seed_from_u64(seed);
    let identity = NodeIdentity::open_or_create(directory, &cluster("blue"), 1, random).expect("its own directory");
    identity.started().expect("written");
    identity
}

fn founder(node_id: u64) -> Founder {
    let incarnation = Incarnation::draw(&mut StdRng::seed_from_u64(node_id));
    let addresses = FounderAddresses { peer_address: format!("n{node_id}:1"), client_address: format!("n{node_id}:2") };
    Founder { node_id, incarnation, addresses: Some(addresses) }
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
    let third = open(&directory, "blue", 1).expect("its own directory");
    assert_eq!((third.stage(), third.founders()), (Stage::Member, None));
    assert_eq!(third.known(2), Some(founder(2).incarnation));
    assert_eq!(third.known(4), None);
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

    for damaged in ["", &text[..text.len() / 2], &text.replace("node_id = 1", "node_id = 3")] {
        fs::write(&path, damaged).expect("written");
        let error = open(home.path(), "blue", 1).expect_err("not what was written");
        assert!(matches!(error, IdentityError::Damaged { .. }), "{error}");
    }
}

/// A bit that flips in a remembered start would make a healthy peer look like an older copy.
#[tokio::test]
async fn each_flipped_bit_is_noticed_by_the_node_itself() {
    let home = tempfile::tempdir().expect("a directory");
    let identity = open(home.path(), "blue", 1).expect("an empty directory is taken");
    identity.found(vec![founder(1), founder(2)]).await.expect("written");
    identity.remember_start(2, identity.start()).await.expect("written");
    identity.record_progress(70, BTreeMap::new()).await.expect("written");
    let path = home.path().join(FILE_NAME);
    let whole = fs::read(&path).expect("read");

    for bit in 0..8 * whole.len() {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, damaged).expect("written");
        let error = NodeIdentity::read(home.path()).expect_err("not what was written");
        assert!(matches!(error, IdentityError::Damaged { .. }), "bit {bit}: {error}");
        let said = error.to_string();
        assert!(said.contains("put the newest copy of this file back, or replace this node"), "bit {bit}: {said}");
    }
    for end in 0..whole.len() {
        fs::write(&path, &whole[..end]).expect("written");
        let error = NodeIdentity::read(home.path()).expect_err("cut short");
        assert!(matches!(error, IdentityError::Damaged { .. }), "{end} bytes: {error}");
    }
    fs::write(&path, whole).expect("written");
    open(home.path(), "blue", 1).expect("its own directory");
}

/// As a version without checksums wrote it.
#[tokio::test]
async fn a_file_of_the_first_format_is_read_and_gets_a_checksum() {
    let home = tempfile::tempdir().expect("a directory");
    let identity = open(home.path(), "blue", 1).expect("an empty directory is taken");
    identity.found(vec![founder(1), founder(2)]).await.expect("written");
    let path = home.path().join(FILE_NAME);
    let text = fs::read_to_string(&path).expect("read");
    let (content, _) = text.trim_end().rsplit_once('\n').expect("the checksum is the last line");
    fs::write(&path, content.replace("format = 2", "format = 1")).expect("written");

    let again = open(home.path(), "blue", 1).expect("its own directory");
    assert_eq!((again.stage(), again.incarnation()), (Stage::Founding, identity.incarnation()));
    let text = fs::read_to_string(&path).expect("read");
    assert!(text.contains("format = 2") && text.contains("\n# checksum "), "{text}");
    fs::write(&path, content).expect("written");
    let error = open(home.path(), "blue", 1).expect_err("its checksum was cut off");
    assert!(error.to_string().contains("the last line, is missing"), "{error}");
}

#[test]
fn refuses_a_later_format_and_says_so() {
    let home = tempfile::tempdir().expect("a directory");
    open(home.path(), "blue", 1).expect("an empty directory is taken");
    let path = home.path().join(FILE_NAME);
    // A later format may have other fields.
    fs::write(&path, "format = 3\nname = \"n\"\n").expect("written");
    let error = open(home.path(), "blue", 1).expect_err("a later format").to_string();
    let expected =
        format!("{} has format 3, and this program reads formats up to 2: start the version", path.display());
    assert!(error.starts_with(&expected), "{error}");
}

#[tokio::test]
async fn notices_a_lost_log() {
    let home = tempfile::tempdir().expect("a directory");
    let identity = open(home.path(), "blue", 1).expect("an empty directory is taken");
    identity.check_log(None, false).expect("nothing was in it");
    identity.found(vec![founder(1)]).await.expect("founded");
    identity.check_log(None, false).expect("the first entry may not be written yet");
    identity.founded(FirstEntry::Written).await.expect("founded");
    assert!(matches!(identity.check_log(None, false), Err(IdentityError::LogLost { committed_index: 0, .. })));

    identity.record_progress(70, BTreeMap::new()).await.expect("written");
    identity.record_progress(60, BTreeMap::new()).await.expect("changes nothing");
    let identity = open(home.path(), "blue", 1).expect("its own directory");
    identity.check_log(Some(70), true).expect("whole");
    let error = identity.check_log(Some(69), true).expect_err("cut short");
    assert!(error.to_string().contains("entry 69"), "{error}");
    identity.check_log(Some(80), false).expect_err("a snapshot is there, and no vote: the log beside it is gone");
}

#[tokio::test]
async fn an_older_copy_lacks_later_starts() {
    let home = tempfile::tempdir().expect("a directory");
    let start = async |directory: &std::path::Path, seed| {
        let identity = started(directory, seed);
        identity.show_start().await.expect("written");
        identity
    };
    let first = start(home.path(), 1).await;
    let copy = tempfile::tempdir().expect("a directory");
    fs::copy(home.path().join(FILE_NAME), copy.path().join(FILE_NAME)).expect("copied");
    let second = start(home.path(), 2).await;

    second.check_start(2, first.start()).expect("it was started so");
    assert_eq!((second.earlier_start_for(2), second.earlier_start_for(3)), (Some(first.start()), None));
    second.check_start(2, second.start()).expect("it is started so");
    assert_eq!(second.earlier_start_for(2), None, "there is nothing to show");

    // However often the copy is started, it is not what the directory became meanwhile.
    for seed in 3..6 {
        let older = start(copy.path(), seed).await;
        older.check_start(2, first.start()).expect("that was before");
        let error = older.check_start(2, second.start()).expect_err("that was after");
        assert!(error.to_string().contains("older copy") && error.to_string().contains("node 2"), "{error}");
        assert_eq!(older.outdated().await.to_string(), error.to_string());
    }
    let _ = second.remember_start(2, first.start()).await;
    let third = start(home.path(), 9).await;
    assert_eq!(third.remembered(2).and_then(|peer| peer.start), Some(first.start()), "it is on disk");
}

#[test]
fn an_interrupted_start_leaves_a_known_log() {
    let home = tempfile::tempdir().expect("a directory");
    let open_with = |seed| {
        let random = &mut StdRng::seed_from_u64(seed);
        NodeIdentity::open_or_create(home.path(), &cluster("blue"), 1, random).expect("its own directory")
    };
    let first = open_with(1);
    assert!(first.log_owner().last.is_empty() && first.log_owner().may_be_new);
    first.started().expect("written");
    let [broken, again] = [2, 3].map(open_with);
    assert_eq!(again.log_owner().last, [first.start(), broken.start()], "the log may have noted either");
    again.started().expect("written");
    assert_eq!(open_with(4).log_owner().last, [again.start()]);
    assert!(!again.has_started_as(broken.start()), "nobody heard of that one");
}

/// A peer remembers the start by which it last relied on this node, however often the node fails before it is in touch again.
#[test]
fn starts_that_nobody_saw_do_not_push_out_those_that_peers_remember() {
    let random = &mut StdRng::seed_from_u64(1);
    let record = IdentityRecord::new(cluster("blue"), 1, Incarnation::draw(random));
    let (record, first) = record.starting(random);
    let mut record = record.started().shown();
    for _ in 0..=starts::STARTS_KEPT {
        record = record.starting(random).0.started();
    }
    let (record, start) = record.starting(random);
    let identity = NodeIdentity::new(record.started(), None, start);
    identity.check_start(2, first).expect("nobody can remember a later one");
    assert_eq!(identity.earlier_start_for(2), Some(first));

    // Nor do those before the log was opened.
    let (record, begun) = identity.record.borrow().clone().starting(random);
    let (mut record, second) = record.starting(random);
    for _ in 0..2 * starts::STARTS_KEPT {
        record = record.starting(random).0;
    }
    assert!(record.starting.contains(&second), "the log may have it, if it could not be opened since");
    while record.starting.len() < starts::STARTING_KEPT {
        record = record.starting(random).0;
    }
    let (record, latest) = record.starting(random);
    assert_eq!(record.starting.len(), starts::STARTING_KEPT, "the file has a limit");
    assert_eq!(
        (record.starts.last(), record.starting.first(), record.starting.last()),
        (Some(&start), Some(&begun), Some(&latest)),
        "the log may have any of these"
    );
}

#[tokio::test]
async fn a_start_that_was_shown_stays_and_one_that_was_not_is_replaced() {
    let home = tempfile::tempdir().expect("a directory");
    let seen = started(home.path(), 1);
    seen.show_start().await.expect("written");
    let unseen = started(home.path(), 2);
    assert_eq!(unseen.log_owner().last, [unseen.start()], "the log has recorded it");
    let copy = tempfile::tempdir().expect("a directory");
    fs::copy(home.path().join(FILE_NAME), copy.path().join(FILE_NAME)).expect("copied");

    let later = started(home.path(), 3);
    assert!(later.has_started_as(seen.start()) && !later.has_started_as(unseen.start()));
    later.show_start().await.expect("written");
    let last = started(home.path(), 4);
    assert!(last.has_started_as(seen.start()) && last.has_started_as(later.start()));

    // A copy of a start that nobody saw lacks the next one as any other.
    let copied = started(copy.path(), 5);
    copied.check_start(2, seen.start()).expect("that was before");
    copied.check_start(2, later.start()).expect_err("that was after");
}

#[tokio::test]
async fn a_dropped_write_still_finishes_before_the_next_one() {
    let home = tempfile::tempdir().expect("a directory");
    let identity = open(home.path(), "blue", 1).expect("an empty directory is taken");
    identity.join().await.expect("written");
    for pair in 1..100 {
        // Polled once, and dropped: the file is being written by now.
        let broken_off = identity.record_progress(2 * pair, BTreeMap::new());
        let _ = tokio::time::timeout(std::time::Duration::ZERO, broken_off).await;
        identity.record_progress(2 * pair + 1, BTreeMap::new()).await.expect("written");
    }
    let again = open(home.path(), "blue", 1).expect("its own directory");
    let on_disk =
        IdentityRecord { starting: identity.record.borrow().starting.clone(), ..again.record.borrow().clone() };
    assert_eq!(on_disk, *identity.record.borrow());
    assert_eq!(again.record.borrow().committed_index, Some(199), "what had begun was ended");
}
