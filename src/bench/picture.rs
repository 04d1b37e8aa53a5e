//! A plot of latencies: a self-contained SVG file.
//!
//! The horizontal axis shows quantiles, each step ten times rarer than the one before (90 %, 99 %, 99.9 %, …), so that
//! rare latencies get as much space as common ones. The vertical axis shows latency in powers of ten.

use std::fmt::Write as _;

use super::{BenchReport, Latencies};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 540.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 60.0;
const BOTTOM: f64 = 60.0;
/// The number of points of a curve per power of ten.
const POINTS_PER_DECADE: usize = 24;
/// The rarest quantile that is shown: one in a million.
const DECADES_MAX: usize = 6;
/// Seven colours that colour-blind people can distinguish (by Okabe and Ito).
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

/// Draws a curve for each series that has latencies.
pub fn svg(report: &BenchReport) -> String {
    let work = &report.options.work;
    let curves: Vec<(String, &Latencies)> = report
        .series
        .iter()
        .filter(|series| series.latencies.count() > 0)
        .map(|series| (series.label(), &series.latencies))
        .collect();

    let axes = Axes::around(curves.iter().map(|(_, latencies)| *latencies));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );

    text(&mut svg, LEFT, 26.0, "start", &format!("{}: latency by quantile", work.name()));
    text(&mut svg, LEFT, 44.0, "start", work.meaning());
    axes.draw(&mut svg);

    for (place, (label, latencies)) in curves.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        axes.curve(&mut svg, latencies, colour);

        let y = TOP + 20.0 * place as f64;
        let x = WIDTH - RIGHT + 16.0;
        line(&mut svg, (x, y), (x + 20.0, y), colour, 2.0);
        text(&mut svg, x + 26.0, y + 4.0, "start", label);
    }

    svg + "</svg>\n"
}

/// The ranges of the axes.
struct Axes {
    /// The rarest quantile shown is one in ten to this power.
    decades: usize,
    /// Powers of ten of a microsecond.
    lowest: i32,
    highest: i32,
}

impl Axes {
    fn around<'l>(all: impl Iterator<Item = &'l Latencies>) -> Self {
        let mut decades = 1;
        let mut lowest = i32::MAX;
        let mut highest = i32::MIN;

        for latencies in all {
            // The rarest quantile of n values is one in n.
            decades = decades.max(latencies.count().ilog10() as usize);
            lowest = lowest.min(microseconds(latencies, 0.0).log10().floor() as i32);
            highest = highest.max(microseconds(latencies, 1.0).log10().ceil() as i32);
        }

        let lowest = lowest.min(highest.saturating_sub(1)).clamp(0, 8);
        Self { decades: decades.min(DECADES_MAX), lowest, highest: highest.clamp(lowest + 1, 9) }
    }

    /// The horizontal position of a quantile. A `rarity` of 2 is 99 %.
    fn x(&self, rarity: f64) -> f64 {
        LEFT + rarity / self.decades as f64 * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, microseconds: f64) -> f64 {
        let share = (microseconds.log10() - f64::from(self.lowest)) / f64::from(self.highest - self.lowest);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    fn draw(&self, svg: &mut String) {
        for decade in 0..=self.decades {
            let x = self.x(decade as f64);
            line(svg, (x, TOP), (x, HEIGHT - BOTTOM), "#ddd", 1.0);
            text(svg, x, HEIGHT - BOTTOM + 18.0, "middle", &percent(decade));
        }

        for power in self.lowest..=self.highest {
            let y = self.y(10_f64.powi(power));
            line(svg, (LEFT, y), (WIDTH - RIGHT, y), "#ddd", 1.0);
            text(svg, LEFT - 8.0, y + 4.0, "end", &duration(power));
        }

        text(svg, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0, "middle", "fraction of operations that took no longer");
    }

    fn curve(&self, svg: &mut String, latencies: &Latencies, colour: &str) {
        let rarest = (latencies.count() as f64).log10().min(self.decades as f64);
        let steps = (rarest * POINTS_PER_DECADE as f64).ceil() as usize;
        let rarities = (0..=steps).map(|step| (step as f64 / POINTS_PER_DECADE as f64).min(rarest));
        let points = rarities.map(|rarity| {
            let latency = microseconds(latencies, 1.0 - 10_f64.powf(-rarity));
            format!("{:.1},{:.1}", self.x(rarity), self.y(latency))
        });
        let points = points.collect::<Vec<_>>().join(" ");
        let _ = writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
    }
}

fn microseconds(latencies: &Latencies, fraction: f64) -> f64 {
    latencies.quantile(fraction).as_secs_f64() * 1e6
}

/// The label of a quantile: 0 % for 0, 90 % for 1, 99 % for 2, 99.9 % for 3.
fn percent(decade: usize) -> String {
    match decade {
        0 => "0 %".to_owned(),
        1 => "90 %".to_owned(),
        2 => "99 %".to_owned(),
        _ => format!("99.{} %", "9".repeat(decade - 2)),
    }
}

/// The label of a power of ten of microseconds.
fn duration(power: i32) -> String {
    let (unit, power) = match power {
        ..3 => ("µs", power),
        3..6 => ("ms", power - 3),
        6.. => ("s", power - 6),
    };
    format!("{} {unit}", 10_f64.powi(power))
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::*, *};

    fn report(latencies: impl IntoIterator<Item = Latencies>) -> BenchReport {
        let series = latencies.into_iter().enumerate().map(|(place, latencies)| Series {
            conditions: vec![("workers", (place + 1).into())],
            repetitions: Vec::new(),
            latencies,
        });
        let timing = Timing { warm_up: Duration::ZERO, duration: Duration::ZERO, repetitions: 1 };
        let work = Workload::Uncontended { workers: Vec::new() };
        let place = Where::Running(lockkeeper_client::Client::builder("a:1"));
        BenchReport { series: series.collect(), options: BenchOptions { work, beside: Vec::new(), place, timing } }
    }

    fn latencies(count: u64) -> Latencies {
        let mut latencies = Latencies::default();
        (1..=count).for_each(|us| latencies.record(Duration::from_micros(us)));
        latencies
    }

    fn curves(svg: &str) -> Vec<Vec<(f64, f64)>> {
        let points = |line: &str| {
            let points = line.strip_prefix("<polyline points=\"")?.split('"').next()?.split(' ');
            points
                .map(|point| point.split_once(',').and_then(|(x, y)| Some((x.parse().ok()?, y.parse().ok()?))))
                .collect()
        };
        svg.lines().filter_map(points).collect()
    }

    #[test]
    fn a_curve_rises_to_the_right_and_stays_inside() {
        let svg = svg(&report([latencies(1), latencies(7), latencies(100_000)]));
        let curves = curves(&svg);
        assert_eq!(curves.len(), 3, "{svg}");
        for curve in &curves {
            assert!(curve.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 >= pair[1].1), "{curve:?}");
            let inside = |&(x, y): &(f64, f64)| (LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT).contains(&y);
            assert!(curve.iter().all(inside), "{curve:?}");
        }
        assert!(svg.contains("99.99 %") && svg.contains("10 ms") && svg.contains("workers 3"), "{svg}");
    }

    #[test]
    fn without_latencies_there_are_only_axes() {
        let svg = svg(&report([Latencies::default()]));
        assert!(curves(&svg).is_empty() && svg.ends_with("</svg>\n"), "{svg}");
    }
}
