//! Invariants of every build, whatever the faults.

use std::time::Duration;

use bus::{EventKind, EventSubject, HEADER_ATTEMPT, Stored, header, invocation_of};
use farm::{Farm, SOON};
use model::{Attempt, BuildId, BuildKey, BuildRecord, BuildRequest, InvocationId, Outcome, State, WhyReply};

/// Time for a lease of 2 s to expire, for the expiry to be noticed, and for the build to run again,
/// with a wide margin.
pub(crate) const BOUND: Duration = Duration::from_secs(15);

/// Creates a request that runs a shell script.
pub(crate) fn script(text: &str) -> BuildRequest {
    request(&["/bin/sh", "-c", text])
}

/// Creates a request that runs `command`.
pub(crate) fn request(command: &[impl AsRef<str>]) -> BuildRequest {
    let command = command.iter().map(|word| word.as_ref().to_owned()).collect();
    BuildRequest { id: Some(BuildId::generate()), command, ..BuildRequest::default() }
}

/// Waits for the end of the build and checks all its events.
pub(crate) async fn ended(farm: &Farm, key: &BuildKey) -> BuildRecord {
    ended_within(farm, key, BOUND).await
}

/// Like [`ended`], within a time limit.
pub(crate) async fn ended_within(farm: &Farm, key: &BuildKey, limit: Duration) -> BuildRecord {
    let record = farm.wait_finished(key, limit).await;
    assert_order(&farm.stored(key).await);
    record
}

/// Waits for the end of the build and asserts its outcome.
pub(crate) async fn ended_as(farm: &Farm, key: &BuildKey, outcome: Outcome) -> BuildRecord {
    let record = ended(farm, key).await;
    assert_eq!(record.result().unwrap().outcome, outcome, "{record:#?}");
    record
}

/// Asserts BUILD_ENQUEUED, INVOCATION_STARTED, that run's events, then the next BUILD_ENQUEUED or
/// INVOCATION_FINISHED; one INVOCATION_FINISHED, and nothing after it. Each run has an invocation id of its own, which
/// all its events name.
pub(crate) fn assert_order(events: &[Stored]) {
    let mut last: Option<(State, Attempt)> = None;
    let mut invocations: Vec<InvocationId> = Vec::new();
    for (number, stored) in events.iter().enumerate() {
        let told = || format!("event {number} of {:#?}", summary(events));
        let subject: EventSubject = stored.subject.parse().unwrap();
        if subject.kind == EventKind::Lifecycle {
            let record = stored.record().unwrap();
            let (now, attempt) = (record.state(), record.attempt);
            let fits = match (last, now) {
                (None, State::Enqueued) => attempt == Attempt::FIRST,
                (None, State::Finished) => record.result().unwrap().outcome == Outcome::Rejected,
                (Some((State::Enqueued, before)), State::InProgress | State::Finished)
                | (Some((State::InProgress, before)), State::Finished) => attempt == before,
                (Some((State::InProgress, before)), State::Enqueued) => attempt == before.next(),
                (Some(_) | None, _) => false,
            };
            assert!(fits, "{}", told());
            let id = record.queue.retry.as_ref().and_then(|retry| retry.invocation);
            match now {
                State::Enqueued => assert_eq!(id.as_ref(), invocations.last(), "{}", told()),
                State::InProgress => {
                    let id = record.invocation_id().unwrap();
                    assert!(!invocations.contains(&id), "{}", told());
                    invocations.push(id);
                }
                State::Finished if matches!(last, Some((State::InProgress, _))) => {
                    assert_eq!(record.invocation_id().as_ref(), invocations.last(), "{}", told());
                }
                State::Finished => assert_eq!(record.invocation_id(), None, "{}", told()),
            }
            last = Some((now, attempt));
        } else {
            let attempt = header(stored.headers.as_ref(), HEADER_ATTEMPT).unwrap();
            let run = last.filter(|(state, _)| *state == State::InProgress);
            assert_eq!(run.map(|(_, attempt)| attempt.to_string()).as_deref(), Some(attempt), "{}", told());
            assert_eq!(invocation_of(stored.headers.as_ref()).as_ref(), invocations.last(), "{}", told());
        }
    }
    assert_eq!(last.map(|(state, _)| state), Some(State::Finished), "{:#?}", summary(events));
}

fn summary(events: &[Stored]) -> Vec<String> {
    let one = |stored: &Stored| match stored.record() {
        Ok(record) => format!("{} {} attempt {}", stored.sequence, record.state().as_str(), record.attempt),
        Err(_) => format!("{} {} {:?}", stored.sequence, stored.subject, stored.headers),
    };
    events.iter().map(one).collect()
}

/// Returns host process ids of all live processes that a build's commands started.
pub(crate) fn processes_of(build: BuildId) -> Vec<u32> {
    let wanted = format!("FOREBAY_BUILD_ID={build}");
    let ids = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of_build = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes()) && farm::alive(*pid)
    };
    ids.filter(of_build).collect()
}

/// Returns when `condition` holds, with the time that it took.
pub(crate) async fn until(what: &str, limit: Duration, condition: impl Fn() -> bool) -> Duration {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(began.elapsed() < limit, "{what}: not after {limit:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}

/// Waits until the answer to why the build waits satisfies the condition. Events are applied to the index some time
/// after they are stored.
pub(crate) async fn why_when(farm: &Farm, key: &BuildKey, condition: impl Fn(&WhyReply) -> bool) -> WhyReply {
    let began = std::time::Instant::now();
    loop {
        let reply = farm.client().why(key).await.unwrap();
        if condition(&reply) {
            return reply;
        }
        assert!(began.elapsed() < SOON, "{reply:#?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
