//! A readable account of a run: each message on the network, each event of the history, each entry applied, each word of the program's
//! log, one line each, in the order in which they really happened.
//!
//! Two runs of one seed have the same trace, byte by byte, and a run without a trace has the same history as one with it. What messages say
//! is told by a checksum: two different ones differ.

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

/// What of the program's own log is in a trace.
const FILTER: &str = "info,lockkeeper=debug,openraft=info,turmoil=trace";
/// Filters it differently.
const FILTER_VARIABLE: &str = "LOCKKEEPER_SIMULATION_LOG";
/// A field that is longer is told by its beginning and a checksum.
const FIELD_MAX: usize = 160;

thread_local! {
    static TRACE: RefCell<Option<BufWriter<File>>> = const { RefCell::new(None) };
}

/// While this is there, this thread writes its trace.
pub(crate) struct Tracing(DefaultGuard);

/// From now on, this thread writes its trace into this file.
pub(crate) fn begin(path: &Path) -> io::Result<Tracing> {
    TRACE.set(Some(BufWriter::new(File::create(path)?)));
    // On another thread: it has hash maps, and each that a thread makes changes the order of those that it makes after it.
    let dispatch = thread::spawn(dispatch).join().expect("a filter that is none is no panic");
    Ok(Tracing(dispatcher::set_default(&dispatch)))
}

fn dispatch() -> Dispatch {
    let filter = EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new(FILTER));
    Dispatch::new(tracing_subscriber::registry().with(Lines.with_filter(filter)))
}

impl Tracing {
    /// Writes what is left.
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
            // A trace that cannot be written is not the same as another: the comparison tells.
            let _ = writeln!(trace, "{:>4}.{:03} {who:<10} {what}", time.as_secs(), time.subsec_millis());
        }
    });
}

/// Makes lines of what the program and the network log.
struct Lines;

/// On which host something happens.
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
