//! Ends a connection whose client does not read.
//!
//! A client that sends requests and never reads would keep its connection, its slot and the answer for ever, because a
//! full socket is not an error. A client that reads at least `PROGRESS_BYTES` in each [`UNREAD_TIMEOUT`], or in each period of another
//! length that its port has chosen, is not concerned, nor is one to which nothing is to be written.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// The time in which a client must read `PROGRESS_BYTES` of what waits for it, or all of it.
pub const UNREAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How much a client must read in that time.
const PROGRESS_BYTES: usize = 16 << 10;

/// A stream whose writes fail when the other end has not read for too long.
#[derive(Debug)]
pub struct WriteDeadline<S> {
    stream: S,
    limit: Duration,
    /// The timer. It runs while bytes wait for room.
    timer: Option<Pin<Box<Sleep>>>,
    written: usize,
}

impl<S> WriteDeadline<S> {
    /// Gives this stream a write deadline: [`UNREAD_TIMEOUT`].
    pub fn new(stream: S) -> Self {
        Self::within(UNREAD_TIMEOUT, stream)
    }

    /// The same, with another time limit.
    pub fn within(limit: Duration, stream: S) -> Self {
        Self { stream, limit, timer: None, written: 0 }
    }

    fn stop_timer(&mut self) {
        self.timer = None;
        self.written = 0;
    }

    /// Starts the timer if the stream has no room, and fails when it has run out.
    fn in_time<T>(&mut self, context: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            return done;
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        if timer.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }

        let seconds = limit.as_secs();
        let why = format!("the client has read less than {PROGRESS_BYTES} bytes of its answers within {seconds} s");
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)))
    }

    fn note_written(&mut self, done: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = done {
            self.written += bytes;
        }
        if self.written >= PROGRESS_BYTES {
            self.stop_timer();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteDeadline<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_written(&done);
        self.in_time(context, done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_flush(context);
        if done.is_ready() {
            self.stop_timer();
        }
        self.in_time(context, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_shutdown(context);
        self.in_time(context, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note_written(&done);
        self.in_time(context, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        time::Instant,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_given_up() {
        let (_near, far) = duplex(64);
        let began = Instant::now();
        let error = WriteDeadline::new(far).write_all(&[7; 65]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert_eq!(began.elapsed(), UNREAD_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_too_little_is_given_up() {
        let (mut near, far) = duplex(64);
        let drips = async {
            loop {
                sleep(UNREAD_TIMEOUT / 4).await;
                near.read_u8().await.expect("it is written");
            }
        };
        let mut stream = WriteDeadline::new(far);
        let error = tokio::select! {
            written = stream.write_all(&[7; 1 << 16]) => written.expect_err("too little is read"),
            () = drips => unreachable!("it reads for ever"),
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_gets_all() {
        const ALL: usize = 8 * PROGRESS_BYTES;
        let (mut near, far) = duplex(PROGRESS_BYTES);
        let reads = async {
            let mut part = vec![0; PROGRESS_BYTES];
            for _ in 0..ALL / PROGRESS_BYTES {
                sleep(UNREAD_TIMEOUT / 2).await;
                near.read_exact(&mut part).await.expect("it is written");
            }
        };
        let writes = async {
            let mut stream = WriteDeadline::new(far);
            stream.write_all(&[7; ALL]).await.expect("it is read");
            // A pause between two answers does not count as a delay.
            sleep(3 * UNREAD_TIMEOUT).await;
            stream.flush().await.expect("it is read");
        };
        tokio::join!(reads, writes);
    }
}
