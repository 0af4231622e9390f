//! Defines which weights are summed to a build's prediction, and with what factors. It is the same for learning and
//! predicting, and part of the model's format.

use crate::cross::{Cross, Feature};
use crate::example::Example;
use crate::facts::Kind;
use crate::hash::{hash, mix};
use crate::number::low;
use crate::slots::{BIAS, LOG_PACKAGES, LOG_TARGETS, PACKAGES, TARGETS};
use crate::vocabulary::Vocabulary;

/// Factor of the weight of each target, for builds that have one target in a farm where that is usual. It sets the
/// initial certainty of these weights: values of which a build has many are learned more carefully than those of which
/// it has one. Determined by trial.
const EACH_TARGET: f32 = 0.4;
/// Divisor of the logarithms of counts.
const LOGARITHM: f32 = 5.0;

/// One addend of a prediction: a weight's slot and its factor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Term {
    pub(crate) slot: u32,
    pub(crate) factor: f32,
}

/// How the weights of one executor type are laid out and scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Layout {
    /// First slot of the buckets that the crosses' values are hashed into.
    pub(crate) first: u32,
    /// Number of buckets, as a power of two.
    pub(crate) bits: u32,
    /// Mean number of targets of the builds learned from, at least 1.
    pub(crate) usual: f32,
}

impl Layout {
    /// The first slot after the buckets.
    pub(crate) const fn end(self) -> u32 {
        self.first + (1 << self.bits)
    }

    /// Factor of each target of this build.
    fn each_target(self, build: &Example) -> f32 {
        EACH_TARGET / self.usual.sqrt() * build.scale
    }

    #[inline]
    const fn slot(self, context: u64, value: u32) -> u32 {
        let hash = (context ^ value as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self.first + low(hash >> (64 - self.bits))
    }
}

/// A cross with its flags looked up in a vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Resolved {
    seed: u64,
    /// Features with one value per build.
    context: Vec<Context>,
    each: Each,
    number: Option<Number>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Context {
    Command,
    Group,
    Priority,
    Flag(u32),
}

/// The unit for which a cross has one value each.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Each {
    Build,
    Package,
    Target,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Number {
    Targets,
    Packages,
}

impl Resolved {
    pub(crate) fn new(cross: &Cross, vocabulary: &Vocabulary) -> Self {
        let seed = hash(0xc2055, cross.to_string().as_bytes());
        let mut resolved = Self { seed, context: Vec::new(), each: Each::Build, number: None };
        for feature in cross.features() {
            match feature {
                Feature::Command => resolved.context.push(Context::Command),
                Feature::Group => resolved.context.push(Context::Group),
                Feature::Priority => resolved.context.push(Context::Priority),
                Feature::Flag(name) => {
                    let slot = vocabulary.slot(Kind::FlagName, Kind::FlagName.hash(name));
                    resolved.context.push(Context::Flag(slot));
                }
                Feature::Package => resolved.each = Each::Package,
                Feature::Target => resolved.each = Each::Target,
                Feature::TargetCount => resolved.number = Some(Number::Targets),
                Feature::PackageCount => resolved.number = Some(Number::Packages),
            }
        }
        resolved
    }

    /// Appends the terms of this cross.
    pub(crate) fn expand(&self, build: &Example, layout: Layout, terms: &mut Vec<Term>) {
        let count = self.number.map(|number| match number {
            Number::Targets => build.target_count,
            Number::Packages => build.package_count,
        });
        let mut context = self.context(build);
        match self.each {
            Each::Build => {
                let factor = count.map_or(1.0, |count| count as f32 / layout.usual);
                terms.push(Term { slot: layout.slot(context, 0), factor });
            }
            Each::Package => {
                context = with_magnitude(context, count);
                expand_packages(
                    build,
                    layout.each_target(build),
                    |package| layout.slot(context, package),
                    terms,
                );
            }
            Each::Target => {
                context = with_magnitude(context, count);
                expand_targets(
                    build,
                    layout.each_target(build),
                    |target| layout.slot(context, target),
                    terms,
                );
            }
        }
    }

    fn context(&self, build: &Example) -> u64 {
        self.context.iter().fold(self.seed, |hash, feature| {
            let value = match feature {
                Context::Command => u64::from(build.command),
                Context::Group => u64::from(build.group),
                Context::Priority => u64::from(build.priority),
                Context::Flag(name) => build.flag(*name),
            };
            mix(hash.wrapping_add(value))
        })
    }
}

fn with_magnitude(context: u64, count: Option<u32>) -> u64 {
    count.map_or(context, |count| mix(context.wrapping_add(u64::from(count.checked_ilog2().unwrap_or(0)))))
}

/// Computes all terms of a build's prediction.
pub(crate) fn expand(build: &Example, crosses: &[Resolved], layout: Layout, terms: &mut Vec<Term>) {
    terms.clear();
    let mut add = |slot, factor| terms.push(Term { slot, factor });
    add(BIAS, 1.0);
    add(TARGETS, build.target_count as f32 / layout.usual);
    add(PACKAGES, build.package_count as f32 / layout.usual);
    add(LOG_TARGETS, (build.target_count as f32).ln_1p() / LOGARITHM);
    add(LOG_PACKAGES, (build.package_count as f32).ln_1p() / LOGARITHM);
    add(build.command, 1.0);
    add(build.group, 1.0);
    add(build.priority, 1.0);
    let mut last = None;
    let mut unknown = 0;
    for &(name, flag) in &build.flags {
        if last != Some(name) {
            add(name, 1.0);
            last = Some(name);
        }
        if flag == Kind::Flag.unknown() { unknown += 1 } else { add(flag, 1.0) }
    }
    if unknown > 0 {
        add(Kind::Flag.unknown(), (unknown as f32).ln_1p());
    }
    expand_packages(build, layout.each_target(build), |package| package, terms);
    expand_targets(build, layout.each_target(build), |target| target, terms);
    for cross in crosses {
        cross.expand(build, layout, terms);
    }
}

fn expand_packages(build: &Example, each: f32, slot: impl Fn(u32) -> u32, terms: &mut Vec<Term>) {
    let packages = build.packages.iter();
    terms.extend(
        packages.map(|&(package, targets)| Term { slot: slot(package), factor: targets as f32 * each }),
    );
}

fn expand_targets(build: &Example, each: f32, slot: impl Fn(u32) -> u32, terms: &mut Vec<Term>) {
    terms.extend(build.targets.iter().map(|&target| Term { slot: slot(target), factor: each }));
    if build.unknown_targets > 0 {
        let factor = build.unknown_targets as f32 * each;
        terms.push(Term { slot: slot(Kind::Target.unknown()), factor });
    }
}
