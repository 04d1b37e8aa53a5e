//! The ratios of Lockkeeper to its peers, each with its goal and stretch goal.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Measurements by file name, without `.json`.
type Results = BTreeMap<String, Value>;

/// One figure of one series.
#[derive(Clone, Copy)]
struct Measured {
    file: &'static str,
    /// Number of workers, or another condition; `None`: only one series.
    condition: Option<(&'static str, &'static str)>,
    figure: &'static str,
}

struct Goal {
    what: &'static str,
    ours: Measured,
    theirs: (&'static str, Measured),
    /// More is better.
    is_rate: bool,
    wanted: f64,
    hoped: f64,
}

const fn measured(
    file: &'static str,
    condition: Option<(&'static str, &'static str)>,
    figure: &'static str,
) -> Measured {
    Measured { file, condition, figure }
}

fn goals() -> Vec<Goal> {
    let workers = |count| Some(("workers", count));
    let goal = |what, ours: Measured, peer, theirs: &'static str, is_rate, wanted, hoped| Goal {
        what,
        ours,
        theirs: (peer, Measured { file: theirs, ..ours }),
        is_rate,
        wanted,
        hoped,
    };
    let pairs = |count, figure| measured("lockkeeper-uncontended", workers(count), figure);
    let paced = measured("lockkeeper-keepalive", Some(("rate", "3000")), "servers_cpu_us_per_operation");
    let saturated = measured("lockkeeper-keepalive", Some(("rate", "max")), "per_second");
    let failover = measured("lockkeeper-failover", None, "failover_ms");
    let held = measured("lockkeeper-held", None, "memory_bytes_per_lock");
    let raw = "zookeeper-uncontended";
    vec![
        goal("uncontended pairs/s, W=256", pairs("256", "per_second"), "ZooKeeper raw", raw, true, 2.0, 6.0),
        goal("uncontended pairs/s, W=64", pairs("64", "per_second"), "ZooKeeper raw", raw, true, 2.0, 5.0),
        goal("pair, median µs, W=1", pairs("1", "p50_us"), "ZooKeeper raw", raw, false, 0.8, 0.5),
        goal(
            "hand-overs/s, W=64",
            measured("lockkeeper-contended", workers("64"), "per_second"),
            "ZooKeeper recipe",
            "zookeeper-recipe-contended",
            true,
            2.0,
            3.0,
        ),
        goal("servers' CPU µs per renewal, 3,000/s", paced, "etcd, leader", "etcd-keepalive-leader", false, 0.5, 0.2),
        goal("servers' CPU µs per renewal, 3,000/s", paced, "ZooKeeper", "zookeeper-keepalive", false, 1.0, 0.5),
        goal("renewals/s", saturated, "etcd, spread", "etcd-keepalive-spread-max", true, 2.0, 5.0),
        goal("failover, median ms", failover, "ZooKeeper", "zookeeper-failover", false, 1.0, 0.5),
        goal("failover, median ms", failover, "etcd", "etcd-failover", false, 1.0, 0.5),
        goal("memory B per held lock", held, "etcd", "etcd-held", false, 0.5, 0.25),
        goal(
            "etcd's API: pairs/s, W=64",
            measured("lockkeeper-etcd-uncontended", workers("64"), "per_second"),
            "etcd",
            "etcd-uncontended",
            true,
            3.0,
            5.0,
        ),
        goal(
            "etcd's API: hand-overs/s, W=2",
            measured("lockkeeper-etcd-lock-contended", workers("2"), "per_second"),
            "etcd",
            "etcd-lock-contended",
            true,
            10.0,
            20.0,
        ),
        goal(
            "etcd's API: renewals/s",
            measured("lockkeeper-etcd-keepalive-spread-max", None, "per_second"),
            "etcd, spread",
            "etcd-keepalive-spread-max",
            true,
            1.0,
            3.0,
        ),
        goal(
            "ZooKeeper's API: pairs/s, W=1",
            measured("lockkeeper-zookeeper-uncontended", workers("1"), "per_second"),
            "ZooKeeper",
            "zookeeper-uncontended",
            true,
            1.0,
            2.0,
        ),
        goal(
            "ZooKeeper's API: pairs/s, W=64",
            measured("lockkeeper-zookeeper-uncontended", workers("64"), "per_second"),
            "ZooKeeper",
            "zookeeper-uncontended",
            true,
            2.0,
            3.0,
        ),
        goal(
            "ZooKeeper's API: pairs/s, W=256",
            measured("lockkeeper-zookeeper-uncontended", workers("256"), "per_second"),
            "ZooKeeper",
            "zookeeper-uncontended",
            true,
            2.0,
            3.0,
        ),
        goal(
            "ZooKeeper's API: hand-overs/s, W=64",
            measured("lockkeeper-zookeeper-recipe-contended", workers("64"), "per_second"),
            "ZooKeeper recipe",
            "zookeeper-recipe-contended",
            true,
            3.0,
            5.0,
        ),
        goal(
            "Redis' protocol: pairs/s, W=64",
            measured("lockkeeper-redis-uncontended", workers("64"), "per_second"),
            "Redis, one node, fsync for each write",
            "redis-uncontended",
            true,
            0.5,
            1.0,
        ),
        goal(
            "linearizable reads/s, W=64",
            measured("lockkeeper-read", workers("64"), "per_second"),
            "etcd",
            "etcd-read",
            true,
            1.0,
            2.0,
        ),
    ]
}

/// Prints a line for each goal; a missing figure is "not measured".
pub(crate) fn print(directory: &Path) -> Result<()> {
    let results = read(directory)?;
    println!(
        "{:<36} {:>10}  {:<17} {:>10}  {:>6}  {:>14}",
        "FIGURE", "LOCKKEEPER", "PEER", "", "RATIO", "GOAL (STRETCH)"
    );
    for goal in goals() {
        let (ours, theirs) = (value(&results, goal.ours), value(&results, goal.theirs.1));
        let sign = if goal.is_rate { '≥' } else { '≤' };
        let wanted = format!("{sign} {} ({})", goal.wanted, goal.hoped);
        let shown = |value: Option<f64>| value.map_or("not measured".to_owned(), |value| format!("{value:.0}"));
        let (ratio, verdict) = match (ours, theirs) {
            (Some(ours), Some(theirs)) if theirs > 0.0 => {
                let ratio = ours / theirs;
                let is_reached = if goal.is_rate { ratio >= goal.wanted } else { ratio <= goal.wanted };
                (format!("{ratio:.2}"), if is_reached { "reached" } else { "NOT REACHED" })
            }
            _ => ("-".to_owned(), ""),
        };
        let (peer, what) = (goal.theirs.0, goal.what);
        println!(
            "{what:<36} {:>10}  {peer:<17} {:>10}  {ratio:>6}  {wanted:>14}  {verdict}",
            shown(ours),
            shown(theirs)
        );
    }
    fairness(&results);
    if let Some(restart) = value(&results, measured("lockkeeper-held", None, "restart_ms")) {
        println!("restart with the held locks: {:.1} s (goal: 5 s with 1,000,000)", restart / 1e3);
    }
    Ok(())
}

fn fairness(results: &Results) {
    let of_64 = |figure| value(results, measured("lockkeeper-contended", Some(("workers", "64")), figure));
    if let (Some(fewest), Some(most)) = (of_64("fewest"), of_64("most")) {
        println!("hand-overs per worker, W=64: {fewest:.0} to {most:.0}, ratio {:.3} (goal: ≤ 1.05)", most / fewest);
    }
}

fn read(directory: &Path) -> Result<Results> {
    let mut results = Results::new();
    for entry in fs::read_dir(directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        let (Some(name), Some("json")) =
            (path.file_stem().and_then(|name| name.to_str()), path.extension().and_then(|end| end.to_str()))
        else {
            continue;
        };
        // A failed measurement left an empty file.
        if let Ok(document) = serde_json::from_str(&fs::read_to_string(&path)?) {
            results.insert(name.to_owned(), document);
        }
    }
    Ok(results)
}

fn value(results: &Results, Measured { file, condition, figure }: Measured) -> Option<f64> {
    let fits = |series: &&Value| match condition {
        None => true,
        // A peer's series without this condition is its only one.
        Some((name, _)) if series[name].is_null() => true,
        Some((name, wanted)) => series[name].to_string().trim_matches('"') == wanted,
    };
    results.get(file)?["series"].as_array()?.iter().find(fits)?["figures"][figure]["median"].as_f64()
}
