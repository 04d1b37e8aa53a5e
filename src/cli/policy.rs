//! `lockkeeper policy` checks a policy file, and explains what it allows.

use std::{fmt, fs, path::PathBuf};

use clap::{Args, Subcommand};

use super::{Exit, Failure, output::print};
use lockkeeper_policy::{Policy as Rules, RequestSubject, Right};
use lockkeeper_types::Identity;

/// Checks a policy file, and explains what it allows. Asks no node.
#[derive(Args, Debug)]
pub(super) struct PolicyTool {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Subcommand, Debug)]
enum PolicyCommand {
    /// Checks a policy file as a node would read it
    Check {
        /// The policy file
        file: PathBuf,
    },
    /// Says which rule allows something, or which one would be needed. Exits with 13 if it is refused
    Explain {
        /// The policy file
        file: PathBuf,
        /// An identity, or `anonymous`
        who: String,
        /// acquire, read, watch, force-release or administer
        what: Right,
        /// A lock. If it ends with `*`: all locks under that prefix. Default: any lock, or the cluster for `administer`
        name: Option<String>,
    },
}

impl PolicyTool {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        match self.command {
            PolicyCommand::Check { file } => {
                let rules = read(&file)?;
                print(&format!("{}: {} rules\n", file.display(), rules.rules().len()))?;
                Ok(Exit::Success)
            }
            PolicyCommand::Explain { file, who, what, name } => {
                let rules = read(&file)?;
                let who = match who.as_str() {
                    Identity::ANONYMOUS => None,
                    who => Some(Identity::new(who).map_err(|invalid| usage(&invalid))?),
                };
                explain(&rules, who.as_ref(), what, name.as_deref())
            }
        }
    }
}

fn explain(rules: &Rules, who: Option<&Identity>, right: Right, name: Option<&str>) -> Result<Exit, Failure> {
    let what = match (name, name.and_then(|name| name.strip_suffix('*'))) {
        (_, Some(prefix)) => RequestSubject::Under(prefix),
        (Some(name), None) => RequestSubject::Name(name),
        (None, None) if right == Right::Administer => RequestSubject::Cluster,
        (None, None) => RequestSubject::Anywhere,
    };

    match rules.decide(who, right, what) {
        Ok(rule) => {
            print(&format!("allowed by the rule at line {}: {rule}\n", rule.line))?;
            Ok(Exit::Success)
        }
        Err(denied) => {
            print(&format!("refused: {denied}\n"))?;
            Ok(Exit::Refused)
        }
    }
}

fn read(file: &PathBuf) -> Result<Rules, Failure> {
    let shown = file.display();
    let text = fs::read_to_string(file).map_err(|error| usage(&format_args!("cannot read {shown}: {error}")))?;
    Rules::parse(&text).map_err(|error| Failure::new(Exit::Error, format_args!("{shown}, {error}")))
}

fn usage(why: &dyn fmt::Display) -> Failure {
    Failure::new(Exit::Usage, format_args!("{why}"))
}
