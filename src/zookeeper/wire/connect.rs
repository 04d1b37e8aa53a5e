//! The first frame each way.

use super::{JuteError, JuteWriter, reader::JuteReader};

/// Bytes of the password of a session.
pub(crate) const PASSWORD_BYTES: usize = 16;

/// What a client says first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectRequest {
    /// The highest revision that it has seen.
    pub(crate) last_seen: i64,
    /// The time that its session shall live without a sign of life, in milliseconds.
    pub(crate) timeout_ms: i32,
    /// Its session, or 0 for a new one.
    pub(crate) session: i64,
    /// The password of its session.
    pub(crate) password: Vec<u8>,
    /// Whether the frame has the byte that clients before 3.4, and some of today, leave out. The answer then leaves it out, too.
    pub(crate) has_read_only: bool,
}

impl ConnectRequest {
    /// Reads the payload of a frame. Its version is not looked at: all clients send 0.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, JuteError> {
        let mut reader = JuteReader::new(bytes);
        reader.int()?;
        let last_seen = reader.long()?;
        let timeout_ms = reader.int()?;
        let session = reader.long()?;
        let password = reader.buffer()?.unwrap_or_default().to_vec();
        let has_read_only = !reader.is_at_end();
        Ok(Self { last_seen, timeout_ms, session, password, has_read_only })
    }
}

/// The first message to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectAnswer {
    /// The time that was granted, in milliseconds.
    pub(crate) timeout_ms: i32,
    /// The session.
    pub(crate) session: i64,
    /// Its password.
    pub(crate) password: [u8; PASSWORD_BYTES],
}

impl ConnectAnswer {
    /// The session is over, was never there, or has another password.
    pub(crate) const OVER: Self = Self { timeout_ms: 0, session: 0, password: [0; PASSWORD_BYTES] };

    /// Appends the frame.
    pub(crate) fn put_frame(&self, has_read_only: bool, out: &mut Vec<u8>) {
        let mut writer = JuteWriter::default();
        writer.int(0).int(self.timeout_ms).long(self.session).buffer(Some(&self.password));
        if has_read_only {
            writer.bool(false);
        }
        writer.put_frame(out);
    }
}
