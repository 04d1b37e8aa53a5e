//! Grants: those that are held, and those that an operator revoked.

use std::num::NonZeroU64;

use imbl::OrdMap;

use super::compact_sets::GrantNames;
use crate::types::*;

/// A grant that is held.
#[derive(Clone, Debug)]
pub(crate) struct HeldGrant {
    pub(crate) session: SessionId,
    /// The request that it was granted to, whose reply may be remembered. Not part of a record: it follows from the reply.
    pub(crate) request: Option<NonZeroU64>,
    /// Sorted. The mode is stored with each lock.
    pub(crate) names: GrantNames,
    pub(crate) since: WallTime,
    pub(crate) lock_delay_ms: u32,
}

/// A grant that an operator revoked and that its holder has not released yet.
#[derive(Clone, Debug)]
pub(crate) struct RevokedGrant {
    pub(crate) reason: Reason,
    /// The operator, if known and the grant is still held: who took it was told when it ended.
    pub(crate) by: Option<Identity>,
    /// The time until which the grant is still held. Without a deadline the grant has ended, and its locks are open.
    pub(crate) deadline: Option<Stamp>,
}

/// The grants by token.
#[derive(Clone, Default)]
pub(crate) struct GrantTable {
    held: OrdMap<Token, HeldGrant>,
    revoked: OrdMap<(SessionId, Token), RevokedGrant>,
}

impl GrantTable {
    /// Number of the grants that are held.
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn contains(&self, token: Token) -> bool {
        self.held.contains_key(&token)
    }

    pub(crate) fn get(&self, token: Token) -> Option<&HeldGrant> {
        self.held.get(&token)
    }

    /// A grant that is known to be held.
    pub(crate) fn existing(&self, token: Token) -> &HeldGrant {
        &self.held[&token]
    }

    /// The grants that are held, in the order of their tokens.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Token, &HeldGrant)> {
        self.held.iter().map(|(token, held)| (*token, held))
    }

    /// The highest token that is held.
    pub(crate) fn last_token(&self) -> Option<Token> {
        self.held.get_max().map(|(token, _)| *token)
    }

    /// Returns whether another grant had this token.
    pub(crate) fn insert(&mut self, token: Token, held: HeldGrant) -> bool {
        self.held.insert(token, held).is_some()
    }

    pub(crate) fn remove(&mut self, token: Token) -> HeldGrant {
        self.held.remove(&token).expect("only a grant that is held ends")
    }

    /// Notes the request whose remembered reply grants this token, if the grant is still held.
    pub(crate) fn set_request(&mut self, token: Token, request: u64) {
        if let Some(held) = self.held.get_mut(&token) {
            held.request = NonZeroU64::new(request);
        }
    }

    /// The operator's reason and deadline for a grant of this session, if it was revoked.
    pub(crate) fn revoked(&self, session: SessionId, token: Token) -> Option<&RevokedGrant> {
        self.revoked.get(&(session, token))
    }

    /// The grants of a session that were revoked, with tokens from this one on, in order.
    pub(crate) fn revoked_from(
        &self,
        session: SessionId,
        from: Token,
    ) -> impl Iterator<Item = (Token, &RevokedGrant)> + '_ {
        let range = (session, from)..=(session, Token(u64::MAX));
        self.revoked.range(range).map(|((_, token), revoked)| (*token, revoked))
    }

    /// All grants that were revoked, by session and token.
    pub(crate) fn all_revoked(&self) -> impl Iterator<Item = (SessionId, Token, &RevokedGrant)> {
        self.revoked.iter().map(|((session, token), revoked)| (*session, *token, revoked))
    }

    /// Returns whether the grant was revoked already.
    pub(crate) fn insert_revoked(&mut self, session: SessionId, token: Token, revoked: RevokedGrant) -> bool {
        self.revoked.insert((session, token), revoked).is_some()
    }

    pub(crate) fn remove_revoked(&mut self, session: SessionId, token: Token) -> Option<RevokedGrant> {
        // The usual case, on the path of each release: no operator revoked anything.
        if self.revoked.is_empty() {
            return None;
        }
        self.revoked.remove(&(session, token))
    }
}
