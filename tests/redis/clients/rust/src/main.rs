//! The `redis` crate by hand, in the shape of Redlock: commanded by a line of input each: acquire, release, others, extend. It answers 1 or
//! 0.
//!
//! Usage: redis-clients HOST PORT KEY SECONDS

use std::{env, io, process, time::Duration};

use redis::{Client, Commands as _, Connection, ExistenceCheck, RedisResult, Script, SetExpiry, SetOptions};

/// Time limit of a command.
const TIMEOUT: Duration = Duration::from_secs(10);
const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
const EXTEND: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end";

struct Lock {
    client: Client,
    /// A connection that had an error is not used again.
    connection: Option<Connection>,
    key: String,
    value: String,
    life_ms: u64,
}

impl Lock {
    fn run(&mut self, what: &str) -> RedisResult<bool> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.client.get_connection_with_timeout(TIMEOUT)?,
        };
        connection.set_read_timeout(Some(TIMEOUT))?;

        let by_script = |connection: &mut Connection, script: &str, value: &str| -> RedisResult<bool> {
            Script::new(script).key(&self.key).arg(value).arg(self.life_ms).invoke(connection)
        };
        let done = match what {
            "acquire" => {
                let options = SetOptions::default()
                    .conditional_set(ExistenceCheck::NX)
                    .with_expiration(SetExpiry::PX(self.life_ms));
                let reply: Option<String> = connection.set_options(&self.key, &self.value, options)?;
                reply.is_some()
            }
            "release" => by_script(&mut connection, RELEASE, &self.value)?,
            "others" => by_script(&mut connection, RELEASE, "another")?,
            "extend" => by_script(&mut connection, EXTEND, &self.value)?,
            _ => false,
        };
        self.connection = Some(connection);
        Ok(done)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().collect();
    let [_, host, port, key, seconds] = &arguments[..] else { return Err("HOST PORT KEY SECONDS".into()) };
    let now = std::time::UNIX_EPOCH.elapsed()?.as_nanos();
    let mut lock = Lock {
        client: Client::open(format!("redis://{host}:{port}"))?,
        connection: None,
        key: key.clone(),
        value: format!("{}-{now}", process::id()),
        life_ms: (seconds.parse::<f64>()? * 1000.0) as u64,
    };

    for line in io::stdin().lines() {
        match lock.run(line?.trim()) {
            Ok(done) => println!("{}", u8::from(done)),
            Err(error) => println!("error {}", error.to_string().replace('\n', " ")),
        }
    }
    Ok(())
}
