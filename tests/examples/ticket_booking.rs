//! Selling seats: each to one buyer, with ten minutes to pay.
//!
//! A buyer acquires the lock of a seat, in a session with a TTL of ten minutes. The session is renewed while the buyer waits for the seat,
//! and not after the grant. So a buyer that pays in time gets the seat, a buyer that gives up releases it, and a buyer whose program dies
//! loses it after ten minutes. No clean-up job is needed, and no seat is stuck.
//!
//! The sale is written with the lock's fencing token, and the box office refuses a token lower than the highest that it has seen. So a
//! buyer that was paused for long cannot buy a seat that another buyer holds by then.
//!
//! ```sh
//! cargo build --examples && cargo run -- dev -- target/debug/examples/ticket_booking
//! ```
//!
//! The ten minutes take two seconds here; an argument sets another number of seconds (`ticket_booking 600` for real time). Exits with 0 if
//! every seat was sold once, and with 1 if not.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example shows what happens")]

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    process::ExitCode,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::try_join_all;
use lockkeeper::{
    client::{AttachedSession, BootClock, Client, Clock as _, DEFAULT_ENDPOINTS, Moment, SessionOptions},
    machine::{Acquire, LockName, Mode, Token, Wait, Want},
};
use tokio::time::{sleep, timeout};

/// How long a seat is held for a buyer, in real time.
const HOLD: Duration = Duration::from_secs(10 * 60);
/// How long a payment takes, in real time.
const PAYMENT: Duration = Duration::from_secs(2 * 60);
/// Default duration of the hold in this example, in seconds.
const HOLD_PLAYED_S: u32 = 2;
/// Deadline of the whole run, in addition to the holds.
const LIMIT: Duration = Duration::from_secs(60);

/// Concurrent buyers for each seat.
const BUYERS: u32 = 5;
/// The seats, and the behaviour of the first, second and third buyer that holds each.
const SEATS: [(&str, &[Fate]); 3] =
    [("A5", &[Fate::Pays]), ("A6", &[Fate::GivesUp, Fate::Pays]), ("A7", &[Fate::Crashes, Fate::GivesUp, Fate::Pays])];

#[derive(Clone, Copy)]
enum Fate {
    Pays,
    GivesUp,
    /// The buyer's program dies without closing its session.
    Crashes,
}

type Anything = Box<dyn Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let seconds = env::args().nth(1).map_or(Ok(HOLD_PLAYED_S), |seconds| seconds.parse());
    let outcome = match seconds {
        Ok(seconds @ 1..) => sell_all(Duration::from_secs(seconds.into())).await,
        Ok(0) | Err(_) => Err("the argument is how many seconds the hold takes: 1 or more".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ticket_booking: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn sell_all(hold: Duration) -> Result<(), Anything> {
    println!("{} seats, {BUYERS} buyers for each. A seat is held for {HOLD:?}, played in {hold:?}.", SEATS.len());
    let endpoints = env::var("LOCKKEEPER_ENDPOINTS").unwrap_or_else(|_| DEFAULT_ENDPOINTS.to_owned());
    let client = Client::new(&endpoints)?;
    let office = BoxOffice::default();
    let buyers = SEATS.iter().flat_map(|(seat, fates)| (1..=BUYERS).map(move |number| (*seat, *fates, number)));
    let buyers = buyers.map(|(seat, fates, number)| {
        let buyer = Buyer { name: format!("buyer {number}"), seat, hold, client: &client, office: &office };
        async move { buyer.buy(fates).await }
    });
    let limit = LIMIT + hold * BUYERS;
    timeout(limit, try_join_all(buyers)).await.map_err(|_| format!("it was not over after {limit:?}"))??;

    for (seat, _) in SEATS {
        match &*office.seat(seat).sold_to {
            [buyer] => println!("{seat} is sold to {buyer}."),
            [] => return Err(format!("{seat} is not sold, although buyers wanted it").into()),
            twice => return Err(format!("{seat} is sold to {twice:?}").into()),
        }
    }
    println!("Every seat is sold, and none twice.");
    Ok(())
}

struct Buyer<'a> {
    name: String,
    seat: &'static str,
    hold: Duration,
    client: &'a Client,
    office: &'a BoxOffice,
}

/// A seat that is on hold.
struct OnHold {
    session: AttachedSession,
    token: Token,
    until: Moment,
}

impl Buyer<'_> {
    async fn buy(&self, fates: &[Fate]) -> Result<(), Anything> {
        let held = self.wait_for_seat().await?;
        if self.office.is_sold(self.seat) {
            // Too late. Closing the session lets the next buyer see that too.
            return Ok(held.session.close().await?);
        }
        match fates.get(self.office.show(self.seat)).unwrap_or(&Fate::Pays) {
            Fate::Pays => self.pay(held).await,
            Fate::GivesUp => {
                self.say(&held, "gives up");
                Ok(held.session.close().await?)
            }
            Fate::Crashes => {
                self.say(&held, "is gone without a word; the seat is free when the hold is over");
                Ok(())
            }
        }
    }

    async fn wait_for_seat(&self) -> Result<OnHold, Anything> {
        let options = SessionOptions { ttl: self.hold, label: format!("{}, for {}", self.name, self.seat) };
        let (session, _) = self.client.open_detached(options).await?;
        let name = LockName::new(&format!("tickets/{}", self.seat))?;
        let want = Want { name, mode: Mode::Exclusive, data: None, keep_data: false, must_exist: false };
        let mut acquire = session.acquire(Acquire::new(vec![want], Wait::Forever, 0)?);
        let token = tokio::select! {
            token = acquire.granted() => token?,
            danger = session.keep_alive(None, |_, _| ()) => return Err(danger?.into()),
        };
        // The last renewal: the ten minutes begin here.
        let until = session.renew().await?.deadline;
        Ok(OnHold { session, token, until })
    }

    async fn pay(&self, held: OnHold) -> Result<(), Anything> {
        self.say(&held, "has it on hold, and pays");
        sleep(self.hold.mul_f64(PAYMENT.div_duration_f64(HOLD))).await;
        // Without this check, the office would still refuse a slow buyer, but only after the payment.
        if BootClock.now() >= held.until {
            self.say(&held, "was too slow");
            return Ok(());
        }
        self.office.sell(self.seat, &self.name, held.token)?;
        Ok(held.session.close().await?)
    }

    fn say(&self, held: &OnHold, what: &str) {
        println!("{} token {:>2}: {} {what}", self.seat, held.token.0, self.name);
    }
}

/// The protected resource. It checks tokens.
#[derive(Default)]
struct BoxOffice {
    seats: Mutex<BTreeMap<&'static str, Seat>>,
}

#[derive(Clone, Default)]
struct Seat {
    /// Number of buyers that the seat was shown to.
    shown: usize,
    highest_token: Token,
    /// More than one buyer would be a double sale.
    sold_to: Vec<String>,
}

impl BoxOffice {
    fn sell(&self, seat: &'static str, buyer: &str, token: Token) -> Result<(), Anything> {
        let mut seats = self.seats();
        let record = seats.entry(seat).or_default();
        // Check and write are one step, under one mutex; in a database, one transaction.
        if token < record.highest_token {
            return Err(format!("{seat}: token {} comes after token {}", token.0, record.highest_token.0).into());
        }
        record.highest_token = token;
        record.sold_to.push(buyer.to_owned());
        Ok(())
    }

    /// Counts a buyer. Returns the number of buyers before.
    fn show(&self, seat: &'static str) -> usize {
        let mut seats = self.seats();
        let record = seats.entry(seat).or_default();
        record.shown += 1;
        record.shown - 1
    }

    fn is_sold(&self, seat: &'static str) -> bool {
        !self.seat(seat).sold_to.is_empty()
    }

    fn seat(&self, seat: &'static str) -> Seat {
        self.seats().get(seat).cloned().unwrap_or_default()
    }

    fn seats(&self) -> MutexGuard<'_, BTreeMap<&'static str, Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
