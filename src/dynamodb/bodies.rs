//! Limits the memory of request bodies in flight.
//!
//! The first [`SMALL_BYTES`] of each body do not count, because the number of connections bounds them. All requests of lock clients fit
//! into them, so no other client can keep a heartbeat or a release out. Further bytes count against two limits: that of the client's
//! address, and that of all clients.

use std::{net::IpAddr, sync::Arc};

use lockkeeper_planted::NodeLimit;

use crate::{
    budget::{ByteShare, OverBudget, SharedBytes},
    error::{Error, ErrorType, Result},
};

/// Number of bytes of a body that always have room.
pub(crate) const SMALL_BYTES: usize = 16 << 10;

/// The bodies of all requests in flight.
#[derive(Debug)]
pub(crate) struct Bodies(Arc<SharedBytes>);

/// The counted bytes of one body. They are free again when this is dropped.
#[derive(Debug)]
pub(crate) struct BodyShare(ByteShare);

impl Bodies {
    pub(crate) fn new(all_max: usize, address_max: usize) -> Self {
        Self(SharedBytes::new(all_max, address_max))
    }

    pub(crate) fn share(&self, client: IpAddr) -> BodyShare {
        BodyShare(self.0.share(client))
    }
}

impl BodyShare {
    /// Notes that the body has this number of bytes by now. Fails if that exceeds a limit.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<()> {
        let more = bytes.saturating_sub(SMALL_BYTES).saturating_sub(self.0.counted());
        self.0.add(more).map_err(|OverBudget { whose, used, more, max }| {
            NodeLimit::DynamodbBodies.note();
            Error::new(
                ErrorType::Throttled,
                format!(
                    "the bodies of other requests {whose} have {used} bytes, and {more} more exceed the limit of {max}: try again, or send \
                     bodies of {SMALL_BYTES} bytes or less, which are always taken"
                ),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn one_address_leaves_room_for_others_and_small_bodies_need_none() {
        let bodies = Bodies::new(3000, 2000);
        let mut greedy = bodies.share(address(1));
        greedy.grow_to(SMALL_BYTES + 2000).expect("its whole share");
        let mut more = bodies.share(address(1));
        let error = more.grow_to(SMALL_BYTES + 1).expect_err("nothing is left of it");
        assert!(error.kind == ErrorType::Throttled && error.message.contains("from this address"), "{error:?}");
        more.grow_to(SMALL_BYTES).expect("a small body");

        let mut other = bodies.share(address(2));
        other.grow_to(SMALL_BYTES + 1000).expect("another address");
        let error = other.grow_to(SMALL_BYTES + 1001).expect_err("all is used");
        assert!(error.message.contains("of all clients"), "{error:?}");
        bodies.share(address(3)).grow_to(SMALL_BYTES).expect("a small body of a third");

        drop(greedy);
        more.grow_to(SMALL_BYTES + 2000).expect("it is free again");
        drop((more, other));
        assert_eq!(bodies.0.in_use(), (0, 0));
    }
}
