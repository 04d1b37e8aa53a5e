use proptest::prelude::*;

use super::*;
use lockkeeper_types::Identity;

const POLICY: &str = r#"
[[rule]]
who = ["shop-*", "ann"]
may = ["acquire", "read"]
prefix = "seats/"

[[rule]]
who = ["*"]
may = ["watch"]
prefix = "seats/public/"

[[rule]]
who = ["anonymous"]
may = ["read"]
prefix = "news/"

[[rule]]
who = ["ops"]
may = ["acquire", "read", "watch", "force-release", "administer"]

[limits.default]
sessions = 100
calls-per-second = 50

[limits.shop-1]
sessions = 3
"#;

fn who(name: &str) -> Option<Identity> {
    Identity::new(name).ok()
}

fn allows(who: Option<&str>, right: &str, what: RequestSubject<'_>) -> bool {
    let who = who.map(|who| Identity::new(who).unwrap());
    Policy::parse(POLICY).unwrap().decide(who.as_ref(), right.parse().unwrap(), what).is_ok()
}

#[test]
fn a_rule_allows_what_it_says_and_nothing_else_is_allowed() {
    use RequestSubject::{Anywhere, Cluster, Name, Under};
    let allowed = [
        (Some("shop-1"), "acquire", Name("seats/1")),
        (Some("ann"), "acquire", Name("seats/")),
        (Some("shop-"), "read", Under("seats/")),
        (Some("shop-1"), "read", Under("seats/a")),
        (Some("shop-1"), "acquire", Anywhere),
        (Some("bob"), "watch", Under("seats/public/")),
        (None, "read", Name("news/today")),
        (Some("ops"), "administer", Cluster),
        (Some("ops"), "force-release", Name("anything")),
        (Some("ops"), "read", Under("")),
    ];
    for (who, right, what) in allowed {
        assert!(allows(who, right, what), "{who:?} may {right} {what}");
    }
    let refused = [
        (Some("shop-1"), "acquire", Name("orders/1")),
        (Some("shop-1"), "acquire", Name("seats")),
        (Some("shop"), "acquire", Name("seats/1")),
        (Some("anne"), "acquire", Name("seats/1")),
        (Some("bob"), "acquire", Name("seats/1")),
        (Some("bob"), "acquire", Anywhere),
        (Some("shop-1"), "read", Under("")),
        (Some("shop-1"), "read", Under("seat")),
        (Some("shop-1"), "administer", Cluster),
        (Some("shop-1"), "force-release", Name("seats/1")),
        (None, "acquire", Name("seats/1")),
        (None, "watch", Under("seats/public/")),
        (Some("shop-1"), "read", Name("news/today")),
    ];
    for (who, right, what) in refused {
        assert!(!allows(who, right, what), "{who:?} may not {right} {what}");
    }
}

/// A rule's prefix is compared with the bytes of keys. A range is covered if all keys that can be in it are.
#[test]
fn a_rule_covers_keys_that_begin_with_its_prefix_and_ranges_of_such_keys() {
    let policy = |prefix: &str| {
        Policy::parse(&format!("[[rule]]\nwho = [\"ann\"]\nmay = [\"read\"]\nprefix = {prefix:?}\n")).unwrap()
    };
    let range = |from: &'static [u8], to: Option<&'static [u8]>| RequestSubject::Keys { from, to };
    let cases = [
        ("etcd/é", RequestSubject::Key("etcd/é1".as_bytes()), true),
        ("etcd/", RequestSubject::Key(b"etcd/\xff"), true),
        ("etcd/", RequestSubject::Key(b"etcd"), false),
        ("etcd/", range(b"etcd/", Some(b"etcd0")), true),
        ("etcd/", range(b"etcd/a", Some(b"etcd/b")), true),
        ("etcd/", range(b"etcd/", Some(b"etcd0\0")), false),
        ("etcd/", range(b"etcd/", None), false),
        ("etcd/", range(b"", Some(b"etcd0")), false),
        ("etcd/", range(b"etcd", Some(b"etcd0")), false),
        ("", range(b"", None), true),
        ("", RequestSubject::Key(b"\0"), true),
        ("zookeeper/app/", RequestSubject::Key(b"zookeeper/app\0lock"), true),
        ("zookeeper/app/lock", RequestSubject::Key(b"zookeeper/app/lock\0n-0000000001"), true),
        ("zookeeper/app/", RequestSubject::Key(b"zookeeper/apple\0lock"), false),
        ("zookeeper/", RequestSubject::Key(b"zookeeper\0app"), true),
        // Others' keys may have any byte.
        ("etcd/app/", RequestSubject::Key(b"etcd/app\0lock"), false),
    ];
    let ann = who("ann");
    for (prefix, what, covered) in cases {
        let decided = policy(prefix).decide(ann.as_ref(), Right::Read, what).map(|rule| rule.line);
        assert_eq!(decided.is_ok(), covered, "{what} under {prefix:?}");
    }
    let denied =
        policy("etcd/").decide(ann.as_ref(), Right::Acquire, RequestSubject::Key(b"k\"\xff")).unwrap_err().to_string();
    assert!(
        denied.contains(r#"may not acquire the key "k\"\xff""#) && denied.contains(r#"prefix = "k\"""#),
        "{denied}"
    );
}

#[test]
fn a_refusal_names_who_what_where_else_and_the_rule_that_is_needed() {
    let policy = Policy::parse(POLICY).unwrap();
    let message =
        |who: Option<Identity>, right, what| policy.decide(who.as_ref(), right, what).unwrap_err().to_string();
    assert_eq!(
        message(who("shop-1"), Right::Read, RequestSubject::Under("")),
        "shop-1 may not read all locks under \"\": it has this right only under \"seats/\"; an operator can add a rule with \
         who = [\"shop-1\"], may = [\"read\"] and no prefix"
    );
    assert_eq!(
        message(None, Right::Acquire, RequestSubject::Name("a/b")),
        "anonymous may not acquire \"a/b\": no rule gives it this right; an operator can add a rule with who = [\"anonymous\"], \
         may = [\"acquire\"] and prefix = \"a/b\" or a beginning of it"
    );
    let rule = policy.decide(who("ann").as_ref(), Right::Acquire, RequestSubject::Name("seats/9")).unwrap();
    assert_eq!((rule.line, rule.to_string()), (2, "shop-*, ann may acquire, read under \"seats/\"".to_owned()));
}

#[test]
fn an_identity_has_its_own_limits_and_else_the_defaults() {
    let policy = Policy::parse(POLICY).unwrap();
    let limits = policy.limits(&who("shop-1").unwrap());
    assert_eq!((limits.sessions, limits.calls_per_second, limits.locks), (Some(3), Some(50), None));
    assert_eq!(policy.limits(&who("other").unwrap()).sessions, Some(100));
}

#[test]
fn a_bad_policy_is_refused_with_its_line() {
    let bad = [
        ("", 1, "there is no rule"),
        ("[[rule]]\nwho = [\"a\"]\n", 1, "missing field `may`"),
        (
            "[[rule]]\nwho = [\"a\"]\nmay = [\"fly\"]\n",
            3,
            "\"fly\" is not a right: give acquire, read, watch, force-release, administer",
        ),
        ("\n[[rule]]\nwho = [\n  \"a\",\n  \"b c\"]\nmay = [\"read\"]\n", 5, "the identity \"b c\" contains ' '"),
        ("[[rule]]\nwho = [\"a*b\"]\nmay = [\"read\"]\n", 2, "the identity \"a*b\" contains '*'"),
        ("[[rule]]\nwho = []\nmay = [\"read\"]\n", 2, "`who` is empty"),
        ("[[rule]]\nwho = [\"a\"]\nmay = [\"read\"]\nprefx = \"x\"\n", 4, "unknown field `prefx`"),
        ("[[rule]]\nwho = [\"a\"]\nmay = [\"read\"]\n[limits.a]\nsession = 1\n", 5, "unknown field `session`"),
        ("[[rule]]\nwho = [\"a\"]\nmay = [\"read\"]\n[limits.\"a b\"]\nsessions = 1\n", 4, "the identity \"a b\""),
        ("[[rule]\n", 1, ""),
    ];
    for (text, line, problem) in bad {
        let error = Policy::parse(text).unwrap_err();
        assert!(error.line == line && error.problem.contains(problem), "{text:?}: {error}");
    }
}

#[test]
fn a_token_has_its_identity_and_no_other_text_has_one() {
    let one = BearerToken::from_random([7; 32]);
    let two = BearerToken::from_random([8; 32]);
    let file = one.entry(&who("ann").unwrap()) + &two.entry(&who("bob").unwrap());
    assert!(!file.contains(one.reveal()) && !format!("{one:?}").contains("07"), "no file and no log shows a token");
    let tokens = Tokens::parse(&file).unwrap();
    assert_eq!(tokens.identity(&TokenHash::from_token(one.reveal())), who("ann").as_ref());
    assert_eq!(tokens.identity(&TokenHash::from_token(two.reveal())), who("bob").as_ref());
    let stored = file.lines().nth(2).unwrap().split('"').nth(1).unwrap();
    for forged in
        ["", TOKEN_PREFIX, stored, &one.reveal()[1..], &format!("{} ", one.reveal()), &one.reveal().to_uppercase()]
    {
        assert_eq!(tokens.identity(&TokenHash::from_token(forged)), None, "{forged:?}");
    }
    assert!(one.reveal().starts_with(TOKEN_PREFIX) && one.reveal().len() == TOKEN_PREFIX.len() + 64);
}

#[test]
fn a_bad_file_of_tokens_is_refused_without_showing_it() {
    let hash = "ab".repeat(32);
    let entry = |who: &str, hash: &str| format!("[[token]]\nidentity = \"{who}\"\nsha256 = \"{hash}\"\n");
    let twice = entry("a", &hash) + &entry("b", &hash);
    let bad = [
        (entry("a", "12"), 3),
        (entry("a", &"x".repeat(64)), 3),
        (entry("a b", &hash), 2),
        (twice, 6),
        (format!("[[token]]\nidentity = \"a\"\ntoken = \"{hash}\"\n"), 3),
        (format!("sha256 = {hash}"), 1),
    ];
    for (text, line) in bad {
        let error = Tokens::parse(&text).unwrap_err();
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(!error.to_string().contains(&hash), "{error}");
    }
}

#[test]
fn a_file_that_loses_all_tokens_says_so_in_words() {
    let token = BearerToken::from_random([7; 32]);
    let some = Tokens::parse(&token.entry(&who("ann").unwrap())).unwrap();
    let none = Tokens::parse("").unwrap();
    for unfinished in ["", "\n", "# tokens of the shop\n"] {
        let error = some.parse_next(unfinished).unwrap_err();
        assert!(error.problem.contains("to do that, write `token = []`"), "{unfinished:?}: {error}");
        assert!(none.parse_next(unfinished).is_ok(), "nothing is lost");
    }

    let is_known = |tokens: &Tokens| tokens.identity(&TokenHash::from_token(token.reveal())).is_some();
    assert!(!is_known(&some.parse_next("token = []\n").unwrap()));
    assert!(!is_known(&some.parse_next(&BearerToken::from_random([8; 32]).entry(&who("ann").unwrap())).unwrap()));
    assert!(is_known(&none.parse_next(&token.entry(&who("ann").unwrap())).unwrap()));
}

proptest! {
    #[test]
    fn noise_is_a_problem_or_a_file_never_a_panic(text in "(\\PC|\n){0,200}") {
        let _ = (Policy::parse(&text), Tokens::parse(&text));
    }

    /// A rule for a prefix allows exactly the names that begin with it, whatever else is asked.
    #[test]
    fn a_prefix_is_the_beginning_of_a_name(prefix in "[a-c/]{0,3}", name in "[a-c/]{0,6}") {
        let policy = Policy::parse(&format!("[[rule]]\nwho = [\"a\"]\nmay = [\"read\"]\nprefix = \"{prefix}\"")).unwrap();
        let allowed = |what| policy.decide(who("a").as_ref(), Right::Read, what).is_ok();
        prop_assert_eq!(allowed(RequestSubject::Name(&name)), name.starts_with(&prefix));
        // A list is allowed exactly if each name that it can show is.
        prop_assert_eq!(allowed(RequestSubject::Under(&name)), name.starts_with(&prefix));
    }
}
