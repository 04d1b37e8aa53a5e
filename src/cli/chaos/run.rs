//! `lockkeeper chaos run` runs a cluster under faults on this machine, and gives the verdict.

use std::{
    env,
    fs::{self, File},
    io::{BufReader, IsTerminal as _, Write as _, stderr},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, ValueHint};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        Exit, Failure,
        output::print,
        show,
        signals::Signals,
        table::{columns, cut},
    },
    check::Worst,
};
use crate::{
    chaos::{
        checker::{Finding, check},
        history::{History, ReadError},
        nemesis::{Fault, Faults, ProgramStarts},
        report::{About, Report, Summary},
        run::{Outcome, RunError, RunOptions, RunProgress, activity, run},
    },
    local::NodeProgram,
    machine::Versions,
    planted::{CAN_HAVE_BUGS, PRETENDED_VERSION, VERSION},
};

/// Interval of progress lines when stderr is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Injects faults into a cluster on this machine while clients use it, and checks their history.
///
/// Nodes and clients are real processes; their network goes through proxies in this process, so root is not needed.
/// Ctrl-C ends the run early with a complete history. Exit code 0: all properties hold; 30: one is violated; 31: one is
/// undecided, or there was too little activity.
#[derive(Args, Debug)]
pub(super) struct RunChaos {
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=7))]
    nodes: u8,
    /// Duration of the faults
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = super::super::arguments::duration)]
    duration: Duration,
    /// Seed of the faults and of the clients' operations [default: random]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Faults, separated by commas: partition, network, pause, kill, clock, disk, operation, membership, all; or single faults by name
    #[arg(long, value_name = "FAULT,…", default_value = "all")]
    faults: Faults,
    /// Number of client processes, each with several concurrent operations
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(2..=50))]
    clients: u8,
    /// TLS between all nodes and clients; the faults `restore` and `restore-again` are skipped then
    #[arg(long)]
    tls: bool,
    /// The nodes write no audit trail: a node whose table differs from that of the others then answers on. The faults `slow-audit` and
    /// `hung-audit` are skipped
    #[arg(long)]
    no_audit: bool,
    /// A program of your own that uses the cluster at the same time, for `sh -c`; may be given several times
    ///
    /// It is told the nodes by LOCKKEEPER_ENDPOINTS, and by LOCKKEEPER_DYNAMODB_ENDPOINTS, LOCKKEEPER_ETCD_ENDPOINTS and
    /// LOCKKEEPER_REDIS_ENDPOINTS. It may write what it does into the file LOCKKEEPER_HISTORY, in the format of the history, with times
    /// since LOCKKEEPER_HISTORY_BASE_NS of the clock CLOCK_MONOTONIC: this is judged, too. It ends when its standard input does. The faults
    /// `restore` and `restore-again` are skipped.
    #[arg(long = "program", value_name = "COMMAND")]
    programs: Vec<String>,
    /// Two versions of the program: nodes run this program of an earlier version and the present one by turns
    ///
    /// Each start of a node is its turn to run the other program, and one node always keeps the earlier one. At the end all nodes get the
    /// present program, one after the other, and the cluster version must rise. Without a path, a development build pretends to be the
    /// version before. The faults of the group `membership` are skipped.
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, require_equals = true, value_hint = ValueHint::FilePath)]
    earlier: Option<Option<PathBuf>>,
    /// New directory for history and logs [default: ./chaos-SEED]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: Option<PathBuf>,
}

impl RunChaos {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        #[expect(clippy::disallowed_methods, reason = "the seed of a run that was given none; the report names it")]
        let seed = self.seed.unwrap_or_else(|| rand::random::<u32>().into());
        let options = RunOptions {
            program: env::current_exe()?,
            earlier: self.earlier_program()?,
            nodes: self.nodes.into(),
            duration: self.duration,
            seed,
            faults: self.faults.chosen.clone(),
            clients: self.clients.into(),
            tls: self.tls,
            audit: !self.no_audit,
            programs: self.programs.clone(),
            directory: self.out.clone().unwrap_or_else(|| format!("chaos-{seed}").into()),
        };

        say(&format!("seed {seed}; to repeat: {}", self.command(seed)));
        let directory = options.directory.clone();
        let outcome = watched(options).await?;

        let versions = vec![("lockkeeper".to_owned(), VERSION.to_owned())];
        let about = About { command: Some(self.command(seed)), versions };
        let judged = tokio::task::spawn_blocking(move || Judged::judge(outcome, about));
        let judged = judged.await.map_err(|error| Failure::new(Exit::Error, error))?;
        let judged = judged.map_err(|error| Failure::new(Exit::Error, error))?;
        print(&judged.text())?;

        let page = directory.join("report.html");
        let audit = if self.no_audit { "" } else { ", audit/" };
        print(&format!(
            "\nreport: {}; in the same directory: report.json, history.jsonl, nodes/{audit}\n",
            page.display()
        ))?;

        print(&format!("\n{}\n", judged.verdict()))?;
        Ok(judged.exit())
    }

    /// The program of an earlier version, if nodes are to run two.
    fn earlier_program(&self) -> Result<Option<NodeProgram>, Failure> {
        let Some(named) = &self.earlier else { return Ok(None) };
        if let Some(path) = named {
            return Ok(Some(NodeProgram { path: path.clone(), environment: Vec::new() }));
        }

        if !CAN_HAVE_BUGS {
            let why =
                "this build is a release, which cannot pretend to be an earlier version: name one, --earlier=PROGRAM";
            return Err(Failure::new(Exit::Usage, why));
        }
        let before = Versions::OWN.highest.0 - 1;
        let environment = vec![(PRETENDED_VERSION.into(), before.to_string().into())];
        Ok(Some(NodeProgram { path: env::current_exe()?, environment }))
    }

    /// The command that repeats the run, as far as the machine is deterministic.
    fn command(&self, seed: u64) -> String {
        let Self { nodes, duration, faults, clients, tls, no_audit, programs, earlier, .. } = self;
        let tls = if *tls { " --tls" } else { "" };
        let no_audit = if *no_audit { " --no-audit" } else { "" };
        let earlier = match earlier {
            Some(Some(program)) => format!(" --earlier={}", quoted(&program.display().to_string())),
            Some(None) => " --earlier".to_owned(),
            None => String::new(),
        };
        let programs: String = programs.iter().map(|command| format!(" --program {}", quoted(command))).collect();
        let duration = humantime::format_duration(*duration).to_string().replace(' ', "");
        let faults = &faults.text;
        format!(
            "lockkeeper chaos run --nodes {nodes} --duration {duration} --faults {faults} --clients {clients} --seed {seed}{tls}{no_audit}{earlier}{programs}"
        )
    }
}

/// Quotes a text as one word for a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Runs with progress messages; the first signal ends it early.
async fn watched(options: RunOptions) -> Result<Outcome, Failure> {
    let mut signals = Signals::listen()?;
    let (progress, mut told) = watch::channel(RunProgress::default());
    let stop = CancellationToken::new();
    let duration = options.duration;
    let running = run(options, progress, stop.clone());
    tokio::pin!(running);

    let mut next_line = Instant::now();
    let outcome = loop {
        tokio::select! {
            outcome = &mut running => break outcome,
            ending = signals.next() => {
                if stop.is_cancelled() {
                    // Running processes are killed when the run is dropped.
                    return Err(Failure::new(Exit::Code(ending.exit_code()), format!("{}: interrupted", ending.name())));
                }
                say(&format!("{}: ending the run early with a complete history; a second signal aborts it", ending.name()));
                stop.cancel();
            }
            Ok(()) = told.changed() => tell(&told.borrow_and_update(), duration, &mut next_line),
        }
    };

    if stderr().is_terminal() {
        let _ = write!(stderr(), "\r\x1b[K");
    }

    outcome.map_err(|error| match error {
        RunError::Directory { .. } => Failure::new(Exit::Usage, format!("{error}: choose another one with --out")),
        RunError::Earlier { .. } => Failure::new(Exit::Usage, error),
        RunError::Cluster(_) | RunError::Client(_) | RunError::Io(_) => Failure::new(Exit::Error, error),
    })
}

/// On a terminal one line that is updated in place; otherwise a line every [`LINE_EVERY`].
fn tell(progress: &RunProgress, duration: Duration, next_line: &mut Instant) {
    let line = progress_line(progress, duration);
    if stderr().is_terminal() {
        // A line that wraps could not be replaced.
        let width = columns(stderr()).unwrap_or(usize::MAX);
        let _ = write!(stderr(), "\r\x1b[K{}", cut(&line, width));
    } else if Instant::now() >= *next_line {
        *next_line = Instant::now() + LINE_EVERY;
        let _ = writeln!(stderr(), "{line}");
    }
}

fn progress_line(progress: &RunProgress, duration: Duration) -> String {
    let seconds = progress.elapsed.as_secs();
    let rate = progress.operations.checked_div(seconds).unwrap_or(0);
    let leader = progress.leader.map_or("none".to_owned(), |leader| leader.to_string());
    format!(
        "{seconds:>4} s of about {}  {:<18}  leader {leader:<4}  {} ({rate}/s), {}, {}",
        expected_end(progress, duration).as_secs().max(seconds),
        progress.phase,
        show::count(progress.operations, "operation", "operations"),
        show::count(progress.grants, "grant", "grants"),
        show::count(progress.elections, "election", "elections"),
    )
}

/// When the faults are expected to end, from the beginning: not before the duration, and not before those that are planned, at the pace of
/// those that are over.
fn expected_end(progress: &RunProgress, duration: Duration) -> Duration {
    let pace = progress.elapsed.checked_div(progress.faults_over).unwrap_or_default();
    duration.max(pace.saturating_mul(progress.faults_planned))
}

fn say(message: &str) {
    let _ = writeln!(stderr(), "{message}");
}

/// A run and its findings.
struct Judged {
    outcome: Outcome,
    findings: Vec<Finding>,
    /// Why the run proves less than it should.
    vacuous: Vec<String>,
    summary: Summary,
    /// The report as text.
    report: String,
}

impl Judged {
    /// Checks the history and writes the reports beside it.
    fn judge(outcome: Outcome, about: About) -> Result<Self, ReadError> {
        let history = History::read(BufReader::new(File::open(&outcome.history)?))?;
        let findings = check(&history)?;
        let report = Report::of(&history, about, findings.iter().cloned().map(Into::into).collect())?;

        fs::write(outcome.history.with_file_name("report.html"), report.page())?;
        fs::write(outcome.history.with_file_name("report.json"), report.document())?;

        let missing = activity::missing(report.summary()).into_iter().map(str::to_owned);
        let missed = outcome.missed.iter().map(|fault| format!("fault {fault} was planned and had no target"));
        let vacuous = missing.chain(missed).collect();
        Ok(Self { outcome, findings, vacuous, summary: report.summary().clone(), report: report.text() })
    }

    fn exit(&self) -> Exit {
        let findings = self.findings.iter().map(Worst::judge).fold(Worst::Holds, Worst::max);
        let troubles = if self.outcome.troubles.is_empty() { Worst::Holds } else { Worst::Violated };
        let vacuous = if self.vacuous.is_empty() { Worst::Holds } else { Worst::Open };
        findings.max(troubles).max(vacuous).exit()
    }

    /// The verdict in one line.
    fn verdict(&self) -> String {
        let of = |worst| self.findings.iter().filter(move |finding| Worst::judge(finding) == worst);
        let names = |worst| of(worst).map(Finding::name).collect::<Vec<_>>().join(", ");

        let word = if of(Worst::Violated).next().is_some() {
            format!("VIOLATED: {}", names(Worst::Violated))
        } else if !self.outcome.troubles.is_empty() {
            "TROUBLE: see the lines above".to_owned()
        } else if !self.vacuous.is_empty() {
            "VACUOUS: too little activity, see the lines above".to_owned()
        } else if self.exit() == Exit::Success {
            format!("all {} properties hold", self.findings.len())
        } else {
            format!("UNDECIDED: {}", names(Worst::Open))
        };

        let Summary { grants, hand_overs, elections, nodes_killed, clients_killed, duration_ms, .. } = &self.summary;
        let operations: usize = self.summary.operations.iter().map(|count| count.invoked).sum();
        let faults: usize = self.summary.faults.iter().map(|fault| fault.times).sum();

        let counts = [
            show::count(operations, "operation", "operations"),
            show::count(*grants, "grant", "grants"),
            show::count(*hand_overs, "hand-over", "hand-overs"),
            show::count(faults, "fault", "faults"),
            show::count(*elections, "election", "elections"),
        ];

        let nodes = show::count(*nodes_killed, "node", "nodes");
        let clients = show::count(*clients_killed, "client", "clients");
        format!("{word}: {}, {nodes} and {clients} killed in {} s", counts.join(", "), duration_ms / 1000)
    }

    fn text(&self) -> String {
        let Outcome { troubles, without_effect, skipped, not_reached, refused_writes, late_writes, .. } = &self.outcome;
        let Outcome { audit_lines, starts, raised_to, .. } = &self.outcome;
        let mut text = format!(
            "{}\nlate writes: {refused_writes} refused by fenced resources, {late_writes} accepted by unfenced ones\n",
            self.report
        );

        if *audit_lines > 0 {
            text.push_str(&format!(
                "audit trail: {}, sound on all nodes\n",
                show::count(*audit_lines, "line", "lines")
            ));
        }
        if let Some(ProgramStarts { earlier, newest }) = starts {
            text.push_str(&two_programs(*earlier, *newest, *raised_to));
        }

        for (fault, why) in skipped {
            text.push_str(&format!("skipped: {fault}: {why}\n"));
        }
        for (fault, times) in without_effect {
            text.push_str(&format!("without effect: {fault}, {}\n", show::count(*times as usize, "time", "times")));
        }

        if !not_reached.is_empty() {
            let names: Vec<_> = not_reached.iter().map(|fault: &Fault| fault.name()).collect();
            text.push_str(&format!("not reached: {}; choose a longer --duration\n", names.join(", ")));
        }

        self.vacuous.iter().for_each(|what| text.push_str(&format!("VACUOUS: {what}\n")));
        troubles.iter().for_each(|trouble| text.push_str(&format!("TROUBLE: {trouble}\n")));
        text
    }
}

/// The line about a run with two versions of the program.
fn two_programs(earlier: u32, newest: u32, raised_to: Option<u32>) -> String {
    let end = match raised_to {
        Some(version) => format!("at the end the cluster version rose to {version}"),
        None => "without an upgrade at the end".to_owned(),
    };
    let starts = show::count(earlier, "start", "starts");
    format!("two programs: {starts} of the earlier one, {newest} of this one; {end}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_with_two_programs_says_how_often_each_was_started() {
        let said = two_programs(1, 4, Some(6));
        assert_eq!(
            said,
            "two programs: 1 start of the earlier one, 4 of this one; at the end the cluster version rose to 6\n"
        );
        assert!(two_programs(2, 3, None).ends_with("without an upgrade at the end\n"));
    }

    #[test]
    fn the_expected_end_follows_the_pace_of_the_faults() {
        let minute = Duration::from_secs(60);
        let at = |seconds, faults_over| RunProgress {
            phase: "calm".to_owned(),
            elapsed: Duration::from_secs(seconds),
            operations: 600,
            faults_over,
            faults_planned: 7,
            ..RunProgress::default()
        };
        assert_eq!(expected_end(&at(5, 0), minute), minute, "nothing is known of the pace");
        assert_eq!(expected_end(&at(16, 2), minute), minute);
        assert_eq!(expected_end(&at(30, 2), minute), Duration::from_secs(105));
        let line = progress_line(&at(30, 2), minute);
        assert!(line.starts_with("  30 s of about 105  calm "), "{line}");
        let late = progress_line(&at(130, 7), minute);
        assert!(late.starts_with(" 130 s of about 130 "), "{late}");
    }
}
