//! The program `lockkeeper`: hands over to [`lockkeeper::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkeeper::cli::run()
}
