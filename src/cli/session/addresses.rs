//! Addresses of clients, as a command line names them.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use crate::machine::Address;

/// Sessions that were opened from here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum OwnSessions {
    /// From this address and port: one connection of one client.
    Exactly(SocketAddr),
    /// From all addresses that begin with these bits.
    Network(IpAddr, u8),
}

/// IP, IP/PREFIX-LENGTH or IP:PORT.
pub(in super::super) fn addresses(text: &str) -> Result<OwnSessions, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(OwnSessions::Exactly(SocketAddr::new(address.ip().to_canonical(), address.port())));
    }

    let (ip, length) = text.split_once('/').map_or((text, None), |(ip, length)| (ip, Some(length)));
    let ip: IpAddr = ip.parse().map_err(|_| {
        format!(
            "{text:?} is not an IP address: give it as 10.0.0.7, 10.0.0.7:5123, 10.0.0.0/8, 2001:db8::7 or [2001:db8::7]:5123"
        )
    })?;

    let ip = ip.to_canonical();
    let (bits, most) = bits(ip);
    let length = match length {
        None => most,
        Some(length) => length.parse().ok().filter(|length| *length <= most).ok_or_else(|| {
            format!("the prefix length {length:?} of {ip} is not a number from 0 to {most}: correct it")
        })?,
    };

    // Bits beyond the prefix make the meaning uncertain, and a closed session cannot be opened again.
    if prefix(bits, length) != bits {
        return Err(format!(
            "{ip} has bits beyond the first {length}: write them as 0, or choose another prefix length"
        ));
    }
    Ok(OwnSessions::Network(ip, length))
}

impl OwnSessions {
    /// Whether a session with this address is one of them.
    pub(super) fn contains(self, address: Address) -> bool {
        match self {
            Self::Exactly(one) => Address::from(one) == address,
            Self::Network(ip, length) => {
                let (own, own_length) = bits(ip);
                let (other, other_length) = bits(address.ip());
                own_length == other_length && prefix(other, length) == own
            }
        }
    }
}

impl fmt::Display for OwnSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(address) => write!(f, "{address}"),
            Self::Network(ip, length) => write!(f, "{ip}/{length}"),
        }
    }
}

/// An address from its first bit on, and how many it has.
fn bits(ip: IpAddr) -> (u128, u8) {
    match ip {
        IpAddr::V4(ip) => (u128::from(ip.to_bits()) << 96, 32),
        IpAddr::V6(ip) => (ip.to_bits(), 128),
    }
}

/// The first bits.
fn prefix(bits: u128, length: u8) -> u128 {
    bits & u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_one_connection_one_host_or_a_network() {
        for (named, inside, outside) in [
            ("10.0.0.7", "10.0.0.7:1", "10.0.0.8:1"),
            ("10.0.0.7:5123", "10.0.0.7:5123", "10.0.0.7:5124"),
            ("10.0.0.0/8", "10.255.0.7:1", "11.0.0.0:1"),
            ("10.0.0.6/31", "10.0.0.7:1", "10.0.0.8:1"),
            ("0.0.0.0/0", "255.1.2.3:1", "[::1]:1"),
            ("::/0", "[2001:db8::7]:1", "10.0.0.7:1"),
            ("2001:db8::/33", "[2001:db8:7fff::]:1", "[2001:db8:8000::]:1"),
            ("[2001:db8::7]:5123", "[2001:db8::7]:5123", "[2001:db8::7]:5"),
            ("::ffff:10.0.0.7", "10.0.0.7:1", "10.0.0.8:1"),
            ("10.0.0.7/32", "10.0.0.7:1", "10.0.0.6:1"),
        ] {
            let addresses = addresses(named).expect(named);
            assert!(addresses.contains(inside.parse().expect(inside)), "{inside} in {named}");
            assert!(!addresses.contains(outside.parse().expect(outside)), "{outside} in {named}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for (wrong, said) in [
            ("", "is not an IP address"),
            ("host", "is not an IP address"),
            ("10.0.0", "is not an IP address"),
            ("10.0.0.7:70000", "is not an IP address"),
            ("10.0.0.7/8", "bits beyond the first 8"),
            ("10.0.0.0/33", "from 0 to 32"),
            ("::/129", "from 0 to 128"),
            ("10.0.0.0/", "from 0 to 32"),
        ] {
            let refused = addresses(wrong).expect_err(wrong);
            assert!(refused.contains(said), "{wrong}: {refused}");
        }
    }
}
