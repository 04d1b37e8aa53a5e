//! What the server says of itself: INFO, COMMAND, CONFIG, ROLE.

use super::{
    RedisSession,
    answer::{Closes, failure_reply},
    clients::unknown_subcommand,
    hello::VERSION,
};
use crate::{
    RedisReply, RedisStore,
    commands::{self, Arguments, CommandResult, CommandSpec, KeyPlaces, wrong_number},
    key::{DATABASES, database_end, database_start},
    view::Stop,
};

impl<S: RedisStore> RedisSession<S> {
    /// Serves `INFO [section …]`: the facts that clients act on, and few others.
    pub(super) async fn info(&self, arguments: &Arguments<'_>) -> Result<RedisReply, Closes> {
        let sections: Vec<_> = arguments[1..].iter().map(|section| section.to_ascii_lowercase()).collect();
        let is_named = |name: &str| sections.iter().any(|section| section == name.as_bytes());
        let is_all = sections.is_empty() || is_named("default") || is_named("all") || is_named("everything");
        let mut text = String::new();
        for (name, lines) in self.facts() {
            if is_all || is_named(&name.to_ascii_lowercase()) {
                text.push_str(&format!("# {name}\r\n"));
                lines.iter().for_each(|(fact, value)| text.push_str(&format!("{fact}:{value}\r\n")));
                text.push_str("\r\n");
            }
        }

        // The number of keys is asked of the leader, so it is shown to those who ask for it.
        if is_named("keyspace") {
            match self.keyspace().await {
                Ok(lines) => text.push_str(&lines),
                Err(failure) => return failure_reply(failure),
            }
        }
        Ok(RedisReply::Verbatim(text.into_bytes()))
    }

    /// The sections, each with its lines.
    fn facts(&self) -> Vec<(&'static str, Vec<(&'static str, String)>)> {
        let loading = u8::from(!self.node.store().has_leader());
        let uptime = self.node.began.elapsed().as_secs();
        let clients = self.node.clients.count();

        vec![
            (
                "Server",
                vec![
                    ("redis_version", VERSION.to_owned()),
                    ("redis_mode", "standalone".to_owned()),
                    ("lockkeeper_version", env!("CARGO_PKG_VERSION").to_owned()),
                    ("arch_bits", "64".to_owned()),
                    ("uptime_in_seconds", uptime.to_string()),
                ],
            ),
            ("Clients", vec![("connected_clients", clients.to_string()), ("blocked_clients", "0".to_owned())]),
            ("Memory", vec![("maxmemory_policy", "noeviction".to_owned())]),
            ("Persistence", vec![("loading", loading.to_string())]),
            ("Replication", vec![("role", "master".to_owned()), ("connected_slaves", "0".to_owned())]),
            ("Cluster", vec![("cluster_enabled", "0".to_owned())]),
        ]
    }

    /// The number of keys of each database that has some.
    async fn keyspace(&self) -> Result<String, crate::RedisStoreError> {
        let caller = self.caller();
        let mut text = "# Keyspace\r\n".to_owned();
        for database in 0..DATABASES {
            let from = database_start(database);
            let to = database_end(database);
            let keys = self.node.store().count(&caller, from, to).await?;
            if keys > 0 {
                text.push_str(&format!("db{database}:keys={keys},expires=0,avg_ttl=0\r\n"));
            }
        }
        Ok(text)
    }
}

/// Maximum number of commands that one request has described. A description takes a hundred times as much memory as a name.
const DESCRIBED_MAX: usize = 256;

/// Each node leads for its clients: it forwards what only the leader can do.
pub(super) fn role() -> RedisReply {
    RedisReply::Array(vec![RedisReply::text("master"), RedisReply::Integer(0), RedisReply::Array(Vec::new())])
}

/// Refuses CLUSTER: clients then take this for a server by itself.
pub(super) fn cluster(_arguments: &Arguments<'_>) -> CommandResult {
    Err(Stop::refused("ERR This instance has cluster support disabled"))
}

/// Serves `CONFIG GET` with no parameters at all, as clients that probe go on without.
pub(super) fn config(arguments: &Arguments<'_>) -> CommandResult {
    match arguments[1].to_ascii_lowercase().as_slice() {
        b"get" if arguments.len() > 2 => Ok(RedisReply::Map(Vec::new())),
        b"get" => Err(wrong_number("config|get")),
        b"set" | b"rewrite" | b"resetstat" => Err(Stop::refused(
            "ERR CONFIG is not served: the configuration of Lockkeeper is a file of its own, see its documentation",
        )),
        _ => Err(unknown_subcommand("CONFIG", arguments[1])),
    }
}

/// Serves COMMAND with its subcommands, out of the table of commands.
pub(super) fn command(arguments: &Arguments<'_>) -> CommandResult {
    let Some(subcommand) = arguments.get(1) else {
        return Ok(RedisReply::Array(commands::all().iter().map(describe).collect()));
    };

    match (subcommand.to_ascii_lowercase().as_slice(), &arguments[2..]) {
        (b"count", []) => Ok(RedisReply::count(commands::all().len())),
        (b"list", []) => {
            Ok(RedisReply::Array(commands::all().iter().map(|command| RedisReply::text(command.name)).collect()))
        }
        (b"info", names) if names.len() > DESCRIBED_MAX => {
            let count = names.len();
            Err(Stop::Refused(format!(
                "ERR COMMAND INFO names {count} commands, and at most {DESCRIBED_MAX} are described together: name fewer"
            )))
        }
        (b"info", names) => {
            let shown = |name: &&[u8]| commands::find(name).map_or(RedisReply::NilArray, describe);
            let all = names.is_empty().then(|| commands::all().iter().map(describe).collect());
            Ok(RedisReply::Array(all.unwrap_or_else(|| names.iter().map(shown).collect())))
        }
        (b"docs", names) => {
            let is_shown = |command: &&CommandSpec| {
                names.is_empty() || names.iter().any(|name| name.eq_ignore_ascii_case(command.name.as_bytes()))
            };
            Ok(RedisReply::Map(commands::all().iter().filter(is_shown).map(document).collect()))
        }
        (b"getkeys", asked) if asked.len() > 1 => {
            let command = commands::find_checked(asked).map_err(|_| Stop::refused("ERR Invalid command specified"))?;
            let keys = command.keys(asked);
            if keys.is_empty() {
                return Err(Stop::refused("ERR The command has no key arguments"));
            }
            Ok(RedisReply::bulks(keys.into_iter().map(<[u8]>::to_vec)))
        }
        (subcommand @ (b"count" | b"list" | b"getkeys"), _) => {
            Err(wrong_number(&format!("command|{}", String::from_utf8_lossy(subcommand))))
        }
        _ => Err(unknown_subcommand("COMMAND", subcommand)),
    }
}

/// A command, as COMMAND INFO describes it.
fn describe(command: &CommandSpec) -> RedisReply {
    let none = || RedisReply::Array(Vec::new());
    let place = |place: i64| RedisReply::Integer(place);
    let [first, last, step] = match command.keys {
        KeyPlaces::From { first, last, step } => [first as i64, last.into(), step as i64],
        KeyPlaces::TargetAndCounted => [1, 1, 1],
        KeyPlaces::Nowhere | KeyPlaces::Counted { .. } => [0, 0, 0],
    };
    let flags = command.flags.iter().map(|flag| RedisReply::Status(flag.word().as_bytes().to_vec()));

    RedisReply::Array(vec![
        RedisReply::text(command.name),
        RedisReply::Integer(command.arity.into()),
        RedisReply::Set(flags.collect()),
        place(first),
        place(last),
        place(step),
        RedisReply::Set(Vec::new()),
        none(),
        none(),
        none(),
    ])
}

/// A command, as COMMAND DOCS describes it.
fn document(command: &CommandSpec) -> (RedisReply, RedisReply) {
    let facts = vec![
        (RedisReply::text("summary"), RedisReply::text(format!("As of Redis {VERSION}, where Lockkeeper serves it"))),
        (RedisReply::text("since"), RedisReply::text("1.0.0")),
        (RedisReply::text("group"), RedisReply::text("generic")),
    ];
    (RedisReply::text(command.name), RedisReply::Map(facts))
}
