//! Kills services while actions run.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use farm::{Farm, Port, SOON, ServiceProcess};
use tokio::time::Instant;

use super::ActionPlan;
use crate::Random;

/// Faults injected once each, in this order, between the kills of services.
const INJECTIONS: [Injection; 6] = [
    Injection::Flush,
    Injection::StopExecutor,
    Injection::Redis,
    Injection::Nats,
    Injection::StopExecutor,
    Injection::Flush,
];
const INJECTION_EVERY: usize = 3;
/// Range of milliseconds for which an executor is stopped: from less to more than the duration of its lease.
const STOP_MS: (u64, u64) = (800, 4000);
const TICK: Duration = Duration::from_millis(25);
const EXECUTORS: usize = 4;
/// Time after which no more kills happen.
const STORM_LIMIT: Duration = Duration::from_secs(40);

#[derive(Debug, Clone, Copy)]
enum Injection {
    Flush,
    Redis,
    Nats,
    StopExecutor,
}

struct Victim {
    service: &'static str,
    env: Vec<(String, String)>,
    process: ServiceProcess,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    /// The process was killed, and restarts at this time.
    Dead(Instant),
    /// The process is stopped, and continues at this time.
    Stopped(Instant),
}

impl Victim {
    fn start(farm: &Farm, service: &'static str, env: Vec<(String, String)>) -> Self {
        let variables: Vec<(&str, &str)> = env.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let process = farm.start_unready(service, &variables);
        Self { service, env, process, state: State::Runs }
    }
}

pub(super) struct Killer<'a> {
    farm: &'a Farm,
    random: Random,
    pause_ms: (u64, u64),
    victims: Vec<Victim>,
    injections: Vec<Injection>,
    faults: Vec<String>,
    counts: BTreeMap<String, usize>,
}

impl<'a> Killer<'a> {
    pub(super) async fn start(farm: &'a Farm, plan: &ActionPlan, random: Random, ports: &[Port]) -> Self {
        let gateways = ports.iter().map(|port| {
            let listen = format!("127.0.0.1:{}", port.number());
            Victim::start(farm, "gateway", vec![("FOREBAY_GRPC_LISTEN".to_owned(), listen)])
        });
        let executors = ["executor"; EXECUTORS];
        let others = ["scheduler", "scheduler", "cas"].into_iter().chain(executors);
        let others = others.map(|service| Victim::start(farm, service, Vec::new()));
        let victims = gateways.chain(others).collect();
        let mut injections = INJECTIONS.to_vec();
        injections.reverse();
        let mut killer = Self {
            farm,
            random,
            pause_ms: plan.pause_ms,
            victims,
            injections,
            faults: Vec::new(),
            counts: BTreeMap::new(),
        };
        killer.ready().await;
        killer
    }

    async fn ready(&mut self) {
        for victim in &mut self.victims {
            victim.process.ready(SOON).await;
        }
    }

    /// Kills until the clients are done, or the time limit is reached.
    pub(super) async fn storm(&mut self, done: &AtomicBool) {
        let end = Instant::now() + STORM_LIMIT;
        let (mut kills, mut next) = (0, Instant::now() + self.pause());
        while !done.load(Ordering::Relaxed) {
            tokio::time::sleep(TICK).await;
            self.revive();
            if Instant::now() < next || Instant::now() >= end {
                continue;
            }
            kills += 1;
            match self.injections.pop() {
                Some(injection) if kills % INJECTION_EVERY == 0 => self.inject(injection).await,
                not_due => {
                    self.injections.extend(not_due);
                    self.kill_one();
                }
            }
            next = Instant::now() + self.pause();
        }
    }

    fn pause(&mut self) -> Duration {
        self.random.millis(self.pause_ms.0, self.pause_ms.1)
    }

    fn note(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
    }

    /// Picks a running process of this service, or of any service.
    fn pick(&mut self, service: Option<&str>) -> Option<&mut Victim> {
        let fits = |victim: &Victim| {
            victim.state == State::Runs && service.is_none_or(|service| victim.service == service)
        };
        let all = self.victims.iter().enumerate();
        let running: Vec<usize> = all.filter(|(_, victim)| fits(victim)).map(|(at, _)| at).collect();
        let at = *self.random.pick(&running)?;
        self.victims.get_mut(at)
    }

    fn kill_one(&mut self) {
        let gap = self.random.millis(0, 600);
        let Some(victim) = self.pick(None) else { return };
        victim.process.kill9();
        victim.state = State::Dead(Instant::now() + gap);
        let what = format!("SIGKILL {}", victim.service);
        self.note(&what);
    }

    fn stop_executor(&mut self) {
        let span = self.random.millis(STOP_MS.0, STOP_MS.1);
        let Some(victim) = self.pick(Some("executor")) else { return };
        victim.process.pause();
        victim.state = State::Stopped(Instant::now() + span);
        self.note("SIGSTOP executor");
    }

    async fn inject(&mut self, injection: Injection) {
        let servers = &self.farm.servers;
        let gap = self.random.millis(100, 500);
        match injection {
            Injection::Flush => {
                servers.flush_redis();
                self.note("FLUSHALL");
            }
            Injection::Redis => {
                servers.kill_redis();
                tokio::time::sleep(gap).await;
                servers.start_redis().await;
                self.note("SIGKILL redis-server");
            }
            Injection::Nats => {
                servers.kill_nats();
                tokio::time::sleep(gap).await;
                servers.start_nats().await;
                self.note("SIGKILL nats-server");
            }
            Injection::StopExecutor => self.stop_executor(),
        }
    }

    fn revive(&mut self) {
        let now = Instant::now();
        for victim in &mut self.victims {
            match victim.state {
                State::Dead(until) if until <= now => {
                    *victim = Victim::start(self.farm, victim.service, std::mem::take(&mut victim.env));
                }
                State::Stopped(until) if until <= now => {
                    victim.process.resume();
                    victim.state = State::Runs;
                }
                State::Dead(_) | State::Stopped(_) => {}
                State::Runs => {
                    if let Some(status) = victim.process.try_exit() {
                        let (name, log) = (victim.process.name(), victim.process.log_tail());
                        self.faults.push(format!("{name} exited unexpectedly with {status}\n{log}"));
                        victim.state = State::Dead(now);
                    }
                }
            }
        }
    }

    /// Restarts or continues all processes.
    pub(super) async fn calm(&mut self) {
        while self.victims.iter().any(|victim| victim.state != State::Runs) {
            tokio::time::sleep(TICK).await;
            self.revive();
        }
        self.ready().await;
    }

    pub(super) fn end(mut self) -> (Vec<String>, Vec<(String, usize)>) {
        self.revive();
        (self.faults, self.counts.into_iter().collect())
    }
}
