//! Limits the memory of requests and items that are decoded.
//!
//! A map of one value takes five bytes in the store and 26 in JSON, and some 800 bytes of memory: the smallest node of a tree. So the bytes
//! of a body, or of an item, do not bound what it decodes to. The bytes that the values of a request need are estimated, from the structure
//! of its JSON before it is read, and those of each item once it is read: between that and the count there is no pause, so as many items as
//! there are threads are not counted yet.
//!
//! The first [`SMALL_DECODED_BYTES`] of each request do not count, because the number of connections bounds them. All requests of lock
//! clients fit into them, so no other client can keep a heartbeat or a release out. Further bytes count against two limits: that of the
//! client's address, and that of all clients.

use std::{
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lockkeeper_planted::NodeLimit;

use crate::{
    AttributeValue, Item, Number,
    budget::{ByteShare, OverBudget, SharedBytes},
};

/// Number of bytes of a request that always have room.
pub(crate) const SMALL_DECODED_BYTES: usize = 64 << 10;

/// Number of elements of a node of a tree, and the lowest number that one has beside others.
const NODE_ELEMENTS: usize = 11;
const NODE_ELEMENTS_MIN: usize = 5;
/// Number of further bytes of a node.
const NODE_BYTES: usize = 16;
/// Number of bytes that an allocation takes beyond its content, about.
const ALLOCATION_BYTES: usize = 16;
/// Number of bytes of an attribute in a node.
const ATTRIBUTE_BYTES: usize = size_of::<String>() + size_of::<AttributeValue>();

/// Number of bytes that are estimated for an object of JSON, for one that is a map of attributes, for an array, and for each further
/// element of either.
const OBJECT_BYTES: usize = 128;
const MAP_BYTES: usize = NODE_ELEMENTS * ATTRIBUTE_BYTES + NODE_BYTES + ALLOCATION_BYTES;
const ARRAY_BYTES: usize = NODE_ELEMENTS * size_of::<Number>() + NODE_BYTES;
const ELEMENT_BYTES: usize = 128;

/// The decoded bytes of a request. Clones are the same. Without a budget, nothing is limited.
#[derive(Clone, Debug, Default)]
pub(crate) struct DecodedShare(Arc<Mutex<DecodedBytes>>);

#[derive(Debug, Default)]
struct DecodedBytes {
    bytes: usize,
    /// Those beyond the first.
    share: Option<ByteShare>,
}

/// Some of the decoded bytes of a request. They are free again when this is dropped.
#[derive(Debug)]
pub(crate) struct DecodedCharge {
    share: DecodedShare,
    bytes: usize,
}

/// There is no room for values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecodeRefused {
    over: OverBudget,
    bytes: usize,
}

impl DecodedShare {
    pub(crate) fn new(budget: &Arc<SharedBytes>, client: IpAddr) -> Self {
        let share = Some(budget.share(client));
        Self(Arc::new(Mutex::new(DecodedBytes { bytes: 0, share })))
    }

    /// Counts more bytes. Fails if that exceeds a limit.
    pub(crate) fn charge(&self, bytes: usize) -> Result<DecodedCharge, DecodeRefused> {
        self.decoded().grow(bytes).map_err(|over| {
            NodeLimit::DynamodbDecoded.note();
            DecodeRefused { over, bytes }
        })?;
        Ok(DecodedCharge { share: self.clone(), bytes })
    }

    /// Locks. No code panics while it holds the lock.
    fn decoded(&self) -> MutexGuard<'_, DecodedBytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DecodedBytes {
    fn grow(&mut self, more: usize) -> Result<(), OverBudget> {
        let bytes = self.bytes.saturating_add(more);
        if let Some(share) = &mut self.share {
            share.add(bytes.saturating_sub(SMALL_DECODED_BYTES) - share.counted())?;
        }
        self.bytes = bytes;
        Ok(())
    }

    fn shrink(&mut self, less: usize) {
        self.bytes -= less;
        if let Some(share) = &mut self.share {
            share.give_back(share.counted() - self.bytes.saturating_sub(SMALL_DECODED_BYTES));
        }
    }
}

impl DecodedCharge {
    /// Counts this item from now on, if it is smaller.
    pub(crate) fn cut_to(mut self, item: &Item) -> Self {
        self.shrink_to(decoded_bytes(item));
        self
    }

    fn shrink_to(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.share.decoded().shrink(less);
        self.bytes -= less;
    }
}

impl Drop for DecodedCharge {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

impl DecodeRefused {
    /// Whether there may be room later. There is none for values that exceed the limit alone.
    pub(crate) fn is_passing(&self) -> bool {
        self.over.more <= self.over.max
    }
}

impl fmt::Display for DecodeRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { over: OverBudget { whose, used, more, max }, bytes } = self;
        if !self.is_passing() {
            return write!(
                f,
                "the values take about {bytes} bytes of memory, and the limit is {max} of one address: send or read fewer at a time"
            );
        }

        write!(
            f,
            "the values of requests {whose} take about {used} bytes of memory, and {more} more exceed the limit of {max}: try again, or \
             send and read fewer at a time"
        )
    }
}

/// Number of bytes that the values of a JSON text need at most, about.
pub(crate) fn json_decoded_bytes(json: &[u8]) -> usize {
    let mut bytes = json.len();
    let mut is_map = false;
    let mut rest = json.iter();

    while let Some(byte) = rest.next() {
        match byte {
            b'"' => {
                let text = rest.as_slice();
                while let Some(byte) = rest.next() {
                    match byte {
                        b'\\' => drop(rest.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
                // One with escapes may be any text.
                is_map = text.starts_with(b"M\"") || text.starts_with(b"\\");
            }
            b'{' if is_map => bytes += MAP_BYTES,
            b'{' => bytes += OBJECT_BYTES,
            b'[' => bytes += ARRAY_BYTES,
            b',' => bytes += ELEMENT_BYTES,
            _ => {}
        }
    }
    bytes
}

/// Number of bytes that the attributes take beside the item itself, about.
pub(crate) fn decoded_bytes(item: &Item) -> usize {
    let content = item.iter().map(|(name, value)| allocated(name.len()) + value_bytes(value)).sum::<usize>();
    nodes(item.len(), ATTRIBUTE_BYTES) + content
}

fn value_bytes(value: &AttributeValue) -> usize {
    match value {
        AttributeValue::S(text) => allocated(text.len()),
        AttributeValue::B(bytes) => allocated(bytes.len()),
        AttributeValue::N(_) | AttributeValue::Bool(_) | AttributeValue::Null => 0,
        AttributeValue::Ss(set) => {
            nodes(set.len(), size_of::<String>()) + set.iter().map(|text| allocated(text.len())).sum::<usize>()
        }
        AttributeValue::Ns(set) => nodes(set.len(), size_of::<Number>()),
        AttributeValue::Bs(set) => {
            nodes(set.len(), size_of::<Vec<u8>>()) + set.iter().map(|bytes| allocated(bytes.len())).sum::<usize>()
        }
        AttributeValue::L(list) => {
            allocated(size_of_val(list.as_slice())) + list.iter().map(value_bytes).sum::<usize>()
        }
        AttributeValue::M(map) => decoded_bytes(map),
    }
}

/// The bytes of an allocation. What is empty has none.
fn allocated(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes + ALLOCATION_BYTES }
}

/// The bytes of a tree's nodes.
fn nodes(elements: usize, element_bytes: usize) -> usize {
    elements.div_ceil(NODE_ELEMENTS_MIN) * (NODE_ELEMENTS * element_bytes + NODE_BYTES)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        error::{Error, ErrorType},
        value::tests::any_value,
    };

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    proptest! {
        #[test]
        fn values_need_no_more_than_their_json_says(value in any_value()) {
            let json = serde_json::to_vec(&value).unwrap();
            prop_assert!(json_decoded_bytes(&json) >= value_bytes(&value));
        }
    }

    /// The body of a request with many maps of one value each, written in the ways that JSON allows.
    fn maps(count: usize, kind: &str) -> String {
        let map = format!(r#"{{"{kind}" : {{"a":{{"NULL":true}}}}}}"#);
        format!(r#"{{"Item":{{"key":{{"S":"\"a{{,["}},"maps":{{"L":[{}]}}}}}}"#, vec![map; count].join(","))
    }

    #[test]
    fn maps_are_seen_however_they_are_written_and_texts_are_not_taken_for_structure() {
        let one = json_decoded_bytes(maps(1, "M").as_bytes());
        for kind in ["M", r"\u004d"] {
            let many = json_decoded_bytes(maps(1001, kind).as_bytes());
            assert!(many - one >= 1000 * MAP_BYTES, "{kind}: {many}");
        }
        let text = format!(r#"{{"S":"{}"}}"#, r#"{[,\""#.repeat(1000));
        assert!(json_decoded_bytes(text.as_bytes()) <= text.len() + OBJECT_BYTES);
    }

    #[test]
    fn a_request_has_its_first_bytes_for_nothing_and_gives_the_others_back() {
        let budget = SharedBytes::new(3000, 2000);
        let greedy = DecodedShare::new(&budget, CLIENT);
        let small = greedy.charge(SMALL_DECODED_BYTES).expect("it has room");
        assert_eq!(budget.in_use(), (0, 0));
        let mut large = greedy.charge(1500).expect("it has room");
        assert_eq!(budget.in_use(), (1500, 1));

        let other = DecodedShare::new(&budget, CLIENT);
        let error = Error::from(other.charge(SMALL_DECODED_BYTES + 501).expect_err("nothing is left"));
        assert!(error.kind == ErrorType::Throttled && error.message.contains("from this address"), "{error:?}");
        let error = Error::from(other.charge(SMALL_DECODED_BYTES + 2001).expect_err("never"));
        assert_eq!(error.kind, ErrorType::Validation, "it is not sent again");
        other.charge(SMALL_DECODED_BYTES).expect("a small one");
        assert_eq!(budget.in_use(), (1500, 1), "a refusal counts nothing");

        large.shrink_to(1000);
        assert_eq!(budget.in_use(), (1000, 1));
        drop(small);
        assert_eq!(budget.in_use(), (0, 0), "the first bytes are those of another value now");
        drop(large);
        assert_eq!(budget.in_use(), (0, 0));
    }
}
