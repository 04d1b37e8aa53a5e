//! The program: one command a file.
//!
//! Commands say what they found on stdout, as text for people or, with `-o json`, as documents whose fields only ever grow; everything
//! else goes to stderr. How the program ends is in `exit`.

mod acquire;
mod bench;
mod chaos;
mod chaos_client;
mod check;
mod completions;
mod dev;
mod elect;
mod exit;
mod force_release;
mod get;
mod job;
mod list;
mod lock;
mod logging;
mod man;
mod output;
mod release;
mod report;
mod serve;
mod session;
mod sessions;
mod show;
mod signals;
mod status;
mod terminal;
mod update;
mod verify;
mod views;
mod waiting;
mod wanted;
mod watch;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use self::exit::{Exit, Failure};
use crate::{
    client::{Client, DEFAULT_ENDPOINTS},
    planted::VERSION,
};

/// A lock service for distributed systems: replicated by Raft, every grant with a fencing token.
#[derive(Parser, Debug)]
#[command(name = "lockkeeper", version = VERSION, max_term_width = 120, after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Serve(serve::Serve),
    Dev(dev::Dev),
    Lock(lock::Lock),
    Elect(elect::Elect),
    Session(session::Session),
    Acquire(acquire::Acquire),
    Release(release::Release),
    Update(update::Update),
    Get(get::Get),
    List(list::List),
    Watch(watch::Watch),
    Sessions(sessions::Sessions),
    Verify(verify::Verify),
    Check(check::Check),
    Chaos(chaos::Chaos),
    Bench(bench::Bench),
    ForceRelease(force_release::ForceRelease),
    Status(status::Status),
    Report(report::ReportOf),
    Completions(completions::Completions),
    Man(man::Man),
    #[command(hide = true)]
    ChaosClient(chaos_client::ChaosClient),
    #[command(hide = true)]
    Keep(job::Keep),
    #[command(hide = true)]
    Launch(job::Launch),
}

/// Which cluster a command speaks to.
#[derive(Args, Debug)]
struct Cluster {
    /// The cluster's nodes: host:port, with commas between.
    #[arg(long, env = "LOCKKEEPER_ENDPOINTS", default_value = DEFAULT_ENDPOINTS, value_name = "HOST:PORT,…")]
    endpoints: String,
    /// How long to look for a node that can answer.
    #[arg(long, value_parser = humantime::parse_duration, default_value = "10s", value_name = "TIME")]
    timeout: std::time::Duration,
}

impl Cluster {
    fn client(&self) -> Result<Client, Failure> {
        Ok(Client::builder(&self.endpoints).call_limit(self.timeout).build()?)
    }
}

/// Runs what the command line says.
pub fn run() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Serve(serve) => return serve.run(),
        Command::Dev(dev) => return dev.run(),
        Command::Lock(lock) => block_on(lock.run()),
        Command::Elect(elect) => block_on(elect.run()),
        Command::Session(session) => block_on(session.run()),
        Command::Acquire(acquire) => block_on(acquire.run()),
        Command::Release(release) => block_on(release.run()),
        Command::Update(update) => block_on(update.run()),
        Command::Get(get) => block_on(get.run()),
        Command::List(list) => block_on(list.run()),
        Command::Watch(watch) => block_on(watch.run()),
        Command::Sessions(sessions) => block_on(sessions.run()),
        Command::Verify(verify) => block_on(verify.run()),
        Command::Check(check) => check.run(),
        Command::Chaos(chaos) => block_on(chaos.run()),
        Command::Bench(bench) => block_on(bench.run()),
        Command::ChaosClient(client) => block_on(client.run()),
        Command::ForceRelease(force_release) => block_on(force_release.run()),
        Command::Status(status) => block_on(status.run()),
        Command::Report(report) => report.run(),
        Command::Completions(completions) => completions.run(),
        Command::Man(man) => man.run(),
        Command::Keep(keep) => block_on(keep.run()),
        Command::Launch(launch) => launch.run(),
    };
    match outcome {
        Ok(exit) => exit.into(),
        Err(failure) => {
            if !failure.message.is_empty() {
                complain(&failure.message);
            }
            failure.exit.into()
        }
    }
}

/// Client commands need one thread.
fn block_on(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}

/// Says something to the person at the terminal. Unlike `eprintln!`, it does not panic when stderr is closed.
fn complain(message: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "lockkeeper: {message}");
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_election_is_led_with_a_command_or_observed() {
        for right in [&["a", "--value", "v", "--", "true"][..], &["--observe", "a", "-o", "json"]] {
            assert!(Cli::try_parse_from([&["lockkeeper", "elect"], right].concat()).is_ok(), "{right:?}");
        }
        for (wrong, named) in [
            (&["a"][..], "<COMMAND>"),
            (&["--", "true"], "<NAME>"),
            (&["--observe"], "<NAME>"),
            (&["--observe", "a", "--", "true"], "'--observe' cannot be used with '[COMMAND]...'"),
            (&["--observe", "a", "--value", "v"], "'--observe' cannot be used with '--value <VALUE>'"),
            (&["--observe", "a", "--ttl", "5s"], "'--observe' cannot be used with '--ttl <TIME>'"),
        ] {
            let refused = Cli::try_parse_from([&["lockkeeper", "elect"], wrong].concat()).unwrap_err().to_string();
            assert!(refused.contains(named), "{wrong:?}: {refused}");
        }
    }

    #[test]
    fn a_lock_takes_names_and_a_command() {
        let line = ["lockkeeper", "lock", "a", "b", "--wait", "500ms", "--ttl", "5s", "--", "sh", "-c", "true"];
        assert!(Cli::try_parse_from(line).is_ok());
        for wrong in [
            &["lockkeeper", "lock", "a"][..],
            &["lockkeeper", "lock", "--", "true"],
            &["lockkeeper", "lock", "a", "--try", "--wait", "1s", "--", "true"],
            &["lockkeeper", "lock", "a", "--shared", "--permits", "2", "--", "true"],
            &["lockkeeper", "lock", "a", "--ttl", "soon", "--", "true"],
            &["lockkeeper", "force-release", "a"],
        ] {
            assert!(Cli::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
    }
}
