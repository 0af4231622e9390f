//! Events packed into one message of the bus: one encoded `OrderedBuildEvent` after the other, each preceded by its
//! length as a varint, as `writeDelimitedTo` and `parseDelimitedFrom` of Protocol Buffers have it.

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use crate::service::OrderedBuildEvent;

/// Events that cannot be unpacked.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the packed build events are unreadable")]
pub struct PackError(#[from] prost::DecodeError);

/// Appends `event` to `packed`, without the id of its stream, which the message states once.
pub fn pack(packed: &mut BytesMut, mut event: OrderedBuildEvent) {
    event.stream_id = None;
    packed.reserve(event.encoded_len() + 10);
    // The buffer grows, so that it is never too small.
    let _ = event.encode_length_delimited(packed);
}

/// The events in `packed`, which share its memory.
///
/// # Errors
///
/// Fails if a length or an event is unreadable.
pub fn unpack(mut packed: Bytes) -> Result<Vec<OrderedBuildEvent>, PackError> {
    let mut events = Vec::new();
    while !packed.is_empty() {
        events.push(OrderedBuildEvent::decode_length_delimited(&mut packed)?);
    }
    Ok(events)
}
