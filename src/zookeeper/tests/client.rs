//! A client that shows each frame as it comes.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::PATIENCE;
use crate::wire::{AclEntry, JuteWriter, Opcode, ZnodeStat};

/// A frame from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Event { kind: i32, path: String },
    Reply { xid: i32, zxid: i64, error: i32, body: Vec<u8> },
}

/// The answer to a connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Connected {
    pub(super) timeout_ms: i32,
    pub(super) session: i64,
    pub(super) password: Vec<u8>,
}

pub(super) struct Client {
    pub(super) stream: TcpStream,
    pub(super) connected: Connected,
    xid: i32,
    /// The highest zxid that it was told. No later one may be lower.
    pub(super) zxid: i64,
}

pub(super) fn frame(write: impl FnOnce(&mut JuteWriter)) -> Vec<u8> {
    let mut writer = JuteWriter::default();
    write(&mut writer);
    let mut bytes = Vec::new();
    writer.put_frame(&mut bytes);
    bytes
}

pub(super) fn connect_frame(last_seen: i64, timeout_ms: i32, session: i64, password: &[u8]) -> Vec<u8> {
    frame(|out| {
        out.int(0).long(last_seen).int(timeout_ms).long(session).buffer(Some(password)).bool(false);
    })
}

/// Reads a frame; `None` when the connection is closed.
pub(super) async fn read_frame(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let read = timeout(PATIENCE, async {
        let length = stream.read_u32().await.ok()?;
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await.ok()?;
        Some(payload)
    });
    read.await.expect("a frame or an end in time")
}

/// Reads numbers and texts of a body.
pub(super) struct Body<'a>(pub(super) &'a [u8]);

impl Body<'_> {
    pub(super) fn int(&mut self) -> i32 {
        let (number, rest) = self.0.split_first_chunk().expect("an int");
        self.0 = rest;
        i32::from_be_bytes(*number)
    }

    pub(super) fn long(&mut self) -> i64 {
        let (number, rest) = self.0.split_first_chunk().expect("a long");
        self.0 = rest;
        i64::from_be_bytes(*number)
    }

    pub(super) fn bool(&mut self) -> bool {
        let (byte, rest) = self.0.split_first().expect("a bool");
        self.0 = rest;
        *byte == 1
    }

    pub(super) fn buffer(&mut self) -> Option<Vec<u8>> {
        let length = usize::try_from(self.int()).ok()?;
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(bytes.to_vec())
    }

    pub(super) fn string(&mut self) -> String {
        String::from_utf8(self.buffer().expect("a text")).unwrap()
    }

    pub(super) fn strings(&mut self) -> Vec<String> {
        (0..self.int()).map(|_| self.string()).collect()
    }

    pub(super) fn stat(&mut self) -> ZnodeStat {
        let unsigned = |number: i64| u64::try_from(number).unwrap();
        ZnodeStat {
            created: unsigned(self.long()),
            modified: unsigned(self.long()),
            created_ms: self.long(),
            modified_ms: self.long(),
            version: self.int(),
            child_version: self.int(),
            acl_version: self.int(),
            owner: unsigned(self.long()),
            data_bytes: usize::try_from(self.int()).unwrap(),
            children: unsigned(self.int().into()),
            children_modified: unsigned(self.long()),
        }
    }
}

impl Client {
    /// Takes a connection whose connect was answered.
    pub(super) fn new(stream: TcpStream, connected: Connected) -> Self {
        Self { stream, connected, xid: 0, zxid: 0 }
    }

    pub(super) fn session(&self) -> u64 {
        u64::try_from(self.connected.session).unwrap()
    }

    pub(super) async fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Sends a request. Returns its xid.
    pub(super) async fn send(&mut self, opcode: Opcode, body: impl FnOnce(&mut JuteWriter)) -> i32 {
        let (xid, bytes) = self.request(opcode, body);
        self.send_raw(&bytes).await;
        xid
    }

    /// A request that is to be sent: its xid, and its bytes.
    pub(super) fn request(&mut self, opcode: Opcode, body: impl FnOnce(&mut JuteWriter)) -> (i32, Vec<u8>) {
        self.xid += 1;
        let xid = match opcode {
            Opcode::PING => -2,
            Opcode::AUTH => -4,
            Opcode::SET_WATCHES | Opcode::SET_ALL_WATCHES => -8,
            _ => self.xid,
        };
        let bytes = frame(|out| {
            out.int(xid).int(opcode.0);
            body(out);
        });
        (xid, bytes)
    }

    /// The next frame; `None` when the connection is closed.
    pub(super) async fn next(&mut self) -> Option<Told> {
        let payload = read_frame(&mut self.stream).await?;
        let mut body = Body(&payload);
        let (xid, zxid, error) = (body.int(), body.long(), body.int());
        if xid == -1 {
            assert_eq!((zxid, error), (-1, 0));
            let kind = body.int();
            assert_eq!(body.int(), 3);
            return Some(Told::Event { kind, path: body.string() });
        }
        // The reply to an auth says 0.
        if xid != -4 {
            assert!(zxid >= self.zxid, "zxid falls from {} to {zxid}", self.zxid);
            self.zxid = zxid;
        }
        Some(Told::Reply { xid, zxid, error, body: body.0.to_vec() })
    }

    /// Sends a request, and reads its reply. No event may come before.
    pub(super) async fn ask(
        &mut self,
        opcode: Opcode,
        body: impl FnOnce(&mut JuteWriter),
    ) -> Result<(i64, Vec<u8>), i32> {
        let sent = self.send(opcode, body).await;
        self.reply(sent).await
    }

    pub(super) async fn reply(&mut self, sent: i32) -> Result<(i64, Vec<u8>), i32> {
        match self.next().await {
            Some(Told::Reply { xid, zxid, error, body }) => {
                assert_eq!(xid, sent);
                if error == 0 {
                    Ok((zxid, body))
                } else {
                    assert!(body.is_empty(), "an error has no body");
                    Err(error)
                }
            }
            other => panic!("instead of the reply to {sent}: {other:?}"),
        }
    }

    pub(super) async fn event(&mut self) -> (i32, String) {
        match self.next().await {
            Some(Told::Event { kind, path }) => (kind, path),
            other => panic!("instead of an event: {other:?}"),
        }
    }

    /// Creates a node for everybody. Returns its path and the zxid.
    pub(super) async fn create(&mut self, path: &str, data: &[u8], flags: i32) -> Result<(String, i64), i32> {
        let (zxid, body) = self.ask(Opcode::CREATE, |out| write_create(out, path, data, flags)).await?;
        Ok((Body(&body).string(), zxid))
    }

    pub(super) async fn delete(&mut self, path: &str, version: i32) -> Result<i64, i32> {
        let reply = self.ask(Opcode::DELETE, |out| drop_ref(out.string(path).int(version))).await?;
        Ok(reply.0)
    }

    pub(super) async fn set(&mut self, path: &str, data: &[u8], version: i32) -> Result<ZnodeStat, i32> {
        let write = |out: &mut JuteWriter| drop_ref(out.string(path).buffer(Some(data)).int(version));
        let (_, body) = self.ask(Opcode::SET_DATA, write).await?;
        Ok(Body(&body).stat())
    }

    pub(super) async fn get(&mut self, path: &str, is_watched: bool) -> Result<(Vec<u8>, ZnodeStat), i32> {
        let (_, body) = self.ask(Opcode::GET_DATA, |out| drop_ref(out.string(path).bool(is_watched))).await?;
        let mut body = Body(&body);
        Ok((body.buffer().unwrap_or_default(), body.stat()))
    }

    pub(super) async fn exists(&mut self, path: &str, is_watched: bool) -> Result<ZnodeStat, i32> {
        let (_, body) = self.ask(Opcode::EXISTS, |out| drop_ref(out.string(path).bool(is_watched))).await?;
        Ok(Body(&body).stat())
    }

    pub(super) async fn children(&mut self, path: &str, is_watched: bool) -> Result<Vec<String>, i32> {
        let (_, body) = self.ask(Opcode::GET_CHILDREN, |out| drop_ref(out.string(path).bool(is_watched))).await?;
        Ok(Body(&body).strings())
    }

    pub(super) async fn sync(&mut self) -> i64 {
        self.ask(Opcode::SYNC, |out| drop_ref(out.string("/"))).await.unwrap().0
    }
}

/// For closures that write, and return nothing.
pub(super) fn drop_ref(_: &mut JuteWriter) {}

pub(super) fn write_create(out: &mut JuteWriter, path: &str, data: &[u8], flags: i32) {
    out.string(path).buffer(Some(data));
    AclEntry::write_list(&[AclEntry::open()], out);
    out.int(flags);
}
