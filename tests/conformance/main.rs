//! Judges a client of Lockkeeper by scenarios that a fake cluster plays. `src/clients/conformance/README.md` says how it is used.
//!
//! * `scenario`: the text files;
//! * `fake`: the cluster;
//! * `judge`: plays a scenario, and says what is wrong;
//! * `suite`: all scenarios, side by side;
//! * `planted`: drivers that are broken on purpose, and the scenarios that must fail with them;
//! * `rust_driver`: the driver of the Rust client.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program of tests talks to people")]

mod fake;
mod judge;
mod planted;
mod rust_driver;
mod scenario;
mod serve;
mod suite;

use std::{path::PathBuf, process::ExitCode};

use crate::judge::DriverProgram;

/// What the program is asked for.
struct Arguments {
    driver: Option<String>,
    jobs: Option<usize>,
    scenarios: PathBuf,
    is_list: bool,
    is_verbose: bool,
    filters: Vec<String>,
    /// Cases whose names contain one of these are left out.
    skipped: Vec<String>,
    /// Only tests that others ignore: there is none.
    is_ignored: bool,
}

const USAGE: &str = "conformance [--driver COMMAND] [--jobs N] [--scenarios DIRECTORY] [--list] [--verbose] [FILTER…]
conformance --serve NODES
conformance rust-driver";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["rust-driver", ref broken @ ..] => rust_driver::main(broken),
        ["--serve", nodes] => serve::main(nodes),
        _ => Arguments::parse(&words).and_then(suite::main),
    };
    match result {
        Ok(code) => code,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::from(2)
        }
    }
}

impl Arguments {
    fn parse(words: &[&str]) -> Result<Self, String> {
        let scenarios = concat!(env!("CARGO_MANIFEST_DIR"), "/../../src/clients/conformance/scenarios");
        let mut parsed = Self {
            driver: None,
            jobs: None,
            scenarios: scenarios.into(),
            is_list: false,
            is_verbose: false,
            filters: Vec::new(),
            skipped: Vec::new(),
            is_ignored: false,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
            match *word {
                "--driver" => parsed.driver = Some((*value()?).to_owned()),
                "--jobs" => parsed.jobs = Some(scenario::parsed(value()?)?),
                "--scenarios" => parsed.scenarios = (*value()?).into(),
                "--list" => parsed.is_list = true,
                "--verbose" => parsed.is_verbose = true,
                // Options of cargo's own test programs, which are run together with this one.
                "--skip" => parsed.skipped.push((*value()?).to_owned()),
                "--ignored" => parsed.is_ignored = true,
                "--test-threads" | "--color" | "--format" => drop(value()?),
                "--nocapture" | "--quiet" | "-q" | "--include-ignored" => {}
                other if other.starts_with('-') => return Err(format!("there is no option {other}\n{USAGE}")),
                filter => parsed.filters.push(filter.to_owned()),
            }
        }
        Ok(parsed)
    }
}

/// The driver of the Rust client: this program itself, perhaps broken on purpose.
fn rust_driver_program(broken: Option<&str>, planted: Option<&str>) -> Result<DriverProgram, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let arguments = std::iter::once("rust-driver").chain(broken).map(str::to_owned).collect();
    let environment = vec![("LOCKKEEPER_PLANTED_BUG".to_owned(), planted.unwrap_or_default().to_owned())];
    Ok(DriverProgram { program: program.to_string_lossy().into_owned(), arguments, environment })
}
