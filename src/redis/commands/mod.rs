//! The commands: a table of them, and a file for each family.
//!
//! A command of the keyspace is a function of a [`UnitView`] and its arguments. What concerns a connection, such as AUTH and MULTI, is in
//! `session`. The table has both, since clients ask for it (COMMAND), and since it says how many arguments a command takes.

mod arguments;
mod chunks;
mod copies;
pub(crate) mod glob;
mod hashes;
mod keys;
mod lists;
mod server;
mod sets;
mod sorted;
mod strings;
mod table;

pub(crate) use arguments::{Arguments, CommandResult, wrong_number};
pub(crate) use chunks::{KEYS_TOGETHER, divide, join};
pub(crate) use keys::check_flush;
pub(crate) use lists::timeout_seconds;
pub(crate) use server::database;
pub(crate) use strings::SetOptions;
pub(crate) use table::{CommandRunner, CommandSpec, Flag, KeyPlaces, all, find};

use crate::{
    RedisReply,
    view::{Stop, UnitView},
};

/// Runs a command of the keyspace. Its arity is checked, and an unknown one is an error.
pub(crate) fn run(view: &mut UnitView, arguments: &Arguments<'_>) -> Result<RedisReply, Stop> {
    let command = find_checked(arguments)?;
    let CommandRunner::Data(run) = command.run else {
        let name = command.name;
        return Err(Stop::Refused(format!("ERR {name} has no place among the commands of a transaction or a script")));
    };
    let paid_before = view.paid_bytes();
    view.spend(1 + arguments.len())?;
    let reply = run(view, arguments)?;

    let given: usize = arguments.iter().map(|argument| argument.len()).sum();
    let paid = view.paid_bytes() - paid_before;
    debug_assert!(reply.text_bytes() <= given + paid, "stored bytes are paid for before they are copied to a reply");
    Ok(reply)
}

/// Finds a command, and checks the number of its arguments.
pub(crate) fn find_checked(arguments: &Arguments<'_>) -> Result<&'static CommandSpec, Stop> {
    let Some(name) = arguments.first() else { return Err(unknown(arguments)) };
    let command = find(name).ok_or_else(|| unknown(arguments))?;
    let count = i32::try_from(arguments.len()).unwrap_or(i32::MAX);
    let is_right = if command.arity < 0 { count >= -command.arity } else { count == command.arity };
    if is_right { Ok(command) } else { Err(wrong_number(command.name)) }
}

/// The error for a command that there is not, as Redis says it. It shows the first arguments, in about 128 bytes.
fn unknown(arguments: &Arguments<'_>) -> Stop {
    const SHOWN_BYTES_MAX: usize = 128;
    let shown = |bytes: &[u8], bytes_max: usize| {
        let shown = &bytes[..bytes.len().min(bytes_max)];
        String::from_utf8_lossy(shown.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
    };
    let mut beginning = String::new();

    for argument in arguments.get(1..).unwrap_or_default() {
        if beginning.len() >= SHOWN_BYTES_MAX {
            break;
        }
        let argument = shown(argument, SHOWN_BYTES_MAX - beginning.len());
        beginning.push_str(&format!("'{argument}' "));
    }
    let name = shown(arguments.first().copied().unwrap_or_default(), SHOWN_BYTES_MAX);
    Stop::Refused(format!("ERR unknown command '{name}', with args beginning with: {beginning}"))
}
