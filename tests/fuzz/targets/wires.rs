//! Messages of `lockkeeper.v1`: requests of clients, and the leader's replies to a follower that forwarded them.

use lockkeeper::server::fuzzing::{self, WIRES};

/// The first byte says which message it is.
pub(super) fn wire(input: &[u8]) {
    if let Some((kind, bytes)) = input.split_first() {
        (WIRES[usize::from(*kind) % WIRES.len()].check)(bytes);
    }
}

/// Messages that have a text in field 1 or 2: a start. The corpus has better ones.
pub(super) fn wire_seeds() -> Vec<Vec<u8>> {
    let session = b"fedcba98765432100123456789abcdef";
    let text = |field: u8, text: &[u8]| [&[field << 3 | 2, text.len() as u8], text].concat();
    let number = |field: u8| vec![field << 3, 7];
    (0..WIRES.len() as u8)
        .flat_map(|kind| {
            [
                vec![kind],
                [&[kind][..], &text(1, session), &number(2)].concat(),
                [&[kind][..], &text(1, b"jobs/nightly"), &number(2), &text(3, b"stuck")].concat(),
                [&[kind][..], &number(1), &text(2, b"host:1"), &text(3, b"host:2")].concat(),
            ]
        })
        .collect()
}

/// The first byte is the gRPC code; then a message up to a line feed; then the details.
pub(super) fn error(input: &[u8]) {
    let Some((code, rest)) = input.split_first() else { return };
    let at = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    let message = String::from_utf8_lossy(&rest[..at]);
    fuzzing::error((*code).into(), &message, rest.get(at + 1..).unwrap_or_default());
}

pub(super) fn error_seeds() -> Vec<Vec<u8>> {
    // google.rpc.Status { code: 5, message: "gone", details: [Any { type_url, value: ErrorInfo { reason, domain, metadata } }] }
    let text = |field: u8, text: &[u8]| [&[field << 3 | 2, text.len() as u8], text].concat();
    let pair = |key: &[u8], value: &[u8]| text(3, &[text(1, key), text(2, value)].concat());
    let info = |reason: &[u8]| {
        let values = [pair(b"retry", b"safe"), pair(b"field", b"name")].concat();
        let info = [text(1, reason), text(2, b"lockkeeper.v1"), values].concat();
        let any = [text(1, b"type.googleapis.com/google.rpc.ErrorInfo"), text(2, &info)].concat();
        [&[5][..], b"gone\n", &[8, 5], &text(2, b"gone"), &text(3, &any)].concat()
    };
    vec![info(b"SESSION_UNKNOWN"), info(b"INVALID_ARGUMENT"), info(b"OF_A_LATER_VERSION"), b"\x05gone\n".to_vec()]
}
