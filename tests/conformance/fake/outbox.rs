//! The answers of a stream: each is sent once, twice, or after the next one.

use tokio::sync::mpsc;
use tonic::Status;

/// Answers that a client has not read. A client that reads nothing stops its own stream.
pub(crate) const UNREAD_MAX: usize = 256;

/// How an answer is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Delivery {
    Once,
    Twice,
    /// After the next answer.
    Swapped,
}

/// The answers of one stream.
pub(crate) struct Outbox<T> {
    sender: mpsc::Sender<Result<T, Status>>,
    /// Those that wait for the next answer.
    swapped: Vec<T>,
}

impl<T: Clone> Outbox<T> {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Result<T, Status>>) {
        let (sender, receiver) = mpsc::channel(UNREAD_MAX);
        (Self { sender, swapped: Vec::new() }, receiver)
    }

    /// Sends an answer. Fails if the client is gone.
    pub(crate) async fn send(&mut self, answer: T, delivery: Delivery) -> Result<(), ()> {
        if delivery == Delivery::Swapped {
            self.swapped.push(answer);
            return Ok(());
        }
        let copies = if delivery == Delivery::Twice { 2 } else { 1 };
        for _ in 0..copies {
            self.sender.send(Ok(answer.clone())).await.map_err(drop)?;
        }
        for held in std::mem::take(&mut self.swapped) {
            self.sender.send(Ok(held)).await.map_err(drop)?;
        }
        Ok(())
    }

    /// Ends the stream with an error.
    pub(crate) async fn fail(&self, why: Status) {
        // An error means that the client is gone.
        let _ = self.sender.send(Err(why)).await;
    }

    /// Ends when the client is gone.
    pub(crate) async fn closed(&self) {
        self.sender.closed().await;
    }
}
