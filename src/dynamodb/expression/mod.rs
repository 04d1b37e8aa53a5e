//! Expressions for conditions, filters, projections, updates and keys.
//!
//! Text becomes [`tokens`], tokens become a tree ([`parse`]), and a tree is applied to an item ([`evaluate`], [`update`]). The legacy
//! parameters of 2012 become the same trees ([`legacy`](crate::legacy)). The grammar needs one token of lookahead, so the parser has a
//! function for each of its rules. An error names the token that fits no rule, and its neighbours, as DynamoDB does.
//!
//! The limits are [`TEXT_BYTES_MAX`], [`DEPTH_MAX`], [`OPERATORS_MAX`], [`IN_OPERANDS_MAX`], the steps of a path, and the bytes that
//! placeholders stand for ([`names`]). Reading an expression takes time linear in its text and in what it stands for. Applying it is
//! charged to the request's [`WorkBudget`](crate::work::WorkBudget).

pub(crate) mod evaluate;
pub(crate) mod keys;
pub(crate) mod names;
mod parse;
mod reserved;
mod search;
mod tokens;
pub(crate) mod update;

use std::fmt::{self, Display, Formatter};

use crate::AttributeValue;

pub(crate) use parse::{parse_condition, parse_projection, parse_update, too_many_in_operands};

/// Maximum number of bytes of an expression.
pub(crate) const TEXT_BYTES_MAX: usize = 4096;
/// Maximum depth of nested parentheses and functions.
pub(crate) const DEPTH_MAX: usize = 64;
/// Maximum number of operators and functions in an expression.
pub(crate) const OPERATORS_MAX: usize = 300;
/// Maximum number of values of one `IN`.
pub(crate) const IN_OPERANDS_MAX: usize = 100;

/// A place in an item, like `a.b[2]`. Its first step is a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path(pub(crate) Vec<PathStep>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PathStep {
    Name(String),
    Index(usize),
}

/// An operand of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConditionOperand {
    Path(Path),
    Value(AttributeValue),
    Size(Box<ConditionOperand>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A condition, or a filter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Condition {
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
    Compare(Comparison, ConditionOperand, ConditionOperand),
    Between(ConditionOperand, ConditionOperand, ConditionOperand),
    In(ConditionOperand, Vec<ConditionOperand>),
    Exists(Path),
    NotExists(Path),
    HasType(ConditionOperand, String),
    BeginsWith(ConditionOperand, ConditionOperand),
    Contains(ConditionOperand, ConditionOperand),
}

/// The action of an update on one path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    Set(Path, ValueSource),
    Remove(Path),
    Add(Path, AttributeValue),
    Delete(Path, AttributeValue),
}

impl Action {
    /// Whether the new value depends on the old one.
    pub(crate) fn is_relative(&self) -> bool {
        match self {
            Self::Set(_, source) => source.reads_item(),
            Self::Add(..) => true,
            Self::Remove(path) => matches!(path.0.last(), Some(PathStep::Index(_))),
            Self::Delete(..) => false,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Set(path, _) | Self::Remove(path) | Self::Add(path, _) | Self::Delete(path, _) => path,
        }
    }
}

/// The source of a new value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ValueSource {
    Path(Path),
    Value(AttributeValue),
    IfNotExists(Path, Box<ValueSource>),
    ListAppend(Box<ValueSource>, Box<ValueSource>),
    Plus(Box<ValueSource>, Box<ValueSource>),
    Minus(Box<ValueSource>, Box<ValueSource>),
}

impl ValueSource {
    fn reads_item(&self) -> bool {
        match self {
            Self::Value(_) => false,
            Self::Path(_) | Self::IfNotExists(..) | Self::ListAppend(..) => true,
            Self::Plus(left, right) | Self::Minus(left, right) => left.reads_item() || right.reads_item(),
        }
    }
}

impl Path {
    pub(crate) fn attribute(name: &str) -> Self {
        Self(vec![PathStep::Name(name.to_owned())])
    }

    /// The attribute that the path starts at.
    pub(crate) fn head(&self) -> &str {
        match self.0.first() {
            Some(PathStep::Name(name)) => name,
            Some(PathStep::Index(_)) | None => "",
        }
    }

    pub(crate) fn is_nested(&self) -> bool {
        self.0.len() > 1
    }
}

impl Display for Path {
    /// Writes the path as messages have it, like `[a, b, [2]]`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let steps: Vec<_> = self.0.iter().map(PathStep::to_string).collect();
        write!(f, "[{}]", steps.join(", "))
    }
}

impl Display for PathStep {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl Comparison {
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "<>",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        }
    }

    /// Returns the comparison with its operands swapped.
    pub(crate) fn mirrored(self) -> Self {
        match self {
            Self::Equal | Self::NotEqual => self,
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
        }
    }
}

/// Returns all paths that a condition reads.
pub(crate) fn paths(condition: &Condition) -> Vec<&Path> {
    fn collect_operand<'a>(operand: &'a ConditionOperand, found: &mut Vec<&'a Path>) {
        match operand {
            ConditionOperand::Path(path) => found.push(path),
            ConditionOperand::Size(inner) => collect_operand(inner, found),
            ConditionOperand::Value(_) => {}
        }
    }

    fn collect<'a>(condition: &'a Condition, found: &mut Vec<&'a Path>) {
        match condition {
            Condition::All(parts) | Condition::Any(parts) => parts.iter().for_each(|part| collect(part, found)),
            Condition::Not(inner) => collect(inner, found),
            Condition::Exists(path) | Condition::NotExists(path) => found.push(path),
            Condition::HasType(operand, _) => collect_operand(operand, found),
            Condition::Compare(_, a, b) | Condition::BeginsWith(a, b) | Condition::Contains(a, b) => {
                collect_operand(a, found);
                collect_operand(b, found);
            }
            Condition::Between(a, b, c) => [a, b, c].into_iter().for_each(|operand| collect_operand(operand, found)),
            Condition::In(a, list) => {
                collect_operand(a, found);
                list.iter().for_each(|operand| collect_operand(operand, found));
            }
        }
    }

    let mut found = Vec::new();
    collect(condition, &mut found);
    found
}
