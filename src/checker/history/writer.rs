//! Writes a history line by line.

use std::io::{self, Write};

use super::{Event, line};

/// Writes events as lines. The sink should be buffered. Events must be in the order of their times, because they are not sorted.
#[derive(Debug)]
pub struct Writer<W> {
    sink: W,
}

impl<W: Write> Writer<W> {
    /// Makes a writer into this sink.
    pub fn new(sink: W) -> Self {
        Self { sink }
    }

    /// Writes an event. Fails as the sink does; the last line may then be incomplete.
    ///
    /// ```
    /// # use lockkeeper_checker::history::{Event, Fact, History, Meta, What, Writer};
    /// let meta = What::Fact(Fact::Meta(Meta::new()));
    /// let event = Event { time_ns: 0, process: "nemesis".into(), op: None, locks: vec![], what: meta };
    /// let mut writer = Writer::new(Vec::new());
    /// writer.write(&event)?;
    /// let history = History::read(&*writer.into_inner())?;
    /// assert_eq!(history.events, [(1, event)]);
    /// # Ok::<_, lockkeeper_checker::history::ReadError>(())
    /// ```
    pub fn write(&mut self, event: &Event) -> io::Result<()> {
        let mut text = line::format(event)?;
        text.push('\n');
        self.sink.write_all(text.as_bytes())
    }

    /// Flushes the sink.
    pub fn flush(&mut self) -> io::Result<()> {
        self.sink.flush()
    }

    /// The sink.
    pub fn into_inner(self) -> W {
        self.sink
    }
}
