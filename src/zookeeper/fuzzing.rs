//! Parsers that are private to this crate, for `tests/fuzz`. This is not an interface: it changes with the parsers.

use bytes::BytesMut;

use crate::{
    tree::{ZnodePath, ZnodeValue},
    wire::{ConnectRequest, FrameError, FrameReader, RequestHeader},
};

/// Maximum length of a frame.
const FRAME_BYTES_MAX: usize = 40_000;

/// The payloads of frames that arrive in parts of this length, and what breaks the protocol.
fn read_in_parts(bytes: &[u8], part: usize) -> (Vec<BytesMut>, Option<FrameError>) {
    let reader = FrameReader { length_max: FRAME_BYTES_MAX };
    let mut buffer = BytesMut::new();
    let mut frames = Vec::new();

    for part in bytes.chunks(part.max(1)) {
        buffer.extend_from_slice(part);
        loop {
            match reader.read(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
        assert!(buffer.len() < 4 + FRAME_BYTES_MAX, "it holds more than a frame");
    }
    (frames, None)
}

/// Reads frames, and the connect or the request in each of them. Panics if the frames depend on the parts in which they arrive. Fails as
/// the first frame or record does that is wrong.
pub fn frames(bytes: &[u8]) -> Result<usize, String> {
    let (whole, error) = read_in_parts(bytes, bytes.len());
    for part in [1, 3, 64] {
        assert_eq!(read_in_parts(bytes, part), (whole.clone(), error), "in parts of {part}");
    }

    let mut problem = error.map(|error| error.to_string());
    for frame in &whole {
        let connect = ConnectRequest::read(frame);
        let request = RequestHeader::read(frame).and_then(|(_, request)| request);
        if let (Err(_), Err(error)) = (connect, request) {
            problem.get_or_insert(error.to_string());
        }
    }
    problem.map_or(Ok(whole.len()), Err)
}

/// Reads the value of an entry. Panics if one that can be read is another one when it is written and read again.
pub fn value(bytes: &[u8]) -> Option<Vec<u8>> {
    let value = ZnodeValue::try_decode(&bytes.into())?;
    let again = value.encode();
    assert_eq!(ZnodeValue::decode(&again), value);
    Some(again.to_vec())
}

/// Reads a path. Panics if its key is that of another path, or not among those of its parent's children.
pub fn path(text: &str) -> bool {
    let Ok(path) = ZnodePath::parse(text) else { return false };
    let key = path.key();
    assert_eq!(ZnodePath::from_key(&key).as_ref(), Some(&path));

    if let Some(parent) = path.parent() {
        let (from, to) = parent.child_keys();
        assert!(from < key && key < to, "{text} is not among the children of {}", parent.as_str());
    }
    true
}
