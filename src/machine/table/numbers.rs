//! The numbers that the table issues: tokens and tickets. They only rise (M2).

use crate::types::*;

/// The last numbers issued; 0 before the first.
#[derive(Clone, Copy, Default)]
pub(crate) struct IssuedNumbers {
    token: Token,
    ticket: Ticket,
}

impl IssuedNumbers {
    /// Numbers go on after these.
    pub(crate) fn restored(token: Token, ticket: Ticket) -> Self {
        Self { token, ticket }
    }

    pub(crate) fn last_token(&self) -> Token {
        self.token
    }

    pub(crate) fn last_ticket(&self) -> Ticket {
        self.ticket
    }

    /// The next number from the counter that grants and writes of the keyspace share.
    pub(crate) fn issue_token(&mut self) -> Token {
        let next = self.token.0.checked_add(1);
        self.token = Token(next.expect("2^64 grants take longer than any cluster exists"));
        self.token
    }

    /// The place of the next waiter in the order of arrival.
    pub(crate) fn issue_ticket(&mut self) -> Ticket {
        self.ticket.0 += 1;
        self.ticket
    }
}
