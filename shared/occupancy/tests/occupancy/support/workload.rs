//! Generated builds whose costs have known causes, for tests and `examples/fit.rs`.
//!
//! - 24 quota groups share the builds by Zipf's law (exponent 0.8). Each owns 500 packages of 1 to 11 targets; a group's
//!   builds take their packages by Zipf's law (0.9), one in ten from the common ones of the first group.
//! - Priorities, and the mean number of targets of each (10, 22, 143, 201), are those of the paper's Table 6; the
//!   number is log-normal (sigma 0.5), so that builds have some 3 to 600 targets.
//! - A target's cost is log-normal (0.8) times that of its package (log-normal, 1.0), times its group's; some 0.1 ESU.
//! - `test` costs 1.8 times as much as `build`, other than for packages without tests (one in four), where it costs as
//!   much. Sanitizers, coverage, the compilation mode and `--runs_per_test` multiply; `--test_filter` cuts tests to a
//!   fifth. Many flags do nothing; one is different in each build.
//! - Targets share what they depend on: the whole costs as the sum to the power of 0.92 (not linear).
//! - Four groups build for iOS, with flags for the SDK and Xcode. Only these use Mac executors; how much depends on
//!   each combination of command, SDK, Xcode and package by a factor that is log-normal (0.9): the paper's example of a
//!   cross. Two groups use GPU for some of their tests, by test runs and a few packages.
//! - Unpredictable: a share of builds (25 % of interactive ones, 8 % of automated, 4 % of batch; shifted by a group's
//!   habits) finds everything in the cache and uses almost nothing. The others find up to a half of their work in it,
//!   and deviate by a log-normal factor (0.25).

#![allow(dead_code, reason = "not every user needs everything")]
#![expect(clippy::indexing_slicing, reason = "places are drawn below the length of what they are in")]

/// Executor types of the workload.
pub(crate) const TYPES: [&str; 3] = ["x86_64", "mac", "gpu"];

const GROUPS: usize = 24;
const PACKAGES: usize = 500;
const IOS: [&str; 4] = ["12.4", "13.0", "13.1", "13.2"];
const XCODE: [&str; 3] = ["10.3", "11.0", "11.1"];
const SANITIZERS: [(&str, f64); 3] = [("asan", 2.0), ("tsan", 2.6), ("msan", 2.3)];
const MODES: [(&str, f64); 3] = [("fastbuild", 1.0), ("dbg", 1.15), ("opt", 1.4)];

/// A generated build and its cost.
pub(crate) struct Build {
    pub(crate) command: &'static str,
    pub(crate) flags: Vec<String>,
    pub(crate) targets: Vec<String>,
    pub(crate) group: String,
    pub(crate) priority: &'static str,
    /// ESU that it occupied, by executor type.
    pub(crate) usage: Vec<(&'static str, f64)>,
    /// The same, averaged over everything unpredictable.
    pub(crate) mean: Vec<(&'static str, f64)>,
    /// Hash of the build's id.
    pub(crate) key: u64,
}

struct Package {
    id: u64,
    tested: bool,
    /// Names of the targets with their costs.
    targets: Vec<(String, f64)>,
}

/// An endless sequence of builds.
pub(crate) struct Workload {
    random: Random,
    packages: Vec<Vec<Package>>,
    groups: Zipf,
    popularity: Zipf,
    copts: Zipf,
    built: u64,
}

/// Settings of a build that multiply its cost.
struct Habits {
    flags: Vec<String>,
    multiplier: f64,
    runs: f64,
    ios: usize,
    xcode: usize,
}

impl Workload {
    /// Creates the sequence of this seed. The groups and packages are the same for all seeds.
    pub(crate) fn new(seed: u64) -> Self {
        let mut world = Random(0x00f0_4eba);
        let packages = (0..GROUPS).map(|group| packages(group, &mut world)).collect();
        Self {
            random: Random(seed),
            packages,
            groups: Zipf::new(GROUPS, 0.8),
            popularity: Zipf::new(PACKAGES, 0.9),
            copts: Zipf::new(400, 1.0),
            built: 0,
        }
    }

    /// Generates the next build.
    pub(crate) fn next_build(&mut self) -> Build {
        self.built += 1;
        let group = self.groups.draw(&mut self.random);
        let (priority, mean_targets, cached) = self.priority(group);
        let command = if self.random.chance(if group.is_multiple_of(3) { 0.7 } else { 0.45 }) {
            "test"
        } else {
            "build"
        };
        let ios = group % 6 == 2 && self.random.chance(0.6);
        let habits = self.habits(group, priority, command, ios);
        let count = mean_targets * (0.5 * self.random.normal() - 0.125).exp();
        let picked = self.pick(group, count.clamp(1.0, 600.0));
        let mut means = vec![(TYPES[0], self.x86(&picked, command, &habits))];
        if ios {
            means.push((TYPES[1], self.mac(&picked, command, &habits)));
        }
        if group % 12 == 5 && command == "test" && self.random.chance(0.3) {
            means.push((TYPES[2], self.gpu(&picked, &habits)));
        }
        let hit = self.random.chance(cached);
        let usage = means.iter().map(|&(kind, mean)| (kind, self.used(mean, hit))).collect();
        // A half-cached build costs 0.75 on average; the factor's mean is exp(0.25²/2).
        let foreseen = (1.0 - cached) * 0.75 * (0.25_f64 * 0.25 / 2.0).exp();
        Build {
            command,
            flags: habits.flags,
            targets: picked
                .iter()
                .map(|&(group, package, target)| self.name(group, package, target))
                .collect(),
            group: format!("area-{group}"),
            priority,
            usage,
            mean: means.iter().map(|&(kind, mean)| (kind, mean * foreseen + cached * 0.02)).collect(),
            key: self.random.next(),
        }
    }

    fn used(&mut self, mean: f64, hit: bool) -> f64 {
        if hit {
            return -0.02 * self.random.unit().max(1e-9).ln();
        }
        mean * self.random.unit().mul_add(0.5, 0.5) * (0.25 * self.random.normal()).exp()
    }

    /// Priority, mean number of targets and share of full cache hits.
    fn priority(&mut self, group: usize) -> (&'static str, f64, f64) {
        let habit = 0.7 + 0.6 * spread(group as u64);
        match self.random.unit() * 100.1 {
            draw if draw < 0.4 => ("EMERGENCY", 10.0, 0.05),
            draw if draw < 40.5 => ("INTERACTIVE", 22.0, 0.25 * habit),
            draw if draw < 86.5 => ("AUTOMATED", 143.0, 0.08 * habit),
            _ => ("BATCH", 201.0, 0.04 * habit),
        }
    }

    fn habits(&mut self, group: usize, priority: &str, command: &str, ios: bool) -> Habits {
        let random = &mut self.random;
        let mut flags = vec![format!("--define=build_id={:016x}", random.next()), "--keep_going".to_owned()];
        let mut multiplier = 1.0;
        let usual = group % MODES.len();
        let mode = if random.chance(0.8) { usual } else { random.below(MODES.len()) };
        flags.push(format!("--compilation_mode={}", MODES[mode].0));
        multiplier *= MODES[mode].1;
        if random.chance(if group % 5 == 1 { 0.2 } else { 0.04 }) {
            let (name, factor) = SANITIZERS[random.below(SANITIZERS.len())];
            flags.push(format!("--config={name}"));
            multiplier *= factor;
        }
        if priority == "BATCH" && random.chance(0.4) {
            flags.push("--collect_code_coverage".to_owned());
            multiplier *= 1.6;
        }
        let mut runs = 1.0;
        if command == "test" && random.chance(0.05) {
            let times = 2 + random.below(9);
            flags.push(format!("--runs_per_test={times}"));
            runs = (times as f64).powf(0.8);
        }
        if command == "test" && priority == "INTERACTIVE" && random.chance(0.15) {
            flags.push(format!("--test_filter=Case{}", random.below(5_000)));
            runs *= 0.2;
        }
        for _ in 0..random.below(8) {
            flags.push(format!("--copt=-DOPTION_{}", self.copts.draw(random)));
        }
        for number in 0..12 {
            if random.chance(spread((group * 100 + number) as u64)) {
                flags.push(format!("--habit_{number}={}", random.below(3)));
            }
        }
        let (sdk, xcode) = (random.below(IOS.len()), random.below(XCODE.len()));
        if ios {
            flags.push(format!("--ios_sdk={}", IOS[sdk]));
            flags.push(format!("--xcode={}", XCODE[xcode]));
        }
        Habits { flags, multiplier, runs, ios: sdk, xcode }
    }

    /// Distinct targets, each as group, package and place.
    fn pick(&mut self, group: usize, count: f64) -> Vec<(usize, usize, usize)> {
        let mut picked = Vec::new();
        let mut tries = 0;
        while (picked.len() as f64) < count && tries < 2_000 {
            tries += 1;
            let owner = if self.random.chance(0.1) { 0 } else { group };
            let package = self.popularity.draw(&mut self.random);
            let targets = self.packages[owner][package].targets.len();
            let whole = self.random.chance(0.3);
            let only = self.random.below(targets);
            let places = if whole { 0..targets } else { only..only + 1 };
            picked.extend(places.map(|target| (owner, package, target)));
        }
        picked.sort_unstable();
        picked.dedup();
        picked
    }

    fn x86(&self, picked: &[(usize, usize, usize)], command: &str, habits: &Habits) -> f64 {
        let each = picked.iter().map(|&(group, package, target)| {
            let package = &self.packages[group][package];
            let test = if command == "test" && package.tested { 0.8 + habits.runs } else { 1.0 };
            package.targets[target].1 * test
        });
        1.3 * each.sum::<f64>().powf(0.92) * habits.multiplier
    }

    fn mac(&self, picked: &[(usize, usize, usize)], command: &str, habits: &Habits) -> f64 {
        let each = picked.iter().map(|&(group, package, target)| {
            let package = &self.packages[group][package];
            let combination = [command.len() as u64, habits.ios as u64, habits.xcode as u64, package.id];
            let mut random =
                Random(combination.iter().fold(7_u64, |hash, part| hash.wrapping_mul(1_000_003) + part));
            package.targets[target].1 * (0.9 * random.normal()).exp()
        });
        1.5 * each.sum::<f64>()
    }

    fn gpu(&self, picked: &[(usize, usize, usize)], habits: &Habits) -> f64 {
        let each =
            picked.iter().map(
                |&(group, package, _)| {
                    if self.packages[group][package].id.is_multiple_of(7) { 2.0 } else { 0.05 }
                },
            );
        each.sum::<f64>() * habits.runs
    }

    fn name(&self, group: usize, package: usize, target: usize) -> String {
        self.packages[group][package].targets[target].0.clone()
    }
}

fn packages(group: usize, random: &mut Random) -> Vec<Package> {
    let of_group = (0.4 * random.normal()).exp();
    let package = |number: usize, random: &mut Random| {
        let of_package = 0.05 * of_group * random.normal().exp();
        let targets = 0..1 + random.below(11);
        let name = |target| format!("//area{group}/team{}/component_{number}:target_{target}", number % 17);
        let cost = |random: &mut Random| of_package * (0.8 * random.normal()).exp();
        let targets = targets.map(|target| (name(target), cost(random))).collect();
        Package { id: (group * PACKAGES + number) as u64, tested: number % 4 != 3, targets }
    };
    (0..PACKAGES).map(|number| package(number, random)).collect()
}

/// A number from 0 to 1 that is always the same for the same input.
fn spread(number: u64) -> f64 {
    Random(number.wrapping_mul(0x5851_f42d_4c95_7f2d)).unit()
}

/// Random numbers of a seed (splitmix64).
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random number from 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap_or(0)
    }

    /// Normally distributed, mean 0 and deviation 1 (Box and Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().max(1e-300).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// Draws places by Zipf's law.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(places: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let mut upto = |place: usize| {
            sum += (place as f64 + 1.0).powf(-exponent);
            sum
        };
        Self((0..places).map(&mut upto).collect())
    }

    fn draw(&self, random: &mut Random) -> usize {
        let end = self.0.last().copied().unwrap_or(1.0);
        let draw = random.unit() * end;
        self.0.partition_point(|&upto| upto < draw).min(self.0.len() - 1)
    }
}
