//! One training: reads builds, learns, tests and publishes a model.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use bus::{BusError, EventSubject, Follower, Start, millis, stream};
use cas::{Cas, CasError};
use invariant::{Present as _, impossible};
use model::{Digest, DigestFunction, ExecutorType, Millis, ModelNotice};
use occupancy::{DecodeError, FitOptions, OccupancyModel, Refusal, Report, fit, judge, search};
use service::Context;
use tracing::{info, warn};

use crate::{archived, lessons::TrainingData};

/// Maximum age of the builds to learn from (section 4.3 of the paper).
const LOOK_BACK: Duration = Duration::from_secs(17 * 24 * 3600);
/// Minimum number of builds: fewer add nothing to the default.
const BUILDS_MIN: u64 = 200;
/// Time limit of the search for crosses, which returns the best result so far.
const SEARCH_MAX: Duration = Duration::from_secs(300);
const BATCH: usize = 1000;
/// Time for which an uncertain publication is read back.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum size of a model in bytes: enqueuers accept no larger one.
const SIZE_MAX: u64 = 256 << 20;

/// The reason why there is no new model.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TrainError {
    #[error(transparent)]
    Bus(#[from] BusError),
    #[error("cannot store the model")]
    Store(#[from] CasError),
    #[error("only {found} builds ended in the last 17 days, at least {BUILDS_MIN} are needed")]
    TooFew { found: u64 },
    #[error("the encoded model cannot be decoded")]
    Unsound(#[from] DecodeError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the training ended unexpectedly")]
    Lost(#[from] tokio::task::JoinError),
}

/// Outcome of a training.
pub(crate) enum Trained {
    Published(Published),
    /// Another trainer published its model first.
    Overtaken,
}

/// A published model and its test results.
pub(crate) struct Published {
    notice: ModelNotice,
    seconds: f64,
}

impl fmt::Display for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ModelNotice { version, builds, test_error, default_error, .. } = &self.notice;
        write!(f, "published occupancy model {version} from {builds} builds after {:.1} s", self.seconds)?;
        for (kind, error) in test_error {
            let constant = default_error.get(kind).copied().present("the default's error of a tested type");
            write!(f, "; {kind}: mean error {error:.3} ESU, of the default {constant:.3} ESU")?;
        }
        Ok(())
    }
}

/// Trains a model from builds of the event stream and the archive, and publishes it unless enqueuers would refuse it.
pub(crate) async fn train(context: &Context, cas: &Cas) -> Result<Trained, TrainError> {
    let begun = Instant::now();
    let now = context.bus.now();
    // Read before learning: of several trainers that started from the same model, only one publishes the next.
    let (position, last) = context.bus.buckets().get::<ModelNotice>(&()).await?;
    let lessons = read_all(context, Millis(now.0.saturating_sub(millis(LOOK_BACK)))).await?;
    if lessons.builds < BUILDS_MIN {
        return Err(TrainError::TooFew { found: lessons.builds });
    }
    info!(builds = lessons.builds, seconds = begun.elapsed().as_secs_f64(), "builds read, training a model");
    let version = last.as_ref().map_or(1, |last| last.version.saturating_add(1));
    let builds = lessons.builds;
    let (types_by_rule, model) = tokio::task::spawn_blocking(move || {
        let until = Instant::now() + SEARCH_MAX;
        let crosses = search(&lessons.data, version, &mut || Instant::now() < until);
        (lessons.types_by_rule(), fit(&lessons.data, &crosses, &FitOptions::new(version, now.0)))
    })
    .await?;
    let bytes = model.encode();
    // A model that enqueuers could not read, or would refuse, must not be published.
    OccupancyModel::decode(&bytes)?;
    let current = match &last {
        Some(last) => current_report(cas, last).await,
        None => None,
    };
    judge(model.report(), current.as_ref())?;
    let (test_error, default_error) = errors(model.report());
    let blob = cas.put_bytes(DigestFunction::Sha256, bytes.into()).await?;
    let notice = ModelNotice {
        version,
        digest: Digest::from_sha256(blob.hash),
        size_bytes: Some(blob.size),
        trained_at_ms: now,
        builds,
        test_error,
        default_error,
        types_by_rule,
    };
    Ok(if context.bus.buckets().compare_and_set(&(), &notice, position, PATIENCE).await? {
        Trained::Published(Published { notice, seconds: begun.elapsed().as_secs_f64() })
    } else {
        Trained::Overtaken
    })
}

/// The report of the model in use. Treated as absent if it cannot be read, since no newly started process
/// can use it either.
async fn current_report(cas: &Cas, notice: &ModelNotice) -> Option<Report> {
    match load(cas, notice).await {
        Ok(model) => Some(model.report().clone()),
        Err(error) => {
            let error = telemetry::error_chain(error.as_ref());
            warn!(
                version = notice.version,
                error, "cannot read the model in use; publishing without a comparison to it"
            );
            None
        }
    }
}

async fn load(
    cas: &Cas,
    notice: &ModelNotice,
) -> Result<OccupancyModel, Box<dyn std::error::Error + Send + Sync>> {
    let blob = cas.resolve(&notice.digest, notice.size_bytes).await?;
    Ok(OccupancyModel::decode(&cas.read_whole(&blob, SIZE_MAX).await?)?)
}

/// Training data from builds since `since`; if they exceed the limit, from the latest ones.
async fn read_all(context: &Context, since: Millis) -> Result<TrainingData, TrainError> {
    let lessons = read(context, since).await?;
    let Some(later) = lessons.start_within_limit() else { return Ok(lessons) };
    warn!(since_ms = later.0, "more builds ended than the limit for training: reading only the latest ones");
    // Both would not fit the memory at once.
    drop(lessons);
    read(context, later).await
}

async fn read(context: &Context, since: Millis) -> Result<TrainingData, TrainError> {
    let mut lessons = TrainingData::default();
    let (_, last) = context.bus.stream(stream::EVENTS).positions().await?;
    if last.0 > 0 {
        let start = Start::LastOfEachSubject;
        let mut follower = Follower::new(&context.bus, stream::EVENTS, EventSubject::LIFECYCLES, start);
        follower.open().await;
        while !follower.caught_up() {
            for stored in follower.next(BATCH).await {
                lessons.add(&stored, since);
            }
        }
    }
    archived::add(&context.bus, &mut lessons, since).await?;
    Ok(lessons)
}

type Errors = BTreeMap<ExecutorType, f64>;

/// Mean absolute errors on test builds: the model's and the default's.
fn errors(report: &Report) -> (Errors, Errors) {
    let tested = report.types.iter().filter_map(|part| {
        let kind = part.executor_type.parse::<ExecutorType>();
        let kind = kind.inspect_err(|error| impossible!("the model has an unknown type: {error}")).ok()?;
        Some((kind, part.test?))
    });
    tested.map(|(kind, test)| ((kind.clone(), test.mean_absolute), (kind, test.constant))).unzip()
}
