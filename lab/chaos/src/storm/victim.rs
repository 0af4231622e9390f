//! The services under test, and their state after being killed, stopped or terminated.

use std::time::Duration;

use farm::{Farm, SOON, ServiceProcess, WrongClock};
use tokio::time::Instant;

use super::corpses;
use crate::Random;

const HOUR: i64 = 3600;
/// Each service, and the number of seconds by which its clock is ahead.
const SERVICES: [(&str, i64); 8] = [
    ("enqueuer", 0),
    ("enqueuer", 0),
    ("dispatcher", 0),
    ("dispatcher", 0),
    ("worker", 0),
    ("worker", -HOUR),
    ("reaper", 0),
    ("reaper", HOUR),
];
/// Time within which a terminated service must have ended.
const DRAIN_LIMIT: Duration = Duration::from_secs(20);

/// A service that is killed and restarted.
pub(super) struct Victim {
    pub(super) service: &'static str,
    clock_ahead: i64,
    process: ServiceProcess,
    state: State,
    /// Descendants that are stopped with it.
    frozen: Vec<corpses::Frozen>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    /// The process was killed, and restarts at this time.
    Dead(Instant),
    /// The process is stopped, and continues at this time.
    Stopped(Instant),
    /// The process received SIGTERM: it must end by this time, and is restarted.
    Drains(Instant),
}

impl Victim {
    fn start(farm: &Farm, service: &'static str, clock_ahead: i64) -> Self {
        let clock = (clock_ahead != 0).then(|| WrongClock::ahead_by(clock_ahead));
        let env = clock.as_ref().map(WrongClock::env);
        let process = farm.start_unready(service, env.as_ref().map_or(&[], |env| env.as_slice()));
        Self { service, clock_ahead, process, state: State::Runs, frozen: Vec::new() }
    }

    pub(super) fn name(&self) -> &str {
        self.process.name()
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends SIGKILL; the service restarts after `gap`.
    pub(super) fn kill(&mut self, gap: Duration) {
        self.process.kill9();
        self.state = State::Dead(Instant::now() + gap);
    }

    /// Sends SIGTERM; the service restarts when it has ended.
    pub(super) fn term(&mut self) {
        self.process.term();
        self.state = State::Drains(Instant::now() + DRAIN_LIMIT);
    }

    /// Sends SIGSTOP for this time.
    pub(super) fn stop(&mut self, span: Duration) {
        self.process.pause();
        self.state = State::Stopped(Instant::now() + span);
    }

    /// Sends SIGSTOP to the service and all its descendants for this time, as when a machine is paused.
    pub(super) fn freeze(&mut self, span: Duration) {
        self.stop(span);
        self.frozen = corpses::freeze_below(self.pid());
    }

    /// Restarts or continues the service if due; returns true when it was continued.
    fn revive(&mut self, farm: &Farm, faults: &mut Vec<String>) -> bool {
        let now = Instant::now();
        match self.state {
            State::Dead(until) if until <= now => *self = Self::start(farm, self.service, self.clock_ahead),
            State::Stopped(until) if until <= now => {
                // All at once: processes that should be dead by now can write first.
                corpses::thaw(&std::mem::take(&mut self.frozen));
                self.process.resume();
                self.state = State::Runs;
                return true;
            }
            State::Drains(until) => match self.process.try_exit() {
                Some(status) => {
                    // The signal kills a service that has not installed its handler yet.
                    if status.code().is_some_and(|code| code != 0) {
                        faults.push(self.fault(&format!("received SIGTERM, and exited with {status}")));
                    }
                    *self = Self::start(farm, self.service, self.clock_ahead);
                }
                None if until <= now => {
                    faults.push(self.fault("received SIGTERM, and still runs"));
                    self.kill(Duration::ZERO);
                }
                None => {}
            },
            State::Dead(_) | State::Stopped(_) => {}
            State::Runs => {
                if let Some(status) = self.process.try_exit() {
                    faults.push(self.fault(&format!("exited unexpectedly with {status}")));
                    self.state = State::Dead(now);
                }
            }
        }
        false
    }

    fn fault(&self, what: &str) -> String {
        format!("{} {what}\n{}", self.name(), self.process.log_tail())
    }
}

/// All services of the farm.
pub(super) struct Victims(Vec<Victim>);

impl Victims {
    /// Starts all services of the farm.
    pub(super) async fn start(farm: &Farm) -> Self {
        let mut victims =
            Self(SERVICES.into_iter().map(|(service, ahead)| Victim::start(farm, service, ahead)).collect());
        victims.ready().await;
        victims
    }

    /// Returns when all running services are ready.
    pub(super) async fn ready(&mut self) {
        for victim in &mut self.0 {
            victim.process.ready(SOON).await;
        }
    }

    /// Returns whether no service is dead, stopped or terminating.
    pub(super) fn all_run(&self) -> bool {
        self.0.iter().all(|victim| victim.state == State::Runs)
    }

    /// Picks a running process of this service, or of any service.
    pub(super) fn pick(&mut self, random: &mut Random, service: Option<&str>) -> Option<&mut Victim> {
        let fits = |victim: &Victim| {
            victim.state == State::Runs && service.is_none_or(|service| victim.service == service)
        };
        let running: Vec<usize> =
            self.0.iter().enumerate().filter(|(_, victim)| fits(victim)).map(|(at, _)| at).collect();
        let at = *random.pick(&running)?;
        self.0.get_mut(at)
    }

    /// Restarts or continues the services that are due; returns the names of those that were continued.
    pub(super) fn revive(&mut self, farm: &Farm, faults: &mut Vec<String>) -> Vec<String> {
        let mut continued = Vec::new();
        for victim in &mut self.0 {
            if victim.revive(farm, faults) {
                continued.push(victim.name().to_owned());
            }
        }
        continued
    }
}
