//! Frames and records, right ones and hostile ones.

use bytes::BytesMut;
use proptest::prelude::*;

use crate::{
    fuzzing,
    wire::{
        AclEntry, ClientRequest, ConnectRequest, FrameError, FrameReader, JuteError, JuteWriter, Opcode, ReadOperation,
        RequestHeader, WriteOperation, ZnodeStat,
    },
};

fn written(write: impl FnOnce(&mut JuteWriter)) -> Vec<u8> {
    let mut writer = JuteWriter::default();
    write(&mut writer);
    writer.into_bytes()
}

fn request(bytes: &[u8]) -> Result<ClientRequest, JuteError> {
    RequestHeader::read(bytes).and_then(|(_, request)| request)
}

#[test]
fn a_connect_is_read_with_and_without_its_last_byte() {
    let old = written(|out| {
        out.int(0).long(7).int(6000).long(0).buffer(Some(&[0; 16]));
    });
    let connect = ConnectRequest::read(&old).unwrap();
    assert_eq!((connect.last_seen, connect.timeout_ms, connect.session), (7, 6000, 0));
    assert!(!connect.has_read_only);
    let new = [&old[..], &[1]].concat();
    assert!(ConnectRequest::read(&new).unwrap().has_read_only);
    assert_eq!(ConnectRequest::read(&old[..20]), Err(JuteError::Short));
}

#[test]
fn requests_are_read_as_clients_write_them() {
    let get = written(|out| {
        out.int(1).int(4).string("/a").bool(true);
    });
    let (header, _) = RequestHeader::read(&get).unwrap();
    assert_eq!(header, RequestHeader { xid: 1, opcode: Opcode::GET_DATA });
    assert_eq!(
        request(&get),
        Ok(ClientRequest::Read(ReadOperation::GetData { path: "/a".to_owned(), is_watched: true }))
    );

    let multi = written(|out| {
        out.int(2).int(14);
        out.multi_header(Opcode::CHECK, false, -1).string("/a").int(3);
        out.multi_header(Opcode::DELETE, false, -1).string("/b").int(-1);
        out.multi_header(Opcode::NONE, true, -1);
    });
    let check = WriteOperation::Check { path: "/a".to_owned(), version: 3 };
    let delete = WriteOperation::Delete { path: "/b".to_owned(), version: -1 };
    assert_eq!(request(&multi), Ok(ClientRequest::Multi(vec![check, delete])));
    assert_eq!(
        request(&written(|out| {
            out.int(3).int(77);
        })),
        Ok(ClientRequest::Unknown)
    );
}

#[test]
fn lengths_and_counts_are_not_believed() {
    let create = |data: i32, acl: i32| {
        written(|out| {
            out.int(1).int(1).string("/a").int(data).int(acl).int(0);
        })
    };
    assert_eq!(request(&create(i32::MAX, 0)), Err(JuteError::Short));
    assert_eq!(request(&create(-2, 0)), Err(JuteError::Negative(-2)));
    assert_eq!(request(&create(-1, i32::MAX)), Err(JuteError::TooMany(i32::MAX as usize)));
    let watches = written(|out| {
        out.int(-8).int(101).long(0).int(1_000_000_000);
    });
    assert_eq!(request(&watches), Err(JuteError::TooMany(1_000_000_000)));
    let text = written(|out| {
        out.int(1).int(3).buffer(Some(b"/\xff")).bool(false);
    });
    assert_eq!(request(&text), Err(JuteError::NotText));

    let endless = written(|out| {
        out.int(1).int(14);
        for _ in 0..20_000 {
            out.multi_header(Opcode::CHECK, false, -1).string("").int(0);
        }
    });
    assert_eq!(request(&endless), Err(JuteError::TooMany(10_001)));
    let nested = written(|out| {
        out.int(1).int(14).multi_header(Opcode::MULTI, false, -1);
    });
    assert_eq!(request(&nested), Err(JuteError::Unknown(14, "operation of a multi")));
}

#[test]
fn a_frame_waits_for_its_bytes_and_ends_the_connection_if_it_cannot_be() {
    let reader = FrameReader { length_max: 10 };
    let mut input = BytesMut::from(&b"\0\0\0\x03ab"[..]);
    assert_eq!(reader.read(&mut input), Ok(None));
    input.extend_from_slice(b"c\0\0");
    assert_eq!(reader.read(&mut input).unwrap().as_deref(), Some(&b"abc"[..]));
    assert_eq!(reader.read(&mut input), Ok(None));

    let mut long = BytesMut::from(&b"\0\0\0\x0b"[..]);
    assert_eq!(reader.read(&mut long), Err(FrameError::TooLong { length: 11, length_max: 10 }));
    let mut negative = BytesMut::from(&b"\xff\xff\xff\xff"[..]);
    assert_eq!(reader.read(&mut negative), Err(FrameError::Negative(-1)));
}

#[test]
fn a_stat_has_68_bytes_and_a_reply_with_an_error_no_body() {
    assert_eq!(written(|out| ZnodeStat::default().write(out)).len(), 68);
    let mut out = Vec::new();
    JuteWriter::put_reply(&mut out, 5, 6, Err(crate::wire::ErrorCode::NoNode));
    assert_eq!(out, [&[0, 0, 0, 16, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6][..], &(-101_i32).to_be_bytes()].concat());
    let list = written(|out| AclEntry::write_list(&[AclEntry::open()], out));
    assert_eq!(list.len(), 4 + 4 + 4 + 5 + 4 + 6);
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(prop_oneof![Just(0_u8), Just(255), any::<u8>()], 0..200)) {
        let _problem = fuzzing::frames(&bytes);
    }
}
