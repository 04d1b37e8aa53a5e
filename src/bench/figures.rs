//! The results of a measurement: figures by name, and their spread over the repetitions.

use serde_json::{Map, Value, json};

use super::Latencies;

/// A measured quantity. In documents it is named [`Figure::name`], with its unit last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// Operations per second.
    PerSecond,
    /// Latency that 50 % of the operations do not exceed, µs.
    P50,
    /// Latency that 90 % of the operations do not exceed, µs.
    P90,
    /// Latency that 99 % of the operations do not exceed, µs.
    P99,
    /// Latency that 99.9 % of the operations do not exceed, µs.
    P999,
    /// The longest latency, µs.
    Longest,
    /// CPU time of all nodes per operation, µs.
    ServersPerOperation,
    /// Processors used by all nodes together.
    Servers,
    /// Processors used by the load generator.
    Generator,
    /// Processors used by other processes on the machine. If this is more than a little, the other figures are
    /// unreliable.
    Others,
    /// Operations of the worker with the fewest.
    Fewest,
    /// Operations of the worker with the most.
    Most,
    /// Failed operations.
    Errors,
    /// Acquires sent per second.
    Sent,
    /// Requests refused due to load shedding, per second.
    Refused,
    /// Latency that 50 % of the refusals do not exceed, µs.
    RefusedP50,
    /// Latency that 99 % of the refusals do not exceed, µs.
    RefusedP99,
    /// Elections during the measurement.
    Elections,
    /// Time from the kill of the leader to the first success, ms.
    Failover,
    /// Locks held at the end.
    Held,
    /// Time to acquire them, s.
    Fill,
    /// Growth of a node's memory, bytes per lock; mean of the nodes.
    MemoryPerLock,
    /// Growth of a node's data on disk, bytes per lock; mean of the nodes.
    DiskPerLock,
    /// Time from the start of a node until it serves and has applied all entries that were committed at its start, ms.
    Restart,
}

impl Figure {
    /// The figure's name in documents.
    pub fn name(self) -> &'static str {
        self.labels().0
    }

    /// The title of the figure's column, or `None` if tables do not show it.
    pub fn title(self) -> Option<&'static str> {
        self.labels().1
    }

    /// Whether the table shows the spread of this figure. With a spread in every column the table would be unreadable.
    pub(super) fn is_shown_with_spread(self) -> bool {
        matches!(self, Self::PerSecond | Self::P50 | Self::P99 | Self::Failover)
    }

    /// Whether the figure measures fairness.
    pub(super) fn shows_fairness(self) -> bool {
        matches!(self, Self::Fewest | Self::Most)
    }

    fn labels(self) -> (&'static str, Option<&'static str>) {
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
            Self::Sent => ("sent_per_second", Some("SENT PER SECOND")),
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

/// The results of one repetition, in display order. A value of `None` is unknown.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Figures(Vec<(Figure, Option<f64>)>);

impl Figures {
    /// Adds a figure. The value `None` means that it is unknown.
    pub fn put(&mut self, figure: Figure, value: impl Into<Option<f64>>) {
        self.0.push((figure, value.into()));
    }

    /// Adds the quantiles of these latencies. They are unknown if there are no latencies.
    pub(super) fn put_latencies(&mut self, latencies: &Latencies) {
        use Figure::{Longest, P50, P90, P99, P999};
        for (figure, fraction) in [(P50, 0.5), (P90, 0.9), (P99, 0.99), (P999, 0.999), (Longest, 1.0)] {
            let latency = (latencies.count() > 0).then(|| latencies.quantile(fraction).as_secs_f64() * 1e6);
            self.put(figure, latency);
        }
    }

    /// A figure, or `None` if it was not measured or is unknown.
    pub fn get(&self, figure: Figure) -> Option<f64> {
        self.0.iter().find(|(known, _)| *known == figure)?.1
    }

    fn document(&self) -> Value {
        let fields = self.0.iter().map(|(figure, value)| (figure.name().to_owned(), json!(value.map(rounded))));
        Value::Object(fields.collect())
    }
}

/// The spread of a figure over the repetitions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The median. For an even number of values it is the mean of the two middle ones.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Spread {
    /// The spread of these values, or `None` if there are none.
    pub fn over(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let min = *values.first()?;
        let max = *values.last()?;
        let middle = (values.len() - 1) / 2..=values.len() / 2;
        let count = middle.clone().count() as f64;
        Some(Self { median: values[middle].iter().sum::<f64>() / count, min, max })
    }

    fn document(self) -> Value {
        json!({ "median": rounded(self.median), "min": rounded(self.min), "max": rounded(self.max) })
    }
}

/// A condition of a series.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SeriesCondition {
    /// The condition is a number.
    Count(usize),
    /// The condition is a text.
    Word(String),
    /// The condition does not apply.
    None,
}

impl SeriesCondition {
    /// The text in a table cell.
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

impl From<usize> for SeriesCondition {
    fn from(count: usize) -> Self {
        Self::Count(count)
    }
}

/// Repetitions of one work under the same conditions.
#[derive(Clone, Debug)]
pub struct Series {
    /// The conditions: names (with units last, as in `workers`) and values.
    pub conditions: Vec<(&'static str, SeriesCondition)>,
    /// The results of each repetition.
    pub repetitions: Vec<Figures>,
    /// The latencies of all repetitions.
    pub latencies: Latencies,
}

impl Series {
    /// The measured figures, in display order.
    pub fn figures(&self) -> impl Iterator<Item = Figure> {
        self.repetitions.first().into_iter().flat_map(|first| first.0.iter().map(|(figure, _)| *figure))
    }

    /// The spread of a figure, or `None` if it was not measured or is unknown.
    pub fn spread(&self, figure: Figure) -> Option<Spread> {
        Spread::over(self.repetitions.iter().filter_map(|figures| figures.get(figure)))
    }

    /// The series as a document: its conditions, the spread of each figure, and each repetition.
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

    /// The conditions as a short text, such as `workers 64`.
    pub fn label(&self) -> String {
        let said = self.conditions.iter().filter(|(_, value)| *value != SeriesCondition::None);
        let words = said.map(|(name, value)| format!("{name} {}", value.cell()));
        words.collect::<Vec<_>>().join(", ").replace('_', " ")
    }
}

/// Rounds to three decimals. That is more than the precision of a measurement.
fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_or_between_the_two_that_are() {
        let spread = |values: &[f64]| Spread::over(values.iter().copied());
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
