//! The workload, and the sources of its numbers.
//!
//! **What actions use.** Five kinds, each with a share of all actions, a log-normal peak of memory, a mean use of
//! processors and a log-normal duration. They are assumptions of the order that users report: compilations of C++ of
//! some hundred megabytes, the largest 2 to 4 GB (bazelbuild/bazel issue 25770), links of several gigabytes (issue
//! 17368). A target has a typical use, drawn from its kind; each run differs at random, and a changed command changes
//! all later use ([`CHANGE`]).
//!
//! **What users declare.** Most declare nothing. Users whose actions are killed declare a size sooner or later: four
//! in five of those that need more memory than the default, and all that need so much that they would never succeed.
//! Of those that declare, some declare too little (the code grew since), some about enough, and half far too much:
//! about half of the reserved memory is not used, as with manual limits at Google, where the mean slack was 46 %
//! (Rzadca et al., "Autopilot", 2020). Processors are declared rarely, and as round numbers.
//!
//! The tests also use other assumptions: users who declare more carefully, runs that differ more, and commands
//! that change more often.

use model::{ActionKeys, BlobDigest, DigestFunction, Group, Needs, ParseIdError, Resources, TestSize};
use policy::{
    Random,
    actions::{KeyedAction, action_keys, asked},
};

use super::SizingScenario;
use crate::{random::log_normal, statistics::whole};

/// A kind of actions.
struct Kind {
    mnemonic: &'static str,
    /// Percentage of all actions.
    share: u64,
    /// Median peak memory in bytes, and sigma of the log-normal distribution.
    memory: (f64, f64),
    /// Mean number of processors, and the largest deviation from it.
    processors: (f64, f64),
    /// Median seconds with all processors that the action uses, and sigma.
    seconds: (f64, f64),
}

const KINDS: [Kind; 5] = [
    Kind {
        mnemonic: "CppCompile",
        share: 52,
        memory: (350e6, 0.7),
        processors: (0.95, 0.05),
        seconds: (6.0, 0.8),
    },
    Kind { mnemonic: "CppLink", share: 7, memory: (900e6, 0.9), processors: (1.4, 0.4), seconds: (7.0, 0.8) },
    Kind { mnemonic: "Javac", share: 10, memory: (700e6, 0.4), processors: (2.0, 0.4), seconds: (9.0, 0.6) },
    Kind { mnemonic: "Genrule", share: 11, memory: (60e6, 0.8), processors: (0.7, 0.3), seconds: (2.0, 0.9) },
    Kind {
        mnemonic: "TestRunner",
        share: 20,
        memory: (300e6, 0.8),
        processors: (0.6, 0.5),
        seconds: (12.0, 0.9),
    },
];

/// Sigma of the durations of the runs of one command.
const NOISE: f64 = 0.15;
/// Sigma by which a changed command changes the memory of its target.
const CHANGE: f64 = 0.15;
/// Upper bounds of an action: bytes, seconds.
const MOST: (f64, f64) = (12e9, 120.0);
/// Lower bounds of an action: bytes, seconds.
const LEAST: (f64, f64) = (5e6, 0.05);
/// Memory in bytes above which a size is always declared: doubling the default at each attempt would never suffice.
const ALWAYS_DECLARED: f64 = 2e9;

/// An action of the workload.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// Index of the action's build, from 0.
    pub(crate) build: u32,
    pub(crate) needs: Needs,
    pub(crate) keys: ActionKeys,
    /// Peak memory in bytes.
    pub(crate) peak: u64,
    /// Point of the run at which memory peaks, as a share of the duration.
    pub(crate) peaks_at: f64,
    /// Number of processors that the action uses if available.
    pub(crate) processors: f64,
    /// Seconds that the action runs with all these processors.
    pub(crate) seconds: f64,
}

/// A target: its typical use, which no scheduler knows, and its declared size.
#[derive(Debug, Clone)]
struct Target {
    id: u64,
    /// Number of the current command.
    command: u64,
    mnemonic: &'static str,
    memory: f64,
    processors: f64,
    seconds: f64,
    needs: Needs,
}

/// Generates all actions, in their queue order.
pub(crate) fn workload(scenario: &SizingScenario) -> Vec<Job> {
    let mut random = Random::new(scenario.seed);
    let random = &mut random;
    let group: Result<Group, ParseIdError> = "sizing".parse();
    let Ok(group) = group else {
        unreachable!("the name of the group is invalid");
    };
    let mut next = u64::from(scenario.targets);
    let mut targets: Vec<Target> = (0..next).map(|id| Target::draw(id, scenario.declaring, random)).collect();
    let mut jobs = Vec::new();
    for build in 0..scenario.builds {
        for target in &mut targets {
            if random.unit() >= scenario.touched {
                continue;
            }
            if random.unit() < scenario.new_targets {
                *target = Target::draw(next, scenario.declaring, random);
                next += 1;
            } else if random.unit() < scenario.changed_commands {
                target.command += 1;
                target.memory = (target.memory * log_normal(random, CHANGE)).clamp(LEAST.0, MOST.0);
            }
            jobs.push(target.job(build, &group, scenario.memory_noise, random));
        }
    }
    jobs
}

impl Target {
    fn draw(id: u64, declaring: f64, random: &mut Random) -> Self {
        let mut at = random.below(KINDS.iter().map(|kind| kind.share).sum());
        let kind = KINDS.iter().find(|kind| {
            let found = at < kind.share;
            at = at.saturating_sub(kind.share);
            found
        });
        let Some(kind) = kind else {
            unreachable!("a number below the sum of the shares is in no kind");
        };
        let memory = (kind.memory.0 * log_normal(random, kind.memory.1)).clamp(LEAST.0, MOST.0);
        let processors = kind.processors.0 * (1.0 + kind.processors.1 * (2.0 * random.unit() - 1.0));
        let seconds = (kind.seconds.0 * log_normal(random, kind.seconds.1)).clamp(LEAST.1, MOST.1);
        let test_size = match (kind.mnemonic, seconds) {
            ("TestRunner", ..10.0) => TestSize::Small,
            ("TestRunner", 10.0..40.0) => TestSize::Medium,
            ("TestRunner", _) => TestSize::Large,
            _ => TestSize::None,
        };
        let needs = declared(test_size, memory, declaring, random);
        Self { id, command: 0, mnemonic: kind.mnemonic, memory, processors, seconds, needs }
    }

    /// Draws one run of the target.
    fn job(&self, build: u32, group: &Group, noise: f64, random: &mut Random) -> Job {
        let hash = format!("{:048x}{:016x}", self.id, self.command);
        let Ok(command) = BlobDigest::from_parts(DigestFunction::Sha256, &hash, 100) else {
            unreachable!("{hash} is an invalid digest");
        };
        let output = [format!("out/{}", self.id)];
        let keys = action_keys(&KeyedAction {
            group,
            instance: "",
            command: &command,
            arguments: &[],
            environment: &[],
            platform: &[],
            image: None,
            outputs: [&output, &[], &[]],
            target: &format!("//t:{}", self.id),
            mnemonic: self.mnemonic,
        });
        let peak = (self.memory * log_normal(random, noise)).clamp(LEAST.0, MOST.0);
        let seconds = (self.seconds * log_normal(random, NOISE)).clamp(LEAST.1, MOST.1);
        let peaks_at = 0.3 + 0.6 * random.unit();
        Job {
            build,
            needs: self.needs.clone(),
            keys,
            peak: whole(peak.round()),
            peaks_at,
            processors: self.processors,
            seconds,
        }
    }
}

/// Draws the size that users declare for an action with this memory need.
fn declared(test_size: TestSize, memory: f64, declaring: f64, random: &mut Random) -> Needs {
    let mut needs = Needs { test_size, ..Needs::default() };
    let likely = match memory {
        memory if memory > ALWAYS_DECLARED => 1.0,
        memory if memory > asked(&needs, &Resources::default()).memory_bytes as f64 => declaring,
        _ => 0.15,
    };
    if random.unit() < likely {
        let of_truth = match random.below(100) {
            // The code grew since.
            0..15 => 0.6 + 0.35 * random.unit(),
            15..50 => 1.1 + 0.5 * random.unit(),
            _ => 2.0 + 4.0 * random.unit(),
        };
        needs.memory_bytes = Some(whole((memory * of_truth).min(MOST.0 * 2.0).round()));
    }
    if random.below(10) == 0 {
        needs.cpu_millis =
            [500, 2000, 4000].get(usize::try_from(random.below(3)).unwrap_or_default()).copied();
    }
    needs
}
