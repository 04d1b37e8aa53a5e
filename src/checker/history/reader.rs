//! Reads a history line by line.

use std::io::BufRead;

use super::{Event, Fact, History, Meta, ReadError, What, line, operations, values::FORMAT};

impl History {
    /// Reads a whole history and validates it: the `meta` comes first, times do not decrease, and operations start before they end.
    ///
    /// ```
    /// # use lockkeeper_checker::history::History;
    /// let text = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}
    /// {"time_ns":5,"process":"ann","type":"ok","f":"acquire","value":{"token":1}}"#;
    /// let error = History::read(text.as_bytes()).expect_err("an end without a begin");
    /// assert_eq!(error.to_string(), "line 2: ann ends acquire without a begin");
    /// ```
    pub fn read(source: impl BufRead) -> Result<Self, ReadError> {
        let mut history = Self::default();
        for event in Events::new(source) {
            history.events.push(event?);
        }
        operations(&history)?;
        Ok(history)
    }

    /// Makes a history of events in the order of their times, which are numbered as lines.
    ///
    /// Fails as [`History::read`] does.
    pub fn from_events(events: impl IntoIterator<Item = Event>) -> Result<Self, ReadError> {
        let history = Self { events: events.into_iter().enumerate().map(|(at, event)| (at + 1, event)).collect() };
        let mut order = Order::default();
        history.events.iter().try_for_each(|(line, event)| order.accept(*line, event))?;
        operations(&history)?;
        Ok(history)
    }

    /// The meta in its first line.
    pub fn meta(&self) -> Meta {
        match self.events.first() {
            Some((_, Event { what: What::Fact(Fact::Meta(meta)), .. })) => meta.clone(),
            _ => Meta::new(),
        }
    }

    /// The line with this number, as a writer formats it.
    pub fn line(&self, number: usize) -> Option<String> {
        let place = self.events.binary_search_by_key(&number, |(line, _)| *line).ok()?;
        line::format(&self.events[place].1).ok()
    }
}

/// The events of a source with their line numbers. It holds one line at a time.
struct Events<R> {
    source: R,
    text: String,
    line: usize,
    order: Order,
}

impl<R: BufRead> Events<R> {
    fn new(source: R) -> Self {
        Self { source, text: String::new(), line: 0, order: Order::default() }
    }

    fn next_event(&mut self) -> Result<Option<(usize, Event)>, ReadError> {
        loop {
            self.text.clear();
            if self.source.read_line(&mut self.text)? == 0 {
                return Ok(None);
            }

            self.line += 1;
            let text = self.text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }

            let event = line::parse(text).map_err(|what| ReadError::line(self.line, what))?;
            self.order.accept(self.line, &event)?;
            return Ok(Some((self.line, event)));
        }
    }
}

impl<R: BufRead> Iterator for Events<R> {
    type Item = Result<(usize, Event), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_event().transpose()
    }
}

/// Checks the order of the events: one `meta` comes first, and times do not decrease.
#[derive(Default)]
struct Order {
    begun: bool,
    last_ns: u64,
}

impl Order {
    fn accept(&mut self, line: usize, event: &Event) -> Result<(), ReadError> {
        match (&event.what, self.begun) {
            (What::Fact(Fact::Meta(meta)), false) if meta.format == FORMAT => self.begun = true,
            (What::Fact(Fact::Meta(meta)), false) => {
                let what = format!("the history has format {}; this program reads format {FORMAT}", meta.format);
                return Err(ReadError::line(line, what));
            }
            (What::Fact(Fact::Meta(_)), true) => return Err(ReadError::line(line, "a second meta: a history has one")),
            (_, false) => {
                return Err(ReadError::line(line, "a history begins with its meta; this line comes before it"));
            }
            (_, true) => {}
        }

        if event.time_ns < self.last_ns {
            return Err(ReadError::line(
                line,
                format!("the time decreases from {} to {} ns", self.last_ns, event.time_ns),
            ));
        }

        self.last_ns = event.time_ns;
        Ok(())
    }
}
