//! Resource usage of processes, from Linux' `/proc`. It is unknown on other systems, and for processes on other machines.

use std::{fs, path::Path, time::Duration};

/// The CPU time used so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cpu {
    servers: Option<Duration>,
    generator: Option<Duration>,
    machine: Option<Duration>,
}

impl Cpu {
    /// The CPU time up to now. `servers` are the processes of the servers, if they are known.
    pub(super) fn used(servers: Option<&[u32]>) -> Self {
        let servers = servers.and_then(|pids| pids.iter().map(|&pid| cpu_of_process(pid)).sum());
        Self { servers, generator: cpu_of_process(std::process::id()), machine: cpu_of_machine() }
    }

    /// The CPU time since an earlier reading.
    pub(super) fn since(self, earlier: Self) -> Self {
        let between = |now: Option<Duration>, then: Option<Duration>| Some(now?.saturating_sub(then?));
        Self {
            servers: between(self.servers, earlier.servers),
            generator: between(self.generator, earlier.generator),
            machine: between(self.machine, earlier.machine),
        }
    }

    /// The CPU time of all nodes of the cluster.
    pub(super) fn servers(&self) -> Option<Duration> {
        self.servers
    }

    /// The CPU time of this process, the load generator.
    pub(super) fn generator(&self) -> Option<Duration> {
        self.generator
    }

    /// The CPU time of all other processes on this machine. It shows whether other load disturbed the measurement.
    pub(super) fn others(&self) -> Option<Duration> {
        Some(self.machine?.saturating_sub(self.generator?).saturating_sub(self.servers.unwrap_or_default()))
    }
}

/// The CPU time of all threads of a process, in user mode and kernel mode, or `None` if there is no such process or this is not Linux.
pub fn cpu_of_process(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name comes first and may contain anything, even spaces. After it the state is the first field, and user
    // and system time are the 12th and 13th.
    let fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).take(2);
    Some(ticks(fields.map(|ticks| ticks.parse::<u64>().ok()).sum::<Option<u64>>()?))
}

/// The CPU time of all processors, without idle and I/O wait.
fn cpu_of_machine() -> Option<Duration> {
    const IDLE_AND_WAITING: [usize; 2] = [3, 4];
    // Guest time is included in user time.
    const FIELDS: usize = 8;
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let fields = stat.lines().next()?.split_whitespace().skip(1).take(FIELDS).enumerate();
    let busy = fields.filter(|(place, _)| !IDLE_AND_WAITING.contains(place));
    Some(ticks(busy.map(|(_, ticks)| ticks.parse::<u64>().ok()).sum::<Option<u64>>()?))
}

fn ticks(ticks: u64) -> Duration {
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The resident memory of a process in bytes, or `None` if there is no such process or this is not Linux.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The disk usage of the files under a directory in bytes. Files that are deleted during the count are not counted.
pub(super) fn disk_bytes(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    const BLOCK_BYTES: u64 = 512;
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
        Ok(metadata) => metadata.blocks() * BLOCK_BYTES,
        Err(_) => 0,
    };
    entries.flatten().map(bytes).sum()
}

/// The number of processors that this process may use.
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The processor model.
pub(super) fn processor() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let model = info.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(model.trim_start_matches([' ', '\t', ':']).to_owned())
}

/// The operating system and its version.
pub(super) fn kernel() -> String {
    let system = rustix::system::uname();
    format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_process_that_works_is_seen_to() {
        let pid = std::process::id();
        let began = Cpu::used(Some(&[std::process::id()]));
        let mut sum = 0_u64;
        let enough = Some(Duration::from_millis(50));
        let start = Instant::now();
        // The same process is both server and generator here; its clock may advance between the two readings.
        let used = loop {
            let used = Cpu::used(Some(&[pid])).since(began);
            if used.servers() >= enough && used.generator() >= enough {
                break used;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{used:?} {sum}");
            sum = (0..100_000).fold(sum, |sum, next| std::hint::black_box(sum ^ next));
        };
        assert!(used.others().is_some());
        assert!(resident_bytes(pid).is_some_and(|bytes| bytes > 100_000));
    }

    #[test]
    fn of_a_process_that_is_not_there_nothing_is_known() {
        assert!(Cpu::used(Some(&[u32::MAX])).servers().is_none());
        assert!(Cpu::used(None).servers().is_none());
        assert_eq!(resident_bytes(u32::MAX), None);
    }
}
