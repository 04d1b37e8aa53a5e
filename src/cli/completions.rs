//! `lockkeeper completions` prints the scripts for the completions of a shell.
//!
//! The scripts of `clap_complete` know the commands and options. To those for bash, zsh and fish this adds the names of locks, which
//! `complete-names` asks the cluster for while somebody types. `clap_complete` has an engine of its own for values that are known only
//! then; it is unstable in the pinned version.

use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

use super::{Cli, Exit, Failure, complete, output::print};

/// Prints a completion script for a shell.
///
/// The scripts for bash, zsh and fish also complete the names of locks. They ask the cluster that the line or the environment names, and
/// are silent if it does not answer at once.
#[derive(Args, Debug)]
#[command(after_help = "Example, for bash: source <(lockkeeper completions bash)")]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        // Into memory first: `generate` panics if the output cannot be written.
        let mut script = Vec::new();
        generate(self.shell, &mut Cli::command(), "lockkeeper", &mut script);
        print(&with_names(self.shell, &String::from_utf8_lossy(&script)))?;
        Ok(Exit::Success)
    }
}

/// Bash gives the word after the last colon in `$2`, and puts the reply in its place.
const BASH: &str = r#"
_lockkeeper_with_names() {
    _lockkeeper "$@"

    local words name names=() line=${COMP_LINE:0:COMP_POINT}
    read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local begun=${words[${#words[@]}-1]}
    while IFS= read -r name; do
        names+=("$(printf %q "${name:$((${#begun} - ${#2}))}")")
    done < <("$1" complete-names -- "${words[@]}" 2> /dev/null)
    ((${#names[@]} == 0)) || COMPREPLY=("${names[@]}")
}
complete -F _lockkeeper_with_names -o bashdefault -o default lockkeeper
"#;

const ZSH: &str = r#"
_lockkeeper_names() {
    local -a names
    names=("${(@f)$(_call_program names lockkeeper complete-names -- ${(q)words[1,CURRENT]} 2> /dev/null)}")
    compadd -a names
}
"#;

/// The script with the names of locks, for the shells for which it is known how.
fn with_names(shell: Shell, script: &str) -> String {
    match shell {
        Shell::Bash => format!("{script}{BASH}"),
        Shell::Fish => {
            let commands = complete::commands().collect::<Vec<_>>().join(" ");
            let names = "(lockkeeper complete-names -- (commandline -opc) (commandline -ct) 2>/dev/null)";
            format!(
                "{script}complete -c lockkeeper -n \"__fish_lockkeeper_using_subcommand {commands}\" -f -a \"{names}\"\n"
            )
        }
        Shell::Zsh => {
            // The function must be known before the last lines run the completion.
            let named: Vec<String> = script.lines().map(zsh_line).collect();
            let (head, rest) = named.split_first().expect("a script has a first line");
            format!("{head}\n{ZSH}{}\n", rest.join("\n"))
        }
        Shell::Elvish | Shell::PowerShell | _ => script.to_owned(),
    }
}

/// The line with the names of locks as the values of an argument that takes one.
fn zsh_line(line: &str) -> String {
    let takes_name = [":name ", "*::names ", ":prefix ", "::prefix "].iter().any(|argument| {
        let rest = line.strip_prefix('\'');
        rest.is_some_and(|rest| rest.starts_with(argument))
    });
    match line.strip_suffix(":_default' \\") {
        Some(argument) if takes_name => format!("{argument}:_lockkeeper_names' \\"),
        Some(_) | None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripts_ask_for_names_where_a_command_takes_one() {
        let line = "':name -- The lock:_default' \\";
        assert_eq!(zsh_line(line), "':name -- The lock:_lockkeeper_names' \\");
        let other = "':permits -- How many:_default' \\";
        assert_eq!(zsh_line(other), other);

        let script = |shell| {
            let mut script = Vec::new();
            generate(shell, &mut Cli::command(), "lockkeeper", &mut script);
            with_names(shell, &String::from_utf8_lossy(&script))
        };
        let zsh = script(Shell::Zsh);
        assert!(zsh.matches(":_lockkeeper_names' \\").count() >= 10, "{zsh}");
        assert!(zsh.starts_with("#compdef lockkeeper\n"), "{zsh}");
        assert!(script(Shell::Fish).contains("__fish_lockkeeper_using_subcommand acquire check "));
        assert!(script(Shell::Bash).contains("complete -F _lockkeeper_with_names"));
    }
}
