//! Whoever kills.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use farm::{Farm, SOON, ServiceProcess};
use model::Sequence;
use tokio::time::Instant;

use super::{Plan, collect, corpses, now_us};
use crate::{Kill, Random};

const SERVICES: [&str; 8] =
    ["enqueuer", "enqueuer", "dispatcher", "dispatcher", "worker", "worker", "reaper", "reaper"];
/// Each of these comes once, in a random order, between the kills of services.
const BLOWS: [Blow; 5] = [Blow::Flush, Blow::Flush, Blow::KillRedis, Blow::KillNats, Blow::StopWorker];
/// Of so many kills one is a blow until all are used up.
const BLOW_EVERY: usize = 4;
const TURN: Duration = Duration::from_millis(25);
const LOOK: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    Flush,
    KillRedis,
    KillNats,
    StopWorker,
}

/// What was done how often.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    counts: BTreeMap<&'static str, usize>,
    /// The longest that a process of a build outlived its killed worker.
    slowest_death: Duration,
    /// Processes of builds that lost their worker.
    orphans: usize,
}

/// What the killer knows in the end.
pub(super) struct Report {
    pub(super) kills: Vec<Kill>,
    pub(super) tally: Tally,
    pub(super) faults: Vec<String>,
}

/// A service that is killed and started again.
struct Victim {
    service: &'static str,
    process: ServiceProcess,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    /// Killed; started again then.
    Dead(Instant),
    /// Stopped; goes on then.
    Stopped(Instant),
}

/// Kills.
pub(super) struct Killer<'a> {
    farm: &'a Farm,
    plan: Plan,
    random: Random,
    victims: Vec<Victim>,
    blows: Vec<Blow>,
    report: Report,
}

impl<'a> Killer<'a> {
    /// Starts all services.
    pub(super) async fn start(farm: &'a Farm, plan: &Plan, random: Random) -> Self {
        let start =
            |service| Victim { service, process: farm.start_unready(service, &[]), state: State::Runs };
        let mut victims: Vec<Victim> = SERVICES.into_iter().map(start).collect();
        for victim in &mut victims {
            victim.process.ready(SOON).await;
        }
        let report = Report { kills: Vec::new(), tally: Tally::default(), faults: Vec::new() };
        let mut killer = Self { farm, plan: plan.clone(), random, victims, blows: Vec::new(), report };
        let mut blows = BLOWS.to_vec();
        while !blows.is_empty() {
            let at = killer.random.position(blows.len());
            killer.blows.push(blows.swap_remove(at));
        }
        killer
    }

    /// Kills until all is submitted, seven of ten builds have ended and every blow was dealt.
    pub(super) async fn storm(&mut self, submitted: &AtomicBool, builds: usize) {
        let (mut from, mut ended) = (Sequence(0), BTreeSet::new());
        let end = Instant::now() + self.plan.storm_limit;
        let mut next_kill = Instant::now() + self.pause();
        let mut next_look = Instant::now() + LOOK;
        let mut kills = 0;
        while Instant::now() < end {
            tokio::time::sleep(TURN).await;
            self.revive();
            if Instant::now() >= next_kill {
                kills += 1;
                if kills % BLOW_EVERY == 0
                    && let Some(blow) = self.blows.pop()
                {
                    self.deal(blow).await;
                } else {
                    self.kill_one().await;
                }
                next_kill = Instant::now() + self.pause();
            }
            if Instant::now() >= next_look {
                collect::count_ended(self.farm, &mut from, &mut ended).await;
                next_look = Instant::now() + LOOK;
                if submitted.load(Ordering::Relaxed)
                    && ended.len() * 10 >= builds * 7
                    && self.blows.is_empty()
                {
                    return;
                }
            }
        }
    }

    /// Has everything run again.
    pub(super) async fn calm(&mut self) {
        while self.victims.iter().any(|victim| victim.state != State::Runs) {
            self.revive();
            tokio::time::sleep(TURN).await;
        }
        for victim in &mut self.victims {
            victim.process.ready(SOON).await;
        }
    }

    /// Services that ended by themselves.
    pub(super) fn check_alive(&mut self) -> Vec<String> {
        let mut faults = Vec::new();
        for victim in
            self.victims.iter_mut().filter(|victim| victim.state != State::Runs || !victim.process.is_alive())
        {
            let (name, ended) = (victim.process.name().to_owned(), victim.process.try_exit());
            faults.push(format!("{name} ended by itself: {ended:?}\n{}", victim.process.log_tail()));
        }
        faults
    }

    /// What it knows.
    pub(super) fn end(self) -> Report {
        self.report
    }

    fn pause(&mut self) -> Duration {
        self.random.millis(self.plan.pause_ms.0, self.plan.pause_ms.1)
    }

    fn note(&mut self, what: &'static str, whom: &str) {
        self.report.kills.push(Kill { time_us: now_us(), what: format!("{what} {whom}") });
        *self.report.tally.counts.entry(what).or_default() += 1;
    }

    /// Starts or continues those whose time has come.
    fn revive(&mut self) {
        let now = Instant::now();
        let mut continued = Vec::new();
        for victim in &mut self.victims {
            match victim.state {
                State::Dead(until) if until <= now => {
                    victim.process = self.farm.start_unready(victim.service, &[]);
                    victim.state = State::Runs;
                }
                State::Stopped(until) if until <= now => {
                    victim.process.resume();
                    victim.state = State::Runs;
                    continued.push(victim.process.name().to_owned());
                }
                State::Dead(_) | State::Stopped(_) => {}
                State::Runs => {
                    if let Some(status) = victim.process.try_exit() {
                        let (name, tail) = (victim.process.name(), victim.process.log_tail());
                        self.report.faults.push(format!("{name} ended by itself with {status}\n{tail}"));
                        victim.state = State::Dead(now);
                    }
                }
            }
        }
        for name in continued {
            self.note("SIGCONT worker", &name);
        }
    }

    async fn kill_one(&mut self) {
        let running: Vec<usize> = self
            .victims
            .iter()
            .enumerate()
            .filter(|(_, victim)| victim.state == State::Runs)
            .map(|(at, _)| at)
            .collect();
        let back = Instant::now() + self.random.millis(0, 800);
        let Some(at) = self.random.pick(&running).copied() else { return };
        let Some(victim) = self.victims.get_mut(at) else { return };
        let is_worker = victim.service == "worker";
        let orphans = if is_worker { corpses::of(Some(victim.process.pid())) } else { Vec::new() };
        let (name, service) = (victim.process.name().to_owned(), victim.service);
        victim.state = State::Dead(back);
        let what = match service {
            "enqueuer" => "SIGKILL enqueuer",
            "dispatcher" => "SIGKILL dispatcher",
            "worker" => "SIGKILL worker",
            _ => "SIGKILL reaper",
        };
        victim.process.kill9();
        self.note(what, &name);
        self.report.tally.orphans += orphans.len();
        // The lease was renewed at a third of its life or later: this is the earliest that it can run out.
        match corpses::death(&orphans, self.plan.lease * 2 / 3).await {
            Ok(took) => self.report.tally.slowest_death = took.max(self.report.tally.slowest_death),
            Err(alive) => self.report.faults.push(format!("processes of builds outlive {name}: {alive:?}")),
        }
    }

    async fn deal(&mut self, blow: Blow) {
        let servers = &self.farm.servers;
        let gap = self.random.millis(100, 700);
        match blow {
            Blow::Flush => {
                servers.flush_redis();
                self.note("FLUSHALL", "");
            }
            Blow::KillRedis => {
                servers.kill_redis();
                self.note("SIGKILL redis-server", "");
                tokio::time::sleep(gap).await;
                servers.start_redis().await;
            }
            Blow::KillNats => {
                servers.kill_nats();
                self.note("SIGKILL nats-server", "");
                tokio::time::sleep(gap).await;
                servers.start_nats().await;
            }
            Blow::StopWorker => {
                let until = Instant::now() + self.plan.lease + self.random.millis(500, 2000);
                let runs = |victim: &&mut Victim| victim.service == "worker" && victim.state == State::Runs;
                match self.victims.iter_mut().find(runs) {
                    Some(worker) => {
                        worker.process.pause();
                        worker.state = State::Stopped(until);
                        let name = worker.process.name().to_owned();
                        self.note("SIGSTOP worker", &name);
                    }
                    // Both are dead now: another time.
                    None => self.blows.insert(0, blow),
                }
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        let (orphans, slowest) = (self.orphans, self.slowest_death);
        write!(
            f,
            "{}; {orphans} processes lost their worker and were dead after {slowest:.1?}",
            counts.join(", ")
        )
    }
}
