//! A compare of etcd's, as one of the store's.

use lockkeeper_machine::{Entry, Operand, Relation, Revision, Value};

use crate::{
    error::Error,
    key,
    proto::etcdserverpb::{
        Compare,
        compare::{CompareResult, CompareTarget, TargetUnion},
    },
};

/// What a compare demands of an entry. etcd's numbers are signed, and those of the store are not.
pub(super) enum CompareCondition {
    /// It holds or fails for every entry.
    Constant(bool),
    Operand(Relation, Operand),
}

impl TryFrom<&Compare> for CompareCondition {
    type Error = Error;

    fn try_from(compare: &Compare) -> Result<Self, Error> {
        let relation = match compare.result() {
            CompareResult::Equal => Relation::Equal,
            CompareResult::NotEqual => Relation::NotEqual,
            CompareResult::Less => Relation::Less,
            CompareResult::Greater => Relation::Greater,
        };
        let union = compare.target_union.as_ref();

        // etcd takes the operand of another target than the one named for zero.
        let number = match (compare.target(), union) {
            (CompareTarget::Version, Some(TargetUnion::Version(number)))
            | (CompareTarget::Create, Some(TargetUnion::CreateRevision(number)))
            | (CompareTarget::Mod, Some(TargetUnion::ModRevision(number)))
            | (CompareTarget::Lease, Some(TargetUnion::Lease(number))) => *number,
            _ => 0,
        };

        let operand = match (compare.target(), u64::try_from(number)) {
            (CompareTarget::Value, _) => {
                let value = if let Some(TargetUnion::Value(value)) = union { value.as_slice() } else { &[] };
                Operand::Value(Value::new(value).map_err(|_| Error::TooLarge)?)
            }
            (CompareTarget::Lease, _) => Operand::Lease((number != 0).then(|| key::session(number))),
            // No number of the store is below zero.
            (_, Err(_)) => return Ok(Self::Constant(matches!(relation, Relation::NotEqual | Relation::Greater))),
            (CompareTarget::Version, Ok(number)) => Operand::Version(number),
            (CompareTarget::Create, Ok(number)) => Operand::Created(Revision(number)),
            (CompareTarget::Mod, Ok(number)) => Operand::Modified(Revision(number)),
        };
        Ok(Self::Operand(relation, operand))
    }
}

impl CompareCondition {
    /// Makes a compare of the store, or `None` if it always holds.
    pub(super) fn into_store(self, compare: &Compare) -> Result<Option<lockkeeper_machine::Compare>, Error> {
        let (relation, operand) = match self {
            Self::Constant(true) => return Ok(None),
            // This comparison never holds, because no version is below zero.
            Self::Constant(false) => (Relation::Less, Operand::Version(0)),
            Self::Operand(relation, operand) => (relation, operand),
        };

        let up_to = if compare.range_end.is_empty() { None } else { key::range(&compare.key, &compare.range_end)?.to };
        Ok(Some(lockkeeper_machine::Compare { key: key::from_wire(&compare.key)?, up_to, relation, operand }))
    }

    /// Whether an entry meets the condition, as the store decides it.
    pub(super) fn holds(&self, entry: Option<&Entry>) -> bool {
        match self {
            Self::Constant(holds) => *holds,
            Self::Operand(relation, operand) => operand.holds(*relation, entry),
        }
    }
}
