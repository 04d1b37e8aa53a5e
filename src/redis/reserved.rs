//! Channels that are reserved: on them only the server speaks.
//!
//! Clients of Sentinel believe what they read there. `+switch-master` names the server to which they connect next, `+slave` and `+sentinel`
//! name further servers: whoever could publish there could lead all of them to a server of their own. This port itself sends
//! `+switch-master` alone, from each node to its own subscribers (`signals`), so the log has no message of a reserved channel. A node of an
//! earlier version does not refuse one: then the others do not deliver it.

use lockkeeper_planted::Planted;

/// What the channels of Sentinels among each other begin with.
const SENTINELS: &[u8] = b"__sentinel__:";

/// The events of Sentinel in Redis 7.0, without the sign with which its channels begin. In ascending order.
const SENTINEL_EVENTS: &[&str] = &[
    "cmd-link",
    "cmd-link-reconnection",
    "config-update-from",
    "convert-to-slave",
    "dup-sentinel",
    "elected-leader",
    "failover-abort-master-is-down",
    "failover-abort-no-good-slave",
    "failover-abort-not-elected",
    "failover-abort-slave-timeout",
    "failover-detected",
    "failover-end",
    "failover-end-for-timeout",
    "failover-state-reconf-slaves",
    "failover-state-select-slave",
    "failover-state-send-slaveof-noone",
    "failover-state-wait-promotion",
    "fix-slave-config",
    "monitor",
    "new-epoch",
    "odown",
    "promoted-slave",
    "pubsub-link",
    "pubsub-link-reconnection",
    "reboot",
    "redirect-to-master",
    "replica-reconf-done",
    "reset-master",
    "role-change",
    "sdown",
    "selected-slave",
    "sentinel",
    "sentinel-address-switch",
    "sentinel-invalid-addr",
    "set",
    "slave",
    "slave-reconf-done",
    "slave-reconf-inprog",
    "slave-reconf-sent",
    "switch-master",
    "tilt",
    "try-failover",
    "vote-for-leader",
];

/// Bytes of a channel that its refusal shows.
const SHOWN_BYTES_MAX: usize = 64;

/// Whether clients may not publish on this channel.
pub(crate) fn is_reserved(channel: &[u8]) -> bool {
    if Planted::SentinelOfAnybody.is_on() {
        return false;
    }
    let [b'+' | b'-', event @ ..] = channel else { return channel.starts_with(SENTINELS) };
    SENTINEL_EVENTS.binary_search_by(|reserved| reserved.as_bytes().cmp(event)).is_ok()
}

/// The error for a client that wants to.
pub(crate) fn refusal(channel: &[u8]) -> String {
    let shown = channel[..channel.len().min(SHOWN_BYTES_MAX)].escape_ascii();
    format!(
        "NOPERM clients do not publish on the channel '{shown}', since clients of Sentinel follow what is said there: use a channel of \
         another name"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_of_sentinel_are_reserved_and_no_others() {
        assert!(SENTINEL_EVENTS.is_sorted());
        for reserved in ["+switch-master", "+slave", "+sentinel", "+sdown", "-sdown", "-odown", "__sentinel__:hello"] {
            assert!(is_reserved(reserved.as_bytes()), "{reserved}");
        }
        for free in ["", "+", "switch-master", "+switch-master2", "x+switch-master", "slave", "sentinel", "+lock", "__"]
        {
            assert!(!is_reserved(free.as_bytes()), "{free}");
        }
    }

    #[test]
    fn a_refusal_is_one_short_line() {
        let text = refusal(&[&b"__sentinel__:\r\n"[..], &[b'x'; 1000]].concat());
        assert!(text.starts_with("NOPERM ") && text.contains(r"'__sentinel__:\r\nxx"), "{text}");
        assert!(!text.contains('\n') && text.len() < 250, "{text}");
    }
}
