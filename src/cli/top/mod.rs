//! `lockkeeper top` shows a live view of the cluster.
//!
//! Once in an interval it asks every node for its status, and one of them, the leader if there is one, for its busiest locks and longest
//! waits. Both are answered from a node's own memory at a bounded cost, whatever the size of the table; nothing is listed or watched.
//!
//! ```text
//! look     asks the cluster: a TopLook
//! model    what the looks say together: rates, outages
//! draw     model and Ui to a picture, at any size
//! ui       keys to what is shown: the pane, the row, the filter, the order
//! screen   the terminal: taken, and always given back
//! plain    one picture as text or as a document, where there is no terminal
//! ```
//!
//! Left out: anything that changes the cluster. `force-release` and its kind ask for a reason and say what they did.

mod draw;
mod look;
mod model;
mod plain;
mod screen;
mod ui;

#[cfg(test)]
mod tests;

use std::{env, io::IsTerminal as _, pin::pin, time::Duration};

use clap::Args;
use tokio::time::{Instant, sleep_until};

use self::{
    draw::Theme,
    look::{TopLook, TopRequest},
    model::TopModel,
    screen::Screen,
    ui::{Ui, Wish},
};
use super::{
    ClusterArguments, Exit, Failure, nodes,
    output::{Format, Output},
    signals::Signals,
};
use crate::client::Client;

/// Shows the cluster live: members, rates, the busiest locks and the longest waits.
///
/// Keys: q quits; Tab and the arrows move; / filters by a prefix of the names; s changes the order of the locks; p pauses. Colours are not
/// used if NO_COLOR is set. Without a terminal, or with --once or -o json, it looks twice, an interval apart, prints what it saw, and ends
/// as `status` does.
#[derive(Args, Debug)]
pub(super) struct Top {
    /// Only locks whose names begin with this
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Time between two looks at the cluster
    #[arg(long, value_parser = super::arguments::duration, default_value = "1s", value_name = "TIME")]
    interval: Duration,
    /// Print what is seen once, as text
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    cluster: ClusterArguments,
    #[command(flatten)]
    output: Output,
}

/// The shortest interval: more looks a second say nothing more to people.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The view is drawn again after this time at the latest, because it shows times that pass.
const REDRAW: Duration = Duration::from_secs(1);

impl Top {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let interval = self.interval.max(INTERVAL_MIN);
        if self.once || self.output.output == Format::Json || !is_terminal() {
            return self.print_once(interval).await;
        }

        // The quiet client does not write warnings to stderr, which is the screen here.
        let (client, source) = self.cluster.quiet_client()?;
        // Listen before the terminal is taken: from then on a signal must not end the process without restoring the terminal.
        let mut signals = Signals::listen()?;
        let mut screen = Screen::take()?;

        let view = RunningView {
            model: TopModel::new(client.endpoints(), source),
            ui: Ui::new(self.prefix),
            client,
            interval,
        };
        tokio::select! {
            biased;
            signal = signals.next() => Ok(Exit::Code(signal.exit_code())),
            ended = view.run(&mut screen) => ended,
        }
    }

    /// Two looks, so that there are rates.
    async fn print_once(self, interval: Duration) -> Result<Exit, Failure> {
        let client = self.cluster.client()?;
        let mut model = TopModel::new(client.endpoints(), String::new());
        model.add(TopLook::take(&client, model.asked(&self.prefix)).await);
        sleep_until(Instant::now() + interval).await;
        model.add(TopLook::take(&client, model.asked(&self.prefix)).await);
        plain::print(&model, self.output.output)?;
        Ok(nodes::exit(model.nodes()))
    }
}

/// Whether keys can be read and pictures be shown.
fn is_terminal() -> bool {
    let is_dumb = env::var_os("TERM").is_none_or(|term| term == "dumb");
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !is_dumb
}

/// What runs while the terminal is taken.
struct RunningView {
    client: Client,
    model: TopModel,
    ui: Ui,
    interval: Duration,
}

impl RunningView {
    async fn run(mut self, screen: &mut Screen) -> Result<Exit, Failure> {
        let theme = Theme::from_environment();
        let mut due = Instant::now();

        loop {
            let look = Self::look(self.client.clone(), due, self.model.asked(self.ui.prefix()), self.ui.is_paused());

            let mut look = pin!(look);
            // Loop until this look is over, or another one is wanted instead.
            loop {
                let now = Instant::now();
                screen.draw(|frame| draw::draw(frame, &self.model, &mut self.ui, now, theme))?;

                tokio::select! {
                    biased;
                    event = screen.event() => match self.ui.handle(event?) {
                        Some(Wish::Quit) => return Ok(Exit::Success),
                        Some(Wish::Look) => {
                            due = Instant::now();
                            break;
                        }
                        None => {}
                    },
                    seen = &mut look => {
                        // A look that took longer than the interval is not made up for by two at once.
                        due = (due + self.interval).max(Instant::now());
                        self.model.add(seen);
                        break;
                    }
                    () = sleep_until(now + REDRAW) => {}
                }
            }
        }
    }

    async fn look(client: Client, due: Instant, asked: TopRequest, is_paused: bool) -> TopLook {
        if is_paused {
            return std::future::pending().await;
        }
        sleep_until(due).await;
        TopLook::take(&client, asked).await
    }
}
