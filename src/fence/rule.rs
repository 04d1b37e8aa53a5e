//! The rule: which tokens come too late.

use crate::machine::Token;

/// How the lock is held that a token names. There is no third way: the holders of a semaphore's permits hold it side by side, in no
/// order, so no token of theirs says that another one is over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hold {
    /// By one, which comes after all others with a lower token.
    Exclusive,
    /// By any number at a time, after all exclusive holders with a lower token.
    Shared,
}

/// What a resource has seen: all that it must remember.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// The highest token of all. 0: none.
    pub highest: Token,
    /// The highest token of an exclusive holder. 0: none.
    pub highest_exclusive: Token,
}

impl Seen {
    /// The token after which this one comes too late, if there is one. The same token again never does.
    pub fn bars(self, token: Token, hold: Hold) -> Option<Token> {
        let highest = match hold {
            Hold::Exclusive => self.highest,
            Hold::Shared => self.highest_exclusive,
        };
        (token < highest).then_some(highest)
    }

    /// What it has seen when it has also seen this one.
    pub fn with(self, token: Token, hold: Hold) -> Self {
        let highest_exclusive = match hold {
            Hold::Exclusive => self.highest_exclusive.max(token),
            Hold::Shared => self.highest_exclusive,
        };
        Self { highest: self.highest.max(token), highest_exclusive }
    }
}
