//! Expressions: what they mean, and what is said of those that mean nothing.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::{
    Item,
    expression::{
        evaluate::Projection, keys::KeyCondition, names::Placeholders, parse_condition, parse_projection, parse_update,
        update::apply,
    },
    value::tests::any_value,
    work::WorkBudget,
};

fn item(json: &str) -> Item {
    serde_json::from_str(json).unwrap()
}

const ITEM: &str = r##"{
    "id": {"S": "x"}, "n": {"N": "5"}, "txt": {"S": "hello"}, "bin": {"B": "AAEC"}, "flag": {"BOOL": true},
    "tags": {"SS": ["a", "b"]}, "nums": {"NS": ["1", "2"]}, "lst": {"L": [{"N": "1"}, {"S": "two"}, {"M": {"k": {"S": "v"}}}]},
    "mp": {"M": {"a": {"N": "1"}, "b": {"M": {"c": {"S": "deep"}}}}}, "nil": {"NULL": true}
}"##;
const VALUES: &str = r##"{
    ":one": {"N": "1"}, ":five": {"N": "5"}, ":six": {"N": "6"}, ":x": {"S": "x"}, ":he": {"S": "he"}, ":ell": {"S": "ell"},
    ":a": {"S": "a"}, ":type": {"S": "SS"}, ":list": {"L": [{"S": "z"}]}, ":ss": {"SS": ["b", "c"]}, ":map": {"M": {}},
    ":bytes": {"B": "AQ=="}, ":bad": {"S": "QQ"}, ":true": {"BOOL": true}
}"##;

fn names() -> BTreeMap<String, String> {
    [("#n", "n"), ("#m", "mp"), ("#t", "txt"), ("#id", "id")].map(|(a, b)| (a.to_owned(), b.to_owned())).into()
}

/// The truth of a condition, or its problem.
fn holds(text: &str) -> Result<bool, String> {
    let names = names();
    let values = item(VALUES);
    let placeholders = Placeholders::new(Some(&names), Some(&values)).unwrap();
    let condition = parse_condition(text, &placeholders)?;
    Ok(condition.holds(&item(ITEM), &WorkBudget::default()).expect("it costs little"))
}

#[test]
fn conditions_mean_what_dynamodb_means() {
    for (text, truth) in [
        ("#n = :five", true),
        ("#n=:five", true),
        ("(#n) = (:five)", true),
        (":five = #n", true),
        ("#n <> :five", false),
        ("absent <> :five", true),
        ("absent = :five", false),
        ("absent < :five", false),
        ("not absent < :five", true),
        ("#n < :six and #n > :one", true),
        ("#n < :x", false),
        ("#n BETWEEN :one AND :five", true),
        ("#n between :six and :six", false),
        ("#n IN (:one, :five)", true),
        ("absent IN (:one)", false),
        ("attribute_exists (#n)", true),
        ("attribute_exists(mp.b.c) AND attribute_not_exists(mp.b.d)", true),
        ("attribute_exists(lst[2].k)", true),
        ("attribute_not_exists(lst[3])", true),
        ("attribute_type(tags, :type)", true),
        ("attribute_type(nil, :type)", false),
        ("begins_with(#t, :he)", true),
        ("contains(#t, :ell)", true),
        ("contains(tags, :a)", true),
        ("contains(nums, :one)", true),
        ("contains(lst, :one)", true),
        ("contains(bin, :bytes)", true),
        ("contains(#n, :one)", false),
        ("size(#t) = :five", true),
        ("size(tags) > :one", true),
        ("size(#n) > :one", false),
        ("flag = :true", true),
        ("NOT (#n = :one OR #n = :six)", true),
        ("#n = :one OR #n = :five AND #id = :x", true),
        ("(#n = :one OR #n = :five) AND #id = :a", false),
        ("NOT #n = :one AND #id = :x", true),
        ("NOT NOT #n = :five", true),
    ] {
        assert_eq!(holds(text), Ok(truth), "{text}");
    }
}

#[test]
fn what_is_no_condition_is_named() {
    let deep = format!("{}#n = :five{}", "( NOT ".repeat(1000), ")".repeat(1000));
    let repeated = format!("#n = :five{}", " AND #n = :five".repeat(400));
    for (text, problem) in [
        ("", "The expression can not be empty;"),
        ("#n", "Syntax error; token: \"<EOF>\", near: \"#n\""),
        ("#n = ", "Syntax error; token: \"<EOF>\", near: \"= \""),
        ("#n = = :five", "Syntax error; token: \"=\", near: \"= = :five\""),
        ("#n = :five)", "Syntax error; token: \")\", near: \":five)\""),
        ("(#n = :five", "Syntax error; token: \"<EOF>\""),
        ("#n = 5", "Syntax error; token: \"5\""),
        ("#n = :five AND", "Syntax error; token: \"<EOF>\", near: \"AND\""),
        ("#n ! :five", "Syntax error; token: \"!\", near: \"#n ! :five\""),
        ("ünï = :five", "Syntax error; token: \"ü\""),
        ("a..b = :five", "Syntax error; token: \".\", near: \"..b\""),
        ("lst[x] = :five", "Syntax error; token: \"x\", near: \"[x]\""),
        ("lst[99999999999999999999999] = :five", "Syntax error; token: \"99999999999999999999999\""),
        ("name = :five", "Attribute name is a reserved keyword; reserved keyword: name"),
        ("a.Status = :five", "Attribute name is a reserved keyword; reserved keyword: Status"),
        ("#zz = :five", "An expression attribute name used in the document path is not defined; attribute name: #zz"),
        ("#n = :zz", "An expression attribute value used in expression is not defined; attribute value: :zz"),
        ("nothing(#n)", "Invalid function name; function: nothing"),
        ("ATTRIBUTE_EXISTS(#n)", "Invalid function name; function: ATTRIBUTE_EXISTS"),
        (
            "attribute_exists(#n, #id)",
            "Incorrect number of operands for operator or function; operator or function: attribute_exists, number of operands: 2",
        ),
        (
            "attribute_exists(:five)",
            "Operator or function requires a document path; operator or function: attribute_exists",
        ),
        ("size(#n)", "The function is not allowed to be used this way in an expression; function: size"),
        ("attribute_exists(#n) = :five", "Syntax error; token: \"=\""),
        (
            "#n = attribute_exists(#n)",
            "The function is not allowed to be used this way in an expression; function: attribute_exists",
        ),
        (
            "begins_with(#t, :five)",
            "Incorrect operand type for operator or function; operator or function: begins_with, operand type: N",
        ),
        (
            "attribute_type(#t, :bad)",
            "Invalid attribute type name found; type: QQ, valid types: {B,NULL,SS,BOOL,L,BS,N,NS,S,M}",
        ),
        ("#n < :map", "Incorrect operand type for operator or function; operator or function: <, operand type: M"),
        (
            "#n = #n",
            "The first operand must be distinct from the remaining operands for this operator or function; operator: =, first operand: [n]",
        ),
        (
            "#n BETWEEN :six AND :one",
            "The BETWEEN operator requires upper bound to be greater than or equal to lower bound; lower bound operand: AttributeValue: {N:6}, upper bound operand: AttributeValue: {N:1}",
        ),
        ("((#n = :five))", "The expression has redundant parentheses;"),
        ("#n = ((:five))", "The expression has redundant parentheses;"),
        (&deep, "Expression size has exceeded the maximum allowed size; expression size: "),
        (&deep[..3000], "The expression is nested too deeply; maximum depth: 64"),
        (&repeated, "Expression size has exceeded"),
        (&repeated[..4090], "too many operators"),
    ] {
        let error = holds(text).expect_err(text);
        assert!(error.contains(problem), "{text:.80}: {error}");
    }
    assert!(holds("((#n = :five) AND (#id = :x))").is_ok(), "these are not redundant");
    let many = vec!["n=n2"; 400].join(" OR ");
    assert!(holds(&many).expect_err("too many").contains("too many operators"));
}

fn updated(text: &str) -> Result<Item, String> {
    let names = names();
    let values = item(VALUES);
    let placeholders = Placeholders::new(Some(&names), Some(&values)).unwrap();
    apply(&item(ITEM), &parse_update(text, &placeholders)?)
}

#[test]
fn updates_change_what_they_name() {
    let check = |text: &str, attribute: &str, json: &str| {
        let shown = updated(text).map(|item| item.get(attribute).map(|value| serde_json::to_string(value).unwrap()));
        assert_eq!(shown, Ok((!json.is_empty()).then(|| json.to_owned())), "{text}");
    };
    check("SET #n = #n + :one", "n", r#"{"N":"6"}"#);
    check("set #n=:six,txt=:x REMOVE flag ", "n", r#"{"N":"6"}"#);
    check("REMOVE flag\nSET #n = :six\n", "flag", "");
    check("SET #n = :one - #n", "n", r#"{"N":"-4"}"#);
    check("SET q = if_not_exists(q, :one)", "q", r#"{"N":"1"}"#);
    check("SET #n = if_not_exists(#n, :one) + :one", "n", r#"{"N":"6"}"#);
    check("SET q = list_append(:list, :list)", "q", r#"{"L":[{"S":"z"},{"S":"z"}]}"#);
    check("SET #m.b.c = :x", "mp", r#"{"M":{"a":{"N":"1"},"b":{"M":{"c":{"S":"x"}}}}}"#);
    check("SET lst[9] = :x REMOVE lst[0], lst[1]", "lst", r#"{"L":[{"M":{"k":{"S":"v"}}},{"S":"x"}]}"#);
    check("REMOVE absent, lst[7]", "n", r#"{"N":"5"}"#);
    check("ADD #n :five, cnt :one", "cnt", r#"{"N":"1"}"#);
    check("ADD tags :ss", "tags", r#"{"SS":["a","b","c"]}"#);
    check("DELETE tags :ss", "tags", r#"{"SS":["a"]}"#);
    check("SET a1 = txt, txt = :x", "a1", r#"{"S":"hello"}"#);
    for (text, problem) in [
        ("", "The expression can not be empty;"),
        ("PUT a = :one", "Syntax error; token: \"PUT\", near: \"PUT a\""),
        ("SET", "Syntax error; token: \"<EOF>\", near: \"SET\""),
        ("SET a = :one,", "Syntax error; token: \"<EOF>\", near: \",\""),
        ("SET a :one", "Syntax error; token: \":one\", near: \"a :one\""),
        ("SET a = :one SET b = :one", "The \"SET\" section can only be used once in an update expression;"),
        (
            "SET a = :one, a = :six",
            "Two document paths overlap with each other; must remove or rewrite one of these paths; path one: [a], path two: [a]",
        ),
        (
            "SET a.b = :one REMOVE a",
            "Two document paths overlap with each other; must remove or rewrite one of these paths; path one: [a, b], path two: [a]",
        ),
        (
            "SET a.b = :one, a[1] = :one",
            "Two document paths conflict with each other; must remove or rewrite one of these paths; path one: [a, b], path two: [a, [1]]",
        ),
        ("SET a = size(b)", "The function is not allowed in an update expression; function: size"),
        ("SET a = nope(b, c)", "Invalid function name; function: nope"),
        ("SET a = list_append(b)", "number of operands: 1"),
        (
            "SET a = if_not_exists(:one, :one)",
            "Operator or function requires a document path; operator or function: if_not_exists",
        ),
        (
            "SET a = #n + :x",
            "Incorrect operand type for operator or function; operator or function: +, operand type: S",
        ),
        ("ADD a :x", "Incorrect operand type for operator or function; operator: ADD, operand type: STRING"),
        ("DELETE a :one", "Incorrect operand type for operator or function; operator: DELETE, operand type: NUMBER"),
        ("ADD a b", "Syntax error; token: \"b\""),
        ("SET a = absent", "The provided expression refers to an attribute that does not exist in the item"),
        ("SET a = txt + :one", "An operand in the update expression has an incorrect data type"),
        ("ADD txt :one", "An operand in the update expression has an incorrect data type"),
        ("SET absent.a = :one", "The document path provided in the update expression is invalid for update"),
        ("SET txt[0] = :one", "The document path provided in the update expression is invalid for update"),
        ("REMOVE txt.a", "The document path provided in the update expression is invalid for update"),
    ] {
        let error = updated(text).expect_err(text);
        assert!(error.contains(problem), "{text}: {error}");
    }
}

#[test]
fn projections_show_parts() {
    let shown = |text: &str| {
        let names = names();
        let placeholders = Placeholders::new(Some(&names), None).unwrap();
        let projection = Projection::new(&parse_projection(text, &placeholders)?);
        Ok::<_, String>(serde_json::to_string(&projection.project(&item(ITEM))).unwrap())
    };
    assert_eq!(shown("#n, id, absent").as_deref(), Ok(r#"{"id":{"S":"x"},"n":{"N":"5"}}"#));
    assert_eq!(shown("#m.b.c, mp.a").as_deref(), Ok(r#"{"mp":{"M":{"a":{"N":"1"},"b":{"M":{"c":{"S":"deep"}}}}}}"#));
    assert_eq!(shown("lst[2], lst[0]").as_deref(), Ok(r#"{"lst":{"L":[{"N":"1"},{"M":{"k":{"S":"v"}}}]}}"#));
    assert_eq!(shown("txt.a, lst[9]").as_deref(), Ok("{}"));
    assert!(shown("id, id").expect_err("twice").contains("overlap"));
    assert!(shown("id,").expect_err("nothing").contains("Syntax error"));
    assert!(shown("id = n").expect_err("no").contains("Syntax error; token: \"=\""));
}

#[test]
fn key_conditions_name_the_key_and_nothing_else() {
    let keys = |text: &str| {
        let values = item(VALUES);
        let placeholders = Placeholders::new(None, Some(&values)).unwrap();
        parse_condition(text, &placeholders).and_then(|condition| KeyCondition::new(&condition, "pk", Some("sk")))
    };
    for text in [
        "pk = :x",
        ":x = pk",
        "pk = :x AND sk < :a",
        "(pk = :x) and (:a >= sk)",
        "pk = :x AND sk BETWEEN :a AND :x",
        "pk = :x AND begins_with(sk, :a)",
    ] {
        assert!(keys(text).is_ok(), "{text}: {:?}", keys(text));
    }
    assert_eq!(keys(":a >= sk AND pk = :x"), keys("pk = :x AND sk <= :a"));
    for (text, problem) in [
        ("pk = :x OR sk = :a", "Invalid operator used in KeyConditionExpression: OR"),
        ("NOT pk = :x", "Invalid operator used in KeyConditionExpression: NOT"),
        ("pk <> :x", "Invalid operator used in KeyConditionExpression: <>"),
        ("pk < :x", "Query key condition not supported"),
        ("sk = :x", "Query condition missed key schema element: pk"),
        ("pk = :x AND othr = :a", "Query condition missed key schema element: sk"),
        ("pk = :x AND pk = :a", "KeyConditionExpressions must only contain one condition per key"),
        ("pk.a = :x", "KeyConditionExpressions cannot have conditions on nested attributes"),
        ("size(pk) = :five", "KeyConditionExpressions cannot contain nested operations"),
        ("pk = sk", "Multiple attribute names used in one condition"),
        (":x = :a", "No key attribute specified"),
        ("pk = :x AND contains(sk, :a)", "Invalid operator used in KeyConditionExpression: contains"),
        ("pk = :x AND begins_with(:a, sk)", "begins_with operator must have the key attribute as its first operand"),
    ] {
        let error = keys(text).expect_err(text);
        assert!(error.contains(problem), "{text}: {error}");
    }
}

#[test]
fn placeholders_are_well_formed_and_used() {
    let values = item(r#"{":a": {"S": "x"}, ":b": {"S": "x"}}"#);
    let placeholders = Placeholders::new(None, Some(&values)).unwrap();
    parse_condition("k = :a", &placeholders).unwrap();
    let error = placeholders.finish(true).unwrap_err().message;
    assert_eq!(error, "Value provided in ExpressionAttributeValues unused in expressions: keys: {:b}");
    let error = Placeholders::new(None, Some(&values)).unwrap().finish(false).unwrap_err().message;
    assert_eq!(error, "ExpressionAttributeValues can only be specified when using expressions");
    let bad = [("n".to_owned(), "x".to_owned())].into();
    let error = Placeholders::new(Some(&bad), None).unwrap_err().message;
    assert_eq!(error, "ExpressionAttributeNames contains invalid key: Syntax error; key: \"n\"");
}

/// Words that expressions are made of, in any order.
fn any_expression() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "a",
        "b",
        "#n",
        "#m",
        ":one",
        ":x",
        ":ss",
        ":list",
        "(",
        ")",
        "[",
        "]",
        "0",
        "1",
        ".",
        ",",
        "=",
        "<>",
        "<",
        ">=",
        "+",
        "-",
        "AND",
        "or",
        "NOT",
        "IN",
        "BETWEEN",
        "size(",
        "contains(",
        "attribute_exists(",
        "begins_with(",
        "SET",
        "REMOVE",
        "ADD",
        "DELETE",
        "if_not_exists(",
        "list_append(",
        "é",
        "'",
    ]);
    prop_oneof![prop::collection::vec(words, 0..25).prop_map(|words| words.join(" ")), ".*"]
}

proptest! {
    #[test]
    fn no_expression_panics(text in any_expression(), value in any_value()) {
        let (names, values) = (names(), item(VALUES));
        let placeholders = Placeholders::new(Some(&names), Some(&values)).unwrap();
        let item: Item = [("a".to_owned(), value)].into();
        if let Ok(condition) = parse_condition(&text, &placeholders) {
            condition.holds(&item, &WorkBudget::default()).expect("it costs little");
            let _ = KeyCondition::new(&condition, "a", Some("b"));
        }
        if let Ok(paths) = parse_projection(&text, &placeholders) {
            let shown = Projection::new(&paths).project(&item);
            prop_assert!(shown.keys().all(|name| item.contains_key(name)));
        }
        if let Ok(actions) = parse_update(&text, &placeholders) {
            let _ = apply(&item, &actions);
        }
    }

    #[test]
    fn a_condition_and_its_negation_differ(text in any_expression()) {
        if let Ok(truth) = holds(&text) && text.len() < 4000 {
            prop_assert_eq!(holds(&format!("NOT ({text})")).map(|negated| !negated).unwrap_or(truth), truth);
        }
    }
}
