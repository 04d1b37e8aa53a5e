//! A readable trace of a run: one line for each network message, event of the history, applied entry and log message, in their real
//! order.
//!
//! Two runs of one seed have the same trace, byte by byte, and a run without a trace has the same history as one with it. Long contents
//! of messages are written as a checksum, so that different contents differ.

use std::{
    cell::RefCell,
    fmt::{self, Write as _},
    fs::File,
    io::{self, BufWriter, Write as _},
    path::Path,
    thread,
};

use tracing::{
    Dispatch, Event, Subscriber,
    dispatcher::{self, DefaultGuard},
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{
    EnvFilter, Layer,
    layer::{Context, SubscriberExt as _},
    registry::LookupSpan,
};

use crate::system;

/// The part of the program's log that is in a trace.
const FILTER: &str = "info,lockkeeper=debug,openraft=info,turmoil=trace";
/// Environment variable with another filter.
const FILTER_VARIABLE: &str = "LOCKKEEPER_SIMULATION_LOG";
/// A longer field, bytes, is cut to its beginning and a checksum.
const FIELD_MAX: usize = 160;

thread_local! {
    static TRACE: RefCell<Option<BufWriter<File>>> = const { RefCell::new(None) };
}

/// While this value lives, this thread writes its trace.
pub(crate) struct Tracing(DefaultGuard);

/// Starts this thread's trace, in this file.
pub(crate) fn begin(path: &Path) -> io::Result<Tracing> {
    TRACE.set(Some(BufWriter::new(File::create(path)?)));
    // On another thread: it creates hash maps, and each one changes the order of those that the same thread creates later.
    let dispatch = thread::spawn(dispatch).join().expect("an invalid filter does not panic");
    Ok(Tracing(dispatcher::set_default(&dispatch)))
}

fn dispatch() -> Dispatch {
    let filter = EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new(FILTER));
    Dispatch::new(tracing_subscriber::registry().with(Lines.with_filter(filter)))
}

impl Tracing {
    /// Flushes the rest of the trace.
    pub(crate) fn end(self) -> io::Result<()> {
        drop(self.0);
        TRACE.take().map_or(Ok(()), |mut trace| trace.flush())
    }
}

/// Writes a line, if there is a trace.
pub(crate) fn say(who: &str, what: fmt::Arguments<'_>) {
    TRACE.with_borrow_mut(|trace| {
        if let Some(trace) = trace {
            let time = system::elapsed();
            // If a line cannot be written, the traces differ: the comparison reports it.
            let _ = writeln!(trace, "{:>4}.{:03} {who:<10} {what}", time.as_secs(), time.subsec_millis());
        }
    });
}

/// Writes log messages of the program and the network as lines.
struct Lines;

/// The host of an event.
struct Host(String);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Lines {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if attributes.metadata().name() == "node" {
            let mut name = Fields::default();
            attributes.record(&mut name);
            if let Some(span) = context.span(id) {
                span.extensions_mut().insert(Host(name.0.trim_start_matches(" name=").replace('"', "")));
            }
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let (target, text) = (event.metadata().target(), fields.0);
        if target == "turmoil" && text.starts_with(" step") {
            return;
        }
        let scope = context.event_scope(event).into_iter().flatten();
        let host = scope.filter_map(|span| span.extensions().get::<Host>().map(|host| host.0.clone())).next();
        say(host.as_deref().unwrap_or("-"), format_args!("{target}:{text}"));
    }
}

/// The fields of an event, the message first.
#[derive(Default)]
struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = format!("{value:?}");
        if text.len() > FIELD_MAX {
            let sum = crc32fast::hash(text.as_bytes());
            text.truncate(text.floor_char_boundary(24));
            let _ = write!(text, "… #{sum:08x}");
        }
        match field.name() {
            "message" => self.0.insert_str(0, &format!(" {text}")),
            name => drop(write!(self.0, " {name}={text}")),
        }
    }
}
