//! The functions that `tests/fuzz` gives bytes to, on bytes that are nearly right.

use proptest::prelude::*;

use crate::fuzzing;

/// Words of requests, right ones and wrong ones, in any order.
fn soup() -> impl Strategy<Value = String> {
    let words = prop_oneof![
        "(SET|GET|ZADD|ZRANGE|LPOS|HSET|SCAN|KEYS|MSET|LREM|GETEX|ZUNIONSTORE|SPOP|RENAME|EXPIRE|BLPOP|SELECT|FLUSHDB)",
        "(k|a|z|l|NX|XX|PX|COUNT|MATCH|WITHSCORES|BYSCORE|REV|LIMIT|WEIGHTS|RANK|-1|0|1|2|3|inf|\\(1|\\*|\\[a-|x y)",
    ];
    let line = proptest::collection::vec(words, 1..8).prop_map(|words| words.join(" ") + "\r\n");
    proptest::collection::vec(line, 1..8).prop_map(|lines| lines.concat())
}

proptest! {
    #[test]
    fn commands_of_any_words_end(soup in soup()) {
        fuzzing::run_commands(soup.as_bytes());
    }

    #[test]
    fn requests_do_not_depend_on_the_parts_in_which_they_arrive(
        text in "(\\*|\\$|[0-9]{1,4}|\r\n|-1|PING|'|\"|\\\\x4|[a-z ]|\0){0,40}",
    ) {
        let _problem = fuzzing::requests(text.as_bytes());
    }
}
