//! CLIENT: what a connection tells of itself, and what it may do with others.

use std::sync::Arc;

use lockkeeper_accept::origin;

use super::{RedisSession, hello::client_name};
use crate::{
    RedisReply, RedisStore,
    clients::{ClientType, ListedClient},
    commands::{Arguments, CommandResult, wrong_number},
    number::parse_integer,
    view::Stop,
};

impl<S: RedisStore> RedisSession<S> {
    /// Serves CLIENT with its subcommands.
    pub(super) fn client_command(&mut self, arguments: &Arguments<'_>) -> CommandResult {
        let subcommand = arguments[1].to_ascii_lowercase();
        let client = Arc::clone(self.client());

        match (subcommand.as_slice(), &arguments[2..]) {
            (b"id", []) => Ok(RedisReply::Integer(i64::try_from(client.id).unwrap_or(i64::MAX))),
            (b"getname", []) => {
                let name = client.told().name;
                Ok(if name.is_empty() { RedisReply::Nil } else { RedisReply::text(name) })
            }
            (b"setname", [name]) => {
                let name = client_name(name)?;
                client.tell(|told| told.name = name);
                Ok(RedisReply::ok())
            }
            (b"setinfo", [attribute, value]) => self.set_info(attribute, value),
            (b"info", []) => Ok(RedisReply::Verbatim(client.line(self.protocol.version()).into_bytes())),
            (b"list", filters) => self.list(filters),
            (b"kill", filters) if !filters.is_empty() => self.kill(filters),
            (b"no-evict" | b"no-touch", [_]) => Ok(RedisReply::ok()),
            (b"reply", [how]) if how.eq_ignore_ascii_case(b"on") => Ok(RedisReply::ok()),
            (b"id" | b"getname" | b"setname" | b"setinfo" | b"info" | b"kill", _) => {
                Err(wrong_number(&format!("client|{}", String::from_utf8_lossy(&subcommand))))
            }
            _ => Err(unknown_subcommand("CLIENT", arguments[1])),
        }
    }

    /// Serves `CLIENT SETINFO attribute value`, which Redis has since 7.2: operators see the library of a holder.
    fn set_info(&self, attribute: &[u8], value: &[u8]) -> CommandResult {
        let value = client_name(value)?;
        let is_library = attribute.eq_ignore_ascii_case(b"LIB-NAME");
        if !is_library && !attribute.eq_ignore_ascii_case(b"LIB-VER") {
            let attribute = String::from_utf8_lossy(attribute);
            return Err(Stop::Refused(format!("ERR Unrecognized option '{attribute}'")));
        }

        if is_library {
            self.node.clients.tell_library(self.client(), value);
        } else {
            self.client().tell(|told| told.library_version = value);
        }
        Ok(RedisReply::ok())
    }

    /// The connections that this one may see: those of its own identity. All that have proven nothing are one.
    fn visible(&self) -> Vec<Arc<ListedClient>> {
        let mut all = self.node.clients.all();
        all.retain(|client| client.is_identified_as(self.identity.as_deref()));
        all
    }

    /// Whether this connection may end one that it sees. Those that have proven nothing may belong to anybody: of these it may end the ones
    /// of its own address, and subscribers. A library that takes a subscription for a lock ends that of a holder which does not answer,
    /// wherever the holder is.
    fn may_end(&self, client: &ListedClient) -> bool {
        self.identity.is_some()
            || origin(client.address.ip()) == origin(self.address.ip())
            || client.told().client_type() == ClientType::Subscriber
    }

    /// Serves `CLIENT LIST`: a line for each connection of this node.
    fn list(&self, filters: &Arguments<'_>) -> CommandResult {
        let mut shown = self.visible();
        match filters {
            [] => {}
            [kind, name] if kind.eq_ignore_ascii_case(b"TYPE") => {
                let asked = client_type(name)?;
                shown.retain(|client| client.told().client_type() == asked);
            }
            [id, ids @ ..] if id.eq_ignore_ascii_case(b"ID") && !ids.is_empty() => {
                let ids: Vec<_> = ids.iter().filter_map(|id| u64::try_from(parse_integer(id)?).ok()).collect();
                shown.retain(|client| ids.contains(&client.id));
            }
            _ => return Err(Stop::refused("ERR syntax error")),
        }

        let version = self.protocol.version();
        let lines: String = shown.iter().map(|client| client.line(version)).collect();
        Ok(RedisReply::Verbatim(lines.into_bytes()))
    }

    /// Serves `CLIENT KILL`: by the address alone, or by filters.
    fn kill(&self, filters: &Arguments<'_>) -> CommandResult {
        if let [address] = filters {
            let killed = self.kill_where(|client| client.address.to_string().as_bytes() == *address);
            return if killed > 0 { Ok(RedisReply::ok()) } else { Err(Stop::refused("ERR No such client")) };
        }

        let filters = KillFilters::read(filters)?;
        let own = self.client().id;
        Ok(RedisReply::count(self.kill_where(|client| filters.choose(client, own))))
    }

    /// Ends connections, and returns their number.
    fn kill_where(&self, is_chosen: impl Fn(&ListedClient) -> bool) -> usize {
        let mut chosen = self.visible();
        chosen.retain(|client| is_chosen(client) && self.may_end(client));
        chosen.iter().for_each(|client| client.kill.cancel());
        chosen.len()
    }
}

/// Which connections CLIENT KILL ends: those for which all filters hold.
struct KillFilters<'a> {
    id: Option<u64>,
    address: Option<&'a [u8]>,
    client_type: Option<ClientType>,
    user: Option<&'a [u8]>,
    skips_own: bool,
}

impl<'a> KillFilters<'a> {
    /// Reads pairs of a name and a value.
    fn read(filters: &[&'a [u8]]) -> Result<Self, Stop> {
        let mut read = Self { id: None, address: None, client_type: None, user: None, skips_own: true };
        for filter in filters.chunks(2) {
            let &[name, value] = filter else { return Err(Stop::refused("ERR syntax error")) };
            match name.to_ascii_uppercase().as_slice() {
                b"ID" => {
                    let id = parse_integer(value).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
                    read.id = Some(id.ok_or_else(|| Stop::refused("ERR client-id should be greater than 0"))?);
                }
                b"ADDR" => read.address = Some(value),
                b"TYPE" => read.client_type = Some(client_type(value)?),
                b"USER" => read.user = Some(value),
                b"SKIPME" if value.eq_ignore_ascii_case(b"yes") => read.skips_own = true,
                b"SKIPME" if value.eq_ignore_ascii_case(b"no") => read.skips_own = false,
                b"LADDR" => return Err(Stop::refused("ERR LADDR is not served: name connections by ADDR or ID")),
                _ => return Err(Stop::refused("ERR syntax error")),
            }
        }
        Ok(read)
    }

    /// Whether a connection is to end. `own` is the id of the one that asks.
    fn choose(&self, client: &ListedClient, own: u64) -> bool {
        let told = client.told();
        let is_chosen = self.id.is_none_or(|id| client.id == id);
        let is_there = self.address.is_none_or(|address| client.address.to_string().as_bytes() == address);
        let is_of_type = self.client_type.is_none_or(|asked| told.client_type() == asked);
        let is_of_user = self.user.is_none_or(|user| told.user().as_bytes() == user);
        is_chosen && is_there && is_of_type && is_of_user && !(self.skips_own && client.id == own)
    }
}

/// Reads the name of a type of connections.
fn client_type(name: &[u8]) -> Result<ClientType, Stop> {
    ClientType::from_name(name).ok_or_else(|| {
        let shown = String::from_utf8_lossy(&name[..name.len().min(128)]);
        Stop::Refused(format!("ERR Unknown client type '{shown}'"))
    })
}

/// The error for a subcommand that there is not.
pub(super) fn unknown_subcommand(command: &str, subcommand: &[u8]) -> Stop {
    let shown = &subcommand[..subcommand.len().min(128)];
    let shown = String::from_utf8_lossy(shown);
    Stop::Refused(format!("ERR unknown subcommand '{shown}'. Try {command} HELP."))
}
