//! What this node has done: for its words of four letters, and for the metrics of the program.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::wire::Opcode;

/// Counters since the port was made. All are measured; nothing is estimated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ZookeeperStats {
    /// Connections that have a session, now.
    pub connections: u64,
    /// Sessions that have a connection to this node, now.
    pub sessions: u64,
    /// Watches, now.
    pub watches: u64,
    /// Requests that are not answered, now.
    pub outstanding: u64,
    /// Frames from clients.
    pub received: u64,
    /// Frames to clients: replies and events.
    pub sent: u64,
    /// Requests that were answered, by the name of their operation. Those that are not served count as `other`.
    pub requests: Vec<(&'static str, u64)>,
    /// The shortest time from a request's arrival to its reply, in microseconds.
    pub latency_us_min: u64,
    /// The longest such time, in microseconds.
    pub latency_us_max: u64,
    /// The sum of these times, in microseconds.
    pub latency_us_sum: u64,
}

/// The counters themselves.
#[derive(Debug)]
pub(crate) struct StatCounters {
    pub(crate) outstanding: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) sent: AtomicU64,
    by_operation: [AtomicU64; Opcode::COUNTED.len()],
    others: AtomicU64,
    latency_us_min: AtomicU64,
    latency_us_max: AtomicU64,
    latency_us_sum: AtomicU64,
}

impl Default for StatCounters {
    fn default() -> Self {
        Self {
            outstanding: AtomicU64::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            by_operation: std::array::from_fn(|_| AtomicU64::new(0)),
            others: AtomicU64::new(0),
            latency_us_min: AtomicU64::new(u64::MAX),
            latency_us_max: AtomicU64::new(0),
            latency_us_sum: AtomicU64::new(0),
        }
    }
}

impl StatCounters {
    /// Counts a request that was answered.
    pub(crate) fn note_answer(&self, opcode: Opcode, latency: Duration) {
        let place = Opcode::COUNTED.iter().position(|(counted, _)| *counted == opcode);
        place.map_or(&self.others, |place| &self.by_operation[place]).fetch_add(1, Relaxed);

        let latency_us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.latency_us_min.fetch_min(latency_us, Relaxed);
        self.latency_us_max.fetch_max(latency_us, Relaxed);
        self.latency_us_sum.fetch_add(latency_us, Relaxed);
    }

    /// The counters now, without those that others count.
    pub(crate) fn snapshot(&self) -> ZookeeperStats {
        let names = Opcode::COUNTED.iter().map(|(_, name)| *name);
        let counts = self.by_operation.iter().map(|count| count.load(Relaxed));
        let mut requests: Vec<_> = names.zip(counts).collect();
        requests.push(("other", self.others.load(Relaxed)));

        let has_answered = requests.iter().any(|(_, count)| *count > 0);
        ZookeeperStats {
            outstanding: self.outstanding.load(Relaxed),
            received: self.received.load(Relaxed),
            sent: self.sent.load(Relaxed),
            requests,
            latency_us_min: if has_answered { self.latency_us_min.load(Relaxed) } else { 0 },
            latency_us_max: self.latency_us_max.load(Relaxed),
            latency_us_sum: self.latency_us_sum.load(Relaxed),
            ..ZookeeperStats::default()
        }
    }
}
