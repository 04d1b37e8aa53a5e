//! What nodes say to each other: messages, and the metadata of each call.

use std::fmt::Debug;

use lockkeeper::{
    raft::{
        fuzzing,
        identity::NodeIdentity,
        messages as pb,
        types::{
            AppendRequest, Membership, SnapshotMeta, StoredMembership, TransferLeaderRequest, Vote, VoteRequest,
            VoteResponse,
        },
    },
    table::Malformed,
};
use prost::Message;
use rand::{SeedableRng as _, rngs::StdRng};
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};

use super::{says, table::sampled};

/// The messages, by the first byte of an input.
const MESSAGES: [fn(&[u8]); 10] = [
    append,
    converted::<pb::VoteRequest, VoteRequest>,
    converted::<pb::VoteResponse, VoteResponse>,
    converted::<pb::TransferLeaderRequest, TransferLeaderRequest>,
    converted::<pb::StoredMembership, StoredMembership>,
    converted::<pb::Membership, Membership>,
    append_response,
    snapshot_piece,
    transfer_response,
    hello,
];

pub(super) fn message_seeds() -> Vec<Vec<u8>> {
    let of = |kind: u8, name: &'static str| sampled(name).into_iter().map(move |bytes| [&[kind], &bytes[..]].concat());
    [
        (0, "append-request"),
        (0, "heartbeat"),
        (1, "vote-request"),
        (2, "vote-response"),
        (3, "transfer-request"),
        (6, "append-success"),
        (6, "append-partial"),
        (6, "append-conflict"),
        (6, "append-higher-vote"),
        (7, "snapshot-header"),
        (7, "snapshot-bytes"),
        (8, "transfer-response"),
        (9, "hello"),
    ]
    .into_iter()
    .flat_map(|(kind, name)| of(kind, name))
    .collect()
}

pub(super) fn message(input: &[u8]) {
    if let Some((kind, bytes)) = input.split_first() {
        MESSAGES[usize::from(*kind) % MESSAGES.len()](bytes);
    }
}

/// A message becomes a value, and that value a message which stands for it.
fn converted<M, T>(bytes: &[u8])
where
    M: Message + Default + for<'a> From<&'a T>,
    T: TryFrom<M, Error = Malformed> + PartialEq + Debug,
{
    let Ok(message) = M::decode(bytes) else { return };
    match T::try_from(message) {
        Ok(value) => assert_eq!(T::try_from(M::from(&value)).as_ref(), Ok(&value)),
        Err(malformed) => says(&malformed),
    }
}

/// The types of appends cannot be compared: their messages are.
fn append(bytes: &[u8]) {
    let Ok(message) = pb::AppendRequest::decode(bytes) else { return };
    match AppendRequest::try_from(message) {
        Ok(request) => {
            let again = pb::AppendRequest::from(&request);
            let request = AppendRequest::try_from(again.clone()).expect("its own message");
            assert_eq!(pb::AppendRequest::from(&request), again);
            // Raft relies on both.
            let follows = request.entries.windows(2).all(|pair| pair[1].log_id.index == pair[0].log_id.index + 1);
            assert!(request.vote.committed && follows);
        }
        Err(malformed) => says(&malformed),
    }
}

fn append_response(bytes: &[u8]) {
    let Ok(message) = pb::AppendResponse::decode(bytes) else { return };
    let last = Some(pb::LogId { term: 3, index: 9 }.into());
    for previous in [None, last] {
        match message.into_result(previous, last) {
            Ok(result) => {
                let _ = pb::AppendResponse::from(result);
            }
            Err(malformed) => says(&malformed),
        }
    }
}

fn transfer_response(bytes: &[u8]) {
    let Ok(message) = pb::TransferLeaderResponse::decode(bytes) else { return };
    let request = TransferLeaderRequest::new(Vote::new_committed(3, 1), 2, None);
    let result = message.into_result(&request);
    let _ = pb::TransferLeaderResponse::from(result);
}

fn snapshot_piece(bytes: &[u8]) {
    let Ok(message) = pb::SnapshotPiece::decode(bytes) else { return };
    let Some(pb::snapshot_piece::Kind::Header(header)) = message.kind else { return };
    match header.into_parts() {
        Ok((vote, meta, length)) => {
            let again = pb::SnapshotHeader::new(&vote, &meta, length).into_parts();
            let SnapshotMeta { last_log_id, last_membership } = meta;
            assert!(vote.committed && last_log_id.is_none_or(|last| last.leader_id.term <= vote.leader_id.term));
            let again = again.map(|(vote, meta, length)| (vote, meta.last_log_id, meta.last_membership, length));
            assert_eq!(again, Ok((vote, last_log_id, last_membership, length)));
        }
        Err(malformed) => says(&malformed),
    }
}

fn hello(bytes: &[u8]) {
    if let Ok(message) = pb::HelloResponse::decode(bytes) {
        for member in message.members {
            match member.into_member() {
                Ok((id, node)) => assert_eq!(pb::Node::new(id, &node).into_member(), Ok((id, node))),
                Err(malformed) => says(&malformed),
            }
        }
    }
    // Its parts, as a request has them.
    let _ = pb::HelloRequest::decode(bytes);
}

fn identity() -> NodeIdentity {
    NodeIdentity::in_memory(&"blue".parse().expect("an id"), 2, &mut StdRng::seed_from_u64(1))
}

/// The metadata of a call by node 1, one field a line.
fn metadata_of(start: &str, more: &str) -> Vec<u8> {
    let own = identity().incarnation();
    format!(
        "lockkeeper-cluster: blue\nlockkeeper-from: 1\nlockkeeper-from-incarnation: {own}\nlockkeeper-to: 2\n\
         lockkeeper-to-incarnation: {own}\nlockkeeper-from-start: {start}\n{more}"
    )
    .into_bytes()
}

pub(super) fn metadata_seeds() -> Vec<Vec<u8>> {
    let start = identity().start().to_string();
    vec![
        metadata_of("0123456789abcdef", ""),
        metadata_of(&start, &format!("lockkeeper-to-start: {start}\nlockkeeper-to-acknowledged: 1.1.7\n")),
        metadata_of(&start, "lockkeeper-to-acknowledged: 4.3.9\nlockkeeper-from-earlier-start: 0123456789abcdef\n"),
        format!("lockkeeper-start: {start}\nlockkeeper-remembered-start: {start}\nlockkeeper-removed: 3\n")
            .into_bytes(),
    ]
}

pub(super) fn metadata(input: &[u8]) {
    let mut metadata = MetadataMap::new();
    for line in input.split(|byte| *byte == b'\n') {
        let Some(at) = line.windows(2).position(|pair| pair == b": ") else { continue };
        let name = AsciiMetadataKey::from_bytes(&line[..at]);
        let value = AsciiMetadataValue::try_from(&line[at + 2..]);
        if let (Ok(name), Ok(value)) = (name, value) {
            metadata.append(name, value);
        }
    }
    let identity = identity();
    let member = identity.incarnation();
    let last = pb::LogId { term: 3, index: 9 }.into();
    let admitted = futures::executor::block_on(fuzzing::admit(&identity, member, (3, Some(last)), &metadata));
    match admitted {
        Ok(_) => {
            let cluster = metadata.get("lockkeeper-cluster").expect("a call without a cluster is refused");
            assert_eq!(cluster, "blue");
        }
        Err(status) => says(&status.message()),
    }
    let _ = fuzzing::answered(&identity, 3, &metadata).map_err(|status| says(&status.message()));
}
