//! A stream of renewals and their answers.

use std::{collections::BTreeMap, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;

use lockkeeper_client::Client;
use lockkeeper_machine::SessionId;
use lockkeeper_proto::v1::{
    KeepAliveRequest, KeepAliveResponse, keep_alive_response::What, sessions_client::SessionsClient,
};

use super::super::{BenchError, recorder::ResultRecorder};

/// The number of renewals that may be queued for the connection.
const PIPE: usize = 1_024;
/// How long a renewal may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the stream looks for timeouts, and for the end of the measurement.
const LOOK: Duration = Duration::from_millis(50);

/// When the next renewal is sent.
#[derive(Clone, Copy, Debug)]
pub(super) enum RenewalPace {
    /// Renewals are sent at a fixed interval, the first after an offset.
    Every { period: Duration, first: Duration },
    /// A renewal is sent whenever fewer than this number are in flight.
    InFlight(usize),
}

impl RenewalPace {
    pub(super) fn every(period: Duration, first_s: f64) -> Self {
        Self::Every { period, first: Duration::from_secs_f64(first_s) }
    }
}

/// Renews the sessions in turn until the measurement is over.
pub(super) async fn renew(
    client: Client,
    sessions: Vec<SessionId>,
    pace: RenewalPace,
    place: usize,
    recorder: ResultRecorder,
) -> Result<(), BenchError> {
    let (pipe, requests) = mpsc::channel(PIPE);
    let mut stream = RenewalStream::new(sessions, pipe, place, recorder);
    // The server answers only after the first renewal, so send it before waiting for the stream.
    stream.send()?;
    let mut service = SessionsClient::new(client.preferred_channel());
    let mut answers = service.keep_alive(ReceiverStream::new(requests)).await?.into_inner();

    let began = Instant::now();
    let mut sent = 0_u32;
    let mut look_at = began;
    while !stream.recorder.is_over() {
        let due = match pace {
            RenewalPace::Every { period, first } => Some(began + first + period * sent),
            RenewalPace::InFlight(in_flight) => {
                while stream.unanswered.len() < in_flight {
                    stream.send()?;
                }
                None
            }
        };
        tokio::select! {
            biased;
            answer = answers.message() => match answer? {
                Some(answer) => stream.hear(answer),
                None => return Err(BenchError::StreamEnded),
            },
            () = sleep_until(due.unwrap_or(look_at)), if due.is_some() => {
                sent += 1;
                stream.send()?;
            }
            () = sleep_until(look_at) => {
                look_at = Instant::now() + LOOK;
                stream.give_up_late_ones();
            }
        }
    }
    Ok(())
}

/// The state of a stream of renewals.
struct RenewalStream {
    sessions: Vec<String>,
    pipe: mpsc::Sender<KeepAliveRequest>,
    place: usize,
    recorder: ResultRecorder,
    sequence: u64,
    /// When each unanswered renewal was sent, by sequence number.
    unanswered: BTreeMap<u64, Instant>,
}

impl RenewalStream {
    fn new(
        sessions: Vec<SessionId>,
        pipe: mpsc::Sender<KeepAliveRequest>,
        place: usize,
        recorder: ResultRecorder,
    ) -> Self {
        let sessions = sessions.iter().map(SessionId::to_string).collect();
        Self { sessions, pipe, place, recorder, sequence: 0, unanswered: BTreeMap::new() }
    }

    /// Sends the next renewal.
    fn send(&mut self) -> Result<(), BenchError> {
        let session_id = self.sessions[self.sequence as usize % self.sessions.len()].clone();
        self.sequence += 1;
        self.unanswered.insert(self.sequence, Instant::now());
        let request = KeepAliveRequest { session_id, sequence: self.sequence };
        // A full queue means that renewals are due faster than the server takes them. The measurement would be
        // meaningless.
        self.pipe.try_send(request).map_err(|_| BenchError::TooFast)
    }

    fn hear(&mut self, answer: KeepAliveResponse) {
        match answer.what {
            Some(What::Renewed(renewed)) => {
                if let Some(sent) = self.unanswered.remove(&renewed.sequence) {
                    self.recorder.note::<&str>(self.place, Ok(sent.elapsed()));
                }
            }
            Some(What::Ended(_)) => self.recorder.note(self.place, Err("a session ended")),
            Some(What::Revoked(_)) | None => {}
        }
    }

    fn give_up_late_ones(&mut self) {
        while let Some(oldest) = self.unanswered.first_entry().filter(|oldest| oldest.get().elapsed() > ANSWER_TIMEOUT)
        {
            oldest.remove();
            self.recorder.note(self.place, Err("a renewal was not answered within the timeout"));
        }
    }
}
