//! ZooKeeper's protocol: frames with connects and requests, stored values, paths.

use lockkeeper_zookeeper::fuzzing;

use super::says;

/// A frame with this payload.
fn frame(parts: &[&[u8]]) -> Vec<u8> {
    let payload = parts.concat();
    let length = u32::try_from(payload.len()).expect("a short one");
    [&length.to_be_bytes()[..], &payload].concat()
}

fn text(text: &str) -> Vec<u8> {
    frame(&[text.as_bytes()])
}

fn header(xid: i32, opcode: i32) -> Vec<u8> {
    [xid.to_be_bytes(), opcode.to_be_bytes()].concat()
}

pub(super) fn frames(input: &[u8]) {
    if let Err(problem) = fuzzing::frames(input) {
        says(&problem);
    }
}

pub(super) fn frame_seeds() -> Vec<Vec<u8>> {
    let number = |number: i32| number.to_be_bytes();
    let acl = [&number(1)[..], &number(31), &text("world"), &text("anyone")].concat();
    let create = [&text("/a/lock-")[..], &text("data"), &acl, &number(3)].concat();
    let connect = frame(&[&[0; 4], &[0; 8], &number(30_000), &[0; 8], &text("0123456789abcdef"), &[0]]);
    let part = |opcode: i32, is_end: u8| [&number(opcode)[..], &[is_end], &number(-1)].concat();
    let delete = [&text("/a/lock-0000000000")[..], &number(-1)].concat();
    let paths = [&number(2)[..], &text("/a"), &text("/b")].concat();

    vec![
        [&connect[..], &frame(&[&header(1, 1), &create]), &frame(&[&header(-2, 11)])].concat(),
        frame(&[&header(2, 14), &part(1, 0), &create, &part(2, 0), &delete, &part(13, 0), &delete, &part(-1, 1)]),
        frame(&[&header(-8, 105), &[0; 8], &paths, &paths, &paths, &paths, &paths]),
        frame(&[&header(3, 21), &create, &[0; 8]]),
        frame(&[&header(-4, 100), &[0; 4], &text("digest"), &text("ann:hush")]),
        frame(&[&header(4, 7), &text("/a"), &acl, &number(-1)]),
        frame(&[&header(5, 101), &[0; 8], &number(1_000_000_000)]),
        frame(&[&header(6, 4), &number(i32::MAX)]),
        b"\x7f\xff\xff\xff".to_vec(),
    ]
}

pub(super) fn value(input: &[u8]) {
    fuzzing::value(input);
}

pub(super) fn value_seeds() -> Vec<Vec<u8>> {
    let times = [&[1; 16][..], &[0; 8]].concat();
    vec![
        [&[1, 0][..], &times, b"data"].concat(),
        [&[1, 1 | 16][..], &times].concat(),
        [&[1, 2 | 4][..], &times, &7_u64.to_be_bytes(), &1_000_i64.to_be_bytes()].concat(),
        [&[1, 8][..], &times, b"\0\x01\0\0\0\x1f\0\x02ip\0\x0910.0.0.0/", b"data"].concat(),
    ]
}

pub(super) fn path(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        fuzzing::path(text);
    }
}

pub(super) fn path_seeds() -> Vec<Vec<u8>> {
    ["/", "/a/b/c", "/a//b", "/../a", "/a\0b", "/\u{e9}/\u{1f600}"].map(|path| path.as_bytes().to_vec()).to_vec()
}
