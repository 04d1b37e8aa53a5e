//! What a parsed script does in each case that there is.

use std::collections::BTreeMap;

use super::{
    ScriptShape, ThenDo, ValueComparison,
    parse::{BinaryOperator, Block, Expression, Statement},
};
use crate::RedisReply;

/// What the key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// The value of the argument that it is compared with.
    Same,
    /// Another value.
    Other,
    /// There is no key.
    Absent,
}

/// A value, as far as it is known.
#[derive(Clone, Debug, PartialEq)]
enum KnownValue {
    /// The absence of a value.
    Nil,
    /// A truth value, as which an absent key is read.
    Boolean(bool),
    /// A number.
    Integer(i64),
    /// A string that the script has in it.
    Text(Vec<u8>),
    /// The name of a key, by its place.
    Key(usize),
    /// An argument, by its place.
    Argument(usize),
    /// The value of a key that was read and is there.
    Stored(usize),
}

/// One evaluation.
#[derive(Default)]
struct Evaluation {
    /// Local variables.
    variables: BTreeMap<String, KnownValue>,
    /// The key that was read.
    read: Option<usize>,
    /// The argument that its value was compared with.
    compared: Option<usize>,
    /// The key that was written, and how.
    done: Option<(usize, ThenDo)>,
}

/// What a block came to.
enum Flow {
    /// The next statement follows.
    Goes,
    /// The script is over.
    Returned(KnownValue),
}

/// Finds the shape of a script. `None` means that it has none, or that this is not known.
pub(super) fn shape(program: &Block) -> Option<ScriptShape> {
    let (same, done) = evaluate(program, Case::Same)?;
    let (other, differs) = evaluate(program, Case::Other)?;
    let (none, absent) = evaluate(program, Case::Absent)?;

    let (written, then_do) = same.done?;
    let key = same.read?;
    let value = same.compared?;
    let is_idle = |case: &Evaluation| case.done.is_none() && case.compared.is_none_or(|compared| compared == value);
    let is_shape = written == key && is_idle(&other) && is_idle(&none);
    is_shape.then_some(ScriptShape { comparison: ValueComparison { key, value }, then_do, done, differs, absent })
}

/// Evaluates a script in one case, and returns what it did and its reply.
fn evaluate(program: &Block, case: Case) -> Option<(Evaluation, RedisReply)> {
    let mut evaluation = Evaluation::default();
    let returned = match evaluation.block(program, case)? {
        Flow::Goes => KnownValue::Nil,
        Flow::Returned(value) => value,
    };

    let reply = match returned {
        KnownValue::Nil | KnownValue::Boolean(false) => RedisReply::Nil,
        KnownValue::Boolean(true) => RedisReply::Integer(1),
        KnownValue::Integer(number) => RedisReply::Integer(number),
        KnownValue::Text(text) => RedisReply::Bulk(text),
        KnownValue::Key(_) | KnownValue::Argument(_) | KnownValue::Stored(_) => return None,
    };
    Some((evaluation, reply))
}

impl Evaluation {
    /// Evaluates statements up to the first return.
    fn block(&mut self, block: &Block, case: Case) -> Option<Flow> {
        let outer = self.variables.clone();
        for statement in block {
            if let Flow::Returned(value) = self.statement(statement, case)? {
                return Some(Flow::Returned(value));
            }
        }
        // The variables of a block end with it. None of them can be assigned again.
        self.variables = outer;
        Some(Flow::Goes)
    }

    /// Evaluates one statement.
    fn statement(&mut self, statement: &Statement, case: Case) -> Option<Flow> {
        match statement {
            Statement::Local(name, expression) => {
                let value = self.value(expression, case)?;
                self.variables.insert(name.clone(), value);
                Some(Flow::Goes)
            }

            Statement::Call(expression) => self.value(expression, case).map(|_| Flow::Goes),
            Statement::Return(None) => Some(Flow::Returned(KnownValue::Nil)),
            Statement::Return(Some(expression)) => Some(Flow::Returned(self.value(expression, case)?)),
            Statement::If(branches, otherwise) => {
                for (condition, block) in branches {
                    if is_true(&self.value(condition, case)?) {
                        return self.block(block, case);
                    }
                }
                self.block(otherwise, case)
            }
        }
    }

    /// Evaluates an expression. `None` means that its value is not known in this case.
    fn value(&mut self, expression: &Expression, case: Case) -> Option<KnownValue> {
        match expression {
            Expression::Nil => Some(KnownValue::Nil),
            Expression::Boolean(is_so) => Some(KnownValue::Boolean(*is_so)),
            Expression::Integer(number) => Some(KnownValue::Integer(*number)),
            Expression::Text(text) => Some(KnownValue::Text(text.clone())),
            Expression::Key(place) => Some(KnownValue::Key(*place)),
            Expression::Argument(place) => Some(KnownValue::Argument(*place)),
            // Anything else is a global, which the interpreter knows.
            Expression::Variable(name) => self.variables.get(name).cloned(),
            Expression::Not(inner) => {
                let inner = self.value(inner, case)?;
                Some(KnownValue::Boolean(!is_true(&inner)))
            }

            Expression::Binary(operator, left, right) => self.binary(*operator, left, right, case),
            Expression::Call(command, arguments) => self.call(command, arguments, case),
        }
    }

    /// Evaluates an operator. The right side of `and` and `or` is only evaluated if Lua would.
    fn binary(
        &mut self,
        operator: BinaryOperator,
        left: &Expression,
        right: &Expression,
        case: Case,
    ) -> Option<KnownValue> {
        let left = self.value(left, case)?;

        match operator {
            BinaryOperator::And if !is_true(&left) => Some(left),
            BinaryOperator::Or if is_true(&left) => Some(left),
            BinaryOperator::And | BinaryOperator::Or => self.value(right, case),
            BinaryOperator::Equal | BinaryOperator::NotEqual => {
                let right = self.value(right, case)?;
                let is_equal = self.is_equal(&left, &right, case)?;
                Some(KnownValue::Boolean(is_equal == (operator == BinaryOperator::Equal)))
            }
        }
    }

    /// Whether two values are equal, if that is known. A stored value is only known to be the argument that it is compared with, or not.
    fn is_equal(&mut self, left: &KnownValue, right: &KnownValue, case: Case) -> Option<bool> {
        match (left, right) {
            (KnownValue::Stored(_), KnownValue::Argument(argument))
            | (KnownValue::Argument(argument), KnownValue::Stored(_)) => {
                let is_first = self.compared.is_none_or(|compared| compared == *argument);
                self.compared = Some(*argument);
                is_first.then_some(case == Case::Same)
            }

            // Strings are never equal to values of other types.
            (
                KnownValue::Stored(_) | KnownValue::Argument(_) | KnownValue::Key(_),
                KnownValue::Nil | KnownValue::Boolean(_) | KnownValue::Integer(_),
            )
            | (
                KnownValue::Nil | KnownValue::Boolean(_) | KnownValue::Integer(_),
                KnownValue::Stored(_) | KnownValue::Argument(_) | KnownValue::Key(_),
            ) => Some(false),
            (
                KnownValue::Nil | KnownValue::Boolean(_) | KnownValue::Integer(_) | KnownValue::Text(_),
                KnownValue::Nil | KnownValue::Boolean(_) | KnownValue::Integer(_) | KnownValue::Text(_),
            ) => Some(left == right),
            _ => None,
        }
    }

    /// Evaluates a call: one read of one key before any write, or the one write.
    fn call(&mut self, command: &str, arguments: &[Expression], case: Case) -> Option<KnownValue> {
        let arguments = arguments.iter().map(|argument| self.value(argument, case)).collect::<Option<Vec<_>>>()?;

        match (command, &arguments[..]) {
            ("get", [KnownValue::Key(key)]) if self.done.is_none() && self.read.is_none_or(|read| read == *key) => {
                self.read = Some(*key);
                Some(if case == Case::Absent { KnownValue::Boolean(false) } else { KnownValue::Stored(*key) })
            }
            ("del" | "unlink", [KnownValue::Key(key)]) => self.write(*key, ThenDo::Delete),
            ("pexpire", [KnownValue::Key(key), KnownValue::Argument(argument)]) => {
                self.write(*key, ThenDo::Expire { unit_ms: 1, argument: *argument })
            }
            ("expire", [KnownValue::Key(key), KnownValue::Argument(argument)]) => {
                self.write(*key, ThenDo::Expire { unit_ms: 1000, argument: *argument })
            }
            _ => None,
        }
    }

    /// Notes the one write that a script with a shape makes. The key is there, so the answer is 1.
    fn write(&mut self, key: usize, then_do: ThenDo) -> Option<KnownValue> {
        if self.done.is_some() {
            return None;
        }
        self.done = Some((key, then_do));
        Some(KnownValue::Integer(1))
    }
}

/// Whether a condition with this value holds: only nil and false do not.
fn is_true(value: &KnownValue) -> bool {
    !matches!(value, KnownValue::Nil | KnownValue::Boolean(false))
}
