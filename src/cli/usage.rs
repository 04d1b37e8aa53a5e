//! The command line as people meet it: the groups of commands in `--help`, and what is said of one that cannot be understood.

use std::ffi::OsString;

use clap::{Command, error::ErrorKind};

/// The commands by what they are for. Each command that is not hidden is in one group, in the order of `--help`.
const GROUPS: [(&str, &[&str]); 7] = [
    ("Locks and elections", &["lock", "elect", "acquire", "update", "release"]),
    ("Sessions", &["session", "sessions"]),
    ("Looking on", &["get", "list", "watch", "check", "status", "top", "doctor"]),
    ("Operators", &["force-release", "remove-waiter", "lift-delay", "drop-data", "resize", "audit"]),
    (
        "Nodes and clusters",
        &[
            "serve",
            "dev",
            "member",
            "transfer-leader",
            "rolling-restart",
            "snapshot",
            "recover",
            "certs",
            "policy",
            "token",
        ],
    ),
    ("Measuring and testing", &["bench", "chaos"]),
    ("This program", &["completions", "man", "version", "help"]),
];

/// The commands that run another one, which stands after `--`.
const WITH_COMMAND: [&str; 3] = ["lock", "elect", "dev"];

/// Groups the commands in the text of `--help`.
pub(super) fn grouped(program: Command) -> Command {
    let width = program.get_subcommands().map(|command| command.get_name().len()).max().unwrap_or(0);
    let mut commands = String::new();

    for (group, names) in GROUPS {
        commands.push_str(&format!("{group}:\n"));
        for name in names {
            let about = program.find_subcommand(name).and_then(Command::get_about).map(ToString::to_string);
            let about = about.unwrap_or_else(|| "Explains a command".to_owned());
            commands.push_str(&format!("  {name:<width$}  {}\n", first_sentence(&about)));
        }
        commands.push('\n');
    }

    program.help_template(format!(
        "{{about-with-newline}}\nUsage: {{usage}}\n\n{commands}Options:\n{{options}}{{after-help}}"
    ))
}

fn first_sentence(text: &str) -> &str {
    let sentence = text.split_once(". ").map_or(text, |(sentence, _)| sentence);
    sentence.split_once(':').map_or(sentence, |(head, _)| head).trim_end_matches('.')
}

/// The error message for a command line that cannot be understood, without the program's own prefix.
pub(super) fn explained(error: &clap::Error, arguments: &[OsString]) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    match hint(error.kind(), arguments) {
        Some(hint) => format!("{text}\n\nhint: {hint}"),
        None => text.to_owned(),
    }
}

/// A hint at the probably meant command line.
fn hint(kind: ErrorKind, arguments: &[OsString]) -> Option<String> {
    let words: Vec<String> = arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let (command, rest) = words.split_first()?;
    let may_lack = kind == ErrorKind::MissingRequiredArgument || kind == ErrorKind::UnknownArgument;
    if !may_lack || !WITH_COMMAND.contains(&command.as_str()) || rest.iter().any(|word| word == "--") {
        return None;
    }

    // With options before it, the place where the command begins is unknown.
    let is_plain = rest.iter().take(2).all(|word| !word.starts_with('-'));
    let line = match rest {
        _ if command == "dev" => "lockkeeper dev -- COMMAND".to_owned(),
        [name, program @ ..] if is_plain && !program.is_empty() => {
            format!("lockkeeper {command} {name} -- {}", program.join(" "))
        }
        _ => format!("lockkeeper {command} NAME -- COMMAND"),
    };
    Some(format!("the command to run stands after `--`: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(kind: ErrorKind, line: &str) -> Option<String> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        hint(kind, &arguments)
    }

    #[test]
    fn a_missing_separator_is_pointed_out() {
        use ErrorKind::{InvalidValue, MissingRequiredArgument as Missing, UnknownArgument as Unknown};
        let hint = said(Missing, "lockkeeper lock jobs sleep 60").unwrap();
        assert_eq!(hint, "the command to run stands after `--`: lockkeeper lock jobs -- sleep 60");
        assert!(said(Missing, "lockkeeper lock jobs").unwrap().ends_with("lockkeeper lock NAME -- COMMAND"));
        assert!(said(Unknown, "lockkeeper lock jobs ls -l").unwrap().ends_with("lockkeeper lock jobs -- ls -l"));
        assert!(said(Unknown, "lockkeeper lock --ttl 5s jobs ls -l").unwrap().ends_with("lock NAME -- COMMAND"));
        assert!(said(Unknown, "lockkeeper dev ls").unwrap().ends_with("lockkeeper dev -- COMMAND"));
        assert_eq!(said(Missing, "lockkeeper lock -- sleep"), None, "the name is missing");
        assert_eq!(said(Missing, "lockkeeper get"), None);
        assert_eq!(said(InvalidValue, "lockkeeper lock jobs --ttl 5 sleep"), None);
    }

    #[test]
    fn a_summary_is_one_sentence() {
        assert_eq!(first_sentence("Shows it. Exit code 0: yes"), "Shows it");
        assert_eq!(first_sentence("Shows one lock: its holders"), "Shows one lock");
        assert_eq!(first_sentence("Lists the sessions."), "Lists the sessions");
    }

    #[test]
    fn each_command_is_in_one_group() {
        use clap::CommandFactory as _;
        let program = super::super::Cli::command();
        let named: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
            let places = named.iter().filter(|name| **name == command.get_name()).count();
            assert_eq!(places, 1, "{}", command.get_name());
        }
        let known = |name: &&&str| **name == "help" || program.find_subcommand(**name).is_some();
        assert!(named.iter().all(|name| known(&name)), "a group names a command that does not exist");
    }
}
