//! Compact sets: the holders of a lock, the grants of a session, the locks of a grant.
//!
//! There may be millions of each, and nearly all have one member. A set of one costs no allocation here; a tree's smallest node has room
//! for 16.

use std::{ops::Deref, sync::Arc};

use imbl::OrdSet;

use crate::types::*;

/// TokenSet, in order.
#[derive(Clone, Default, Debug)]
pub(crate) enum TokenSet {
    #[default]
    None,
    One(Token),
    /// Two or more.
    Many(Arc<OrdSet<Token>>),
}

impl TokenSet {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Many(tokens) => tokens.len(),
        }
    }

    /// The lowest.
    pub(crate) fn first(&self) -> Option<Token> {
        match self {
            Self::None => None,
            Self::One(token) => Some(*token),
            Self::Many(tokens) => tokens.get_min().copied(),
        }
    }

    pub(crate) fn contains(&self, token: Token) -> bool {
        match self {
            Self::None => false,
            Self::One(one) => *one == token,
            Self::Many(tokens) => tokens.contains(&token),
        }
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Token> + '_ {
        self.after(Token(0))
    }

    /// The tokens above `after`, in order. 0 is below all.
    pub(crate) fn after(&self, after: Token) -> impl Iterator<Item = Token> + '_ {
        let (one, many) = match self {
            Self::None => (None, None),
            Self::One(token) => (Some(*token), None),
            Self::Many(tokens) => (None, Some(tokens)),
        };
        let many = many.into_iter().flat_map(move |tokens| tokens.range(Token(after.0.saturating_add(1))..).copied());
        one.into_iter().filter(move |token| *token > after).chain(many)
    }

    pub(crate) fn insert(&mut self, token: Token) {
        match self {
            Self::None => *self = Self::One(token),
            Self::One(one) => *self = Self::Many(Arc::new([*one, token].into_iter().collect())),
            Self::Many(tokens) => {
                Arc::make_mut(tokens).insert(token);
            }
        }
    }

    pub(crate) fn remove(&mut self, token: Token) {
        match self {
            Self::One(one) if *one == token => *self = Self::None,
            Self::None | Self::One(_) => {}
            Self::Many(tokens) => {
                let rest = Arc::make_mut(tokens);
                rest.remove(&token);
                if rest.len() == 1
                    && let Some(last) = rest.get_min()
                {
                    *self = Self::One(*last);
                }
            }
        }
    }
}

/// The locks of a grant, in the order of their names.
#[derive(Clone, Debug)]
pub(crate) enum GrantNames {
    One(LockName),
    Many(Arc<[LockName]>),
}

impl From<Vec<LockName>> for GrantNames {
    fn from(mut names: Vec<LockName>) -> Self {
        match (names.len(), names.pop()) {
            (1, Some(one)) => Self::One(one),
            (_, last) => Self::Many(names.into_iter().chain(last).collect()),
        }
    }
}

impl Deref for GrantNames {
    type Target = [LockName];

    fn deref(&self) -> &[LockName] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Many(names) => names,
        }
    }
}

impl GrantNames {
    /// The names for the reply; several names are shared with it.
    pub(crate) fn to_shared(&self) -> Arc<[LockName]> {
        match self {
            Self::One(name) => Arc::new([name.clone()]),
            Self::Many(names) => names.clone(),
        }
    }
}
