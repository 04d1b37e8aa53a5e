//! The rule: which tokens come too late.

use lockkeeper_planted::Planted;
use lockkeeper_types::Token;

/// The mode in which a token's lock is held. Semaphores have none here: the holders of permits hold them concurrently, in no order, so
/// none of their tokens shows that another one is over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Hold {
    /// Held by one holder, which comes after all others with a lower token.
    Exclusive,
    /// Held by any number of holders at a time, after all exclusive holders with a lower token.
    Shared,
}

/// The tokens that a resource has seen, as far as it must remember them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HighestTokens {
    /// The highest token of all. 0: none.
    pub highest: Token,
    /// The highest token of an exclusive holder. 0: none.
    pub highest_exclusive: Token,
}

impl HighestTokens {
    /// The token that bars this one, if there is one. The same token is never barred.
    pub fn bars(self, token: Token, hold: Hold) -> Option<Token> {
        let highest = match hold {
            Hold::Exclusive => self.highest,
            Hold::Shared => self.highest_exclusive,
        };
        let is_sharer = hold == Hold::Shared;
        (token < highest && !(is_sharer && Planted::SharerAlwaysAdmitted.is_on())).then_some(highest)
    }

    /// The state after seeing this token too.
    pub fn with(self, token: Token, hold: Hold) -> Self {
        let highest_exclusive = match hold {
            Hold::Exclusive => self.highest_exclusive.max(token),
            Hold::Shared => self.highest_exclusive,
        };
        Self { highest: self.highest.max(token), highest_exclusive }
    }
}
