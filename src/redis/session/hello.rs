//! Who the client is, and how it speaks: AUTH and HELLO.

use super::{RedisSession, answer::reply_to_one};
use crate::{
    RedisReply, RedisStore, RedisStoreError, commands::Arguments, number::parse_integer, resp::Protocol, view::Stop,
};

/// The version that clients are told: with a later one, they send commands that Redis 7.0 does not have.
pub(super) const VERSION: &str = "7.0.15";

/// The same for a wrong name and a wrong password.
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
/// The user that AUTH means if it names none.
const DEFAULT_USER: &str = "default";

impl<S: RedisStore> RedisSession<S> {
    /// Serves `AUTH [user] password`.
    pub(super) fn authenticate(&mut self, arguments: &Arguments<'_>) -> Result<RedisReply, Stop> {
        match arguments {
            [_, password] => {
                if !self.node.store().has_users() {
                    return Err(Stop::refused(
                        "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
                         configuration is correct?",
                    ));
                }
                self.prove(DEFAULT_USER.as_bytes(), password)?;
            }
            [_, user, password] => self.prove(user, password)?,
            _ => return Err(Stop::refused("ERR syntax error")),
        }

        Ok(RedisReply::ok())
    }

    /// Notes who the client is, if the password is right.
    fn prove(&mut self, user: &[u8], password: &[u8]) -> Result<(), Stop> {
        // If there are no users, every client is the default user, with any password.
        if !self.node.store().has_users() && user == DEFAULT_USER.as_bytes() {
            return Ok(());
        }
        let user = std::str::from_utf8(user).ok();
        let connection = &self.connection;
        let proven = user.map(|user| self.node.store().authenticate(user, password, connection)).transpose();
        let proven = proven.map_err(too_many_connections)?.flatten();
        let proven = proven.ok_or_else(|| Stop::refused(WRONG_PASSWORD))?;
        self.password = Some(self.note_proof(proven));
        Ok(())
    }

    /// Counts the connection for the identity that its certificate proves. Returns the error with which it has to be closed.
    pub(crate) fn admit(&self) -> Result<(), RedisReply> {
        let Some(identity) = &self.identity else { return Ok(()) };
        let admitted = self.node.store().admit(identity, &self.connection);
        admitted.map_err(|failure| reply_to_one(Err(too_many_connections(failure))))
    }

    /// Serves `HELLO [version] [AUTH user password] [SETNAME name]`. An error leaves the version as it was.
    pub(super) fn hello(&mut self, arguments: &Arguments<'_>) -> Result<RedisReply, Stop> {
        let protocol = match arguments.get(1) {
            None => self.protocol,
            Some(version) => match parse_integer(version) {
                Some(2) => Protocol::Resp2,
                Some(3) => Protocol::Resp3,
                Some(_) => return Err(Stop::refused("NOPROTO unsupported protocol version")),
                None => return Err(Stop::refused("ERR Protocol version is not an integer or out of range")),
            },
        };

        let mut name = None;
        let mut options = arguments.get(2..).unwrap_or_default();
        while let Some((option, rest)) = options.split_first() {
            match (option.to_ascii_uppercase().as_slice(), rest) {
                (b"AUTH", [user, password, rest @ ..]) => {
                    self.prove(user, password)?;
                    options = rest;
                }
                (b"SETNAME", [given, rest @ ..]) => {
                    name = Some(client_name(given)?);
                    options = rest;
                }
                _ => {
                    let option = String::from_utf8_lossy(option);
                    return Err(Stop::Refused(format!("ERR Syntax error in HELLO option '{option}'")));
                }
            }
        }

        if !self.is_known() {
            return Err(Stop::refused(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> \
                 option can be used to authenticate the client and select the RESP protocol version at the same time",
            ));
        }
        if let Some(name) = name {
            self.client().tell(|told| told.name = name);
        }
        self.protocol = protocol;
        Ok(self.greeting())
    }

    /// What HELLO answers: facts about the server, as clients expect them.
    fn greeting(&self) -> RedisReply {
        let id = i64::try_from(self.client().id).unwrap_or(i64::MAX);
        let pairs = [
            ("server", RedisReply::text("redis")),
            ("version", RedisReply::text(VERSION)),
            ("proto", RedisReply::Integer(self.protocol.version())),
            ("id", RedisReply::Integer(id)),
            ("mode", RedisReply::text("standalone")),
            ("role", RedisReply::text("master")),
            ("modules", RedisReply::Array(Vec::new())),
        ];
        RedisReply::Map(pairs.into_iter().map(|(name, value)| (RedisReply::text(name), value)).collect())
    }
}

/// The error for an identity that has as many connections as it may have.
fn too_many_connections(failure: RedisStoreError) -> Stop {
    Stop::Refused(format!("ERR max number of clients reached: {failure}"))
}

/// Reads a name of a client: visible characters, and no spaces.
pub(super) fn client_name(name: &[u8]) -> Result<String, Stop> {
    const BYTES_MAX: usize = 256;
    let is_visible = name.iter().all(|byte| (b'!'..=b'~').contains(byte));
    if !is_visible {
        return Err(Stop::refused("ERR Client names cannot contain spaces, newlines or special characters."));
    }
    if name.len() > BYTES_MAX {
        return Err(Stop::Refused(format!(
            "ERR a client's name has at most {BYTES_MAX} bytes here: choose a shorter one"
        )));
    }
    Ok(String::from_utf8_lossy(name).into_owned())
}
