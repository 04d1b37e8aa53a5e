//! A read into a buffer whose growth its owner limits, whatever the client sends.

use std::io;

use bytes::{BufMut as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Reads the bytes that have arrived, up to a maximum, and returns their number; 0 at the end of the stream. Dropping the future loses
/// nothing.
///
/// `read_buf` by itself fills all the room that the buffer has, and a full buffer doubles: it would grow to whatever the kernel has
/// received for the connection, some megabytes, which no budget counts.
pub async fn read_at_most<R>(reader: &mut R, buffer: &mut BytesMut, bytes_max: usize) -> io::Result<usize>
where
    R: AsyncRead + Unpin,
{
    reader.read_buf(&mut buffer.limit(bytes_max)).await
}

#[cfg(test)]
mod tests {
    use bytes::Buf as _;

    use super::*;

    #[tokio::test]
    async fn a_buffer_stays_small_however_much_has_arrived() {
        const READ_BYTES: usize = 1_000;
        let arrived = vec![7; 10_000_000];
        let mut reader = arrived.as_slice();
        let mut buffer = BytesMut::new();
        let mut read = 0;

        loop {
            let bytes = read_at_most(&mut reader, &mut buffer, READ_BYTES).await.expect("a slice does not fail");
            if bytes == 0 {
                break;
            }
            read += bytes;
            buffer.reserve(READ_BYTES);
            // All but the beginning of a request is taken out.
            buffer.advance(buffer.len() - 1);
            assert!(buffer.capacity() <= 8 * READ_BYTES, "{} bytes after {read}", buffer.capacity());
        }
        assert_eq!(read, arrived.len());
    }
}
