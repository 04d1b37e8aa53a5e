//! The driver's process: steps go in, outcomes and events come out.

use std::{collections::BTreeMap, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, Command},
    sync::watch,
    time::{Instant, timeout},
};

/// Bytes of the driver's standard error that are kept.
const NOISE_MAX: usize = 64 * 1024;

/// How to start a driver.
#[derive(Clone, Debug)]
pub(crate) struct DriverProgram {
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(String, String)>,
}

/// A running driver. Its process ends with it.
pub(crate) struct Driver {
    child: Child,
    group: Pid,
    input: Option<ChildStdin>,
    heard: watch::Receiver<Heard>,
    noise: watch::Receiver<Vec<u8>>,
    is_stopped: bool,
}

/// What the driver has said.
#[derive(Clone, Debug, Default)]
struct Heard {
    outcomes: BTreeMap<u64, (Value, Instant)>,
    events: Vec<(Value, Instant)>,
    /// Everything, in order.
    lines: Vec<String>,
    /// The first step that it cannot do.
    unsupported: Option<u64>,
    /// Why it says no more, or said something wrong.
    over: Option<String>,
}

impl Driver {
    pub(crate) fn start(program: &DriverProgram) -> Result<Self, String> {
        let mut command = Command::new(&program.program);
        command.args(&program.arguments).envs(program.environment.iter().cloned());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own, so that programs which it starts are stopped and ended with it.
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", program.program))?;

        let missing = || "the driver has no pipes".to_owned();
        let input = child.stdin.take().ok_or_else(missing)?;
        let output = child.stdout.take().ok_or_else(missing)?;
        let errors = child.stderr.take().ok_or_else(missing)?;
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed())).ok_or("the driver has no process id")?;

        let (hearing, heard) = watch::channel(Heard::default());
        tokio::spawn(hear(output, hearing));
        let (noting, noise) = watch::channel(Vec::new());
        tokio::spawn(note(errors, noting));
        Ok(Self { child, group, input: Some(input), heard, noise, is_stopped: false })
    }

    pub(crate) async fn send(&mut self, message: &Value) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("the driver's input has ended")?;
        let line = format!("{message}\n");
        input.write_all(line.as_bytes()).await.map_err(|error| format!("the driver reads no more: {error}"))
    }

    /// Waits for the outcome of a step, and returns when it came.
    pub(crate) async fn outcome(&mut self, number: u64) -> Result<(Value, Instant), String> {
        self.find(|heard| heard.outcomes.get(&number).cloned()).await
    }

    /// Waits for an event, after `skip` others that fit.
    pub(crate) async fn event(&mut self, fits: impl Fn(&Value) -> bool, skip: usize) -> Result<Value, String> {
        self.find(|heard| {
            let mut events = heard.events.iter().filter(|(event, _)| fits(event));
            events.nth(skip).map(|(event, _)| event.clone())
        })
        .await
    }

    async fn find<T>(&mut self, find: impl Fn(&Heard) -> Option<T>) -> Result<T, String> {
        loop {
            {
                let heard = self.heard.borrow_and_update();
                if let Some(found) = find(&heard) {
                    return Ok(found);
                }
                if let Some(step) = heard.unsupported {
                    return Err(format!("the driver cannot do step {step}"));
                }
                if let Some(over) = &heard.over {
                    return Err(over.clone());
                }
            }
            if self.heard.changed().await.is_err() {
                return Err("the driver says no more".to_owned());
            }
        }
    }

    /// The first step that it cannot do.
    pub(crate) fn unsupported(&self) -> Option<u64> {
        self.heard.borrow().unsupported
    }

    pub(crate) fn events(&self) -> Vec<(Value, Instant)> {
        self.heard.borrow().events.clone()
    }

    /// The losses of a lock that were told so far.
    pub(crate) fn losses(&self, lock: &str) -> Vec<Value> {
        let events = self.events().into_iter().map(|(event, _)| event);
        events.filter(|event| event["event"] == "lost" && event["lock"] == lock).collect()
    }

    pub(crate) fn stop(&mut self) -> Result<(), String> {
        self.is_stopped = true;
        kill_process_group(self.group, Signal::STOP).map_err(|error| format!("the driver cannot be stopped: {error}"))
    }

    pub(crate) fn go_on(&mut self) -> Result<(), String> {
        if std::mem::take(&mut self.is_stopped) {
            return kill_process_group(self.group, Signal::CONT)
                .map_err(|error| format!("the driver cannot go on: {error}"));
        }
        Ok(())
    }

    /// Ends the driver's input, and waits for its end.
    pub(crate) async fn end(&mut self, limit: Duration) -> Result<(), String> {
        drop(self.input.take());
        let ended = timeout(limit, self.child.wait()).await;
        let status = ended.map_err(|_| format!("A5: the driver does not end within {limit:?} after its input"))?;
        let status = status.map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("A5: the driver ends with {status}"));
        }
        Ok(())
    }

    /// All that it said, and the end of its standard error.
    pub(crate) fn said(&self) -> Vec<String> {
        let mut said = self.heard.borrow().lines.clone();
        let noise = String::from_utf8_lossy(&self.noise.borrow()).into_owned();
        said.extend(noise.lines().map(|line| format!("stderr: {line}")));
        said
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // Of a group of which it is the only one, or that has more: all end. An error means that they are gone.
            let _ = kill_process_group(self.group, Signal::KILL);
        }
    }
}

async fn hear(output: impl AsyncRead + Unpin, hearing: watch::Sender<Heard>) {
    let mut lines = BufReader::new(output).lines();
    loop {
        let line = match lines.next_line().await {
            Ok(Some(line)) => line,
            Ok(None) => break,
            Err(error) => return hearing.send_modify(|heard| heard.over = Some(error.to_string())),
        };
        let at = Instant::now();
        hearing.send_modify(|heard| heard.take(&line, at));
    }
    hearing.send_modify(|heard| {
        heard.over.get_or_insert_with(|| "the driver has ended".to_owned());
    });
}

impl Heard {
    fn take(&mut self, line: &str, at: Instant) {
        self.lines.push(line.to_owned());
        let wrong = |why: &str| Some(format!("{why}: {line}"));
        match serde_json::from_str::<Value>(line) {
            Ok(message) if message["event"].is_string() => self.events.push((message, at)),
            Ok(message) => match message["step"].as_u64().filter(|_| message["outcome"].is_string()) {
                Some(step) if self.outcomes.contains_key(&step) => {
                    self.over = wrong("the driver told a second outcome of a step");
                }
                Some(step) => {
                    if message["outcome"] == "unsupported" {
                        self.unsupported.get_or_insert(step);
                    }
                    self.outcomes.insert(step, (message, at));
                }
                None => self.over = wrong("the driver said what is neither an outcome nor an event"),
            },
            Err(_) => self.over = wrong("the driver said what is no JSON"),
        }
    }
}

async fn note(mut errors: impl AsyncRead + Unpin, noting: watch::Sender<Vec<u8>>) {
    let mut bytes = [0; 4096];
    while let Ok(count) = errors.read(&mut bytes).await
        && count > 0
    {
        noting.send_modify(|noise| {
            noise.extend_from_slice(&bytes[..count]);
            let excess = noise.len().saturating_sub(NOISE_MAX);
            noise.drain(..excess);
        });
    }
}
