//! Pure decisions: Algorithm 1 over many groups, and look-ups of warm workspaces.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use model::{Esu, ExecutorType, Occupancy, ToolCall};
use policy::{
    Dequeue, Random,
    workspace::{BuildKeys, IdleWorkspaces, keys},
};

use crate::statistics::Percentiles;

const GROUPS: usize = 1000;
const HEAD: usize = 64;
const WORKSPACES: u32 = 100_000;
const LOOKUPS: usize = 20_000;

/// Rate of decided builds per second: 1,000 groups with heads of 64 builds, most with x86 only, some with two types;
/// half of each head fits.
pub(crate) fn dequeues(window: Duration) -> f64 {
    let mut random = Random::new(1);
    let Ok(gpu) = "gpu".parse::<ExecutorType>() else {
        unreachable!("the name of the executor type is invalid");
    };
    let build = |random: &mut Random| {
        let mut occupancy = Occupancy::default();
        occupancy.add(&ExecutorType::x86(), Esu::clamped(random.unit() * 4.0));
        if random.below(10) == 0 {
            occupancy.add(&gpu, Esu::ONE);
        }
        occupancy
    };
    let heads: Vec<Vec<Occupancy>> =
        (0..GROUPS).map(|_| (0..HEAD).map(|_| build(&mut random)).collect()).collect();
    let amounts = |x86: f64, of_gpu: f64| {
        let mut amounts = Occupancy::of_each([ExecutorType::x86()], Esu::clamped(x86));
        amounts.add(&gpu, Esu::clamped(of_gpu));
        amounts
    };
    let (target, in_progress) = (amounts(100.0, 6.0), amounts(36.0, 3.0));
    let begun = Instant::now();
    let mut decided = 0_usize;
    while begun.elapsed() < window {
        for head in &heads {
            let mut state = Dequeue::new(&target, &in_progress);
            decided += head.len();
            black_box(head.iter().filter(|build| state.consider(build).is_ok()).count());
        }
    }
    decided as f64 / begun.elapsed().as_secs_f64()
}

/// Microseconds of a look-up among 100,000 idle workspaces, half of which share a package. A quarter of the builds have
/// targets in that package and others, a quarter only targets in that package, which is the most expensive case.
pub(crate) fn lookups() -> Percentiles {
    let mut random = Random::new(2);
    let mut idle = IdleWorkspaces::default();
    for workspace in 0..WORKSPACES {
        idle.insert(workspace, Some(build(&mut random, workspace % 2 == 0).workspace));
    }
    let mut times: Vec<f64> = Vec::with_capacity(LOOKUPS);
    for number in 0..LOOKUPS {
        let wanted = match number % 4 {
            0 => build(&mut random, true),
            1 => shared_only(&mut random),
            _ => build(&mut random, false),
        };
        let begun = Instant::now();
        black_box(idle.choose(&wanted));
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Percentiles::of(&mut times)
}

/// A build with one to eight targets in the package that half of all workspaces have.
fn shared_only(random: &mut Random) -> BuildKeys {
    let targets = (0..=random.below(8)).map(|_| format!("//base:t{}", random.below(1000))).collect();
    keys(&[], &ToolCall { targets, tool_version: "7".to_owned(), ..ToolCall::default() })
}

/// A build with one to eight targets in packages of different popularity; a `shared` one has another target in the
/// package that half of all workspaces have.
fn build(random: &mut Random, shared: bool) -> BuildKeys {
    let count = 1 + random.below(8);
    let mut targets: Vec<String> = (0..count)
        .map(|_| {
            let package = random.below(20_000).min(random.below(20_000));
            format!("//p{package}:t{}", random.below(50))
        })
        .collect();
    if shared {
        targets.push(format!("//base:t{}", random.below(1000)));
    }
    let call = ToolCall {
        branch: format!("branch-{}", random.below(50)),
        targets,
        tool_version: "7".to_owned(),
        ..ToolCall::default()
    };
    keys(&[], &call)
}
