//! Injects faults into a running farm.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use bus::RequestSubject;
use farm::{Farm, Output, bare_command};
use model::{Priority, Sequence};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use super::{
    Plan, collect, corpses, now_us,
    victim::{Victim, Victims},
};
use crate::{Kill, Random};

/// Faults that occur once per round, in random order, between the kills of services.
const INJECTIONS: [Injection; 12] = [
    Injection::SecondFarm,
    Injection::Freeze,
    Injection::Freeze,
    Injection::Flush,
    Injection::Flush,
    Injection::KillRedis,
    Injection::KillNats,
    Injection::StopRedis,
    Injection::StopNats,
    Injection::Stop("worker"),
    Injection::Stop("dispatcher"),
    Injection::Stop("reaper"),
];
/// One in this many kills is a fault of `INJECTIONS` until all are used up.
const INJECTION_EVERY: usize = 3;
/// Number of kills after which there is a pause, long enough that no kill excuses violations in it.
const LULL_EVERY: usize = 10;
const LULL: Duration = Duration::from_millis(3500);
/// One in this many services is terminated with SIGTERM; the others are killed.
const TERM_ONCE_IN: u64 = 5;
/// Time within which `doctor` must notice whether the bus accepts writes.
const DOCTOR_LIMIT: Duration = Duration::from_secs(15);
const TICK: Duration = Duration::from_millis(25);
const CHECK_INTERVAL: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Injection {
    Flush,
    KillRedis,
    KillNats,
    StopRedis,
    StopNats,
    /// One of these services is stopped for longer than a lease.
    Stop(&'static str),
    /// A `forebay up` with its own stores connects to the farm's bus and is refused.
    SecondFarm,
    /// A worker and all its descendants are stopped for longer than a lease.
    Freeze,
    /// The disk under nats-server's streams fills, and is emptied after a while.
    FillDisk,
}

/// Number of faults by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    counts: BTreeMap<String, usize>,
    /// Longest time that a process of a build outlived its killed worker.
    slowest_death: Duration,
    /// Number of processes of builds that lost their worker.
    orphans: usize,
}

/// Records of the killer.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) kills: Vec<Kill>,
    pub(super) tally: Tally,
    pub(super) faults: Vec<String>,
}

impl Report {
    fn note(&mut self, what: &str, kind: &str, name: &str) {
        self.kills.push(Kill::at(now_us(), format!("{what} {name}")));
        *self.tally.counts.entry(format!("{what} {kind}")).or_default() += 1;
    }

    /// Records that a stopped process continues.
    fn note_continued(&mut self, name: &str) {
        let stopped = format!("SIGSTOP {name}");
        if let Some(kill) = self.kills.iter_mut().rev().find(|kill| kill.what == stopped) {
            kill.until_us = now_us();
        }
    }
}

/// Injects faults and restarts processes.
pub(super) struct Killer<'a> {
    farm: &'a Farm,
    plan: Plan,
    random: Random,
    victims: Victims,
    injections: Vec<Injection>,
    report: Report,
}

impl<'a> Killer<'a> {
    /// Starts all services of the farm.
    pub(super) async fn start(farm: &'a Farm, plan: &Plan, mut random: Random) -> Self {
        let victims = Victims::start(farm).await;
        let mut injections = Vec::new();
        for round in 0..plan.rounds {
            let fills = plan.full_disks / plan.rounds + usize::from(round < plan.full_disks % plan.rounds);
            let mut left: Vec<Injection> =
                INJECTIONS.into_iter().chain((0..fills).map(|_| Injection::FillDisk)).collect();
            while !left.is_empty() {
                injections.push(left.swap_remove(random.position(left.len())));
            }
        }
        Self { farm, plan: plan.clone(), random, victims, injections, report: Report::default() }
    }

    /// Kills until all builds are submitted, seven of ten have ended and every fault has occurred.
    pub(super) async fn storm(&mut self, submitted: &AtomicBool, builds: usize) {
        let (mut from, mut ended) = (Sequence(0), BTreeSet::new());
        let end = Instant::now() + self.plan.storm_limit;
        let mut next_kill = Instant::now() + self.pause();
        let mut next_look = Instant::now() + CHECK_INTERVAL;
        let mut kills = 0;
        while Instant::now() < end {
            tokio::time::sleep(TICK).await;
            self.revive();
            if Instant::now() >= next_kill {
                kills += 1;
                if kills % INJECTION_EVERY == 0
                    && let Some(injection) = self.injections.pop()
                {
                    self.inject(injection).await;
                } else {
                    self.kill_one().await;
                }
                let lull = if kills % LULL_EVERY == 0 { LULL } else { Duration::ZERO };
                next_kill = Instant::now() + self.pause() + lull;
            }
            if Instant::now() >= next_look {
                collect::count_ended(self.farm, &mut from, &mut ended).await;
                next_look = Instant::now() + CHECK_INTERVAL;
                if submitted.load(Ordering::Relaxed)
                    && ended.len() * 10 >= builds * 7
                    && self.injections.is_empty()
                {
                    return;
                }
            }
        }
    }

    /// Restarts or continues all processes.
    pub(super) async fn calm(&mut self) {
        while !self.victims.all_run() {
            self.revive();
            tokio::time::sleep(TICK).await;
        }
        self.victims.ready().await;
    }

    /// Returns the records, with the services that ended on their own.
    pub(super) fn end(mut self) -> Report {
        self.revive();
        self.report
    }

    fn pause(&mut self) -> Duration {
        self.random.millis(self.plan.pause_ms.0, self.plan.pause_ms.1)
    }

    /// Restarts or continues the processes that are due.
    fn revive(&mut self) {
        for name in self.victims.revive(self.farm, &mut self.report.faults) {
            self.report.note_continued(&name);
        }
    }

    async fn kill_one(&mut self) {
        // Workers more often than others: they have the most to lose.
        let service = self.random.once_in(3).then_some("worker");
        let Some(victim) = self.victims.pick(&mut self.random, service) else { return };
        let (name, service, pid) = (victim.name().to_owned(), victim.service, victim.pid());
        if self.random.once_in(TERM_ONCE_IN) {
            victim.term();
            self.report.note("SIGTERM", service, &name);
            return;
        }
        let orphans = if service == "worker" { corpses::of(Some(pid)) } else { Vec::new() };
        victim.kill(self.random.millis(0, 800));
        self.report.note("SIGKILL", service, &name);
        self.report.tally.orphans += orphans.len();
        // The lease was renewed at a third of its duration or later: this is the earliest time at
        // which it can expire.
        match corpses::death(&orphans, self.plan.lease * 2 / 3).await {
            Ok(took) => self.report.tally.slowest_death = took.max(self.report.tally.slowest_death),
            Err(alive) => self.report.faults.push(format!("processes of builds outlive {name}: {alive:?}")),
        }
    }

    async fn inject(&mut self, injection: Injection) {
        let servers = &self.farm.servers;
        // In a cluster, kill only one node: the others continue.
        let node = self.random.position(servers.count());
        let gap = self.random.millis(100, 700);
        match injection {
            Injection::Flush => {
                servers.flush_redis();
                self.report.note("FLUSHALL", "redis", "");
            }
            Injection::KillRedis => {
                servers.kill_redis();
                self.report.note("SIGKILL", "redis-server", "redis-server");
                tokio::time::sleep(gap).await;
                servers.start_redis().await;
            }
            Injection::KillNats => {
                servers.kill_node(node);
                self.report.note("SIGKILL", "nats-server", &format!("nats-server {node}"));
                tokio::time::sleep(gap).await;
                servers.start_node(node).await;
            }
            Injection::StopRedis => self.hold(servers.redis_pid(), "redis-server").await,
            Injection::StopNats => self.hold(servers.nats_pid(node), "nats-server").await,
            Injection::Stop(service) => self.hold_service(injection, service, Victim::stop),
            Injection::SecondFarm => self.second_farm().await,
            Injection::FillDisk => self.fill_disk(node).await,
            Injection::Freeze => self.hold_service(injection, "worker", Victim::freeze),
        }
    }

    async fn second_farm(&mut self) {
        let servers = &self.farm.servers;
        let data = self.farm.folder().join("second-farm");
        let mut command = bare_command(&["up", "--http-port", "0", "--grpc-port", "0"]);
        command.args(["--nats", &servers.nats_url(), "--redis", &servers.redis_url()]);
        command.arg("--data").arg(&data);
        let output = Output::of(command).await;
        self.report.note("started", "a second farm", "a second farm");
        if output.code != 2 || !output.stderr.contains("store") {
            self.report.faults.push(format!("a second farm was not refused: {output:?}"));
        }
    }

    /// Fills the disk for a while, then follows the advice of `doctor`: restarts nats-server.
    async fn fill_disk(&mut self, node: usize) {
        let servers = &self.farm.servers;
        let Some(disk) = servers.disk(node) else { return };
        let began_us = now_us();
        let file = disk.fill();
        tokio::time::sleep(self.random.millis(500, 3000)).await;
        // With other nodes the streams remain writable. A stream is at fault from its first failed write.
        if servers.count() == 1 {
            self.fail_to_write().await;
            self.doctor_says("FAIL  writes").await;
        }
        if let Err(error) = fs::remove_file(&file) {
            self.report.faults.push(format!("{} was not removed: {error}", file.display()));
        }
        servers.kill_node(node);
        servers.start_node(node).await;
        self.report.note("filled", "the disk of nats-server", "the disk of nats-server");
        let Some(kill) = self.report.kills.last_mut() else {
            unreachable!("a fault was recorded above");
        };
        kill.time_us = began_us;
        kill.until_us = now_us();
        if servers.count() == 1 {
            self.doctor_says("ok    writes").await;
        }
    }

    /// Publishes requests that are refused until one is not acknowledged.
    async fn fail_to_write(&mut self) {
        let deadline = Instant::now() + DOCTOR_LIMIT;
        let Ok(group) = "amber".parse() else {
            unreachable!("the name of the group is invalid");
        };
        let subject = RequestSubject { group, priority: Priority::Batch }.to_string();
        while let Ok(sent) =
            self.farm.bus().jetstream().publish(subject.clone(), "not a request".into()).await
        {
            if sent.await.is_err() {
                return;
            }
            if Instant::now() > deadline {
                return self
                    .report
                    .faults
                    .push("nats-server accepts requests although its disk is full".to_owned());
            }
        }
    }

    /// Runs `forebay doctor` until it prints this text.
    async fn doctor_says(&mut self, wanted: &str) {
        let deadline = Instant::now() + DOCTOR_LIMIT;
        loop {
            let said = self.farm.cli(&["doctor"]).await.stdout;
            if said.contains(wanted) {
                return;
            }
            if Instant::now() > deadline {
                return self.report.faults.push(format!("doctor did not report {wanted:?}:\n{said}"));
            }
        }
    }

    /// Stops a service for longer than a lease.
    fn hold_service(
        &mut self,
        injection: Injection,
        service: &'static str,
        hold: impl FnOnce(&mut Victim, Duration),
    ) {
        let span = self.plan.lease + self.random.millis(500, 2000);
        match self.victims.pick(&mut self.random, Some(service)) {
            Some(victim) => {
                hold(victim, span);
                let name = victim.name().to_owned();
                self.report.note("SIGSTOP", service, &name);
            }
            // All of them are dead now: try again later.
            None => self.injections.insert(0, injection),
        }
    }

    /// Stops a server for a while: its connections stay open, but it does not answer.
    async fn hold(&mut self, pid: Option<u32>, name: &str) {
        let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok()) else { return };
        let signal = |signal| nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).is_ok();
        signal(Signal::SIGSTOP);
        self.report.note("SIGSTOP", name, name);
        let span = self.random.millis(300, 1500);
        tokio::time::sleep(span).await;
        signal(Signal::SIGCONT);
        self.report.note_continued(name);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> = self.counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        let (orphans, slowest) = (self.orphans, self.slowest_death);
        write!(
            f,
            "{}; {orphans} processes lost their worker and ended within {slowest:.1?}",
            counts.join(", ")
        )
    }
}
