//! `lockkeeper man` prints the manual pages.

use std::{fs, io, path::PathBuf};

use clap::{Args, Command, CommandFactory as _};
use clap_mangen::Man as Page;

use super::{Cli, Exit, Failure, output::print};

/// Prints the manual page of the program, or writes one page per command.
#[derive(Args, Debug)]
#[command(after_help = "Example: lockkeeper man | man -l -")]
pub(super) struct Man {
    /// Write the pages of the program and of each command into this directory, which is created if it does not exist
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Man {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let mut program = Cli::command().disable_help_subcommand(true);
        program.build();
        let Some(directory) = self.out else {
            print(&text(&Page::new(program))?)?;
            return Ok(Exit::Success);
        };

        fs::create_dir_all(&directory).map_err(|error| Failure::for_path(&directory, &error))?;
        for command in with_subcommands(program) {
            let page = Page::new(command);
            let file = directory.join(page.get_filename());
            fs::write(&file, text(&page)?).map_err(|error| Failure::for_path(&file, &error))?;
        }
        Ok(Exit::Success)
    }
}

fn with_subcommands(command: Command) -> Vec<Command> {
    let below: Vec<_> = command.get_subcommands().filter(|below| !below.is_hide_set()).cloned().collect();
    let below = below.into_iter().flat_map(with_subcommands);
    std::iter::once(command).chain(below).collect()
}

fn text(page: &Page) -> io::Result<String> {
    let mut text = Vec::new();
    page.render(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    // The end of `--help` is laid out by hand: its line breaks must stay.
    Ok(text.replacen(".SH EXTRA\n", ".SH NOTES\n.nf\n", 1).replacen("\n.SH VERSION\n", "\n.fi\n.SH VERSION\n", 1))
}
