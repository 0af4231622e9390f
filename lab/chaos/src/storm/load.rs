//! The builds of a storm, and their submission in two ways.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use async_nats::HeaderMap;
use bus::{Bus, Encoding, Message as _, RequestSubject};
use client::Client;
use farm::Farm;
use model::{BuildId, BuildKey, BuildRequest, Priority};
use tokio::{task::JoinSet, time::Instant};

use super::Plan;
use crate::{Random, script};

const GROUPS: [&str; 3] = ["amber", "birch", "coral"];
/// Time after which a client without an acknowledgement gives up.
const PATIENCE: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_millis(200);

/// A build to be submitted.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) key: BuildKey,
    pub(super) exit_code: i32,
    priority: Priority,
    request: BuildRequest,
    at: Duration,
    path: SubmissionPath,
    /// Delay after the submission at which the build is cancelled.
    cancel: Option<Duration>,
}

/// How a build is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SubmissionPath {
    /// Through the API, repeatedly with the same id.
    Api,
    /// A plain publish, repeatedly with the same id.
    Publish,
    /// Both ways at the same time.
    Both,
    /// A single plain publish: without an answer the result is unknown.
    PublishOnce,
}

/// Path of the file that a build writes.
pub(super) fn run_file(folder: &Path, key: &BuildKey) -> PathBuf {
    folder.join(format!("{}.{}", key.group, key.id))
}

/// Creates all builds of a storm, ordered by submission time.
pub(super) fn jobs(plan: &Plan, random: &mut Random, folder: &Path) -> Vec<Job> {
    let jobs = (0..plan.builds).map(|_| {
        let Some(job) = job(plan, random, folder) else {
            unreachable!("a generated build is invalid");
        };
        job
    });
    let mut jobs: Vec<Job> = jobs.collect();
    jobs.sort_by_key(|job| job.at);
    jobs
}

fn job(plan: &Plan, random: &mut Random, folder: &Path) -> Option<Job> {
    let key = BuildKey { group: random.pick(&GROUPS)?.parse().ok()?, id: BuildId::generate() };
    let exit_code = if random.once_in(10) { 3 } else { 0 };
    let ticks = random.between(plan.ticks.0, plan.ticks.1);
    let env = [
        ("CHAOS_FILE", run_file(folder, &key).display().to_string()),
        ("CHAOS_TICKS", ticks.to_string()),
        ("CHAOS_EXIT", exit_code.to_string()),
    ];
    let env: BTreeMap<String, String> =
        env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let priority = *random.pick(&Priority::ALL)?;
    let request = BuildRequest {
        id: Some(key.id),
        priority: Some(priority),
        command: vec!["sh".into(), "-c".into(), script()],
        env,
        timeout_seconds: Some(60),
        max_attempts: Some(30),
        ..BuildRequest::default()
    };
    // Two in three come in bursts, which build up queues; the others at any time, during any operation of the farm.
    let every = plan.submit_span / u32::try_from(plan.bursts).ok()?;
    let burst = u32::try_from(random.between(0, plan.bursts - 1)).ok()?;
    let span = u64::try_from(plan.submit_span.as_millis()).ok()?;
    let alone = random.once_in(3);
    let at = if alone { random.millis(0, span) } else { every * burst + random.millis(0, 500) };
    let path = *random.pick(&[
        SubmissionPath::Api,
        SubmissionPath::Api,
        SubmissionPath::Publish,
        SubmissionPath::Publish,
        SubmissionPath::Both,
        SubmissionPath::PublishOnce,
    ])?;
    let cancel = random.once_in(15).then(|| random.millis(0, 3000));
    Some(Job { key, exit_code, priority, request, at, path, cancel })
}

/// Answers that the clients received.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Builds whose submission was acknowledged.
    pub(super) acknowledged: BTreeSet<BuildKey>,
    /// Builds with a cancel request, and whether the answer confirmed it.
    pub(super) cancelled: BTreeMap<BuildKey, bool>,
}

/// Submits all builds at their times, and cancels some; returns the answers.
pub(super) async fn submit(farm: &Farm, jobs: &[Job]) -> Answers {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for job in jobs.iter().cloned() {
        let client = farm.client().clone();
        tasks.spawn(async move {
            tokio::time::sleep_until(began + job.at).await;
            let acknowledged = acknowledged(&client, &job).await;
            let Some(pause) = job.cancel else { return (job.key, acknowledged, None) };
            tokio::time::sleep(pause).await;
            let reply = client.cancel(&job.key, None).await;
            let yes = reply.is_ok_and(|reply| reply.cancelled);
            (job.key, acknowledged, Some(yes))
        });
    }
    let mut answers = Answers::default();
    for (key, acknowledged, cancelled) in tasks.join_all().await {
        if acknowledged {
            answers.acknowledged.insert(key.clone());
        }
        answers.cancelled.extend(cancelled.map(|yes| (key, yes)));
    }
    answers
}

async fn acknowledged(client: &Client, job: &Job) -> bool {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let done = match job.path {
            SubmissionPath::Api => client.create(&job.key.group, &job.request, None).await.is_ok(),
            SubmissionPath::Publish | SubmissionPath::PublishOnce => publish(client.bus(), job).await.is_ok(),
            SubmissionPath::Both => {
                let create = client.create(&job.key.group, &job.request, None);
                let (one, other) = tokio::join!(publish(client.bus(), job), create);
                one.is_ok() || other.is_ok()
            }
        };
        if done || job.path == SubmissionPath::PublishOnce || Instant::now() > deadline {
            return done;
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn publish(bus: &Bus, job: &Job) -> Result<(), async_nats::Error> {
    let subject = RequestSubject { group: job.key.group.clone(), priority: job.priority }.to_string();
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", job.key.to_string().as_str());
    headers.insert("Content-Type", Encoding::Json.content_type());
    let payload = job.request.to_json();
    bus.jetstream().publish_with_headers(subject, headers, payload).await?.await?;
    Ok(())
}
