//! The log of a node, and its abort on a panic. Both write to stderr, which the operator can redirect.
//!
//! Lines for people, or JSON. What a process writes as it ends at once (a panic, a failed disk) is plain text in both: nothing that could
//! fail is used then.

use std::{
    backtrace::Backtrace,
    fmt,
    io::{self, IsTerminal as _, Write as _},
    panic, process,
};

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime, SystemTime},
    },
    registry::LookupSpan,
};

use super::exit::Exit;
use crate::{raft::log, table::unapplied};

/// How the lines of the log are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(super) enum LogFormat {
    /// For people
    #[default]
    Text,
    /// A JSON object a line: time, level, node, target, message, fields
    Json,
}

/// Starts the log of a node. `filter` was checked with the rest of the configuration.
pub(super) fn start(node_id: u64, filter: &str, format: LogFormat) {
    let log = tracing_subscriber::fmt().with_env_filter(EnvFilter::new(filter)).with_writer(|| Stderr);
    match format {
        LogFormat::Text => log.with_ansi(io::stderr().is_terminal()).with_timer(Prefix { node_id }).init(),
        LogFormat::Json => log.with_ansi(false).event_format(Json { node_id }).init(),
    }
}

/// Writes the log and ignores errors. If the disk of the log is full or its reader is gone, the node must go on without
/// a log; the formatter would report an error to stderr and panic if that fails too.
struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes a panic in any thread abort the process.
///
/// A panic is a bug in this program: the state that it leaves may be corrupt, and a node that goes on would serve it.
/// The other nodes have the log; this one restarts from its disk. A panic while an entry is applied names the entry: the
/// next start meets it again. A panic of sled is about its files: it ends the process like any other damage.
pub(super) fn abort_on_panic() {
    panic::set_hook(Box::new(|panic| {
        if let Some(explained) = log::explain_panic(panic) {
            let _ = writeln!(io::stderr(), "lockkeeper: {explained}");
            process::exit(Exit::CannotServe.code().into());
        }

        // Not with `tracing`, which may be the origin of the panic. The process also ends if stderr is closed.
        let trace = Backtrace::force_capture();
        if let Some((entry, advice)) = unapplied::being_applied() {
            let _ =
                writeln!(io::stderr(), "lockkeeper: {entry}: internal error: {panic}\n{trace}\nlockkeeper: {advice}");
            process::exit(Exit::Unapplied.code().into());
        }

        let _ = writeln!(io::stderr(), "lockkeeper: internal error, aborting: {panic}\n{trace}");
        process::abort();
    }));
}

/// Each line begins with the time and the node id, so that the logs of several nodes can be merged.
struct Prefix {
    node_id: u64,
}

impl FormatTime for Prefix {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        SystemTime.format_time(writer)?;
        write!(writer, " node={}", self.node_id)
    }
}

/// A line is one JSON object. Values of events have an object of their own, so that none can be taken for the line's.
struct Json {
    node_id: u64,
}

#[derive(Serialize)]
struct LogLine<'a> {
    time: String,
    level: &'a str,
    node: u64,
    target: &'a str,
    message: Value,
    #[serde(skip_serializing_if = "Map::is_empty")]
    fields: Map<String, Value>,
}

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut values = Values::default();
        event.record(&mut values);
        let Values(mut fields) = values;

        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let message = fields.remove("message").unwrap_or_default();

        // A line of a crate that uses `log`: its module is among the values.
        let logged_by = fields.remove("log.target");
        fields.retain(|name, _| !name.starts_with("log."));
        let target = logged_by.as_ref().and_then(Value::as_str).unwrap_or(event.metadata().target());

        let level = event.metadata().level().as_str();
        let line = LogLine { time, level, node: self.node_id, target, message, fields };
        writeln!(writer, "{}", serde_json::to_string(&line).map_err(|_| fmt::Error)?)
    }
}

/// The values of an event.
#[derive(Default)]
struct Values(Map<String, Value>);

impl Values {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Values {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        os::unix::process::ExitStatusExt as _,
        process::Command,
        sync::{Arc, Mutex},
    };

    use super::*;

    const CHILD: &str = "LOCKKEEPER_TEST_PANICS";

    /// Runs itself as a child process that panics, in a thread that nobody joins in time.
    #[test]
    fn a_panic_in_any_thread_ends_the_process() {
        if env::var_os(CHILD).is_some() {
            abort_on_panic();
            let _ = std::thread::spawn(|| panic!("this is not as it should be")).join();
            return;
        }
        let name = "cli::logging::tests::a_panic_in_any_thread_ends_the_process";
        let test = Command::new(env::current_exe().unwrap()).args(["--exact", name]).env(CHILD, "1").output().unwrap();
        assert_eq!(test.status.signal(), Some(6), "{test:?}");
        let stderr = String::from_utf8_lossy(&test.stderr);
        assert!(stderr.contains("this is not as it should be"), "{stderr}");
    }

    /// What is written, kept.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_of_json_has_the_values_of_the_event_with_their_types() {
        let kept = Kept::default();
        let lines = kept.clone();
        let log = tracing_subscriber::fmt().with_writer(move || lines.clone()).event_format(Json { node_id: 7 });
        tracing::subscriber::with_default(log.finish(), || {
            tracing::warn!(count = 3_u64, late = true, node = "not the line's", name = ?"a\"\n", "a line\nand {}", "more");
            tracing::info!("no values");
        });
        let written = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [first, second] = &lines[..] else { panic!("{written}") };
        assert_eq!(
            (&first["level"], &first["node"], &first["message"]),
            (&"WARN".into(), &7.into(), &"a line\nand more".into())
        );
        let fields = serde_json::json!({ "count": 3, "late": true, "node": "not the line's", "name": "\"a\\\"\\n\"" });
        assert_eq!(first["fields"], fields);
        assert!(first["target"].as_str().unwrap().ends_with("logging::tests"), "{first}");
        assert!(first["time"].as_str().unwrap().ends_with('Z'), "{first}");
        assert_eq!((second.get("fields"), &second["message"]), (None, &"no values".into()));
    }
}
