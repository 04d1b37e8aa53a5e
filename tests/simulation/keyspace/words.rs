//! The words of the keyspace's requests: every variant and every option of the service's own types, each with a name.
//!
//! Each list is one `match` without a wildcard. A new variant is an error of the compiler here, and once it has its word, the test below
//! and every batch of runs fail until the grammar says it.

use std::collections::BTreeMap;

use lockkeeper::machine::{
    AtLeaseEnd, Bounds, Compare, EntryDeadline, Expire, KeyRange, NewSession, Operand, Put, PutChild, PutClaim,
    PutLease, Relation, Select, Shows, SortBy, Txn, TxnOperation,
};

/// How often each word was said.
#[derive(Clone, Default, Debug)]
pub(crate) struct Words(BTreeMap<&'static str, u64>);

/// Names the variants of a type, and lists the names.
macro_rules! words {
    ($word:ident, $all:ident, $type:ty: $($variant:pat => $name:literal,)*) => {
        const $all: &[&str] = &[$($name),*];

        fn $word(value: &$type) -> &'static str {
            match value {
                $($variant => $name,)*
            }
        }
    };
}

pub(crate) use words;

words! { operation_word, OPERATIONS, TxnOperation:
    TxnOperation::Get(_) => "get",
    TxnOperation::Select(_) => "select",
    TxnOperation::Put(_) => "put",
    TxnOperation::Delete(_) => "delete",
    TxnOperation::DeleteRange(_) => "delete-range",
    TxnOperation::Open(_) => "open",
    TxnOperation::Expire(_) => "expire",
    TxnOperation::PutChild(_) => "put-child",
}
words! { operand_word, OPERANDS, Operand:
    Operand::Created(_) => "compare-created",
    Operand::Modified(_) => "compare-modified",
    Operand::Version(_) => "compare-version",
    Operand::Value(_) => "compare-value",
    Operand::Lease(None) => "compare-no-lease",
    Operand::Lease(Some(_)) => "compare-lease",
}
words! { relation_word, RELATIONS, Relation:
    Relation::Equal => "equal",
    Relation::NotEqual => "not-equal",
    Relation::Less => "less",
    Relation::Greater => "greater",
}
words! { lease_word, LEASES, PutLease:
    PutLease::None => "put-without-lease",
    PutLease::Given(_) => "put-with-lease",
    PutLease::Kept => "put-keeps-lease",
    PutLease::Renewed => "put-renews-lease",
    PutLease::Until(_) => "put-with-deadline",
    PutLease::Extended(_) => "put-extends-deadline",
    PutLease::Temporary(_) => "put-temporary",
}
words! { end_word, ENDS, AtLeaseEnd:
    AtLeaseEnd::Delete => "lease-end-deletes",
    AtLeaseEnd::Keep => "lease-end-keeps",
}
words! { deadline_word, DEADLINES, EntryDeadline:
    EntryDeadline::After(_) => "deadline-after",
    EntryDeadline::At(_) => "deadline-at",
}
words! { order_word, ORDERS, SortBy:
    SortBy::Key => "by-key",
    SortBy::Created => "by-created",
    SortBy::Modified => "by-modified",
    SortBy::Version => "by-version",
    SortBy::Value => "by-value",
}
words! { shows_word, SHOWN, Shows:
    Shows::Entries => "shows-entries",
    Shows::Keys => "shows-keys",
    Shows::Count => "shows-count",
}

/// The options of structures: what is set in them.
const OPTIONS: &[&str] = &[
    "compare-range",
    "claim",
    "claim-label",
    "expire-never",
    "range-from",
    "range-to",
    "range-empty",
    "bounds-min",
    "bounds-max",
    "descending",
    "limit",
    "label",
    "numbered",
    "attached",
    "falls-back",
    "otherwise",
    "most-operations",
    "longest-key",
    "longest-value",
];

impl Words {
    /// All words that there are.
    pub(crate) fn all() -> impl Iterator<Item = &'static str> {
        [OPERATIONS, OPERANDS, RELATIONS, LEASES, DEADLINES, ENDS, ORDERS, SHOWN, OPTIONS]
            .into_iter()
            .flatten()
            .copied()
    }

    pub(crate) fn say(&mut self, word: &'static str) {
        *self.0.entry(word).or_default() += 1;
    }

    fn say_if(&mut self, holds: bool, word: &'static str) {
        if holds {
            self.say(word);
        }
    }

    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().map(|(word, times)| (*word, *times))
    }

    /// Notes the words of a transaction.
    pub(crate) fn note_txn(&mut self, txn: &Txn) {
        txn.compares().iter().for_each(|compare| self.note_compare(compare));
        txn.operations().for_each(|operation| self.note_operation(operation));
        self.say_if(!txn.otherwise().is_empty(), "otherwise");
        self.say_if(txn.attached().is_some(), "attached");
        self.say_if(txn.falls_back(), "falls-back");
        let most = txn.then().len().max(txn.otherwise().len()).max(txn.compares().len());
        self.say_if(most == lockkeeper::machine::TXN_OPERATIONS_MAX, "most-operations");
    }

    fn note_compare(&mut self, compare: &Compare) {
        let Compare { key, up_to, relation, operand } = compare;
        self.note_key(key);
        self.say_if(up_to.is_some(), "compare-range");
        self.say(relation_word(relation));
        self.say(operand_word(operand));
    }

    fn note_operation(&mut self, operation: &TxnOperation) {
        self.say(operation_word(operation));
        match operation {
            TxnOperation::Get(key) | TxnOperation::Delete(key) => self.note_key(key),
            TxnOperation::Select(select) => self.note_select(select),
            TxnOperation::DeleteRange(range) => self.note_range(range),
            TxnOperation::Put(put) => self.note_put(put),
            TxnOperation::PutChild(PutChild { parent, put, is_numbered }) => {
                self.note_key(parent);
                self.note_put(put);
                self.say_if(*is_numbered, "numbered");
            }
            TxnOperation::Expire(Expire { key, deadline }) => {
                self.note_key(key);
                self.say_if(deadline.is_none(), "expire-never");
                deadline.iter().for_each(|deadline| self.say(deadline_word(deadline)));
            }
            TxnOperation::Open(new) => {
                // The address and the owner are the server's.
                let NewSession { session: _, ttl: _, label, address: _, owner: _ } = new;
                self.say_if(!label.as_str().is_empty(), "label");
            }
        }
    }

    fn note_put(&mut self, put: &Put) {
        let Put { key, value, lease, claims } = put;
        self.note_key(key);
        self.say_if(value.as_bytes().len() == lockkeeper::machine::VALUE_BYTES_MAX, "longest-value");
        self.say(lease_word(lease));
        if let Some(PutClaim { lock: _, label }) = claims {
            self.say("claim");
            self.say_if(!label.as_str().is_empty(), "claim-label");
        }
        lease.deadline().iter().for_each(|deadline| self.say(deadline_word(deadline)));
        if let PutLease::Given(lease) = lease {
            self.say(end_word(&lease.at_end));
        }
    }

    /// Notes the words of a selection.
    pub(crate) fn note_select(&mut self, select: &Select) {
        let Select { range, created, modified, by, is_descending, limit, shows } = select;
        self.note_range(range);
        for Bounds { min, max } in [created, modified] {
            self.say_if(min.is_some(), "bounds-min");
            self.say_if(max.is_some(), "bounds-max");
        }
        self.say(order_word(by));
        self.say(shows_word(shows));
        self.say_if(*is_descending, "descending");
        self.say_if(*limit > 0, "limit");
    }

    fn note_range(&mut self, range: &KeyRange) {
        let KeyRange { from, to } = range;
        self.say_if(from.is_some(), "range-from");
        self.say_if(to.is_some(), "range-to");
        self.say_if(range.is_empty(), "range-empty");
    }

    fn note_key(&mut self, key: &lockkeeper::machine::Key) {
        self.say_if(key.as_bytes().len() == lockkeeper::machine::KEY_BYTES_MAX, "longest-key");
    }
}
