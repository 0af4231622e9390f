//! The workload, and where its numbers come from.
//!
//! **What actions use.** Five kinds, each with a share of all actions, a log-normal peak of memory, a mean use of
//! processors and a log-normal duration. They are assumptions of the order that users report: compilations of C++ of some
//! hundred megabytes, the largest 2 to 4 GB (bazelbuild/bazel issue 25770), links of several gigabytes (issue 17368). A
//! target has its own typical use, drawn from its kind; each run of it differs by chance, and a changed command changes what
//! it uses from then on ([`CHANGE`]).
//!
//! **What people declare.** Most declare nothing. Who is killed declares a size sooner or later: four in five of those that
//! need more memory than the default, and all that need so much that they would never succeed. Of those that declare,
//! some declare too little (the code grew since), some about enough, and half far too much: so that of what is held about
//! half is not used, as of manual limits at Google, where the mean slack was 46 % (Rzadca et al., "Autopilot", 2020).
//! Processors are declared seldom, and as round numbers.
//!
//! The tests take other assumptions too: people who declare with more care, runs that differ more, commands that change more
//! often.

use model::{ActionKeys, BlobDigest, DigestFunction, Group, Needs, ParseIdError, Resources, TestSize};
use policy::{
    Random,
    actions::{KeyedAction, action_keys, asked},
};

use super::SizingScenario;
use crate::drawn::log_normal;

/// A kind of actions.
struct Kind {
    mnemonic: &'static str,
    /// Of 100 actions.
    share: u64,
    /// Median bytes at the peak, and sigma of the log-normal distribution.
    memory: (f64, f64),
    /// Processors on the average, give or take up to so much of it.
    processors: (f64, f64),
    /// Median seconds when it has the processors that it uses, and sigma.
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
/// Nothing uses more: bytes, seconds.
const MOST: (f64, f64) = (12e9, 120.0);
/// Nothing uses less: bytes, seconds.
const LEAST: (f64, f64) = (5e6, 0.05);
/// What needs more bytes than this is always declared: doubled attempt by attempt, the default would never suffice.
const ALWAYS_DECLARED: f64 = 2e9;

/// An action that is to run.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    /// The build that it is of, from 0.
    pub(crate) build: u32,
    pub(crate) needs: Needs,
    pub(crate) keys: ActionKeys,
    /// Bytes that it needs.
    pub(crate) peak: u64,
    /// When in its run it needs them: a share of it.
    pub(crate) peaks_at: f64,
    /// Processors that it uses when it has them.
    pub(crate) processors: f64,
    /// How long it runs then.
    pub(crate) seconds: f64,
}

/// A target: its typical use, which nobody knows, and what is declared of it.
#[derive(Debug, Clone)]
struct Target {
    id: u64,
    /// Which of its commands is the current one.
    command: u64,
    mnemonic: &'static str,
    memory: f64,
    processors: f64,
    seconds: f64,
    needs: Needs,
}

/// All actions, in the order in which they wait.
pub(crate) fn workload(scenario: &SizingScenario) -> Vec<Job> {
    let mut random = Random::new(scenario.seed);
    let random = &mut random;
    let group: Result<Group, ParseIdError> = "sizing".parse();
    let Ok(group) = group else { return Vec::new() };
    let mut next = u64::from(scenario.targets);
    let mut targets: Vec<Target> =
        (0..next).map(|id| Target::by_chance(id, scenario.declaring, random)).collect();
    let mut jobs = Vec::new();
    for build in 0..scenario.builds {
        for target in &mut targets {
            if random.unit() >= scenario.touched {
                continue;
            }
            if random.unit() < scenario.new_targets {
                *target = Target::by_chance(next, scenario.declaring, random);
                next += 1;
            } else if random.unit() < scenario.changed_commands {
                target.command += 1;
                target.memory = (target.memory * log_normal(random, CHANGE)).clamp(LEAST.0, MOST.0);
            }
            jobs.extend(target.job(build, &group, scenario.memory_noise, random));
        }
    }
    jobs
}

impl Target {
    fn by_chance(id: u64, declaring: f64, random: &mut Random) -> Self {
        let mut at = random.below(KINDS.iter().map(|kind| kind.share).sum());
        let [first, ..] = &KINDS;
        let kind = KINDS.iter().find(|kind| {
            let found = at < kind.share;
            at = at.saturating_sub(kind.share);
            found
        });
        let kind = kind.unwrap_or(first);
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

    /// One run of it.
    fn job(&self, build: u32, group: &Group, noise: f64, random: &mut Random) -> Option<Job> {
        let hash = format!("{:048x}{:016x}", self.id, self.command);
        let command = BlobDigest::from_parts(DigestFunction::Sha256, &hash, 100).ok()?;
        let output = [format!("out/{}", self.id)];
        let keys = action_keys(&KeyedAction {
            group,
            instance: "",
            command: &command,
            arguments: &[],
            environment: &[],
            platform: &[],
            outputs: [&output, &[], &[]],
            target: &format!("//t:{}", self.id),
            mnemonic: self.mnemonic,
        });
        let peak = (self.memory * log_normal(random, noise)).clamp(LEAST.0, MOST.0);
        let seconds = (self.seconds * log_normal(random, NOISE)).clamp(LEAST.1, MOST.1);
        let peaks_at = 0.3 + 0.6 * random.unit();
        Some(Job {
            build,
            needs: self.needs.clone(),
            keys,
            peak: whole(peak),
            peaks_at,
            processors: self.processors,
            seconds,
        })
    }
}

/// What people declare of an action that needs so much memory.
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
        needs.memory_bytes = Some(whole((memory * of_truth).min(MOST.0 * 2.0)));
    }
    if random.below(10) == 0 {
        needs.cpu_millis =
            [500, 2000, 4000].get(usize::try_from(random.below(3)).unwrap_or_default()).copied();
    }
    needs
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes are bounded above")]
fn whole(bytes: f64) -> u64 {
    bytes.round() as u64
}
