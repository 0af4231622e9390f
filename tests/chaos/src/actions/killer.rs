//! Whoever kills, while actions run.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use farm::{Farm, Port, SOON, ServiceProcess};
use tokio::time::Instant;

use super::ActionPlan;
use crate::Random;

/// Dealt once each, in this order, between the kills of services.
const BLOWS: [Blow; 4] = [Blow::Flush, Blow::Redis, Blow::Nats, Blow::Flush];
const BLOW_EVERY: usize = 4;
const TURN: Duration = Duration::from_millis(25);
/// No more kills after this.
const STORM_LIMIT: Duration = Duration::from_secs(40);

#[derive(Debug, Clone, Copy)]
enum Blow {
    Flush,
    Redis,
    Nats,
}

struct Victim {
    service: &'static str,
    env: Vec<(String, String)>,
    process: ServiceProcess,
    dead_until: Option<Instant>,
}

impl Victim {
    fn start(farm: &Farm, service: &'static str, env: Vec<(String, String)>) -> Self {
        let variables: Vec<(&str, &str)> = env.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let process = farm.start_unready(service, &variables);
        Self { service, env, process, dead_until: None }
    }
}

pub(super) struct Killer<'a> {
    farm: &'a Farm,
    random: Random,
    pause_ms: (u64, u64),
    victims: Vec<Victim>,
    blows: Vec<Blow>,
    faults: Vec<String>,
    counts: BTreeMap<String, usize>,
}

impl<'a> Killer<'a> {
    pub(super) async fn start(farm: &'a Farm, plan: &ActionPlan, random: Random, ports: &[Port]) -> Self {
        let gateways = ports.iter().map(|port| {
            let listen = format!("127.0.0.1:{}", port.number());
            Victim::start(farm, "gateway", vec![("FOREBAY_GRPC_LISTEN".to_owned(), listen)])
        });
        let others = ["scheduler", "scheduler", "executor", "executor", "cas"];
        let others = others.into_iter().map(|service| Victim::start(farm, service, Vec::new()));
        let victims = gateways.chain(others).collect();
        let mut blows = BLOWS.to_vec();
        blows.reverse();
        let mut killer = Self {
            farm,
            random,
            pause_ms: plan.pause_ms,
            victims,
            blows,
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

    /// Kills until the clients are done, or for long enough.
    pub(super) async fn storm(&mut self, done: &AtomicBool) {
        let end = Instant::now() + STORM_LIMIT;
        let (mut kills, mut next) = (0, Instant::now() + self.pause());
        while !done.load(Ordering::Relaxed) {
            tokio::time::sleep(TURN).await;
            self.revive();
            if Instant::now() < next || Instant::now() >= end {
                continue;
            }
            kills += 1;
            match self.blows.pop() {
                Some(blow) if kills % BLOW_EVERY == 0 => self.deal(blow).await,
                undealt => {
                    self.blows.extend(undealt);
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

    fn kill_one(&mut self) {
        let alive: Vec<usize> = (0..self.victims.len())
            .filter(|at| self.victims.get(*at).is_some_and(|victim| victim.dead_until.is_none()))
            .collect();
        let gap = self.random.millis(0, 600);
        let Some(victim) = self.random.pick(&alive).and_then(|at| self.victims.get_mut(*at)) else { return };
        victim.process.kill9();
        victim.dead_until = Some(Instant::now() + gap);
        let what = format!("SIGKILL {}", victim.service);
        self.note(&what);
    }

    async fn deal(&mut self, blow: Blow) {
        let servers = &self.farm.servers;
        let gap = self.random.millis(100, 500);
        match blow {
            Blow::Flush => {
                servers.flush_redis();
                self.note("FLUSHALL");
            }
            Blow::Redis => {
                servers.kill_redis();
                tokio::time::sleep(gap).await;
                servers.start_redis().await;
                self.note("SIGKILL redis-server");
            }
            Blow::Nats => {
                servers.kill_nats();
                tokio::time::sleep(gap).await;
                servers.start_nats().await;
                self.note("SIGKILL nats-server");
            }
        }
    }

    fn revive(&mut self) {
        let now = Instant::now();
        for victim in &mut self.victims {
            match victim.dead_until {
                Some(until) if until <= now => {
                    *victim = Victim::start(self.farm, victim.service, std::mem::take(&mut victim.env));
                }
                Some(_) => {}
                None => {
                    if let Some(status) = victim.process.try_exit() {
                        let (name, log) = (victim.process.name(), victim.process.log_tail());
                        self.faults.push(format!("{name} ended by itself with {status}\n{log}"));
                        victim.dead_until = Some(now);
                    }
                }
            }
        }
    }

    /// Has everything run again.
    pub(super) async fn calm(&mut self) {
        while self.victims.iter().any(|victim| victim.dead_until.is_some()) {
            tokio::time::sleep(TURN).await;
            self.revive();
        }
        self.ready().await;
    }

    pub(super) fn end(mut self) -> (Vec<String>, Vec<(String, usize)>) {
        self.revive();
        (self.faults, self.counts.into_iter().collect())
    }
}
