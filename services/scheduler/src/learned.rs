//! What this scheduler has learned from finished executions: how much actions use, and where they are warm. Every
//! replica reads the same log and learns the same.

use std::time::Duration;

use bus::millis;
use model::{ActionKeys, Demand, ExecutionRecord, ExecutorHome, Measured, Resources};
use parking_lot::Mutex;
use policy::actions::{History, Warmth, asked, image_demand, occupancy, packing};

/// Maximum number of keys whose warm executors are remembered.
const WARMTH_MAX: usize = 200_000;

/// The learned history and warmth, shared by all parts of the scheduler.
#[derive(Debug)]
pub(crate) struct Learned {
    history: Mutex<History>,
    warmth: Mutex<Warmth>,
    sizing: bool,
}

/// What a waiting execution needs, and its cost for fairness.
#[derive(Debug)]
pub(crate) struct SizedExecution {
    pub(crate) demand: Demand,
    /// Cost in thousandths of ESU.
    pub(crate) cost: u64,
    /// Expected length in thousandths of ESU times seconds.
    pub(crate) length: u64,
    /// Expected run time in milliseconds.
    pub(crate) wall_ms: u64,
}

impl Learned {
    /// Starts without any knowledge. `sizing`: actions are packed by measured use.
    pub(crate) fn new(sizing: bool) -> Self {
        Self { history: Mutex::new(History::default()), warmth: Mutex::new(Warmth::new(WARMTH_MAX)), sizing }
    }

    /// What an unfinished execution needs, if the largest executor that meets its requirements has `capacity`.
    pub(crate) fn size(&self, record: &ExecutionRecord, capacity: &Resources) -> SizedExecution {
        let execution = &record.execution;
        let (needs, keys) = (&execution.needs, &execution.keys);
        let history = self.history.lock();
        let learned = self.sizing.then(|| history.size(keys)).flatten();
        let wall = history.expected_wall(keys);
        let slow_after = history.slow_after(keys);
        drop(history);
        let size = packing(needs, learned, record.so_far.memory_bytes, capacity);
        let esu = occupancy(&size).units();
        let mut asked = asked(needs, capacity);
        // After running out of memory, an execution needs an executor that has more.
        let grown = record.so_far.memory_bytes.unwrap_or_default().min(capacity.memory_bytes);
        asked.memory_bytes = asked.memory_bytes.max(grown);
        SizedExecution {
            cost: thousandths(esu),
            length: thousandths(esu * wall.as_secs_f64()).max(1),
            wall_ms: millis(wall),
            demand: Demand {
                requirements: execution.requirements.clone(),
                asked: (asked != size).then_some(asked),
                size,
                images: image_demand(execution),
                exclusive: needs.exclusive,
                single: needs.measured || !needs.shared_services.is_none(),
                urgency: record.urgency(),
                expected_ms: millis(wall),
                since_ms: record.waits_since(),
                avoid: record.so_far.avoid.clone(),
                hedges: record.so_far.hedges,
                more: record.copies().saturating_sub(1),
                slow_after_ms: slow_after.map(millis),
            },
        }
    }

    /// What an execution cost its invocation beyond its expected cost, in thousandths of ESU times seconds.
    pub(crate) fn beyond(&self, keys: &ActionKeys, measured: &Measured) -> i64 {
        let history = self.history.lock();
        let expected = history.expected_wall(keys).as_secs_f64();
        let size = history.size(keys).unwrap_or_default();
        drop(history);
        let assumed = Resources::new(size.cpu_millis.unwrap_or(1000), size.memory_bytes.unwrap_or_default());
        let took = Duration::from_millis(measured.wall_ms).as_secs_f64();
        #[expect(clippy::cast_possible_truncation, reason = "saturates if it is too large")]
        let beyond = ((took - expected) * occupancy(&assumed).units() * 1000.0) as i64;
        beyond
    }

    /// Learns from an execution that ended at `home`, with or without success.
    pub(crate) fn learn(
        &self,
        keys: &ActionKeys,
        measured: Option<&Measured>,
        home: Option<&ExecutorHome>,
        success: bool,
    ) {
        if let Some(measured) = measured.filter(|_| success) {
            self.history.lock().learn(keys, measured);
        }
        if let Some(home) = home {
            self.warmth.lock().learn(&keys.affinity, home, success);
        }
    }

    /// Learns that an execution ran out of the memory that it had.
    pub(crate) fn learn_out_of_memory(&self, keys: &ActionKeys, had: u64) {
        self.history.lock().learn_out_of_memory(keys, had);
    }

    /// The homes where an execution is warm, the best first.
    pub(crate) fn homes(&self, keys: &ActionKeys) -> Vec<ExecutorHome> {
        self.warmth.lock().homes(&keys.affinity)
    }
}

fn thousandths(value: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates if it is too large"
    )]
    let thousandths = (value * 1000.0).round() as u64;
    thousandths
}
