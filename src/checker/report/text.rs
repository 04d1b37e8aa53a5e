//! The summary as text.

use std::fmt::Write as _;

use super::{About, ReportedFinding, ReportedVerdict, Summary};

/// The summary in parts. Each part ends with a line break, and an empty line separates parts.
pub(super) fn text(seed: Option<u64>, about: &About, summary: &Summary, findings: &[ReportedFinding]) -> String {
    let mut parts = vec![head(seed, about, summary), columns(&operations(summary)), columns(&counts(summary))];
    if !summary.faults.is_empty() {
        parts.push(columns(&faults(summary)));
    }
    if !findings.is_empty() {
        parts.push(columns(&verdicts(findings)));
    }
    parts.extend(findings.iter().filter_map(violations));
    parts.join("\n")
}

fn head(seed: Option<u64>, about: &About, summary: &Summary) -> String {
    let Summary { events, clients, locks, sessions, .. } = summary;
    let cut_off = if summary.ended { "" } else { "; incomplete" };
    let mut text = format!(
        "{} in {}: {}, {}, {}{cut_off}\n",
        count(*events, "event"),
        duration(summary.duration_ms),
        count(*clients, "client"),
        count(*sessions, "session"),
        count(*locks, "lock"),
    );

    if let Some(seed) = seed {
        let _ = writeln!(text, "seed {seed}");
    }
    if let Some(command) = &about.command {
        let _ = writeln!(text, "to repeat: {}", plain(command));
    }
    text
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

type Rows = Vec<Vec<String>>;

fn operations(summary: &Summary) -> Rows {
    let mut rows = vec![row(["OPERATION", "BEGUN", "OK", "UNKNOWN", "FAILED"])];

    for count in &summary.operations {
        let reasons: Vec<_> = count.failed.iter().map(|(reason, times)| format!("{} {times}", plain(reason))).collect();
        let failed = if reasons.is_empty() { "-".to_owned() } else { reasons.join(", ") };

        rows.push(vec![
            count.f.to_owned(),
            count.invoked.to_string(),
            count.ok.to_string(),
            count.unknown.to_string(),
            failed,
        ]);
    }
    rows
}

fn counts(summary: &Summary) -> Rows {
    let mut rows: Rows = [
        ("grants", summary.grants),
        ("hand-overs", summary.hand_overs),
        ("expiries", summary.expiries),
        ("forced releases", summary.forced_releases),
        ("refused writes", summary.refused_writes),
        ("clients killed", summary.clients_killed),
        ("elections", summary.elections),
        ("nodes killed", summary.nodes_killed),
        ("nodes started", summary.nodes_started),
        ("snapshots installed", summary.snapshots_installed),
    ]
    .into_iter()
    .map(|(what, count)| row([what, &count.to_string()]))
    .collect();

    // Most runs have none of these.
    let operations = [
        ("nodes stopped", summary.nodes_stopped),
        ("nodes joined", summary.nodes_joined),
        ("nodes removed", summary.nodes_removed),
        ("leaderships transferred", summary.transfers),
    ];
    rows.extend(operations.iter().filter(|(_, count)| *count > 0).map(|(what, count)| row([what, &count.to_string()])));
    rows.extend(summary.losses.iter().map(|(why, count)| row([&format!("lost: {}", plain(why)), &count.to_string()])));
    rows
}

fn faults(summary: &Summary) -> Rows {
    let mut rows = vec![row(["FAULT", "TIMES", "LASTED"])];
    let of =
        |fault: &super::FaultCount| row([&plain(&fault.name), &fault.times.to_string(), &duration(fault.lasted_ms)]);
    rows.extend(summary.faults.iter().map(of));
    rows
}

fn verdicts(findings: &[ReportedFinding]) -> Rows {
    let mut rows = vec![row(["PROPERTY", "VERDICT", "EVIDENCE"])];
    for finding in findings {
        let evidence: Vec<_> = finding.evidence.iter().map(|(what, count)| format!("{count} {what}")).collect();
        rows.push(row([&finding.property, finding.verdict.word(), &evidence.join(", ")]));
    }
    rows
}

fn violations(finding: &ReportedFinding) -> Option<String> {
    match &finding.verdict {
        ReportedVerdict::Holds | ReportedVerdict::Vacuous => None,
        ReportedVerdict::Undecided { why } => Some(format!("{} is undecided: {}\n", finding.property, plain(why))),
        ReportedVerdict::Violated { count, shown } => {
            let mut text =
                format!("{} is violated {count} {}:\n", finding.property, if *count == 1 { "time" } else { "times" });
            for violation in shown {
                let lines: Vec<_> = violation.lines.iter().map(ToString::to_string).collect();
                let _ = writeln!(text, "  {} (lines {})", plain(&violation.says), lines.join(", "));
            }
            Some(text)
        }
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Aligns columns, to the right if all cells below the title are numbers.
fn columns(rows: &Rows) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widths: Vec<_> = (0..count).map(|column| cells(column).map(|cell| cell.chars().count()).max()).collect();
    let is_number = |cell: &String| cell.parse::<u64>().is_ok();
    let numbers: Vec<_> = (0..count).map(|column| cells(column).skip(1).all(is_number)).collect();

    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for ((cell, width), number) in row.iter().zip(&widths).zip(&numbers) {
            let width = width.unwrap_or(0);
            line.push_str(&if *number { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") });
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

fn duration(ms: u64) -> String {
    format!("{}.{:03} s", ms / 1_000, ms % 1_000)
}

/// A name without control characters, which must not reach the terminal: names are arbitrary.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
