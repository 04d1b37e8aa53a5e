//! The driver of the Rust client: reads steps, and says what the client did.
//!
//! It runs on one thread, so that a process which is stopped stops as a whole. A driver that is broken on purpose (`rust-driver MODE`, see
//! `broken`) shows that the scenarios find what is wrong.

pub(crate) mod broken;
mod errors;
mod locks;
mod naive;
mod views;

use std::{
    collections::HashMap,
    process::ExitCode,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lockkeeper_client::{Client, Error, Session, SessionOptions};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, stdin},
    sync::OnceCell,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{broken::Broken, errors::failure, locks::Held};

/// How long the steps that are under way may take once the input has ended.
const END_MAX: Duration = Duration::from_secs(5);

/// Reads steps until the input ends.
pub(crate) fn main(words: &[&str]) -> Result<ExitCode, String> {
    let broken = words.first().map(|word| Broken::named(word)).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    if broken == Some(Broken::Naive) {
        runtime.block_on(naive::run())?;
    } else {
        runtime.block_on(run(broken))?;
    }
    // Not by the end of `main`: the runtime would wait for the thread that reads the input.
    std::process::exit(0);
}

/// The program that uses the client.
struct Program {
    client: Client,
    options: SessionOptions,
    /// The session of all locks. Another one takes its place once it is lost.
    session: Mutex<Arc<OnceCell<Session>>>,
    held: Mutex<HashMap<String, Held>>,
    /// Cancels the acquires that are under way, by step.
    cancels: Mutex<HashMap<u64, CancellationToken>>,
    broken: Option<Broken>,
}

async fn run(broken: Option<Broken>) -> Result<(), String> {
    let mut lines = BufReader::new(stdin()).lines();
    let mut program: Option<Arc<Program>> = None;
    let tasks = TaskTracker::new();
    while let Some(line) = lines.next_line().await.map_err(|error| error.to_string())? {
        let step: Value = serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))?;
        if step["do"] == "connect" {
            let connected = Arc::new(Program::connect(&step, broken).map_err(|error| error.to_string())?);
            if broken == Some(Broken::OpensEarly) {
                // An error shows in the scenario.
                let _ = connected.session().await;
            }
            program = Some(connected);
            say(&step, json!({ "outcome": "connected" }));
            continue;
        }
        let program = program.clone().ok_or("the first step is `connect`")?;
        // Steps begin in the order in which they are read: what concerns other steps is done here.
        program.prepare(&step);
        tasks.spawn(async move {
            let outcome = program.obey(&step).await;
            say(&step, outcome.unwrap_or_else(|error| failure(&error)));
        });
    }

    let Some(program) = program else { return Ok(()) };
    if broken != Some(Broken::LeavesAtEnd) {
        program.close().await.map_err(|error| error.to_string())?;
    }
    tasks.close();
    // What waits for something else than the client, such as an observer, is left.
    let _ = tokio::time::timeout(END_MAX, async {
        while program.is_busy() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    Ok(())
}

/// Says the outcome of a step.
fn say(step: &Value, mut outcome: Value) {
    outcome["step"] = step["step"].clone();
    println!("{outcome}");
}

fn text(step: &Value, field: &str) -> String {
    step[field].as_str().unwrap_or_default().to_owned()
}

fn duration(step: &Value, field: &str) -> Duration {
    Duration::from_millis(step[field].as_u64().unwrap_or_default())
}

impl Program {
    fn connect(step: &Value, broken: Option<Broken>) -> Result<Self, Error> {
        let builder = Client::builder(step["endpoints"].as_str().unwrap_or_default());
        let builder = builder.call_limit(duration(step, "call_limit_ms"));
        let client = builder.attempt_limit(duration(step, "attempt_limit_ms")).build()?;
        let options = SessionOptions { ttl: duration(step, "ttl_ms"), label: text(step, "label") };
        let session = Mutex::new(Arc::default());
        Ok(Self { client, options, session, held: Mutex::default(), cancels: Mutex::default(), broken })
    }

    /// The session of all locks; opens one if there is none, or if it is lost.
    async fn session(&self) -> Result<Session, Error> {
        let cell = {
            let mut cell = self.session.lock().unwrap_or_else(PoisonError::into_inner);
            let is_lost = cell.get().is_some_and(|session| session.loss().is_some());
            if is_lost || self.broken == Some(Broken::SessionEach) {
                *cell = Arc::default();
            }
            Arc::clone(&cell)
        };
        cell.get_or_try_init(|| self.client.open(self.options.clone())).await.cloned()
    }

    fn held(&self) -> MutexGuard<'_, HashMap<String, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancels(&self) -> MutexGuard<'_, HashMap<u64, CancellationToken>> {
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an acquire is under way.
    fn is_busy(&self) -> bool {
        !self.cancels().is_empty()
    }

    fn prepare(&self, step: &Value) {
        if step["do"] == "acquire" || step["do"] == "campaign" {
            self.cancels().insert(step["step"].as_u64().unwrap_or_default(), CancellationToken::new());
        }
    }

    async fn obey(self: &Arc<Self>, step: &Value) -> Result<Value, Error> {
        match step["do"].as_str().unwrap_or_default() {
            "acquire" | "campaign" => self.acquire(step).await,
            "cancel" => {
                let of = step["of"].as_u64().unwrap_or_default();
                self.cancels().get(&of).iter().for_each(|cancel| cancel.cancel());
                Ok(json!({ "outcome": "done" }))
            }
            "release" | "resign" => self.release(step).await,
            "remaining" => self.remaining(step),
            "ensure" => self.ensure(step).await,
            "update" | "proclaim" => self.update(step).await,
            "get" => views::get(&self.client, step).await,
            "force-release" => self.force_release(step).await,
            "leader" => views::leader(&self.client, step).await,
            "observe" => views::observe(&self.client, step),
            "watch" => Ok(views::watch(&self.client, step)),
            "close" => {
                self.close().await?;
                Ok(json!({ "outcome": "closed" }))
            }
            _ => Ok(json!({ "outcome": "unsupported" })),
        }
    }

    async fn force_release(&self, step: &Value) -> Result<Value, Error> {
        let (name, reason) = (text(step, "name"), text(step, "reason"));
        let force = || {
            let force = self.client.force_release(&name, &reason);
            match step["token"].as_u64() {
                Some(token) => force.token(lockkeeper_client::types::Token(token)),
                None => force,
            }
        };
        let mut forced = force().await;
        if self.broken == Some(Broken::RepeatsForced) && matches!(forced, Err(Error::Unknown { .. })) {
            forced = force().await;
        }
        Ok(json!({ "outcome": "forced", "count": forced?.len() }))
    }

    /// Closes the session; all that it holds is released.
    async fn close(&self) -> Result<(), Error> {
        self.cancels().values().for_each(CancellationToken::cancel);
        let cell = std::mem::take(&mut *self.session.lock().unwrap_or_else(PoisonError::into_inner));
        if self.broken == Some(Broken::LeavesAtEnd) {
            return Ok(());
        }
        match cell.get() {
            Some(session) => session.clone().close().await,
            None => Ok(()),
        }
    }
}
