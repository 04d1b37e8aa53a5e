//! Redis' protocol: requests, commands, scripts, stored values, units between nodes.

use lockkeeper_redis::fuzzing;

use super::says;

/// Requests as bytes of the protocol.
fn array(words: &[&str]) -> Vec<u8> {
    let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    words.into_bytes()
}

fn request(words: &[&str]) -> Vec<u8> {
    [format!("*{}\r\n", words.len()).as_bytes(), &array(words)].concat()
}

pub(super) fn requests(input: &[u8]) {
    if let Err(problem) = fuzzing::requests(input) {
        says(&problem);
    }
}

pub(super) fn request_seeds() -> Vec<Vec<u8>> {
    vec![
        request(&["SET", "k", "v", "NX", "PX", "1000"]),
        [request(&["MULTI"]), request(&["INCR", "n"]), request(&["EXEC"])].concat(),
        b"PING\r\nSET k \"a \\x41\\n\" 'it\\'s'\r\n*0\r\n".to_vec(),
        b"*2\r\n$3\r\nGET\r\n$9223372036854775807\r\n".to_vec(),
        b"*1000000\r\n$1\r\na\r\n".to_vec(),
    ]
}

pub(super) fn commands(input: &[u8]) {
    fuzzing::run_commands(input);
}

pub(super) fn command_seeds() -> Vec<Vec<u8>> {
    let lines = [
        "SET k v NX PX 1000\nGET k\nSET k w XX GET KEEPTTL\nPEXPIRE k 5 GT\nPTTL k\nAPPEND k x\nGETRANGE k 0 -1\nRENAME k l",
        "RPUSH l a b c\nLPOS l b RANK -1 COUNT 0\nLINSERT l BEFORE b x\nLREM l -1 a\nLTRIM l 0 1\nLMOVE l m LEFT RIGHT\nLPOP l 2\nLSET m 0 z",
        "HSET h a 1 b 2\nHINCRBY h a 5\nHINCRBYFLOAT h b 0.5\nHGETALL h\nHSCAN h 0 MATCH a*\nHDEL h a b\nHSETNX h c 1",
        "SADD s a b\nSPOP s 1\nSMEMBERS s\nZADD z NX 1 a 2 b\nZADD z INCR 5 a\nZRANGE z (1 +inf BYSCORE REV LIMIT 0 1 WITHSCORES\nZPOPMIN z\nZUNIONSTORE o 2 z s WEIGHTS 1 2 AGGREGATE MAX",
        "KEYS k*\nSCAN 0 COUNT 10 MATCH [a-c]?\nDBSIZE\nRANDOMKEY\nSELECT 3\nFLUSHDB\nMSETNX a 1 b 2\nINCRBYFLOAT a 1.5\nGETEX b PX 10\nEXPIREAT b 1",
    ];
    lines.iter().map(|lines| lines.replace('\n', "\r\n").into_bytes()).collect()
}

pub(super) fn script(input: &[u8]) {
    fuzzing::script(input);
}

pub(super) fn script_seeds() -> Vec<Vec<u8>> {
    [
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
        "local v = redis.call(\"GET\", KEYS[1])\nif not v or v ~= ARGV[1] then return -1 end\nredis.call('pexpire', KEYS[1], ARGV[2]) return true",
        "-- a\n--[[ b ]] local a = (1 == 2) and 'x' or nil; if a then return elseif not a then return end",
    ]
    .map(|source| source.as_bytes().to_vec())
    .to_vec()
}

pub(super) fn entry(input: &[u8]) {
    fuzzing::entry(input);
}

pub(super) fn entry_seeds() -> Vec<Vec<u8>> {
    vec![
        b"stext".to_vec(),
        b"l\x01a\x02bc".to_vec(),
        b"h\x01f\x01v".to_vec(),
        b"e\x01a\x01b".to_vec(),
        [&b"z"[..], &1.5_f64.to_be_bytes(), b"\x01m"].concat(),
    ]
}

pub(super) fn unit(input: &[u8]) {
    fuzzing::unit(input);
}

pub(super) fn unit_seeds() -> Vec<Vec<u8>> {
    fuzzing::unit_samples()
}
