//! Parsers that are private to this crate, for `tests/fuzz`. This is not an interface: it changes with the parsers.

use std::sync::Arc;

use bytes::BytesMut;

use crate::{
    RequestLimits, commands,
    data::Datum,
    resp::{ProtocolError, RequestReader, RequestWords},
    script::ScriptShape,
    unit::{CommandUnit, UnitOutcome},
    view::{Cursors, Loaded, LoadedRange, Stop, UnitMoment, UnitView},
};

/// Maximum number of runs of the commands of an input.
const RUNS_MAX: usize = 200;

/// Reads all requests of some bytes, which arrive in parts of this length. Returns the requests, and what breaks the protocol.
fn read_in_parts(bytes: &[u8], part: usize) -> (Vec<RequestWords>, Option<ProtocolError>) {
    let limits = RequestLimits { arguments_max: 1000, argument_bytes_max: 10_000, request_bytes_max: 40_000 };
    let mut reader = RequestReader::new(limits);
    let mut buffer = BytesMut::new();
    let mut requests = Vec::new();

    for part in bytes.chunks(part.max(1)) {
        buffer.extend_from_slice(part);
        loop {
            match reader.read(&mut buffer) {
                Ok(Some(request)) => requests.push(request),
                Ok(None) => break,
                Err(error) => return (requests, Some(error)),
            }
            assert!(reader.held_bytes() <= limits.request_bytes_max, "it holds more than its limit");
        }
    }
    (requests, None)
}

/// Reads requests. Panics if they depend on the parts in which they arrive.
pub fn requests(bytes: &[u8]) -> Result<usize, String> {
    let (whole, error) = read_in_parts(bytes, bytes.len());
    for part in [1, 2, 7] {
        assert_eq!(read_in_parts(bytes, part), (whole.clone(), error.clone()), "in parts of {part}");
    }
    error.map_or(Ok(whole.len()), |error| Err(error.to_string()))
}

/// Runs the commands of some requests over an empty keyspace, all in one unit. Panics if a command does.
pub fn run_commands(bytes: &[u8]) -> usize {
    let (requests, _) = read_in_parts(bytes, bytes.len());
    let moment = UnitMoment { wall_us: Some(1_735_689_600_000_000), seed: 7 };
    let cursors = Arc::new(Cursors::new(7));
    let mut needs = crate::view::UnitNeeds::default();

    for _ in 0..RUNS_MAX {
        let loaded = Loaded {
            entries: needs.keys.iter().map(|key| (key.clone(), None)).collect(),
            ranges: needs.ranges.iter().map(|range| (range.clone(), LoadedRange::default())).collect(),
            counts: needs.counts.iter().map(|database| (*database, 0)).collect(),
            compares_counts: needs.compares_counts,
            now_ms: 1,
            range_revision: 1,
            receivers: needs.receivers.iter().map(|channel| (channel.clone(), 0)).collect(),
        };
        let mut view = UnitView::new(Arc::new(loaded), Arc::clone(&cursors), moment, 0);
        let results = requests.iter().map(|request| {
            let arguments: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
            commands::run(&mut view, &arguments)
        });

        let ended = results.map(|result| result.err()).find(|end| matches!(end, Some(Stop::Missing | Stop::Over(_))));
        match ended.flatten() {
            Some(Stop::Missing) => needs.add(view.needs()),
            Some(Stop::Over(_) | Stop::Refused(_)) => return 0,
            None => return view.into_txn("fuzzer").writes.len(),
        }
    }
    0
}

/// Reads an entry of the store. Panics if its value is written in another way.
pub fn entry(bytes: &[u8]) -> Option<Vec<u8>> {
    let datum = Datum::decode(bytes)?;
    let again = datum.encode();
    assert_eq!(Datum::decode(&again), Some(datum));
    Some(again)
}

/// Reads a unit, or the outcome of one. Panics if it is written in another way.
pub fn unit(bytes: &[u8]) -> bool {
    let unit = CommandUnit::decode(bytes);
    if let Some(unit) = &unit {
        assert_eq!(CommandUnit::decode(&unit.encode()).as_ref(), Some(unit));
    }
    // Scores that are no numbers are not equal to themselves: their bytes are.
    let outcome = UnitOutcome::decode(bytes).map(|outcome| outcome.encode());
    if let Some(outcome) = &outcome {
        assert_eq!(UnitOutcome::decode(outcome).map(|again| again.encode()).as_ref(), Some(outcome));
    }
    unit.is_some() || outcome.is_some()
}

/// Looks for the shape of a script.
pub fn script(source: &[u8]) -> bool {
    ScriptShape::recognize(source).is_some()
}

/// A unit with a command and a script, and an outcome, as bytes.
pub fn unit_samples() -> Vec<Vec<u8>> {
    use crate::{
        RedisReply,
        unit::{ScriptInvocation, UnitCall},
    };
    let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    let script = ScriptInvocation {
        source: b"return 1"[..].into(),
        sha1: "e0e1f9fabfc9d4800c877a703b823ac0578ff8db".to_owned(),
        keys: words(&["k"]),
        arguments: words(&["a", "b"]),
        is_read_only: false,
    };
    let unit = CommandUnit {
        database: 1,
        holder: "worker".to_owned(),
        watched: vec![(b"redis/0/k".to_vec(), 7)],
        is_transaction: true,
        calls: vec![UnitCall::Command(words(&["INCR", "n"])), UnitCall::Script(script)],
    };

    let pairs = vec![(RedisReply::text("a"), RedisReply::Double(1.5))];
    let replies = vec![RedisReply::Integer(1), RedisReply::Map(pairs), RedisReply::Set(vec![RedisReply::Nil])];
    vec![unit.encode(), UnitOutcome::Done { replies, database: 1 }.encode(), UnitOutcome::Abandoned.encode()]
}
