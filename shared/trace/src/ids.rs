//! Ids that are computed from what they name.

use telemetry::spans::{SpanId, TraceId};

/// The trace id of what `parts` name.
pub(crate) fn trace_id(parts: &[&str]) -> TraceId {
    let hash = hash(parts);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_bytes()[..16]);
    TraceId::from_bytes(bytes)
}

/// The span id of what `parts` name.
pub(crate) fn span_id(parts: &[&str]) -> SpanId {
    let hash = hash(parts);
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.as_bytes()[..8]);
    SpanId::from_bytes(bytes)
}

fn hash(parts: &[&str]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(part.as_bytes());
        // No part contains a zero byte.
        hasher.update(&[0]);
    }
    hasher.finalize()
}
