//! One training: read, learn, test, publish.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use bus::{BusError, EventSubject, Follower, Start, stream};
use bytes::BytesMut;
use futures::TryStreamExt as _;
use model::{Digest, ExecutorType, Millis, ModelNotice};
use occupancy::{DecodeError, FitOptions, OccupancyModel, Refusal, Report, fit, judge, search};
use service::Context;
use store::{Store, StoreError};
use tracing::{info, warn};

use crate::lessons::Lessons;

/// How far back builds are learned from (section 4.3).
const LOOK_BACK: Duration = Duration::from_secs(17 * 24 * 3600);
/// Fewer builds teach nothing that the default does not know.
const BUILDS_MIN: u64 = 200;
/// The search for crosses ends after this, with the best that it has found.
const SEARCH_MAX: Duration = Duration::from_secs(300);
const BATCH: usize = 1000;
/// Bytes of a model at most: enqueuers take no larger one.
const SIZE_MAX: usize = 256 << 20;

/// Why there is no new model.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrainError {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error("the model cannot be kept")]
    Store(#[from] StoreError),
    #[error("only {found} builds ended in the last 17 days, {BUILDS_MIN} are needed")]
    TooFew { found: u64 },
    #[error("the model that was trained cannot be read again")]
    Unsound(#[from] DecodeError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the training ended by itself")]
    Lost(#[from] tokio::task::JoinError),
}

/// What became of a model that was trained.
pub(crate) enum Trained {
    Published(Published),
    /// Another trainer was first.
    Overtaken,
}

/// A model that was published.
pub(crate) struct Published {
    notice: ModelNotice,
    seconds: f64,
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModelNotice { version, builds, test_error, default_error, .. } = &self.notice;
        write!(f, "occupancy model {version} of {builds} builds published after {:.1} s", self.seconds)?;
        for (kind, error) in test_error {
            let constant = default_error.get(kind).copied().unwrap_or_default();
            write!(f, "; {kind}: off by {error:.3} ESU on the average, the default by {constant:.3}")?;
        }
        Ok(())
    }
}

/// Trains a model from what the event stream holds and publishes it, unless enqueuers would refuse it.
pub(crate) async fn train(context: &Context, store: &Store) -> Result<Trained, TrainError> {
    let begun = Instant::now();
    let now = context.bus.now();
    // Read before anything is learned: of several trainers that began with the same model one publishes the next.
    let (position, last) = context.bus.current_model().await?;
    let lessons = read_all(context, Millis(now.0.saturating_sub(millis(LOOK_BACK)))).await?;
    if lessons.builds < BUILDS_MIN {
        return Err(TrainError::TooFew { found: lessons.builds });
    }
    info!(builds = lessons.builds, seconds = begun.elapsed().as_secs_f64(), "builds read, learning");
    let version = last.as_ref().map_or(1, |last| last.version.saturating_add(1));
    let builds = lessons.builds;
    let (types_by_rule, model) = tokio::task::spawn_blocking(move || {
        let until = Instant::now() + SEARCH_MAX;
        let crosses = search(&lessons.data, version, &mut || Instant::now() < until);
        (lessons.types_by_rule(), fit(&lessons.data, &crosses, &FitOptions::new(version, now.0)))
    })
    .await?;
    let bytes = model.encode();
    // What enqueuers could not read, or would refuse, must not be published.
    OccupancyModel::decode(&bytes)?;
    let current = match &last {
        Some(last) => current_report(store, last).await,
        None => None,
    };
    judge(model.report(), current.as_ref())?;
    let (test_error, default_error) = errors(model.report());
    let digest = store.put(bytes.into()).await?;
    let notice =
        ModelNotice { version, digest, trained_at_ms: now, builds, test_error, default_error, types_by_rule };
    Ok(if context.bus.publish_model(&notice, position).await? {
        Trained::Published(Published { notice, seconds: begun.elapsed().as_secs_f64() })
    } else {
        Trained::Overtaken
    })
}

/// What the model in use says of itself. One that cannot be read is in nobody's use that starts now: then there is none.
async fn current_report(store: &Store, notice: &ModelNotice) -> Option<Report> {
    match load(store, notice).await {
        Ok(model) => Some(model.report().clone()),
        Err(error) => {
            let error = telemetry::error_chain(error.as_ref());
            warn!(
                version = notice.version,
                error, "the model in use cannot be read, the next one is not compared with it"
            );
            None
        }
    }
}

async fn load(
    store: &Store,
    notice: &ModelNotice,
) -> Result<OccupancyModel, Box<dyn std::error::Error + Send + Sync>> {
    let (size, parts) = store.stream(&notice.digest).await?;
    if size > SIZE_MAX as u64 {
        return Err(format!("it has {size} bytes, at most {SIZE_MAX} are taken").into());
    }
    let content = parts
        .try_fold(BytesMut::new(), async |mut all, part| {
            all.extend_from_slice(&part);
            Ok(all)
        })
        .await?;
    if Digest::of(&content) != notice.digest {
        return Err("its content is not what was published".into());
    }
    Ok(OccupancyModel::decode(&content)?)
}

/// What builds since `since` teach; of too many builds the last ones.
async fn read_all(context: &Context, since: Millis) -> Result<Lessons, TrainError> {
    let lessons = read(context, since).await?;
    let Some(later) = lessons.too_many() else { return Ok(lessons) };
    warn!(since_ms = later.0, "more builds ended than are learned from: read again, only the last ones");
    // Both at once would not fit.
    drop(lessons);
    read(context, later).await
}

async fn read(context: &Context, since: Millis) -> Result<Lessons, TrainError> {
    let mut lessons = Lessons::default();
    let (_, last) = context.bus.stream_positions(stream::EVENTS).await?;
    if last.0 == 0 {
        return Ok(lessons);
    }
    let mut follower =
        Follower::new(&context.bus, stream::EVENTS, EventSubject::LIFECYCLES, Start::LastOfEachSubject);
    follower.open().await;
    while !follower.caught_up() {
        for stored in follower.next(BATCH).await {
            lessons.take(&stored, since);
        }
    }
    Ok(lessons)
}

type Errors = BTreeMap<ExecutorType, f64>;

/// Mean absolute errors on builds that were not learned from: the model's, and the default's.
fn errors(report: &Report) -> (Errors, Errors) {
    let tested = report.types.iter().filter_map(|part| {
        let kind: ExecutorType = part.executor_type.parse().ok()?;
        Some((kind, part.test?))
    });
    tested.map(|(kind, test)| ((kind.clone(), test.mean_absolute), (kind, test.constant))).unzip()
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
