//! The disk, the limits and the environment of this machine.

use std::{env, io, io::Write as _, path::Path, time::Duration};

use rustix::{
    process::{Resource, getrlimit},
    system::uname,
};
use tokio::time::Instant;

use super::{super::show, Remark};
use crate::server::descriptors::{FurtherPorts, Places, raise};

/// Writes that are measured at most.
const SYNCS_MAX: usize = 100;
/// How long the measurement may take.
const MEASURED: Duration = Duration::from_secs(2);
/// The size of a write: a page, as of a log with small entries.
const WRITE: [u8; 4_096] = [0x5a; 4_096];
/// An acknowledged request waits for one sync on a majority of the disks: from here on people notice it.
const SLOW: Duration = Duration::from_millis(10);
/// From this time for a sync on, heartbeats and elections suffer.
const TOO_SLOW: Duration = Duration::from_millis(100);
/// The clients that a node accepts if descriptors do not limit it.
const CLIENTS_USUAL: usize = 10_000;

/// The machine in one line.
pub(super) fn host() -> String {
    let system = uname();
    let text = |part: &std::ffi::CStr| show::text(&part.to_string_lossy());
    format!(
        "host {}, {} {}, {}",
        text(system.nodename()),
        text(system.sysname()),
        text(system.release()),
        text(system.machine())
    )
}

/// Measures how long the disk of a directory needs to sync a write. Blocks, for [`MEASURED`] at most and the last sync.
pub(super) fn disk(directory: &Path) -> Vec<Remark> {
    match measure(directory) {
        Ok(times) => vec![judged(directory, &times)],
        Err(error) => vec![Remark::problem(format!("cannot write and sync in {}: {error}", directory.display()))],
    }
}

/// The times of the syncs, sorted: at least one.
fn measure(directory: &Path) -> io::Result<Vec<Duration>> {
    // The file has no name in the directory, so it does not stay behind if the program is killed.
    let mut file = tempfile::tempfile_in(directory)?;
    let began = Instant::now();
    let mut times = Vec::new();
    while times.len() < SYNCS_MAX && (times.is_empty() || began.elapsed() < MEASURED) {
        let sync = Instant::now();
        file.write_all(&WRITE)?;
        file.sync_data()?;
        times.push(sync.elapsed());
    }
    times.sort();
    Ok(times)
}

fn judged(directory: &Path, times: &[Duration]) -> Remark {
    let median = times[times.len() / 2];
    let worst = times[times.len() - 1];
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1_000.0);
    let text = format!(
        "{}: {} of 4 KiB, median {}, longest {}",
        directory.display(),
        show::count(times.len() as u64, "synced write", "synced writes"),
        ms(median),
        ms(worst)
    );

    if median >= TOO_SLOW {
        Remark::problem(format!("{text}: too slow for the log of a node"))
    } else if median >= SLOW {
        Remark::note(format!("{text}: each grant waits for a sync"))
    } else {
        Remark::ok(text)
    }
}

/// The limit of file descriptors, and the clients that it allows.
pub(super) fn descriptors() -> Vec<Remark> {
    let limit = getrlimit(Resource::Nofile);
    let shown = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let mut text = format!("the limit is {}", shown(limit.current));
    if limit.current != limit.maximum {
        text += &format!(", which a node raises to {}", shown(limit.maximum));
    }

    raise();
    let clients = Places::for_this_process(FurtherPorts { http: true, ..FurtherPorts::default() }).clients;
    text += &format!(": enough for {clients} clients");
    if clients < CLIENTS_USUAL {
        return vec![Remark::note(format!(
            "{text}, fewer than the usual {CLIENTS_USUAL}: raise the hard limit (LimitNOFILE)"
        ))];
    }
    vec![Remark::ok(text)]
}

/// The variables that change what this program does. Secrets are not shown.
pub(super) fn environment() -> Vec<Remark> {
    let ours = env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let mut ours: Vec<_> = ours.filter(|(name, _)| name.starts_with("LOCKKEEPER_")).collect();
    ours.sort();
    if ours.is_empty() {
        return vec![Remark::ok("no LOCKKEEPER_ variable is set")];
    }

    let shown = ours.into_iter().map(|(name, value)| {
        let is_secret = name.contains("TOKEN") && !name.ends_with("_FILE");
        let value = if is_secret { "(not shown)".to_owned() } else { show::text(&value.to_string_lossy()) };
        Remark::ok(format!("{}={value}", show::text(&name)))
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::{super::Urgency, *};

    #[test]
    fn a_disk_is_judged_by_the_median() {
        let times = |ms: &[u64]| ms.iter().map(|ms| Duration::from_millis(*ms)).collect::<Vec<_>>();
        let judge = |ms: &[u64]| judged(Path::new("/data"), &times(ms)).urgency;
        assert_eq!(judge(&[1, 2, 400]), Urgency::Ok);
        assert_eq!(judge(&[1, 12, 13]), Urgency::Note);
        assert_eq!(judge(&[120, 130]), Urgency::Problem);
    }

    #[test]
    fn a_directory_is_measured_and_nothing_stays() {
        let directory = tempfile::tempdir().unwrap();
        let remarks = disk(directory.path());
        assert!(remarks[0].text.contains("of 4 KiB, median"), "{remarks:?}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let nowhere = disk(&directory.path().join("nowhere"));
        assert!(nowhere[0].urgency == Urgency::Problem && nowhere[0].text.contains("cannot write"), "{nowhere:?}");
    }
}
