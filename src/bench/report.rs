//! The results, for programs and for people.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{BenchOptions, Figure, Series, Spread, Where, Workload, usage};

/// The options and results of a measurement.
#[derive(Clone, Debug)]
pub struct BenchReport {
    /// The options.
    pub options: BenchOptions,
    /// The results, with one series for each number of workers or rate.
    pub series: Vec<Series>,
}

impl BenchReport {
    /// A document for programs. Fields are only ever added to it.
    pub fn document(&self) -> Value {
        let BenchOptions { work, place, timing, .. } = &self.options;
        let cluster = match place {
            Where::Own { nodes, tls, .. } => json!({ "own": true, "nodes": nodes, "tls": tls }),
            Where::Running(client) => json!({ "own": false, "endpoints": client.endpoints() }),
        };

        json!({
            "work": work.name(),
            "meaning": work.meaning(),
            "version": env!("CARGO_PKG_VERSION"),
            "profile": env!("LOCKKEEPER_BUILD_PROFILE"),
            "debug_build": cfg!(debug_assertions),
            "machine": { "processors": usage::processors(), "processor": usage::processor(), "kernel": usage::kernel() },
            "cluster": cluster,
            "warm_up_s": timing.warm_up.as_secs_f64(),
            "duration_s": timing.duration.as_secs_f64(),
            "series": self.series.iter().map(Series::document).collect::<Vec<_>>(),
        })
    }

    /// The lines above the table.
    pub fn heading(&self) -> String {
        let BenchOptions { work, place, timing, .. } = &self.options;
        let cluster = match place {
            Where::Own { nodes, tls, .. } => {
                format!("{nodes} nodes{} and the load on this machine", if *tls { " with TLS" } else { "" })
            }
            Where::Running(client) => client.endpoints().to_owned(),
        };

        let profile = env!("LOCKKEEPER_BUILD_PROFILE");
        let mut text = format!("{}: {}\n{cluster}; profile {profile}; ", work.name(), work.meaning());

        let repetitions = self.series.first().map_or(0, |series| series.repetitions.len());
        let spread = if repetitions > 1 { "median (lowest–highest) of " } else { "" };

        // Writing to a string does not fail.
        let _ = write!(text, "{} processors; {spread}{repetitions}", usage::processors());
        if self.has(Figure::Servers) {
            let _ = write!(text, " × {:?} after {:?}", timing.duration, timing.warm_up);
        }

        if cfg!(debug_assertions) {
            text.push_str("\nDEBUG BUILD: these figures are not those of a release build");
        }

        text + "\n"
    }

    /// The column titles, then the cells of each row.
    pub fn table(&self) -> Vec<Vec<String>> {
        let figures: Vec<Figure> = self.series.first().into_iter().flat_map(Series::figures).collect();
        // Fairness matters only in contended work.
        let is_fairness_asked = matches!(self.options.work, Workload::Contended { .. });
        let shown = figures.into_iter().filter(|figure| is_fairness_asked || !figure.shows_fairness());
        let columns: Vec<(Figure, &str)> = shown.filter_map(|figure| Some((figure, figure.title()?))).collect();

        let conditions = self.series.first().map_or(&[][..], |series| &series.conditions);
        let titles = conditions.iter().map(|(name, _)| name.replace('_', " ").to_uppercase());
        let head = titles.chain(columns.iter().map(|(_, title)| (*title).to_owned())).collect();

        let row = |series: &Series| {
            let conditions = series.conditions.iter().map(|(_, value)| value.cell());
            conditions.chain(columns.iter().map(|(figure, _)| cell(*figure, series.spread(*figure)))).collect()
        };

        std::iter::once(head).chain(self.series.iter().map(row)).collect()
    }

    fn has(&self, figure: Figure) -> bool {
        self.series.iter().any(|series| series.figures().any(|known| known == figure))
    }
}

fn cell(figure: Figure, spread: Option<Spread>) -> String {
    match spread {
        None => "not known".to_owned(),
        Some(Spread { median, min, max }) if !figure.is_shown_with_spread() || number(min) == number(max) => {
            number(median)
        }
        Some(Spread { median, min, max }) => format!("{} ({}–{})", number(median), number(min), number(max)),
    }
}

/// Three significant digits, or all digits before the decimal point.
fn number(value: f64) -> String {
    match value {
        _ if value == value.trunc() || value.abs() >= 100.0 => thousands(value),
        _ if value.abs() >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits.as_str()), |digits| ("-", digits));
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).unwrap_or("")).collect();
    format!("{sign}{}", groups.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_or_all_before_the_point() {
        let numbers = [0.0, 0.1234, 1.0, 12.34, 123.4, 1_234.5, 1_000_000.0, -1_234.0].map(number);
        assert_eq!(numbers, ["0", "0.12", "1", "12.3", "123", "1,234", "1,000,000", "-1,234"]);
    }

    #[test]
    fn a_cell_says_how_far_repetitions_lie_apart() {
        let spread = Spread { median: 2_000.0, min: 1_900.0, max: 2_100.0 };
        assert_eq!(cell(Figure::PerSecond, Some(spread)), "2,000 (1,900–2,100)");
        assert_eq!(cell(Figure::Servers, Some(spread)), "2,000");
        assert_eq!(cell(Figure::PerSecond, Some(Spread { median: 0.0, min: 0.0, max: 0.0 })), "0");
        assert_eq!(cell(Figure::Servers, None), "not known");
    }
}
