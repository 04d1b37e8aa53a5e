//! An interpreter of scripts that are lists of commands. The reply is that of the last one.
//!
//! `K1` and `A1` are the first key and the first argument, `raise TEXT` is an error, and `chain N` reads N keys, each one's name in the
//! value of the one before.

use super::redis::{CallAborted, Interpreter, RedisReply, ScriptFailure, ScriptHost, ScriptLimits};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Scripted;

impl Interpreter for Scripted {
    fn check(&self, source: &[u8]) -> Result<(), ScriptFailure> {
        if source.starts_with(b"!") {
            return Err(ScriptFailure::Compile("user_script:1: unexpected symbol near '!'".to_owned()));
        }
        Ok(())
    }

    fn run(
        &self,
        source: &[u8],
        _sha1: &str,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
        host: &mut dyn ScriptHost,
        _limits: ScriptLimits,
    ) -> Result<RedisReply, ScriptFailure> {
        self.check(source)?;
        let source = String::from_utf8_lossy(source).into_owned();
        let mut reply = RedisReply::Nil;
        for line in source.lines() {
            let words: Vec<Vec<u8>> = line
                .split_whitespace()
                .map(|word| match word.split_at_checked(1) {
                    Some(("K", place)) if let Ok(place) = place.parse::<usize>() => keys[place - 1].clone(),
                    Some(("A", place)) if let Ok(place) = place.parse::<usize>() => arguments[place - 1].clone(),
                    _ => word.as_bytes().to_vec(),
                })
                .collect();
            if words[0] == b"raise" {
                return Err(ScriptFailure::Raised([&b"ERR "[..], &words[1]].concat()));
            }
            if words[0] == b"chain" {
                reply = chain(host, String::from_utf8_lossy(&words[1]).parse().expect("a number"))?;
                continue;
            }
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            reply = host.call(&words).map_err(|CallAborted| ScriptFailure::Aborted)?;
        }
        Ok(reply)
    }
}

fn chain(host: &mut dyn ScriptHost, length: usize) -> Result<RedisReply, ScriptFailure> {
    let mut name = b"first".to_vec();
    for _ in 0..length {
        let reply = host.call(&[b"get", &name]).map_err(|CallAborted| ScriptFailure::Aborted)?;
        let RedisReply::Bulk(next) = reply else { return Ok(reply) };
        name = next;
    }
    Ok(RedisReply::Bulk(name))
}
