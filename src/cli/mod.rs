//! The command line program: one command per file.
//!
//! Commands print results on stdout, as text or, with `-o json`, as documents whose fields are only ever added.
//! Everything else goes to stderr. The exit codes are in `exit`.

mod acquire;
mod arguments;
mod audit;
mod bench;
mod certs;
mod chaos;
mod check;
mod complete;
mod completions;
mod credentials;
mod dev;
mod diagnosis;
mod doctor;
mod drop_data;
mod elect;
mod exit;
mod force_release;
#[doc(hidden)]
pub mod fuzzing;
mod get;
mod job;
mod lift_delay;
mod list;
mod lock;
mod logging;
mod man;
mod member;
mod nodes;
mod output;
mod paging;
mod policy;
mod progress;
mod recover;
mod release;
mod remove_waiter;
mod resize;
mod rolling_restart;
mod serve;
mod session;
mod sessions;
mod show;
mod signals;
mod snapshot;
mod status;
mod table;
mod terminal;
mod token;
mod top;
mod traces;
mod transfer_leader;
mod update;
mod usage;
mod version;
mod views;
mod waiting;
mod wanted;
mod watch;

use std::{
    env::{self, VarError},
    process::ExitCode,
    time::Duration,
};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::{
    credentials::{CredentialOptions, Profile},
    exit::{Exit, Failure},
};
use crate::{
    client::{Client, DEFAULT_ENDPOINTS},
    planted::VERSION,
};

/// A lock service for distributed systems: replicated by Raft, every grant with a fencing token.
#[derive(Parser, Debug)]
#[command(name = "lockkeeper", version = VERSION, max_term_width = 120, after_help = exit::HELP)]
struct Cli {
    #[command(subcommand)]
    command: ProgramCommand,
}

#[derive(Subcommand, Debug)]
enum ProgramCommand {
    Serve(serve::ServeNode),
    Dev(dev::Dev),
    Lock(lock::RunLocked),
    Elect(elect::Elect),
    Session(session::SessionTool),
    Acquire(acquire::LockAcquisition),
    Release(release::Release),
    Update(update::UpdateLockData),
    Get(get::Get),
    List(list::List),
    Watch(watch::LockWatch),
    Sessions(sessions::Sessions),
    Check(check::CheckGrant),
    Certs(certs::Certs),
    Chaos(chaos::Chaos),
    Bench(bench::Bench),
    ForceRelease(force_release::RevokeGrants),
    RemoveWaiter(remove_waiter::RemoveWait),
    LiftDelay(lift_delay::LiftLockDelay),
    DropData(drop_data::DropKeptData),
    Resize(resize::Resize),
    RollingRestart(rolling_restart::RollingRestart),
    Status(status::Status),
    Top(top::Top),
    Doctor(doctor::Doctor),
    Member(member::MemberTool),
    TransferLeader(transfer_leader::TransferLeadership),
    Snapshot(snapshot::SnapshotTool),
    Audit(audit::AuditTool),
    Recover(recover::Recover),
    Policy(policy::PolicyTool),
    Token(token::TokenTool),
    Completions(completions::Completions),
    Man(man::Man),
    Version(version::ProgramVersion),
    #[command(hide = true)]
    CompleteNames(complete::CompleteNames),
    #[command(hide = true)]
    Keep(job::Keep),
    #[command(hide = true)]
    Launch(job::Launch),
}

/// The cluster that a command uses.
#[derive(Args, Debug)]
struct ClusterArguments {
    // Clap's own support for the environment and the default would hide the source of the value, and would show it as
    // required in usages.
    #[arg(long, value_name = "HOST:PORT,…", help = endpoints_help(), help_heading = CONNECTION)]
    endpoints: Option<String>,
    /// How long to look for a node that can answer
    #[arg(long, value_parser = arguments::duration, default_value = "10s", value_name = "TIME", help_heading = CONNECTION)]
    timeout: Duration,
    #[command(flatten)]
    credentials: CredentialOptions,
}

const ENDPOINTS_VARIABLE: &str = "LOCKKEEPER_ENDPOINTS";

/// How long no node may answer before the endpoints are reported on stderr.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// The heading in `--help` of the options that all commands of a cluster have.
const CONNECTION: &str = "Connection";

/// In clap's own format for an environment variable and a default.
fn endpoints_help() -> String {
    let what = "The cluster's nodes: host:port, separated by commas";
    format!("{what} [env: {ENDPOINTS_VARIABLE}] [default: {DEFAULT_ENDPOINTS}]")
}

impl ClusterArguments {
    /// A client. If no node answers within [`SILENCE_MAX`], that is reported on stderr.
    fn client(&self) -> Result<Client, Failure> {
        let (client, source) = self.quiet_client()?;
        diagnosis::remember(&client);
        tokio::spawn(complain_of_silence(client.clone(), source));
        Ok(client)
    }

    /// A client, and the source of its endpoints. Nothing is reported on stderr.
    fn quiet_client(&self) -> Result<(Client, String), Failure> {
        let profile = Profile::read()?;
        let (endpoints, source) = self.endpoints(&profile)?;
        let credentials = self.credentials.clone().or(&profile);
        let client =
            credentials.apply(Client::builder(&endpoints).call_limit(self.timeout).traceparent(traces::traceparent))?;
        let client = client.build();
        let client = client.map_err(|error| Failure::new(Exit::Usage, format_args!("{error} ({source})")))?;
        Ok((client, source))
    }

    /// The credentials of the command line, the environment and the profile.
    fn complete_credentials(&self) -> Result<CredentialOptions, Failure> {
        Ok(self.credentials.clone().or(&Profile::read()?))
    }

    /// As [`ClusterArguments::client`]; with `stale`, any node may answer reads from its own table.
    fn reader(&self, stale: bool) -> Result<Client, Failure> {
        let client = self.client()?;
        Ok(if stale { client.stale() } else { client })
    }

    /// The endpoints and their source.
    fn endpoints(&self, profile: &Profile) -> Result<(String, String), Failure> {
        if let Some(endpoints) = &self.endpoints {
            return Ok((endpoints.clone(), "from --endpoints".to_owned()));
        }

        match (env::var(ENDPOINTS_VARIABLE), &profile.endpoints) {
            (Ok(endpoints), _) => Ok((endpoints, "from LOCKKEEPER_ENDPOINTS".to_owned())),
            (Err(VarError::NotPresent), Some(endpoints)) => {
                Ok((endpoints.clone(), format!("from {}", profile.file.display())))
            }
            (Err(VarError::NotPresent), None) => {
                let source = "the default: neither --endpoints nor LOCKKEEPER_ENDPOINTS is given";
                Ok((DEFAULT_ENDPOINTS.to_owned(), source.to_owned()))
            }
            (Err(VarError::NotUnicode(_)), _) => {
                Err(Failure::new(Exit::Usage, format_args!("{ENDPOINTS_VARIABLE} is not valid UTF-8: correct it")))
            }
        }
    }
}

async fn complain_of_silence(client: Client, source: String) {
    let Some(silence) = client.silent_for(SILENCE_MAX).await else { return };
    let last = silence.last.map(|why| format!("; last: {why}")).unwrap_or_default();
    complain(&format!("no answer yet from {} ({source}){last}", client.endpoints().join(",")));
}

/// Runs the command of the command line.
pub fn run() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(exit) => return exit,
    };

    let outcome = match cli.command {
        ProgramCommand::Serve(serve) => return serve.run(),
        ProgramCommand::Dev(dev) => return dev.run(),
        ProgramCommand::Lock(lock) => block_on(lock.run()),
        ProgramCommand::Elect(elect) => block_on(elect.run()),
        ProgramCommand::Session(session) => block_on(session.run()),
        ProgramCommand::Acquire(acquire) => block_on(acquire.run()),
        ProgramCommand::Release(release) => block_on(release.run()),
        ProgramCommand::Update(update) => block_on(update.run()),
        ProgramCommand::Get(get) => block_on(get.run()),
        ProgramCommand::List(list) => block_on(list.run()),
        ProgramCommand::Watch(watch) => block_on(watch.run()),
        ProgramCommand::Sessions(sessions) => block_on(sessions.run()),
        ProgramCommand::Check(check) => block_on(check.run()),
        ProgramCommand::Certs(certs) => block_on(certs.run()),
        ProgramCommand::Chaos(chaos) => block_on(chaos.run()),
        ProgramCommand::Bench(bench) => block_on(bench.run()),
        ProgramCommand::ForceRelease(force_release) => block_on(force_release.run()),
        ProgramCommand::RemoveWaiter(remove_waiter) => block_on(remove_waiter.run()),
        ProgramCommand::LiftDelay(lift_delay) => block_on(lift_delay.run()),
        ProgramCommand::DropData(drop_data) => block_on(drop_data.run()),
        ProgramCommand::Resize(resize) => block_on(resize.run()),
        ProgramCommand::RollingRestart(restart) => block_on(restart.run()),
        ProgramCommand::Status(status) => block_on(status.run()),
        ProgramCommand::Top(top) => block_on(top.run()),
        ProgramCommand::Doctor(doctor) => block_on(doctor.run()),
        ProgramCommand::Member(member) => block_on(member.run()),
        ProgramCommand::TransferLeader(transfer) => block_on(transfer.run()),
        ProgramCommand::Snapshot(snapshot) => block_on(snapshot.run()),
        ProgramCommand::Audit(audit) => audit.run(),
        ProgramCommand::Recover(recover) => block_on(recover.run()),
        ProgramCommand::Policy(policy) => policy.run(),
        ProgramCommand::Token(token) => token.run(),
        ProgramCommand::Completions(completions) => completions.run(),
        ProgramCommand::Man(man) => man.run(),
        ProgramCommand::Version(version) => version.run(),
        ProgramCommand::CompleteNames(complete) => block_on(complete.run()),
        ProgramCommand::Keep(keep) => block_on(keep.run()),
        ProgramCommand::Launch(launch) => launch.run(),
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

/// The command line, or the end of the program: help and the version were printed, or an error.
fn parse() -> Result<Cli, ExitCode> {
    let matches = usage::grouped(Cli::command()).try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    matches.map_err(|error| {
        if error.use_stderr() {
            complain(&usage::explained(&error, &env::args_os().collect::<Vec<_>>()));
            Exit::Usage.into()
        } else {
            // A reader that has closed our output has seen enough.
            let _ = error.print();
            ExitCode::SUCCESS
        }
    })
}

/// Client commands need only one thread.
fn block_on(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        match traces::around(command).await {
            Ok(exit) => Ok(exit),
            Err(failure) => Err(diagnosis::explain(failure).await),
        }
    })
}

/// Writes a message to stderr. Unlike `eprintln!`, it does not panic when stderr is closed.
fn complain(message: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "lockkeeper: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The command and all its subcommands.
    fn all(command: clap::Command) -> Vec<clap::Command> {
        let below: Vec<_> = command.get_subcommands().cloned().flat_map(all).collect();
        [command].into_iter().chain(below).collect()
    }

    #[test]
    fn each_time_shows_its_unit() {
        for command in all(Cli::command()) {
            for argument in command.get_arguments() {
                let names = argument.get_value_names().unwrap_or_default();
                let default = argument.get_default_values().iter().any(|default| !default.is_empty());
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                let is_time = names.iter().any(|name| name == "TIME");
                assert!(
                    !is_time || default || help.contains("30s"),
                    "{} {}: {help}",
                    command.get_name(),
                    argument.get_id()
                );
            }
        }
        for line in [
            "lock a --ttl 5 -- true",
            "acquire a --wait 5",
            "dev --timeout 5",
            "session open --ttl 5",
            "chaos run --duration 5",
        ] {
            let refused = Cli::try_parse_from(format!("lockkeeper {line}").split(' ')).unwrap_err().to_string();
            assert!(refused.contains("5 has no unit: write 5s"), "{line}: {refused}");
        }
    }

    #[test]
    fn usage_names_what_is_required_and_nothing_else() {
        let refused = Cli::try_parse_from(["lockkeeper", "get", "--timeout", "1s"]).unwrap_err().to_string();
        assert!(refused.contains("Usage: lockkeeper get --timeout <TIME> <NAME>"), "{refused}");
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
