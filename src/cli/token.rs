//! `lockkeeper token` makes bearer tokens.

use std::{fs::OpenOptions, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::PathBuf};

use clap::{Args, Subcommand};
use rand::TryRngCore as _;

use super::{Exit, Failure, complain, output::deliver};
use lockkeeper_policy::BearerToken as Secret;
use lockkeeper_types::Identity;

/// Makes bearer tokens, by which clients show their identity
#[derive(Args, Debug)]
pub(super) struct TokenTool {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Subcommand, Debug)]
enum TokenCommand {
    /// Prints a new token, once. Its entry for the file `auth.tokens` of the nodes, which has only a hash of it, goes to --append or to
    /// stderr
    New {
        /// The identity that the token shows
        identity: Identity,
        /// Append the entry to this file of tokens
        #[arg(long, value_name = "FILE")]
        append: Option<PathBuf>,
    },
}

impl TokenTool {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let TokenCommand::New { identity, append } = self.command;
        let mut bytes = [0; 32];
        // A secret comes from the system itself; no simulation makes one.
        let filled = rand::rngs::OsRng.try_fill_bytes(&mut bytes);
        filled.map_err(|error| Failure::new(Exit::Error, format_args!("the system has no random numbers: {error}")))?;

        let token = Secret::from_random(bytes);
        let entry = token.entry(&identity);

        match append {
            None => complain(&format!("add this to the file auth.tokens of the nodes:\n{entry}")),
            Some(file) => OpenOptions::new()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(&file)
                .and_then(|mut opened| opened.write_all(format!("{entry}\n").as_bytes()))
                .map_err(|error| Failure::new(Exit::Usage, format_args!("cannot write {}: {error}", file.display())))?,
        }

        deliver(&format!("{}\n", token.reveal()))?;
        Ok(Exit::Success)
    }
}
