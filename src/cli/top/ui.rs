//! What is shown, and how keys change it.

use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// A part of the picture that has rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pane {
    Members,
    Locks,
    Waits,
}

impl Pane {
    pub(super) const ALL: [Self; 3] = [Self::Members, Self::Locks, Self::Waits];
}

/// The order of the locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LockOrder {
    Queue,
    Grants,
    Name,
}

/// What a key asks of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    Quit,
    /// Look at the cluster now.
    Look,
}

/// Rows of a leap.
const LEAP: usize = 10;

/// The state of the view.
#[derive(Debug)]
pub(super) struct Ui {
    prefix: String,
    /// The prefix that is being typed.
    typed: Option<String>,
    pane: Pane,
    order: LockOrder,
    is_paused: bool,
    /// The row of each pane on which the eye is. A picture limits them to the rows that there are.
    rows: [usize; 3],
}

impl Ui {
    pub(super) fn new(prefix: String) -> Self {
        Self { prefix, typed: None, pane: Pane::Locks, order: LockOrder::Queue, is_paused: false, rows: [0; 3] }
    }

    /// Only locks whose names begin with this.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The prefix that is being typed.
    pub(super) fn typed(&self) -> Option<&str> {
        self.typed.as_deref()
    }

    pub(super) fn pane(&self) -> Pane {
        self.pane
    }

    pub(super) fn order(&self) -> LockOrder {
        self.order
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// The selected row of a pane, which has this number of rows.
    pub(super) fn row(&mut self, pane: Pane, rows: usize) -> usize {
        let row = &mut self.rows[pane as usize];
        *row = (*row).min(rows.saturating_sub(1));
        *row
    }

    pub(super) fn handle(&mut self, event: Event) -> Option<Wish> {
        // Any other event, such as a new size, only needs a new picture.
        let Event::Key(key) = event else { return None };
        if key.kind == KeyEventKind::Release { None } else { self.key(key) }
    }

    fn key(&mut self, key: KeyEvent) -> Option<Wish> {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Some(Wish::Quit);
        }

        if self.typed.is_some() {
            return self.type_key(key.code);
        }

        #[expect(clippy::wildcard_enum_match_arm, reason = "other keys mean nothing")]
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Some(Wish::Quit),
            KeyCode::Char('/') => self.typed = Some(self.prefix.clone()),
            KeyCode::Char('p' | ' ') => {
                self.is_paused = !self.is_paused;
                return Some(Wish::Look);
            }
            KeyCode::Char('s') => {
                self.order = match self.order {
                    LockOrder::Queue => LockOrder::Grants,
                    LockOrder::Grants => LockOrder::Name,
                    LockOrder::Name => LockOrder::Queue,
                };
            }
            KeyCode::Tab | KeyCode::Right => self.step(1),
            KeyCode::BackTab | KeyCode::Left => self.step(Pane::ALL.len() - 1),
            KeyCode::Down | KeyCode::Char('j') => self.go(|row| row + 1),
            KeyCode::Up | KeyCode::Char('k') => self.go(|row| row.saturating_sub(1)),
            KeyCode::PageDown => self.go(|row| row + LEAP),
            KeyCode::PageUp => self.go(|row| row.saturating_sub(LEAP)),
            KeyCode::Home => self.go(|_| 0),
            // Beyond any row, and still with room for a page further down. The pane limits it to its last row.
            KeyCode::End => self.go(|_| usize::MAX - LEAP),
            _ => {}
        }
        None
    }

    fn step(&mut self, by: usize) {
        self.pane = Pane::ALL[(self.pane as usize + by) % Pane::ALL.len()];
    }

    fn go(&mut self, to: impl FnOnce(usize) -> usize) {
        let row = &mut self.rows[self.pane as usize];
        *row = to(*row);
    }

    fn type_key(&mut self, code: KeyCode) -> Option<Wish> {
        let typed = self.typed.as_mut()?;

        #[expect(clippy::wildcard_enum_match_arm, reason = "other keys mean nothing")]
        match code {
            KeyCode::Esc => self.typed = None,
            KeyCode::Backspace => {
                typed.pop();
            }
            KeyCode::Char(c) => typed.push(c),
            KeyCode::Enter => {
                self.prefix = self.typed.take()?;
                self.rows = [0; 3];
                return Some(Wish::Look);
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(ui: &mut Ui, code: KeyCode) -> Option<Wish> {
        ui.handle(Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
    }

    #[test]
    fn q_esc_and_ctrl_c_quit_and_esc_only_ends_the_typing_of_a_filter() {
        let mut ui = Ui::new(String::new());
        assert_eq!(press(&mut ui, KeyCode::Char('q')), Some(Wish::Quit));
        assert_eq!(press(&mut ui, KeyCode::Esc), Some(Wish::Quit));
        press(&mut ui, KeyCode::Char('/'));
        assert_eq!((press(&mut ui, KeyCode::Char('q')), ui.typed()), (None, Some("q")));
        let ctrl_c = Event::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert_eq!(ui.handle(ctrl_c), Some(Wish::Quit));
        assert_eq!((press(&mut ui, KeyCode::Esc), ui.typed(), ui.prefix()), (None, None, ""));
    }

    #[test]
    fn a_filter_is_typed_mended_and_entered() {
        let mut ui = Ui::new("a".to_owned());
        for key in ['/', 'b', 'c'] {
            press(&mut ui, KeyCode::Char(key));
        }
        press(&mut ui, KeyCode::Backspace);
        assert_eq!((ui.typed(), ui.prefix()), (Some("ab"), "a"));
        assert_eq!((press(&mut ui, KeyCode::Enter), ui.prefix()), (Some(Wish::Look), "ab"));
    }

    #[test]
    fn rows_stay_within_their_pane() {
        let mut ui = Ui::new(String::new());
        press(&mut ui, KeyCode::End);
        press(&mut ui, KeyCode::PageDown);
        assert_eq!(ui.row(Pane::Locks, 5), 4);
        press(&mut ui, KeyCode::Up);
        assert_eq!((ui.row(Pane::Locks, 5), ui.row(Pane::Waits, 5), ui.row(Pane::Locks, 0)), (3, 0, 0));
        press(&mut ui, KeyCode::BackTab);
        press(&mut ui, KeyCode::Up);
        assert_eq!((ui.pane(), ui.row(Pane::Members, 3)), (Pane::Members, 0));
        press(&mut ui, KeyCode::Left);
        assert_eq!(ui.pane(), Pane::Waits);
    }

    #[test]
    fn s_goes_through_the_orders_and_p_pauses() {
        let mut ui = Ui::new(String::new());
        let orders = [0; 3].map(|_| {
            press(&mut ui, KeyCode::Char('s'));
            ui.order()
        });
        assert_eq!(orders, [LockOrder::Grants, LockOrder::Name, LockOrder::Queue]);
        assert_eq!((press(&mut ui, KeyCode::Char('p')), ui.is_paused()), (Some(Wish::Look), true));
        assert_eq!((press(&mut ui, KeyCode::Char('p')), ui.is_paused()), (Some(Wish::Look), false));
    }
}
