//! Reads the records of the farm and the builds.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::Duration,
};

use bus::{
    BusError, ConsoleChunk, EventKind, EventSubject, HEADER_ATTEMPT, RunPlace, Stored, header, stream,
};
use farm::Farm;
use model::{Attempt, BuildKey, BuildRecord, Sequence, State};
use tokio::time::Instant;

use super::{
    corpses,
    load::{Job, run_file},
};
use crate::{Event, History, Run, What, parse_runs};

const BATCH: usize = 1000;
const PAUSE: Duration = Duration::from_millis(250);

/// Adds the builds that have ended to `ended`, as far as the stream can be read now, starting after `from`.
pub(super) async fn count_ended(farm: &Farm, from: &mut Sequence, ended: &mut BTreeSet<BuildKey>) {
    // After an error, the next call reads on.
    let _ = read_on(farm, EventSubject::LIFECYCLES, from, |stored| {
        if let Some(event) = read(&stored)
            && event.is(State::Finished)
        {
            ended.insert(event.key);
        }
    })
    .await;
}

/// Waits until all of `wanted`, and all other builds in the stream, have ended; otherwise names those that have not.
pub(super) async fn all_ended(
    farm: &Farm,
    wanted: &BTreeSet<BuildKey>,
    limit: Duration,
) -> Result<(), BTreeSet<BuildKey>> {
    let deadline = Instant::now() + limit;
    let (mut from, mut waiting, mut ended) = (Sequence(0), wanted.clone(), BTreeSet::new());
    loop {
        // After an error, the next round reads on.
        let _ = read_on(farm, EventSubject::LIFECYCLES, &mut from, |stored| {
            let Some(event) = read(&stored) else { return };
            if event.is(State::Finished) {
                waiting.remove(&event.key);
                ended.insert(event.key);
            } else if !ended.contains(&event.key) {
                waiting.insert(event.key);
            }
        })
        .await;
        if waiting.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(waiting);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Reads the whole event stream; returns its events and descriptions of unreadable messages.
pub(super) async fn events(farm: &Farm) -> (Vec<Event>, Vec<String>) {
    let (mut events, mut faults, mut from) = (Vec::new(), Vec::new(), Sequence(0));
    let mut priorities = BTreeMap::new();
    let done = read_on(farm, EventSubject::ALL, &mut from, |stored| match read(&stored) {
        Some(mut event) => {
            let known = event.record().map(|record| record.build.priority);
            event.priority = known.or_else(|| priorities.get(&event.key).copied());
            if let Some(priority) = event.priority {
                priorities.insert(event.key.clone(), priority);
            }
            events.push(event);
        }
        None => faults.push(format!("event {} on {} cannot be read", stored.sequence, stored.subject)),
    });
    if let Err(error) = done.await {
        faults.push(format!("the event stream cannot be read: {error}"));
    }
    (events, faults)
}

async fn read_on(
    farm: &Farm,
    subjects: &str,
    from: &mut Sequence,
    mut take: impl FnMut(Stored),
) -> Result<(), BusError> {
    loop {
        let tail = farm.bus().stream(stream::EVENTS).read_from(subjects, Sequence(from.0 + 1), BATCH).await?;
        let progress = !tail.events.is_empty();
        for stored in tail.events {
            *from = stored.sequence.max(*from);
            take(stored);
        }
        if !tail.more || !progress {
            return Ok(());
        }
    }
}

fn read(stored: &Stored) -> Option<Event> {
    let subject: EventSubject = stored.subject.parse().ok()?;
    let headers = stored.headers.as_ref();
    let guard = RunPlace::read(headers).map(|place| place.guard);
    let what = match subject.kind {
        EventKind::Lifecycle => What::Lifecycle(Box::new(stored.record().ok()?)),
        EventKind::Console => {
            let chunk = ConsoleChunk::read(headers, &stored.payload)?;
            What::Console { attempt: chunk.attempt, guard: guard?, bytes: chunk.data.len() as u64 }
        }
        EventKind::Tool => {
            What::Tool { attempt: Attempt(header(headers, HEADER_ATTEMPT)?.parse().ok()?), guard: guard? }
        }
        // The builds of the storm call no Bazel.
        EventKind::Bazel => return None,
    };
    let stored_us = (stored.at.0 + 1) * 1000;
    Some(Event { sequence: stored.sequence, stored_us, key: subject.key, priority: None, what })
}

/// Reads the files that the builds wrote.
pub(super) fn runs(folder: &Path, jobs: &[Job]) -> Vec<Run> {
    let runs_of = |job: &Job| {
        let text = fs::read_to_string(run_file(folder, &job.key)).unwrap_or_default();
        parse_runs(&job.key, &text)
    };
    jobs.iter().flat_map(runs_of).collect()
}

/// Describes requests, leases and processes of builds that an idle farm must not have.
pub(super) async fn leftovers(farm: &Farm, limit: Duration) -> Vec<String> {
    let mut faults = Vec::new();
    match farm.bus().jetstream().get_stream(stream::REQUESTS).await {
        Ok(found) if found.cached_info().state.messages == 0 => {}
        Ok(found) => {
            faults.push(format!("{} requests are left in the queue", found.cached_info().state.messages));
        }
        Err(error) => faults.push(format!("the queue of requests cannot be read: {error}")),
    }
    let (events, _) = events(farm).await;
    let keys: Vec<BuildKey> =
        events.into_iter().map(|event| event.key).collect::<BTreeSet<_>>().into_iter().collect();
    let ids: BTreeSet<String> = keys.iter().map(|key| key.id.to_string()).collect();
    faults.extend(leases_left(farm, &keys, limit).await);
    let ours = |it: &corpses::BuildProcess| ids.contains(&it.build);
    let alive: Vec<_> = corpses::of(None).into_iter().filter(ours).collect();
    if !alive.is_empty() {
        faults.push(format!("processes outlive their builds: {alive:?}"));
    }
    faults
}

/// Finds leases that are held long after all builds ended, according to the stream's leader: a killed replica may
/// show deleted leases again for a while.
async fn leases_left(farm: &Farm, keys: &[BuildKey], limit: Duration) -> Vec<String> {
    let shown = match farm.bus().leases().held(keys).await {
        Ok(shown) => shown,
        Err(error) => return vec![format!("the leases cannot be read: {error}")],
    };
    let mut faults = Vec::new();
    for (key, _) in shown {
        match farm.bus().leases().get(&key).await {
            Ok(None) => {}
            Ok(Some(held)) => {
                faults.push(format!("the lease of {key} is held {:?} after the end: {held:?}", limit * 2));
            }
            Err(error) => faults.push(format!("the lease of {key} cannot be read: {error}")),
        }
    }
    faults
}

/// Returns the longest time from the last sign of a lost run until its build was requeued, and that build.
pub(super) fn longest_recovery(history: &History) -> (Duration, Option<BuildKey>) {
    let records = history.events.iter().filter_map(Event::record);
    let again = records.filter(|record| record.state() == State::Enqueued && record.attempt > Attempt::FIRST);
    let stood_still = |record: &BuildRecord| {
        let lost = |run: &&Run| run.key == record.build.key() && run.attempt.next() == record.attempt;
        let run = history.runs.iter().find(lost)?;
        Some(((record.at_ms.0 * 1000).saturating_sub(run.last_us), record.build.key()))
    };
    let longest = again.filter_map(stood_still).max_by_key(|(time, _)| *time);
    longest.map_or((Duration::ZERO, None), |(time, key)| (Duration::from_micros(time), Some(key)))
}
