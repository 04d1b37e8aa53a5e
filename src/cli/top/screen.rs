//! The terminal: it is taken for the live view, and restored however the program ends.

use std::{
    io::{self, Stdout, stdout},
    panic,
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use ratatui::{
    Frame, Terminal,
    backend::CrosstermBackend,
    crossterm::{
        cursor::{Hide, Show},
        event::{self, Event},
        execute,
        terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
    },
};
use tokio::sync::mpsc;

/// How often the thread that reads keys looks whether it is to end.
const LOOK: Duration = Duration::from_millis(100);
/// Keys that wait to be handled.
const EVENTS: usize = 64;

/// The terminal, in raw mode and with the alternate screen. Dropping it gives it back.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    events: mpsc::Receiver<io::Result<Event>>,
    _taken: Taken,
}

/// Gives the terminal back when it is dropped, and ends the thread that reads keys.
struct Taken {
    ended: Arc<AtomicBool>,
}

impl Screen {
    /// Takes the terminal. Fails if there is none.
    pub(super) fn take() -> io::Result<Self> {
        give_back_at_a_panic();
        let taken = Taken { ended: Arc::default() };
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen, Hide)?;

        let (sender, events) = mpsc::channel(EVENTS);
        let ended = Arc::clone(&taken.ended);
        // A thread: keys are read with blocking calls.
        thread::Builder::new().name("keys".to_owned()).spawn(move || read_events(&sender, &ended))?;
        let terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
        Ok(Self { terminal, events, _taken: taken })
    }

    /// Shows a picture, at the present size of the terminal.
    pub(super) fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(picture).map(drop)
    }

    /// The next key, or the next size. Cancel safe.
    pub(super) async fn event(&mut self) -> io::Result<Event> {
        self.events.recv().await.unwrap_or_else(|| Err(io::Error::other("the terminal gives no more keys")))
    }
}

fn read_events(sender: &mpsc::Sender<io::Result<Event>>, ended: &AtomicBool) {
    while !ended.load(Ordering::Acquire) {
        let event = match event::poll(LOOK) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        let is_last = event.is_err();
        if sender.blocking_send(event).is_err() || is_last {
            return;
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        give_back();
    }
}

fn give_back() {
    // An error here must not stop the rest of the restoration.
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// A panic ends the release build at once, without dropping anything: its message is to be read, and the shell to be used.
fn give_back_at_a_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            give_back();
            before(panic);
        }));
    });
}
