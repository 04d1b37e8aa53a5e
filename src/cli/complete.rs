//! `lockkeeper complete-names` prints the names that may stand at the cursor of a command line, for the scripts of `completions`.
//!
//! A shell waits for it while somebody types: so it gives up soon, shows a limited number of names, and is silent about all failures.

use std::time::Duration;

use clap::{Args, Command, CommandFactory as _, FromArgMatches as _};
use tokio::time::timeout;

use super::{Cli, ClusterArguments, Exit, Failure, output::print, show};

/// How long the shell waits at most.
const PATIENCE: Duration = Duration::from_millis(800);
/// Names that are shown at most. Who wants to see more types another letter.
const NAMES_MAX: usize = 100;

/// The commands that take names of locks, and which positional argument is the first: `update` and `release` take a token before.
const TAKES_NAMES: [(&str, usize); 13] = [
    ("acquire", 0),
    ("check", 0),
    ("drop-data", 0),
    ("elect", 0),
    ("force-release", 0),
    ("get", 0),
    ("lift-delay", 0),
    ("list", 0),
    ("lock", 0),
    ("remove-waiter", 0),
    ("resize", 0),
    ("update", 1),
    ("watch", 0),
];
/// The commands of [`TAKES_NAMES`] that take several names.
const TAKES_SEVERAL: [&str; 2] = ["acquire", "lock"];

/// The commands that take names of locks.
pub(super) fn commands() -> impl Iterator<Item = &'static str> {
    TAKES_NAMES.iter().map(|(command, _)| *command)
}

/// Prints the names of locks that may stand in the place of the last word
#[derive(Args, Debug)]
pub(super) struct CompleteNames {
    /// The words of the command line up to the cursor, the program's name first
    #[arg(last = true, value_name = "WORD")]
    words: Vec<String>,
}

impl CompleteNames {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        // No failure is shown: a message in the middle of the line that somebody types would only disturb.
        if let Ok(Some(names)) = timeout(PATIENCE, names(&self.words)).await {
            let lines: String = names.iter().map(|name| format!("{name}\n")).collect();
            let _ = print(&lines);
        }
        Ok(Exit::Success)
    }
}

/// The names to suggest. Returns `None` where no name can stand, and without an answer.
async fn names(words: &[String]) -> Option<Vec<String>> {
    let (begun, before) = words.split_last()?;
    if !expects_name(&Cli::command(), before, begun) {
        return None;
    }

    // The cluster is that of the line, as far as the line says.
    let command = Cli::command().ignore_errors(true);
    let matches = command.try_get_matches_from(before).ok()?;
    let (_, matches) = matches.subcommand()?;
    let cluster = ClusterArguments::from_arg_matches(matches).ok()?;
    let (client, _) = cluster.quiet_client().ok()?;

    // A stale answer is good enough, and comes from any node.
    let page = client.stale().list(begun, "").await.ok()?;
    let names = page.locks.iter().map(|lock| lock.name.as_str());
    // A name with control characters cannot be typed as it is.
    Some(names.filter(|name| show::text(name) == **name).take(NAMES_MAX).map(str::to_owned).collect())
}

/// Whether the word that is begun after these is the name of a lock.
fn expects_name(program: &Command, before: &[String], begun: &str) -> bool {
    let Some((name, arguments)) = before.get(1..).and_then(<[String]>::split_first) else { return false };
    let Some((_, first)) = TAKES_NAMES.iter().find(|(command, _)| command == name) else { return false };
    let Some(command) = program.find_subcommand(name) else { return false };
    if begun.starts_with('-') || arguments.iter().any(|word| word == "--") {
        return false;
    }

    let mut positional = 0;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if !takes_value(command, word) {
            positional += usize::from(!word.starts_with('-'));
        } else if words.next().is_none() {
            // The word that is begun is the value of this option.
            return false;
        }
    }
    positional == *first || (positional > *first && TAKES_SEVERAL.contains(&name.as_str()))
}

/// Whether the next word is the value of this option.
fn takes_value(command: &Command, word: &str) -> bool {
    let option = command.get_arguments().find(|argument| {
        let long = argument.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long));
        long || argument.get_short().is_some_and(|short| word.strip_prefix('-') == Some(short.to_string().as_str()))
    });
    option.is_some_and(|option| option.get_action().takes_values())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expects(line: &str) -> bool {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let (begun, before) = words.split_last().expect("a line has a word");
        expects_name(&Cli::command(), before, begun)
    }

    #[test]
    fn a_name_is_completed_where_a_command_takes_one() {
        for line in ["lockkeeper get ", "lockkeeper get re", "lockkeeper lock a b", "lockkeeper lock --ttl 5s re"] {
            assert!(expects(line), "{line:?}");
        }
        for line in
            ["lockkeeper check ", "lockkeeper list --stale re", "lockkeeper update 7 re", "lockkeeper get -o json re"]
        {
            assert!(expects(line), "{line:?}");
        }
        for line in [
            "lockkeeper ge",
            "lockkeeper get a ",
            "lockkeeper get --",
            "lockkeeper lock a --ttl ",
            "lockkeeper update ",
        ] {
            assert!(!expects(line), "{line:?}");
        }
        for line in ["lockkeeper lock a -- ls", "lockkeeper status ", "lockkeeper get -o ", "lockkeeper nonsense "] {
            assert!(!expects(line), "{line:?}");
        }
    }
}
