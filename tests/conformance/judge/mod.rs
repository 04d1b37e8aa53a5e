//! The judge: plays a scenario with a driver and a fake cluster, and says what is not as it must be.
//!
//! * `driver`: the driver's process, its outcomes and events;
//! * `steps`: the steps of the driver, as messages;
//! * `values`: how expectations are compared with what was seen;
//! * `always`: what holds in every scenario.

mod always;
mod driver;
mod steps;
mod values;

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

pub(crate) use self::driver::DriverProgram;
use self::{driver::Driver, values::Bindings};
use crate::{
    fake::{
        FakeCluster,
        arrivals::{Arrival, Method},
    },
    scenario::{Bound, Condition, DriverCommand, Line, Scenario, Statement, time},
};

/// How long what must come may take, on a machine that is busy with many scenarios.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// How long a driver may take to start: its program is read from the disk, and perhaps compiled.
const START_MAX: Duration = Duration::from_secs(60);

/// How long a driver may take to end.
const END_MAX: Duration = Duration::from_secs(20);

/// How often a condition on the table is looked at again.
const LOOK: Duration = Duration::from_millis(5);

/// How a scenario ended.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Holds,
    /// The driver cannot do this step.
    Skipped(String),
    Fails(String),
}

/// A scenario that was played.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    pub(crate) verdict: Verdict,
    /// What happened, line by line.
    pub(crate) course: Vec<String>,
    pub(crate) took: Duration,
}

/// Plays a scenario. `patience`: how long what must come may take.
pub(crate) async fn judge(scenario: &Scenario, program: &DriverProgram, patience: Duration) -> Judged {
    let began = Instant::now();
    let mut play = match Play::begin(scenario, program, patience).await {
        Ok(play) => play,
        Err(why) => return Judged { verdict: Verdict::Fails(why), course: Vec::new(), took: began.elapsed() },
    };
    let verdict = match play.run().await {
        Ok(()) => Verdict::Holds,
        Err(why) => play.unsupported().map_or(Verdict::Fails(why), Verdict::Skipped),
    };
    Judged { verdict, course: play.course(), took: began.elapsed() }
}

/// A scenario that is being played.
struct Play<'a> {
    scenario: &'a Scenario,
    patience: Duration,
    cluster: FakeCluster,
    driver: Driver,
    /// The steps by their names.
    steps: BTreeMap<String, Step>,
    next_step: u64,
    /// How many arrivals there were at the last `mark`.
    mark: usize,
    /// How many events were heard, by observer or watch.
    heard: BTreeMap<String, usize>,
    bindings: Bindings,
    began: Instant,
    notes: Vec<String>,
    is_closed: bool,
}

/// A step that was begun.
#[derive(Clone, Debug)]
struct Step {
    number: u64,
    verb: String,
    /// The lock that it is about.
    lock: Option<String>,
    began: Instant,
}

impl<'a> Play<'a> {
    async fn begin(scenario: &'a Scenario, program: &DriverProgram, patience: Duration) -> Result<Self, String> {
        let cluster = FakeCluster::start(scenario.nodes).await?;
        let driver = Driver::start(program)?;
        let mut play = Self {
            scenario,
            patience,
            cluster,
            driver,
            steps: BTreeMap::new(),
            next_step: 1,
            mark: 0,
            heard: BTreeMap::new(),
            bindings: Bindings::default(),
            began: Instant::now(),
            notes: Vec::new(),
            is_closed: false,
        };
        play.connect().await?;
        Ok(play)
    }

    async fn connect(&mut self) -> Result<(), String> {
        let addresses = self.scenario.given.iter().filter_map(|node| self.cluster.address(*node));
        let endpoints = addresses.collect::<Vec<_>>().join(",");
        let options = &self.scenario.options;
        let connect = json!({
            "step": self.next_step,
            "do": "connect",
            "endpoints": endpoints,
            "ttl_ms": steps::millis(options.ttl),
            "call_limit_ms": steps::millis(options.call_limit),
            "attempt_limit_ms": steps::millis(options.attempt_limit),
            "label": self.scenario.name,
        });
        let number = self.next_step;
        self.next_step += 1;
        self.send(&connect).await?;
        let started = timeout(START_MAX, self.driver.outcome(number)).await;
        let (outcome, _) = started.map_err(|_| format!("connect has no outcome within {START_MAX:?}"))??;
        if outcome["outcome"] != "connected" {
            return Err(format!("connect: the outcome is {outcome}"));
        }
        if self.cluster.state().arrivals.count() > 0 {
            return Err("C1: a new client has sent something".to_owned());
        }
        Ok(())
    }

    async fn run(&mut self) -> Result<(), String> {
        for line in &self.scenario.steps {
            self.note(&line.text);
            self.obey(line).await.map_err(|why| format!("line {}, `{}`: {why}", line.number, line.text))?;
        }
        self.end().await
    }

    /// The command that the driver cannot do.
    fn unsupported(&self) -> Option<String> {
        let number = self.driver.unsupported()?;
        let step = self.steps.values().find(|step| step.number == number);
        Some(step.map_or_else(|| "connect".to_owned(), |step| step.verb.clone()))
    }

    async fn obey(&mut self, line: &Line) -> Result<(), String> {
        match &line.statement {
            Statement::Begin { id, command } => self.begin_step(id, command).await?,
            Statement::Await { id, outcome, conditions } => return self.await_step(id, outcome, conditions).await,
            Statement::Told { id, event, conditions } => self.hear(id, event, conditions).await?,
            Statement::FinallyTold { id, event, conditions } => {
                let told = || self.told(id, event, conditions);
                self.until(|| told().is_some(), || format!("it was told {:?}", self.heard_of(id))).await?;
            }
            Statement::NeverTold { id, event, conditions } => {
                if let Some(told) = self.told(id, event, conditions) {
                    return Err(format!("it was told {told}"));
                }
            }
            Statement::NotTold { id } => {
                if let Some(event) = self.driver.losses(id).first() {
                    return Err(format!("it was told {event}"));
                }
            }
            Statement::Stop => self.driver.stop()?,
            Statement::Continue => self.driver.go_on()?,
            Statement::Fake(statement) => self.cluster.obey(statement).await?,
            Statement::Pass(time) => sleep(*time).await,
            Statement::PassLease { lock } => self.pass_lease(lock).await?,
            Statement::Held { name, by } => self.look_at_holder(name, by.as_deref()).await?,
            Statement::Queued { name, length } => {
                let of_name = || self.cluster.state().table().lock(name).1;
                self.until(|| of_name() == *length, || format!("{} wait for it", of_name())).await?;
            }
            Statement::Sessions(count) => {
                let sessions = || self.cluster.state().table().client_sessions().len();
                self.until(|| sessions() == *count, || format!("there are {}", sessions())).await?;
            }
            Statement::Arrived { method, count, node, bound } => {
                self.count_arrivals(Method::named(method)?, *count, *node, *bound).await?;
            }
            Statement::Cycle { name, times } => return self.cycle(name, *times).await,
            Statement::Request { method, place, conditions } => {
                let arrival = self.arrival(Method::named(method)?, *place).await?;
                self.compare(&arrival.show(), conditions)?;
            }
            Statement::Mark => self.mark = self.cluster.state().arrivals.count(),
            Statement::Quiet { method, time } => {
                let method = Method::named(method)?;
                let before = self.arrivals(method, None).len();
                sleep(*time).await;
                let after = self.arrivals(method, None).len();
                if after > before {
                    return Err(format!("{} arrived meanwhile", after - before));
                }
            }
        }
        Ok(())
    }

    /// All is healed; the driver ends, and nothing is left behind.
    async fn end(&mut self) -> Result<(), String> {
        self.note("(the end: all is healed, and the driver's input ends)");
        self.driver.go_on()?;
        self.cluster.heal().await?;
        self.driver.end(END_MAX).await?;
        self.check_always()?;
        // At once: a session that would expire by itself has been left behind all the same.
        let left = self.cluster.state().table().left_behind();
        if left.is_empty() { Ok(()) } else { Err(format!("A5: the client has left behind {}", left.join(", "))) }
    }

    /// What holds in every scenario.
    fn check_always(&self) -> Result<(), String> {
        let arrivals = self.cluster.state().arrivals.since(0);
        always::check_arrivals(&arrivals)?;
        let mistakes = std::mem::take(&mut self.cluster.state().table().mistakes);
        let has_late_copies =
            self.scenario.steps.iter().any(|line| line.text.contains("late") || line.text.contains("freezes"));
        let counts = |mistake: &&String| !has_late_copies || mistake.starts_with("RequestReused");
        if let Some(mistake) = mistakes.iter().find(counts) {
            return Err(format!("A2: a request was refused as {mistake}"));
        }
        always::check_losses(&self.driver.events(), &self.released())
    }

    /// When the program began to release its locks.
    fn released(&self) -> BTreeMap<String, Instant> {
        let releases = self.steps.values().filter(|step| ["release", "resign"].contains(&&*step.verb));
        releases.filter_map(|step| Some((step.lock.clone()?, step.began))).collect()
    }

    async fn send(&mut self, message: &Value) -> Result<(), String> {
        self.note(&format!("← {message}"));
        self.driver.send(message).await
    }

    fn note(&mut self, what: &str) {
        let at = self.began.elapsed();
        self.notes.push(format!("{:>9.3} {what}", at.as_secs_f64()));
    }

    async fn begin_step(&mut self, id: &str, command: &DriverCommand) -> Result<(), String> {
        let number = self.next_step;
        self.next_step += 1;
        let numbers = |id: &str| self.steps.get(id).map(|step| step.number);
        let message = steps::message(number, id, command, numbers, &self.bindings)?;
        let lock = message["lock"].as_str().map(str::to_owned);
        let step = Step { number, verb: command.verb.clone(), lock, began: Instant::now() };
        self.is_closed |= step.verb == "close";
        self.steps.insert(id.to_owned(), step);
        self.send(&message).await
    }

    async fn await_step(&mut self, id: &str, outcome: &str, conditions: &[Condition]) -> Result<(), String> {
        let step = self.steps.get(id).cloned().ok_or_else(|| format!("there is no step {id}"))?;
        let (told, at) = self.outcome(step.number).await?;
        self.note(&format!("→ {told}"));
        if !outcome.split('|').any(|outcome| told["outcome"] == outcome) {
            return Err(format!("the outcome is {told}"));
        }
        if let (Some(token), Some(lock)) = (told["token"].as_u64(), &step.lock) {
            self.bindings.grant(lock, token);
        }
        self.check_claim(&step, &told, at)?;
        self.compare(&told, conditions)
    }

    /// A1: no claim goes beyond the lease.
    fn check_claim(&self, step: &Step, told: &Value, at: Instant) -> Result<(), String> {
        let Some(remaining_ms) = told["remaining_ms"].as_u64().filter(|ms| *ms > 0) else { return Ok(()) };
        let token = step.lock.as_ref().and_then(|lock| self.bindings.token(lock));
        let Some(token) = token else { return Ok(()) };
        let Some(end) = self.cluster.state().table().trusted_until(token) else { return Ok(()) };

        let claimed = step.began + Duration::from_millis(remaining_ms);
        if claimed > end {
            let beyond = claimed - end;
            let asked = at - step.began;
            return Err(format!(
                "A1: it claims {remaining_ms} ms, {beyond:?} beyond its lease (answered after {asked:?})"
            ));
        }
        Ok(())
    }

    async fn outcome(&mut self, number: u64) -> Result<(Value, Instant), String> {
        let patience = self.patience;
        match timeout(patience, self.driver.outcome(number)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("step {number} has no outcome within {patience:?}")),
        }
    }

    /// Waits for an event: of a lock the loss, of an observer or a watch the next one.
    async fn hear(&mut self, id: &str, kind: &str, conditions: &[Condition]) -> Result<(), String> {
        let (limits, conditions): (Vec<_>, Vec<_>) =
            conditions.iter().cloned().partition(|condition| condition.field == "within");
        let limit = limits.first().map(|limit| time(&limit.value)).transpose()?;
        let patience = limit.unwrap_or(self.patience);
        if kind == "lost" {
            let heard =
                timeout(patience, self.driver.event(|event| event["event"] == "lost" && event["lock"] == id, 0));
            let event = heard.await.map_err(|_| format!("it is not told within {patience:?}"))??;
            self.note(&format!("→ {event}"));
            return self.compare(&event, &conditions);
        }

        let skip = self.heard.get(id).copied().unwrap_or_default();
        let heard = timeout(patience, self.driver.event(|event| event["of"] == id, skip));
        let event = heard.await.map_err(|_| format!("there is no further event of it within {patience:?}"))??;
        self.note(&format!("→ {event}"));
        self.heard.insert(id.to_owned(), skip + 1);
        if event["event"] != kind {
            return Err(format!("the next event is {event}"));
        }
        self.compare(&event, &conditions)
    }

    /// The events of an observer or a watch.
    fn heard_of(&self, id: &str) -> Vec<Value> {
        let events = self.driver.events().into_iter().map(|(event, _)| event);
        events.filter(|event| event["of"] == id).collect()
    }

    /// The first event of an observer or a watch that has these values.
    fn told(&self, id: &str, kind: &str, conditions: &[Condition]) -> Option<Value> {
        let rivals = self.rivals();
        let has_all = |event: &Value| {
            let mut bindings = self.bindings.clone();
            conditions.iter().all(|condition| bindings.compare(event, condition, &rivals).is_ok())
        };
        self.heard_of(id).into_iter().find(|event| event["event"] == kind && has_all(event))
    }

    async fn pass_lease(&mut self, lock: &str) -> Result<(), String> {
        let token = self.bindings.token(lock).ok_or_else(|| format!("{lock} has no token"))?;
        self.until(
            || self.cluster.state().table().is_over(token),
            || "its session is still alive in the table".to_owned(),
        )
        .await
    }

    async fn look_at_holder(&mut self, name: &str, by: Option<&str>) -> Result<(), String> {
        let wanted = by.filter(|by| *by != "rival");
        let wanted_token = wanted.map(|lock| self.bindings.token(lock).ok_or_else(|| format!("{lock} has no token")));
        let wanted_token = wanted_token.transpose()?;
        let is_so = || {
            let table = self.cluster.state().table();
            let (holders, _) = table.lock(name);
            match (by, wanted_token) {
                (None, _) => holders.is_empty(),
                (Some(_), Some(token)) => holders.contains(&token),
                (Some(_), None) => holders.iter().any(|token| table.is_rivals(*token)),
            }
        };
        self.until(is_so, || format!("it is held by {:?}", self.cluster.state().table().lock(name).0)).await
    }

    async fn until(&self, is_so: impl Fn() -> bool, found: impl Fn() -> String) -> Result<(), String> {
        let until = Instant::now() + self.patience;
        while !is_so() {
            if Instant::now() >= until {
                return Err(format!("not within {:?}: {}", self.patience, found()));
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// The arrivals of a method since the mark.
    fn arrivals(&self, method: Method, node: Option<usize>) -> Vec<Arrival> {
        let since = self.cluster.state().arrivals.since(self.mark).into_iter();
        since.filter(|arrival| arrival.method == method && node.is_none_or(|node| node == arrival.node)).collect()
    }

    async fn count_arrivals(
        &mut self,
        method: Method,
        count: usize,
        node: Option<usize>,
        bound: Bound,
    ) -> Result<(), String> {
        let arrived = || self.arrivals(method, node).len();
        let is_so = match bound {
            Bound::Least => return self.until(|| arrived() >= count, || format!("{} have arrived", arrived())).await,
            Bound::Most => arrived() <= count,
            Bound::Exactly => arrived() == count,
        };
        if is_so { Ok(()) } else { Err(format!("{} have arrived", arrived())) }
    }

    /// The arrival at this place; `None`: the last one.
    async fn arrival(&mut self, method: Method, place: Option<usize>) -> Result<Arrival, String> {
        self.count_arrivals(method, place.unwrap_or(1), None, Bound::Least).await?;
        let mut arrivals = self.arrivals(method, None).into_iter();
        let found = match place {
            None => arrivals.next_back(),
            Some(place) => arrivals.nth(place.checked_sub(1).ok_or("requests are counted from 1")?),
        };
        found.ok_or_else(|| "it has not arrived".to_owned())
    }

    /// Acquires and releases a lock, many times, one after the other.
    async fn cycle(&mut self, name: &str, times: usize) -> Result<(), String> {
        for turn in 0..times {
            let lock = format!("cycle-{name}-{turn}");
            let release = format!("{lock}-release");
            self.begin_step(&lock, &DriverCommand::simple("acquire", name)).await?;
            self.await_step(&lock, "granted", &[]).await?;
            self.begin_step(&release, &DriverCommand::simple("release", &lock)).await?;
            self.await_step(&release, "released", &[]).await?;
        }
        Ok(())
    }

    fn compare(&mut self, found: &Value, conditions: &[Condition]) -> Result<(), String> {
        let rivals = self.rivals();
        conditions.iter().try_for_each(|condition| self.bindings.compare(found, condition, &rivals))
    }

    /// The rival's tokens.
    fn rivals(&self) -> Vec<u64> {
        let table = self.cluster.state().table();
        (1..=table.machine().last_token().0).filter(|token| table.is_rivals(*token)).collect()
    }

    fn course(&self) -> Vec<String> {
        let mut course = self.notes.clone();
        course.push("arrivals:".to_owned());
        for arrival in self.cluster.state().arrivals.since(0) {
            let at = arrival.at.saturating_duration_since(self.began);
            course.push(format!("{:>9.3} {}", at.as_secs_f64(), arrival.show()));
        }
        course.push("what the driver said:".to_owned());
        course.extend(self.driver.said());
        course
    }
}
