//! What a measurement says: figures by name, and how they spread over its repetitions.

use serde_json::{Map, Value, json};

/// What is measured. In documents it goes by [`Figure::name`], with its unit last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// Operations a second.
    PerSecond,
    /// Half of the operations took no longer, µs.
    P50,
    /// The same of 90 in 100.
    P90,
    /// The same of 99 in 100.
    P99,
    /// The same of 999 in 1,000.
    P999,
    /// The longest, µs.
    Longest,
    /// CPU time of all nodes for one operation, µs.
    ServersPerOperation,
    /// How many processors all nodes together kept busy.
    Servers,
    /// The same, of the program that made the load.
    Generator,
    /// The same, of all others on the machine: more than a little, and the rest is not worth much.
    Others,
    /// Operations of the worker that got the fewest.
    Fewest,
    /// Operations of the worker that got the most.
    Most,
    /// Operations that failed.
    Errors,
    /// Acquires that were sent, a second.
    Sent,
    /// Requests that were refused for being too many, a second.
    Refused,
    /// Half of the refusals took no longer, µs.
    RefusedP50,
    /// The same of 99 in 100.
    RefusedP99,
    /// Elections meanwhile.
    Elections,
    /// From the kill of the leader to the first success, ms.
    Failover,
    /// Locks that were held at the end.
    Held,
    /// How long it took to get them, s.
    Fill,
    /// By how much a node's memory grew, bytes a lock; mean of the nodes.
    MemoryPerLock,
    /// By how much its data on the disk grew, bytes a lock; mean of the nodes.
    DiskPerLock,
    /// From the start of a node to when it serves and has applied all that was committed when it was started, ms.
    Restart,
}

impl Figure {
    /// In documents.
    pub fn name(self) -> &'static str {
        self.words().0
    }

    /// At the head of a column; `None`: it has no column.
    pub fn title(self) -> Option<&'static str> {
        self.words().1
    }

    /// Whether a table says how far the repetitions lie apart. Where every column did, nobody could read it.
    pub(super) fn is_shown_with_spread(self) -> bool {
        matches!(self, Self::PerSecond | Self::P50 | Self::P99 | Self::Failover)
    }

    /// Whether it says how fair a work is.
    pub(super) fn is_of_fairness(self) -> bool {
        matches!(self, Self::Fewest | Self::Most)
    }

    fn words(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::PerSecond => ("per_second", Some("PER SECOND")),
            Self::P50 => ("p50_us", Some("P50 µs")),
            Self::P90 => ("p90_us", None),
            Self::P99 => ("p99_us", Some("P99 µs")),
            Self::P999 => ("p99_9_us", Some("P99.9 µs")),
            Self::Longest => ("longest_us", None),
            Self::ServersPerOperation => ("servers_cpu_us_per_operation", Some("SERVERS' CPU µs EACH")),
            Self::Servers => ("servers_cpus", Some("SERVERS' CPUS")),
            Self::Generator => ("generator_cpus", Some("GENERATOR'S")),
            Self::Others => ("others_cpus", Some("OTHERS'")),
            Self::Fewest => ("fewest", Some("FEWEST")),
            Self::Most => ("most", Some("MOST")),
            Self::Errors => ("errors", Some("ERRORS")),
            Self::Sent => ("sent_per_second", Some("SENT A SECOND")),
            Self::Refused => ("refused_per_second", Some("REFUSED")),
            Self::RefusedP50 => ("refused_p50_us", Some("REFUSED P50 µs")),
            Self::RefusedP99 => ("refused_p99_us", Some("P99 µs")),
            Self::Elections => ("elections", Some("ELECTIONS")),
            Self::Failover => ("failover_ms", Some("FAILOVER ms")),
            Self::Held => ("held", Some("HELD")),
            Self::Fill => ("fill_s", Some("FILLED IN s")),
            Self::MemoryPerLock => ("memory_bytes_per_lock", Some("MEMORY B EACH")),
            Self::DiskPerLock => ("disk_bytes_per_lock", Some("DISK B EACH")),
            Self::Restart => ("restart_ms", Some("RESTART ms")),
        }
    }
}

/// What one repetition brought, in the order in which it is shown. `None`: not known.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Figures(Vec<(Figure, Option<f64>)>);

impl Figures {
    /// Adds one; `None`: it is not known.
    pub fn put(&mut self, figure: Figure, value: impl Into<Option<f64>>) {
        self.0.push((figure, value.into()));
    }

    /// One of them; `None`: it was not measured, or is not known.
    pub fn get(&self, figure: Figure) -> Option<f64> {
        self.0.iter().find(|(known, _)| *known == figure)?.1
    }

    fn document(&self) -> Value {
        let fields = self.0.iter().map(|(figure, value)| (figure.name().to_owned(), json!(value.map(rounded))));
        Value::Object(fields.collect())
    }
}

/// How a figure spreads over the repetitions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// Of an even number: the mean of the two in the middle.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
}

impl Spread {
    /// Of none there is no spread.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = (values.len() - 1) / 2..=values.len() / 2;
        let count = middle.clone().count() as f64;
        Some(Self { median: values[middle].iter().sum::<f64>() / count, min, max })
    }

    fn document(self) -> Value {
        json!({ "median": rounded(self.median), "min": rounded(self.min), "max": rounded(self.max) })
    }
}

/// One of the conditions under which a series was measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Condition {
    /// So many.
    Count(usize),
    /// As this word says.
    Word(String),
    /// It says nothing here.
    None,
}

impl Condition {
    /// In a cell of a table.
    pub(super) fn cell(&self) -> String {
        match self {
            Self::Count(count) => count.to_string(),
            Self::Word(word) => word.clone(),
            Self::None => "-".to_owned(),
        }
    }

    fn document(&self) -> Value {
        match self {
            Self::Count(count) => json!(count),
            Self::Word(word) => json!(word),
            Self::None => Value::Null,
        }
    }
}

impl From<usize> for Condition {
    fn from(count: usize) -> Self {
        Self::Count(count)
    }
}

/// The same work under the same conditions, several times.
#[derive(Clone, Debug)]
pub struct Series {
    /// The conditions: the name of each with its unit last, as in `workers`.
    pub conditions: Vec<(&'static str, Condition)>,
    /// What each time brought.
    pub repetitions: Vec<Figures>,
    /// The latencies of all of them together.
    pub latencies: super::Latencies,
}

impl Series {
    /// What was measured, in the order in which it is shown.
    pub fn figures(&self) -> impl Iterator<Item = Figure> {
        self.repetitions.first().into_iter().flat_map(|first| first.0.iter().map(|(figure, _)| *figure))
    }

    /// How one of them spreads. `None`: it was not measured, or is not known.
    pub fn spread(&self, figure: Figure) -> Option<Spread> {
        Spread::of(self.repetitions.iter().filter_map(|figures| figures.get(figure)))
    }

    /// As a document: conditions, then the spread of each figure, then each repetition.
    pub fn document(&self) -> Value {
        let mut document: Map<String, Value> =
            self.conditions.iter().map(|(name, value)| ((*name).to_owned(), value.document())).collect();
        let spreads = self.figures().map(|figure| {
            let spread = self.spread(figure).map_or(Value::Null, Spread::document);
            (figure.name().to_owned(), spread)
        });
        document.insert("figures".to_owned(), Value::Object(spreads.collect()));
        document.insert("repetitions".to_owned(), self.repetitions.iter().map(Figures::document).collect());
        Value::Object(document)
    }

    /// The conditions in short, as `workers 64`.
    pub fn label(&self) -> String {
        let said = self.conditions.iter().filter(|(_, value)| *value != Condition::None);
        let words = said.map(|(name, value)| format!("{name} {}", value.cell()));
        words.collect::<Vec<_>>().join(", ").replace('_', " ")
    }
}

/// Three decimals tell all that a measurement can.
fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_or_between_the_two_that_are() {
        let spread = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[7.0]), Some(Spread { median: 7.0, min: 7.0, max: 7.0 }));
        assert_eq!(spread(&[9.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 9.0 }));
        assert_eq!(spread(&[4.0, 9.0, 1.0, 2.0]), Some(Spread { median: 3.0, min: 1.0, max: 9.0 }));
    }

    #[test]
    fn what_is_not_known_is_null_and_does_not_count() {
        let repetition = |value| {
            let mut figures = Figures::default();
            figures.put(Figure::PerSecond, 10.0);
            figures.put(Figure::Servers, value);
            figures
        };
        let repetitions = vec![repetition(None), repetition(Some(1.23456))];
        let latencies = super::super::Latencies::default();
        let series = Series { conditions: vec![("workers", 64.into())], repetitions, latencies };
        let document = series.document();
        assert_eq!(document["workers"], 64);
        assert_eq!(document["figures"]["servers_cpus"]["median"], 1.235);
        assert_eq!(document["repetitions"][0]["servers_cpus"], Value::Null);
        assert_eq!(series.label(), "workers 64");
    }
}
