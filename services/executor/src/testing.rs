//! Helpers for the tests of several modules.

use model::{Claimed, DigestFunction, Execution, ExecutionId, ExecutionRecord, Millis, Resources, Sequence};

/// A claimed execution that holds one slot.
pub(crate) fn claimed() -> Claimed {
    let execution = Execution {
        id: ExecutionId::generate(),
        group: "g".parse().unwrap(),
        instance: String::new(),
        action: DigestFunction::Sha256.empty(),
        band: model::Priority::Interactive,
        priority: 0,
        requirements: model::Requirements::default(),
        timeout_ms: 1000,
        image: None,
        do_not_cache: false,
        zone: None,
        caller: String::new(),
        accepted_at_ms: Millis(0),
        expires_at_ms: Millis(1000),
        max_attempts: model::Attempt(3),
        traceparent: None,
        client: model::ClientTool::default(),
        build: None,
        needs: model::Needs::default(),
        keys: model::ActionKeys::default(),
    };
    let record = ExecutionRecord::accepted(execution);
    Claimed { record, sequence: Sequence(1), size: Resources::new(1000, 1_000_000) }
}
