//! Parses expressions: from text to trees.

use std::collections::BTreeMap;

use super::{
    Action, Comparison, Condition, ConditionOperand, DEPTH_MAX, IN_OPERANDS_MAX, OPERATORS_MAX, Path, PathStep,
    TEXT_BYTES_MAX, ValueSource,
    names::Placeholders,
    reserved::is_reserved,
    tokens::{Lexeme, TokenKind, tokens},
};
use crate::{AttributeValue, value};

/// The problem of an expression, in DynamoDB's words. The name of the parameter goes before it.
type ParseResult<T> = std::result::Result<T, String>;

/// Reads a condition, a filter, or a key condition.
pub(crate) fn parse_condition(text: &str, placeholders: &Placeholders<'_>) -> ParseResult<Condition> {
    let mut parser = Parser::new(text, placeholders)?;
    let parsed = parser.any()?;
    let condition = parser.condition(parsed)?;
    parser.end()?;
    Ok(condition)
}

/// Reads a projection, which is a list of paths. No path lies inside another.
pub(crate) fn parse_projection(text: &str, placeholders: &Placeholders<'_>) -> ParseResult<Vec<Path>> {
    let mut parser = Parser::new(text, placeholders)?;
    let mut paths = vec![parser.path()?];
    while parser.accept(",") {
        paths.push(parser.path()?);
    }
    parser.end()?;
    apart(&paths.iter().collect::<Vec<_>>())?;
    Ok(paths)
}

/// Reads an update, which is a list of actions on paths. No path lies inside another.
pub(crate) fn parse_update(text: &str, placeholders: &Placeholders<'_>) -> ParseResult<Vec<Action>> {
    let mut parser = Parser::new(text, placeholders)?;
    let mut actions = Vec::new();
    let mut sections = Vec::new();

    loop {
        let section = ["SET", "REMOVE", "ADD", "DELETE"].into_iter().find(|section| parser.peek().is_word(section));
        let Some(section) = section else { return Err(parser.unexpected()) };
        if sections.contains(&section) {
            return Err(format!("The \"{section}\" section can only be used once in an update expression;"));
        }

        sections.push(section);
        parser.next();
        loop {
            actions.push(parser.action(section)?);
            if !parser.accept(",") {
                break;
            }
        }

        if parser.peek().kind == TokenKind::End {
            break;
        }
    }

    apart(&actions.iter().map(Action::path).collect::<Vec<_>>())?;
    Ok(actions)
}

/// A place at which some paths go on.
#[derive(Default)]
struct Fork<'a> {
    /// The index of the first path that comes through here.
    first: usize,
    /// Whether a path ends here.
    is_end: bool,
    inner: BTreeMap<&'a PathStep, Fork<'a>>,
}

/// Checks that no path equals another or lies inside it, and that no two paths use the same place as a list and as a map.
fn apart(paths: &[&Path]) -> ParseResult<()> {
    let mut root = Fork::default();
    for (index, path) in paths.iter().enumerate() {
        if let Some((first, problem)) = root.add(index, path) {
            return Err(format!(
                "Two document paths {problem} with each other; must remove or rewrite one of these paths; path one: \
                 {}, path two: {path}",
                paths[first]
            ));
        }
    }
    Ok(())
}

impl<'a> Fork<'a> {
    /// Adds a path. Returns the path that is in its way, if any, and how.
    fn add(&mut self, index: usize, path: &'a Path) -> Option<(usize, &'static str)> {
        let mut place = self;
        for step in &path.0 {
            if place.is_end {
                return Some((place.first, "overlap"));
            }

            if let Some((other, _)) = place.inner.first_key_value()
                && matches!(other, PathStep::Name(_)) != matches!(step, PathStep::Name(_))
            {
                return Some((place.first, "conflict"));
            }
            place = place.inner.entry(step).or_insert_with(|| Fork { first: index, ..Fork::default() });
        }

        if place.is_end || !place.inner.is_empty() {
            return Some((place.first, "overlap"));
        }

        place.is_end = true;
        None
    }
}

/// The result of a rule of conditions. Its place shows later which of both is needed.
enum Parsed {
    Condition(Condition),
    Operand(ConditionOperand),
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Lexeme<'a>>,
    at: usize,
    depth: usize,
    operators: usize,
    placeholders: &'a Placeholders<'a>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, placeholders: &'a Placeholders<'a>) -> ParseResult<Self> {
        if text.is_empty() {
            return Err("The expression can not be empty;".to_owned());
        }
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!(
                "Expression size has exceeded the maximum allowed size; expression size: {}",
                text.len()
            ));
        }
        Ok(Self { text, tokens: tokens(text), at: 0, depth: 0, operators: 0, placeholders })
    }

    fn peek(&self) -> Lexeme<'a> {
        self.tokens[self.at]
    }

    /// Takes a token. The end is never taken.
    fn next(&mut self) -> Lexeme<'a> {
        let token = self.tokens[self.at];
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        token
    }

    fn accept(&mut self, symbol: &str) -> bool {
        let is_there = self.peek().is(symbol);
        if is_there {
            self.next();
        }
        is_there
    }

    fn accept_word(&mut self, word: &str) -> bool {
        let is_there = self.peek().is_word(word);
        if is_there {
            self.next();
        }
        is_there
    }

    fn expect(&mut self, symbol: &str) -> ParseResult<()> {
        if self.accept(symbol) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn end(&self) -> ParseResult<()> {
        if self.peek().kind == TokenKind::End { Ok(()) } else { Err(self.unexpected()) }
    }

    /// The error about the token that fits no rule, with its neighbours.
    fn unexpected(&self) -> String {
        let token = self.peek();
        let from = self.tokens[self.at.saturating_sub(1)].start;
        let to = self.tokens[(self.at + 1).min(self.tokens.len() - 1)].end();
        format!("Syntax error; token: \"{}\", near: \"{}\"", token.text, &self.text[from..to])
    }

    fn operator(&mut self) -> ParseResult<()> {
        self.operators += 1;
        if self.operators <= OPERATORS_MAX {
            return Ok(());
        }
        Err(format!(
            "The expression contains too many operators; operator count: {}, maximum: {OPERATORS_MAX}",
            self.operators
        ))
    }

    /// Reads something inside of parentheses, or of an operator that can repeat.
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> ParseResult<T>) -> ParseResult<T> {
        if self.depth == DEPTH_MAX {
            return Err(format!("The expression is nested too deeply; maximum depth: {DEPTH_MAX}"));
        }
        self.depth += 1;
        let read = read(self)?;
        self.depth -= 1;
        Ok(read)
    }

    // Conditions.

    fn any(&mut self) -> ParseResult<Parsed> {
        self.chain("OR", Self::all, Condition::Any)
    }

    fn all(&mut self) -> ParseResult<Parsed> {
        self.chain("AND", Self::not, Condition::All)
    }

    fn chain(
        &mut self,
        word: &str,
        part: fn(&mut Self) -> ParseResult<Parsed>,
        whole: fn(Vec<Condition>) -> Condition,
    ) -> ParseResult<Parsed> {
        let first = part(self)?;
        if !self.peek().is_word(word) {
            return Ok(first);
        }

        let mut parts = vec![self.condition(first)?];
        while self.accept_word(word) {
            self.operator()?;
            let next = part(self)?;
            parts.push(self.condition(next)?);
        }
        Ok(Parsed::Condition(whole(parts)))
    }

    fn not(&mut self) -> ParseResult<Parsed> {
        if !self.accept_word("NOT") {
            return self.comparison();
        }
        self.operator()?;
        let inner = self.deeper(Self::not)?;
        Ok(Parsed::Condition(Condition::Not(Box::new(self.condition(inner)?))))
    }

    /// Reads an operand, with or without what it is compared to, or a condition.
    fn comparison(&mut self) -> ParseResult<Parsed> {
        let left = match self.group()? {
            Parsed::Operand(operand) => operand,
            condition @ Parsed::Condition(_) => {
                return if self.comparator().is_some() || self.peek().is_word("IN") || self.peek().is_word("BETWEEN") {
                    Err(self.unexpected())
                } else {
                    Ok(condition)
                };
            }
        };

        let condition = if let Some(comparison) = self.comparator() {
            self.next();
            self.operator()?;
            let right = self.operand()?;
            self.distinct(comparison.symbol(), &left, &right)?;
            let ordered = !matches!(comparison, Comparison::Equal | Comparison::NotEqual);
            for operand in [&left, &right] {
                if let ConditionOperand::Value(value) = operand
                    && ordered
                    && !matches!(value, AttributeValue::S(_) | AttributeValue::N(_) | AttributeValue::B(_))
                {
                    return Err(wrong_type(comparison.symbol(), value));
                }
            }
            Condition::Compare(comparison, left, right)
        } else if self.accept_word("BETWEEN") {
            self.operator()?;
            let low = self.operand()?;
            if !self.accept_word("AND") {
                return Err(self.unexpected());
            }
            let high = self.operand()?;
            between(&low, &high)?;
            Condition::Between(left, low, high)
        } else if self.accept_word("IN") {
            self.operator()?;
            self.expect("(")?;
            let list = self.deeper(|parser| parser.list(Self::operand))?;
            if list.len() > IN_OPERANDS_MAX {
                return Err(too_many_in_operands(list.len()));
            }
            Condition::In(left, list)
        } else {
            return Ok(Parsed::Operand(left));
        };

        Ok(Parsed::Condition(condition))
    }

    fn comparator(&self) -> Option<Comparison> {
        let token = self.peek();
        Some(match token.text {
            _ if token.kind != TokenKind::Symbol => return None,
            "=" => Comparison::Equal,
            "<>" => Comparison::NotEqual,
            "<" => Comparison::Less,
            "<=" => Comparison::LessOrEqual,
            ">" => Comparison::Greater,
            ">=" => Comparison::GreaterOrEqual,
            _ => return None,
        })
    }

    /// Reads something in parentheses, or a function, a value, or a path.
    fn group(&mut self) -> ParseResult<Parsed> {
        if !self.accept("(") {
            return self.primary();
        }
        let doubled = self.peek().is("(").then(|| self.closing(self.at)).flatten();
        let inner = self.deeper(Self::any)?;
        if doubled.is_some_and(|closing| closing + 1 == self.at && self.peek().is(")")) {
            return Err("The expression has redundant parentheses;".to_owned());
        }
        self.expect(")")?;
        Ok(inner)
    }

    /// Returns the place at which the parenthesis that opens here is closed.
    fn closing(&self, open: usize) -> Option<usize> {
        let mut depth = 0_usize;
        (open..self.tokens.len()).find(|at| {
            let token = self.tokens[*at];
            depth = depth.saturating_add(usize::from(token.is("("))).saturating_sub(usize::from(token.is(")")));
            depth == 0
        })
    }

    fn primary(&mut self) -> ParseResult<Parsed> {
        let token = self.peek();
        if token.kind == TokenKind::Value {
            self.next();
            return Ok(Parsed::Operand(ConditionOperand::Value(self.placeholders.value(token.text)?)));
        }

        if token.kind == TokenKind::Word
            && self.tokens[(self.at + 1).min(self.tokens.len() - 1)].is("(")
            && !is_keyword(token)
        {
            self.at += 2;
            self.operator()?;
            return self.deeper(|parser| parser.function(token.text));
        }

        Ok(Parsed::Operand(ConditionOperand::Path(self.path()?)))
    }

    fn function(&mut self, name: &str) -> ParseResult<Parsed> {
        let operands = match name {
            "size" | "attribute_exists" | "attribute_not_exists" => 1,
            "attribute_type" | "begins_with" | "contains" => 2,
            _ => return Err(format!("Invalid function name; function: {name}")),
        };

        let given = if self.accept(")") { Vec::new() } else { self.list(Self::operand)? };
        let count = given.len();
        let mut given = given.into_iter();
        let (Some(first), second) = (given.next().filter(|_| count == operands), given.next()) else {
            return Err(wrong_count(name, count));
        };

        let condition = match (name, second) {
            ("size", _) => {
                if let ConditionOperand::Value(
                    value @ (AttributeValue::N(_) | AttributeValue::Bool(_) | AttributeValue::Null),
                ) = &first
                {
                    return Err(wrong_type(name, value));
                }
                return Ok(Parsed::Operand(ConditionOperand::Size(Box::new(first))));
            }
            ("attribute_exists", _) => Condition::Exists(only_path(name, first)?),
            ("attribute_not_exists", _) => Condition::NotExists(only_path(name, first)?),
            ("attribute_type", Some(ConditionOperand::Value(AttributeValue::S(kind)))) => {
                if !["S", "N", "B", "NULL", "SS", "BOOL", "L", "BS", "NS", "M"].contains(&&*kind) {
                    return Err(format!(
                        "Invalid attribute type name found; type: {kind}, valid types: {{B,NULL,SS,BOOL,L,BS,N,NS,S,M}}"
                    ));
                }
                Condition::HasType(first, kind)
            }
            ("attribute_type", Some(ConditionOperand::Value(value))) => return Err(wrong_type(name, &value)),
            ("attribute_type", _) => {
                return Err(format!(
                    "Incorrect operand type for operator or function; operator or function: {name}, operand type: \
                     {{NS,SS,L,BS,N,M,B,BOOL,NULL,S}}"
                ));
            }
            ("begins_with", Some(prefix)) => {
                self.distinct(name, &first, &prefix)?;
                for operand in [&first, &prefix] {
                    if let ConditionOperand::Value(value) = operand
                        && !matches!(value, AttributeValue::S(_) | AttributeValue::B(_))
                    {
                        return Err(wrong_type(name, value));
                    }
                }
                Condition::BeginsWith(first, prefix)
            }
            (_, Some(element)) => {
                self.distinct(name, &first, &element)?;
                Condition::Contains(first, element)
            }
            (_, None) => return Err(wrong_count(name, count)),
        };

        Ok(Parsed::Condition(condition))
    }

    /// Reads one or more elements, with commas between, and the closing parenthesis.
    fn list<T>(&mut self, read: fn(&mut Self) -> ParseResult<T>) -> ParseResult<Vec<T>> {
        let mut list = vec![read(self)?];
        while self.accept(",") {
            list.push(read(self)?);
        }
        self.expect(")")?;
        Ok(list)
    }

    fn operand(&mut self) -> ParseResult<ConditionOperand> {
        match self.group()? {
            Parsed::Operand(operand) => Ok(operand),
            Parsed::Condition(condition) => Err(misused(&condition).unwrap_or_else(|| self.unexpected())),
        }
    }

    fn condition(&self, parsed: Parsed) -> ParseResult<Condition> {
        match parsed {
            Parsed::Condition(condition) => Ok(condition),
            Parsed::Operand(ConditionOperand::Size(_)) => {
                Err("The function is not allowed to be used this way in an expression; function: size".to_owned())
            }
            Parsed::Operand(ConditionOperand::Path(_) | ConditionOperand::Value(_)) => Err(self.unexpected()),
        }
    }

    fn distinct(&self, operator: &str, first: &ConditionOperand, second: &ConditionOperand) -> ParseResult<()> {
        match (first, second) {
            (ConditionOperand::Path(first), ConditionOperand::Path(second)) if first == second => Err(format!(
                "The first operand must be distinct from the remaining operands for this operator or function; \
                 operator: {operator}, first operand: {first}"
            )),
            _ => Ok(()),
        }
    }

    // Paths.

    fn path(&mut self) -> ParseResult<Path> {
        let mut steps = vec![PathStep::Name(self.name()?)];
        loop {
            // No item is deeper than this.
            if steps.len() > value::DEPTH_MAX + 1 {
                let levels_max = value::DEPTH_MAX;
                return Err(format!("The document path has too many nesting elements; maximum: {levels_max}"));
            }

            if self.accept(".") {
                steps.push(PathStep::Name(self.name()?));
            } else if self.accept("[") {
                let digits = self.peek();
                let index = digits.text.parse().ok().filter(|_| digits.kind == TokenKind::Digits);
                let index = index.ok_or_else(|| self.unexpected())?;
                self.next();
                self.expect("]")?;
                steps.push(PathStep::Index(index));
            } else {
                return Ok(Path(steps));
            }
        }
    }

    fn name(&mut self) -> ParseResult<String> {
        let token = self.peek();
        match token.kind {
            TokenKind::Name => {
                self.next();
                self.placeholders.name(token.text)
            }
            // A keyword of the grammar is a reserved word too. Where an operator may stand, it is a syntax error instead.
            TokenKind::Word if is_keyword(token) => Err(self.unexpected()),
            TokenKind::Word if is_reserved(token.text) => {
                Err(format!("Attribute name is a reserved keyword; reserved keyword: {}", token.text))
            }
            TokenKind::Word => {
                self.next();
                Ok(token.text.to_owned())
            }
            TokenKind::Value | TokenKind::Digits | TokenKind::Symbol | TokenKind::Unknown | TokenKind::End => {
                Err(self.unexpected())
            }
        }
    }

    // Updates.

    fn action(&mut self, section: &str) -> ParseResult<Action> {
        let path = self.path()?;

        match section {
            "REMOVE" => Ok(Action::Remove(path)),
            "SET" => {
                self.expect("=")?;
                Ok(Action::Set(path, self.sum()?))
            }
            _ => {
                let token = self.next();
                if token.kind != TokenKind::Value {
                    self.at -= usize::from(self.at > 0 && token.kind != TokenKind::End);
                    return Err(self.unexpected());
                }

                let value = self.placeholders.value(token.text)?;
                let fits = match &value {
                    AttributeValue::Ss(_) | AttributeValue::Ns(_) | AttributeValue::Bs(_) => true,
                    AttributeValue::N(_) => section == "ADD",
                    AttributeValue::S(_)
                    | AttributeValue::B(_)
                    | AttributeValue::Bool(_)
                    | AttributeValue::Null
                    | AttributeValue::L(_)
                    | AttributeValue::M(_) => false,
                };

                if !fits {
                    return Err(format!(
                        "Incorrect operand type for operator or function; operator: {section}, operand type: {}",
                        value.long_kind()
                    ));
                }

                Ok(if section == "ADD" { Action::Add(path, value) } else { Action::Delete(path, value) })
            }
        }
    }

    fn sum(&mut self) -> ParseResult<ValueSource> {
        let left = self.source()?;
        let operator = self.peek();
        if !operator.is("+") && !operator.is("-") {
            return Ok(left);
        }

        self.next();
        self.operator()?;
        let right = self.source()?;

        for source in [&left, &right] {
            if let ValueSource::Value(value) = source
                && value.as_number().is_none()
            {
                return Err(wrong_type(operator.text, value));
            }
        }

        let left = Box::new(left);
        let right = Box::new(right);
        Ok(if operator.text == "+" { ValueSource::Plus(left, right) } else { ValueSource::Minus(left, right) })
    }

    fn source(&mut self) -> ParseResult<ValueSource> {
        let token = self.peek();
        if self.accept("(") {
            let inner = self.deeper(Self::sum)?;
            self.expect(")")?;
            return Ok(inner);
        }

        if token.kind == TokenKind::Value {
            self.next();
            return Ok(ValueSource::Value(self.placeholders.value(token.text)?));
        }
        if token.kind != TokenKind::Word || !self.tokens[(self.at + 1).min(self.tokens.len() - 1)].is("(") {
            return Ok(ValueSource::Path(self.path()?));
        }

        self.at += 2;
        self.operator()?;
        self.deeper(|parser| parser.update_function(token.text))
    }

    fn update_function(&mut self, name: &str) -> ParseResult<ValueSource> {
        if ["size", "attribute_exists", "attribute_not_exists", "attribute_type", "begins_with", "contains"]
            .contains(&name)
        {
            return Err(format!("The function is not allowed in an update expression; function: {name}"));
        } else if name != "if_not_exists" && name != "list_append" {
            return Err(format!("Invalid function name; function: {name}"));
        }

        let given = if self.accept(")") { Vec::new() } else { self.list(Self::sum)? };
        let count = given.len();
        let [first, second] = <[ValueSource; 2]>::try_from(given).map_err(|_| wrong_count(name, count))?;

        if name == "if_not_exists" {
            let ValueSource::Path(path) = first else {
                return Err(format!("Operator or function requires a document path; operator or function: {name}"));
            };
            return Ok(ValueSource::IfNotExists(path, Box::new(second)));
        }

        for source in [&first, &second] {
            if let ValueSource::Value(value) = source
                && !matches!(value, AttributeValue::L(_))
            {
                return Err(wrong_type(name, value));
            }
        }

        Ok(ValueSource::ListAppend(Box::new(first), Box::new(second)))
    }
}

/// The problem of an `IN` with too many values.
pub(crate) fn too_many_in_operands(count: usize) -> String {
    format!(
        "The IN operator is provided with too many operands; number of operands: {count}, maximum number of operands: \
         {IN_OPERANDS_MAX}"
    )
}

/// Whether the word is an operator of conditions wherever it stands.
fn is_keyword(token: Lexeme<'_>) -> bool {
    ["AND", "OR", "NOT", "BETWEEN", "IN"].iter().any(|word| token.is_word(word))
}

fn between(low: &ConditionOperand, high: &ConditionOperand) -> ParseResult<()> {
    let (ConditionOperand::Value(low), ConditionOperand::Value(high)) = (low, high) else { return Ok(()) };

    let show = |value: &AttributeValue| {
        let json = serde_json::to_value(value).unwrap_or_default();
        let content = json.as_object().and_then(|object| object.values().next().cloned()).unwrap_or_default();
        let content = content.as_str().map_or_else(|| content.to_string(), str::to_owned);
        format!("AttributeValue: {{{}:{content}}}", value.kind())
    };

    let problem = match super::evaluate::order(low, high) {
        None if low.kind() != high.kind() => "same data type for lower and upper bounds",
        Some(std::cmp::Ordering::Greater) => "upper bound to be greater than or equal to lower bound",
        None | Some(std::cmp::Ordering::Less | std::cmp::Ordering::Equal) => return Ok(()),
    };

    Err(format!(
        "The BETWEEN operator requires {problem}; lower bound operand: {}, upper bound operand: {}",
        show(low),
        show(high)
    ))
}

fn only_path(function: &str, operand: ConditionOperand) -> ParseResult<Path> {
    match operand {
        ConditionOperand::Path(path) => Ok(path),
        ConditionOperand::Value(_) | ConditionOperand::Size(_) => {
            Err(format!("Operator or function requires a document path; operator or function: {function}"))
        }
    }
}

fn wrong_count(function: &str, count: usize) -> String {
    format!(
        "Incorrect number of operands for operator or function; operator or function: {function}, number of operands: \
         {count}"
    )
}

fn wrong_type(operator: &str, value: &AttributeValue) -> String {
    format!(
        "Incorrect operand type for operator or function; operator or function: {operator}, operand type: {}",
        value.kind()
    )
}

/// The problem of a function whose result is true or false, where a value should stand.
fn misused(condition: &Condition) -> Option<String> {
    let function = match condition {
        Condition::Exists(_) => "attribute_exists",
        Condition::NotExists(_) => "attribute_not_exists",
        Condition::HasType(..) => "attribute_type",
        Condition::BeginsWith(..) => "begins_with",
        Condition::Contains(..) => "contains",
        Condition::All(_) | Condition::Any(_) | Condition::Not(_) => return None,
        Condition::Compare(..) | Condition::Between(..) | Condition::In(..) => return None,
    };
    Some(format!("The function is not allowed to be used this way in an expression; function: {function}"))
}
