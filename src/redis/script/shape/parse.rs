//! A parser of a small part of Lua: local variables, conditions, calls, comparisons, literals, and elements of KEYS and ARGV.
//!
//! `None` means that the script uses another part of Lua. That is not an error: the interpreter runs it.

/// Maximum number of bytes of a script that is looked at. Those with a shape are shorter.
const SOURCE_BYTES_MAX: usize = 2048;
/// Expressions within expressions, and blocks within blocks.
const DEPTH_MAX: usize = 16;

/// A sequence of statements.
pub(super) type Block = Vec<Statement>;

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Statement {
    /// A local variable with its value.
    Local(String, Expression),
    /// Conditions with their blocks, and the block for none of them.
    If(Vec<(Expression, Block)>, Block),
    /// The end of the script, with its result.
    Return(Option<Expression>),
    /// An expression that is a call.
    Call(Expression),
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expression {
    /// The literal nil.
    Nil,
    /// The literals true and false.
    Boolean(bool),
    Integer(i64),
    Text(Vec<u8>),
    /// A name, which may be a local variable.
    Variable(String),
    /// An element of KEYS, by its place from 0 on.
    Key(usize),
    /// An element of ARGV, by its place from 0 on.
    Argument(usize),
    /// `redis.call`, with the name of the command in lower case.
    Call(String, Vec<Expression>),
    /// A negation.
    Not(Box<Expression>),
    /// Two operands with their operator.
    Binary(BinaryOperator, Box<Expression>, Box<Expression>),
}

/// An operator of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BinaryOperator {
    /// The sign `==`.
    Equal,
    /// The sign ` =`.
    NotEqual,
    /// The word `and`, which answers with one of its operands.
    And,
    /// The word `or`, which answers with one of its operands.
    Or,
}

/// A word of the language.
#[derive(Clone, Debug, PartialEq)]
enum LuaWord {
    /// A name or a keyword.
    Word(String),
    Integer(i64),
    Text(Vec<u8>),
    /// Anything else.
    Sign(&'static str),
}

/// Words that are no names.
const KEYWORDS: [&str; 12] =
    ["and", "else", "elseif", "end", "false", "if", "local", "nil", "not", "or", "return", "then"];
/// The signs that are told apart, longer ones first.
const SIGNS: [&str; 12] = ["==", "~=", "(", ")", "[", "]", ",", ".", ";", "=", "-", "{"];

/// Parses a whole script.
pub(super) fn program(source: &[u8]) -> Option<Block> {
    if source.len() > SOURCE_BYTES_MAX {
        return None;
    }
    let mut tokens = LuaWords { all: tokens(source)?, next: 0, depth: 0 };
    let block = tokens.block()?;
    (tokens.next == tokens.all.len()).then_some(block)
}

/// Splits a script into words. Comments are left out.
fn tokens(source: &[u8]) -> Option<Vec<LuaWord>> {
    let mut found = Vec::new();
    let mut rest = source;

    while let [first, ..] = rest {
        if first.is_ascii_whitespace() {
            rest = &rest[1..];
        } else if rest.starts_with(b"--[[") {
            let end = rest.windows(2).position(|two| two == b"]]")?;
            rest = &rest[end + 2..];
        } else if rest.starts_with(b"--[") {
            // A long comment of another level, or a comment that begins with a bracket: rare, so it is not told apart.
            return None;
        } else if rest.starts_with(b"--") {
            let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
            rest = &rest[end..];
        } else if first.is_ascii_alphabetic() || *first == b'_' {
            let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
            let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
            found.push(LuaWord::Word(String::from_utf8(word.to_vec()).ok()?));
            rest = after;
        } else if first.is_ascii_digit() {
            let end = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
            let (digits, after) = rest.split_at(end);
            // Other forms of numbers, such as 0x10, 1.5 and 1e3, are not told apart.
            let is_whole = after.first().is_none_or(|byte| !byte.is_ascii_alphanumeric() && *byte != b'.');
            let number = std::str::from_utf8(digits).ok()?.parse().ok().filter(|_| is_whole && digits.len() < 16)?;
            found.push(LuaWord::Integer(number));
            rest = after;
        } else if *first == b'"' || *first == b'\'' {
            let end = rest[1..].iter().position(|byte| byte == first)? + 1;
            let text = &rest[1..end];
            if text.contains(&b'\\') || text.contains(&b'\n') {
                return None;
            }
            found.push(LuaWord::Text(text.to_vec()));
            rest = &rest[end + 1..];
        } else {
            let sign = SIGNS.iter().find(|sign| rest.starts_with(sign.as_bytes()))?;
            found.push(LuaWord::Sign(sign));
            rest = &rest[sign.len()..];
        }
    }
    Some(found)
}

/// The words of a script, and the place of the next one.
struct LuaWords {
    /// The words.
    all: Vec<LuaWord>,
    /// The place of the next one.
    next: usize,
    /// How deep the parser is in blocks and expressions.
    depth: usize,
}

impl LuaWords {
    /// The next word, which stays.
    fn peek(&self) -> Option<&LuaWord> {
        self.all.get(self.next)
    }

    /// The next word, which is passed over.
    fn take(&mut self) -> Option<LuaWord> {
        let token = self.all.get(self.next).cloned()?;
        self.next += 1;
        Some(token)
    }

    /// Whether the next word is this one.
    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(LuaWord::Word(next)) if next == word)
    }

    /// Passes over a word if it is the next one.
    fn skip_word(&mut self, word: &str) -> bool {
        let is_it = self.is_word(word);
        self.next += usize::from(is_it);
        is_it
    }

    /// Passes over a sign if it is the next one.
    fn skip_sign(&mut self, sign: &str) -> bool {
        let is_it = matches!(self.peek(), Some(LuaWord::Sign(next)) if *next == sign);
        self.next += usize::from(is_it);
        is_it
    }

    /// Passes over a sign that must be there.
    fn expect_sign(&mut self, sign: &str) -> Option<()> {
        self.skip_sign(sign).then_some(())
    }

    /// Passes over a word that must be there.
    fn expect_word(&mut self, word: &str) -> Option<()> {
        self.skip_word(word).then_some(())
    }

    /// Runs a part of the parser one level deeper.
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth >= DEPTH_MAX {
            return None;
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Statements up to the end of their block. A return is the last one.
    fn block(&mut self) -> Option<Block> {
        let mut statements = Vec::new();

        loop {
            if self.skip_sign(";") {
                continue;
            }
            let is_end = ["else", "elseif", "end"].iter().any(|word| self.is_word(word));
            if self.peek().is_none() || is_end {
                return Some(statements);
            }
            let statement = self.deeper(Self::statement)?;
            let is_return = matches!(statement, Statement::Return(_));
            statements.push(statement);
            if is_return {
                self.skip_sign(";");
                return Some(statements);
            }
        }
    }

    /// One statement: a local variable, a return, a condition, or a call.
    fn statement(&mut self) -> Option<Statement> {
        if self.skip_word("local") {
            let name = self.name()?;
            self.expect_sign("=")?;
            return Some(Statement::Local(name, self.expression()?));
        }

        if self.skip_word("return") {
            let ends = ["else", "elseif", "end"].iter().any(|word| self.is_word(word));
            if self.peek().is_none() || ends {
                return Some(Statement::Return(None));
            }
            return Some(Statement::Return(Some(self.expression()?)));
        }
        if self.skip_word("if") {
            return self.condition();
        }
        let call = self.primary()?;
        matches!(call, Expression::Call(..)).then_some(Statement::Call(call))
    }

    /// The rest of a condition, after its `if`.
    fn condition(&mut self) -> Option<Statement> {
        let mut branches = Vec::new();
        loop {
            let condition = self.expression()?;
            self.expect_word("then")?;
            branches.push((condition, self.block()?));
            if !self.skip_word("elseif") {
                break;
            }
        }
        let otherwise = if self.skip_word("else") { self.block()? } else { Block::new() };
        self.expect_word("end")?;
        Some(Statement::If(branches, otherwise))
    }

    /// The name of a new local variable. One that hides a global of Redis is not followed.
    fn name(&mut self) -> Option<String> {
        let LuaWord::Word(name) = self.take()? else { return None };
        let is_global = ["KEYS", "ARGV", "redis"].contains(&name.as_str());
        (!KEYWORDS.contains(&name.as_str()) && !is_global).then_some(name)
    }

    /// An expression. Operators bind as in Lua: `or`, `and`, comparisons, `not`.
    fn expression(&mut self) -> Option<Expression> {
        self.deeper(|tokens| tokens.chain("or", BinaryOperator::Or, Self::conjunction))
    }

    /// Operands of `and`.
    fn conjunction(&mut self) -> Option<Expression> {
        self.chain("and", BinaryOperator::And, Self::comparison)
    }

    /// Operands with the same word between them, from left to right.
    fn chain(
        &mut self,
        word: &str,
        operator: BinaryOperator,
        operand: fn(&mut Self) -> Option<Expression>,
    ) -> Option<Expression> {
        let mut left = operand(self)?;
        while self.skip_word(word) {
            left = Expression::Binary(operator, Box::new(left), Box::new(operand(self)?));
        }
        Some(left)
    }

    /// Operands of comparisons.
    fn comparison(&mut self) -> Option<Expression> {
        let mut left = self.negation()?;
        loop {
            let operator = if self.skip_sign("==") {
                BinaryOperator::Equal
            } else if self.skip_sign("~=") {
                BinaryOperator::NotEqual
            } else {
                return Some(left);
            };
            left = Expression::Binary(operator, Box::new(left), Box::new(self.negation()?));
        }
    }

    /// An operand with any number of `not` before it.
    fn negation(&mut self) -> Option<Expression> {
        if self.skip_word("not") {
            return Some(Expression::Not(Box::new(self.deeper(Self::negation)?)));
        }
        self.primary()
    }

    /// A literal, a variable, an element, a call, or an expression in parentheses.
    fn primary(&mut self) -> Option<Expression> {
        match self.take()? {
            LuaWord::Integer(number) => Some(Expression::Integer(number)),
            LuaWord::Text(text) => Some(Expression::Text(text)),
            LuaWord::Sign("-") => {
                let LuaWord::Integer(number) = self.take()? else { return None };
                Some(Expression::Integer(-number))
            }
            LuaWord::Sign("(") => {
                let inner = self.expression()?;
                self.expect_sign(")")?;
                Some(inner)
            }

            LuaWord::Sign(_) => None,
            LuaWord::Word(word) => match word.as_str() {
                "nil" => Some(Expression::Nil),
                "true" => Some(Expression::Boolean(true)),
                "false" => Some(Expression::Boolean(false)),
                "KEYS" => self.element().map(Expression::Key),
                "ARGV" => self.element().map(Expression::Argument),
                "redis" => self.call(),
                keyword if KEYWORDS.contains(&keyword) => None,
                _ => Some(Expression::Variable(word)),
            },
        }
    }

    /// The place in brackets, from 0 on.
    fn element(&mut self) -> Option<usize> {
        self.expect_sign("[")?;
        let LuaWord::Integer(number) = self.take()? else { return None };
        self.expect_sign("]")?;
        usize::try_from(number).ok()?.checked_sub(1)
    }

    /// The rest of a call, after its `redis`. The name of the command is a literal.
    fn call(&mut self) -> Option<Expression> {
        self.expect_sign(".")?;
        self.expect_word("call")?;
        self.expect_sign("(")?;

        let LuaWord::Text(command) = self.take()? else { return None };
        let command = String::from_utf8(command).ok()?.to_ascii_lowercase();
        let mut arguments = Vec::new();
        while self.skip_sign(",") {
            arguments.push(self.expression()?);
        }
        self.expect_sign(")")?;
        Some(Expression::Call(command, arguments))
    }
}
