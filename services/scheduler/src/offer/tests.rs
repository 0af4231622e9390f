use index::actions::Pick;
use model::{Attempt, ClientTool, Execution, ExecutionId, ExecutionOffers, ExecutionRecord};

use super::*;

#[test]
fn an_executor_reads_what_is_offered() {
    let record = ExecutionRecord::accepted(Execution {
        id: ExecutionId::generate(),
        group: "g".parse().unwrap(),
        instance: "main".into(),
        action: format!("{}/7", "ab".repeat(32)).parse().unwrap(),
        priority: -3,
        pool: "default".parse().unwrap(),
        timeout_ms: 9,
        do_not_cache: true,
        accepted_at_ms: Millis(1),
        expires_at_ms: Millis(2),
        max_attempts: Attempt(3),
        traceparent: None,
        client: ClientTool::default(),
        build: None,
    });
    let committed = Committed {
        pick: Pick { key: record.execution.key(), executor: "x".parse().unwrap() },
        sequence: Sequence(7),
        record: serde_json::to_string(&record).unwrap(),
    };
    let payload = message(&[committed.clone(), committed], Millis(5)).unwrap();
    let read: ExecutionOffers = decode(Encoding::Json, &payload).unwrap();
    assert_eq!(read.offers.len(), 2);
    let offer = &read.offers[0];
    assert_eq!((&offer.record, offer.sequence, offer.deadline_ms), (&record, Sequence(7), Millis(5)));
}
