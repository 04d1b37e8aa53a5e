//! Four threads without an async runtime count in one file. Each reads the number, yields, and writes the next one: without the lock,
//! most counts would be lost.
//!
//! ```sh
//! cargo build --bins --examples
//! target/debug/lockkeeper dev -- target/debug/examples/blocking
//! ```
//!
//! It checks its result and fails if it is wrong. Read [`count`]: it shows the client in a program without a runtime.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what happens")]

use std::{env, error::Error, fs, path::Path, process::ExitCode, thread, time::Duration};

use lockkeeper::{
    client::{DEFAULT_ENDPOINTS, SessionOptions, blocking::Client},
    machine::Token,
};

type Anything = Box<dyn Error + Send + Sync>;

const THREADS: u32 = 4;
const TURNS: u32 = 10;

/// Longer than one turn takes.
const TURN: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    match story() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn story() -> Result<(), Anything> {
    let endpoints = env::var("LOCKKEEPER_ENDPOINTS").unwrap_or_else(|_| DEFAULT_ENDPOINTS.to_owned());
    let client = Client::new(&endpoints)?;
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("count");
    fs::write(&file, "0")?;

    let counting = |_| {
        let client = client.clone();
        let file = file.clone();
        thread::spawn(move || count(&client, &file))
    };
    let threads: Vec<_> = (0..THREADS).map(counting).collect();
    let mut tokens = Vec::new();
    for thread in threads {
        tokens.extend(thread.join().map_err(|_| "a thread panicked")??);
    }

    tokens.sort();
    tokens.dedup();
    let counted: u32 = fs::read_to_string(&file)?.parse()?;
    if counted != THREADS * TURNS || tokens.len() as u32 != counted {
        return Err(format!("{counted} was counted, under {} tokens", tokens.len()).into());
    }
    println!("{THREADS} threads counted to {counted}, each number under a token of its own.");
    Ok(())
}

/// Counts under the lock, and returns the tokens of its turns.
fn count(client: &Client, file: &Path) -> Result<Vec<Token>, Anything> {
    let session = client.open(SessionOptions::default())?;
    let mut tokens = Vec::new();
    for _ in 0..TURNS {
        let held = session.acquire("count").lock()?;
        let number: u32 = fs::read_to_string(file)?.parse()?;
        thread::yield_now();
        // A thread that was paused for too long must not write.
        held.ensure(TURN)?;
        fs::write(file, (number + 1).to_string())?;
        tokens.push(held.token());
        held.release()?;
    }
    session.close()?;
    Ok(tokens)
}
