//! Writes audit events: what callers did to a farm, and what they were refused.
//!
//! [`Audit`] takes events without waiting; a task writes them to the bus. [`write_stated`] is for commands, which wait.

mod act;
mod writer;

use std::{
    hash::{BuildHasher as _, RandomState},
    net::IpAddr,
    sync::Arc,
};

use bus::Bus;
use model::{AuditEvent, AuditKind, Millis};
use parking_lot::Mutex;
use policy::audit::{Gate, Passage};
use telemetry::metrics::{Counter, Label, count};
use tokio::sync::{Notify, mpsc};

pub use act::{Act, Actor};
pub use writer::write_stated;

/// Events that wait to be written while the bus is away: about 2 MB at most.
const WAITING_MAX: usize = 4096;

/// The audit events of a process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Audit(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    source: Arc<str>,
    bus: Bus,
    hasher: RandomState,
    gate: Mutex<Gate<AuditEvent>>,
    sender: mpsc::Sender<AuditEvent>,
    /// Tells the writer that events are held.
    held: Notify,
}

impl Audit {
    /// Starts to write events to the bus, in the name of this process. Requires a tokio runtime.
    pub fn start(bus: &Bus, source: &str) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        let inner = Arc::new(Inner {
            source: source.into(),
            bus: bus.clone(),
            hasher: RandomState::new(),
            gate: Mutex::default(),
            sender,
            held: Notify::new(),
        });
        tokio::spawn(writer::write(bus.clone(), receiver));
        tokio::spawn(writer::send_held(Arc::clone(&inner)));
        Self(Some(inner))
    }

    /// Keeps no events: for processes without a bus.
    pub fn off() -> Self {
        Self(None)
    }

    /// Records something that a caller did, or was refused. Never waits: what is too much is counted.
    pub fn record(&self, kind: AuditKind, act: Act) {
        if let Some(inner) = &self.0 {
            inner.record(kind, act);
        }
    }

    /// Records that a caller was let in, once a minute for each address. `act` is made only if it is time.
    pub fn granted(&self, who: &str, address: Option<IpAddr>, act: impl FnOnce() -> Act) {
        let Some(inner) = &self.0 else { return };
        let caller = inner.hasher.hash_one((who, address));
        if inner.gate.lock().is_grant_due(caller, inner.bus.now()) {
            inner.record(AuditKind::Grant, act());
        }
    }
}

impl Inner {
    fn record(&self, kind: AuditKind, act: Act) {
        let now = self.bus.now();
        let caller = match (act.actor.name.as_str(), act.actor.address) {
            // A machine has many addresses of version 6.
            ("", Some(IpAddr::V6(address))) => {
                let [a, b, c, d, ..] = address.segments();
                self.hasher.hash_one([a, b, c, d])
            }
            ("", address) => self.hasher.hash_one(address),
            (name, _) => self.hasher.hash_one(name),
        };
        let event = act.event(kind, now, &self.source);
        let passage = self.gate.lock().pass(caller, kind, event, now);
        match passage {
            Passage::Write { event, dropped } => self.send(event, dropped),
            Passage::Held => {
                left_out("rate");
                self.held.notify_one();
            }
            Passage::Lost => left_out("rate"),
        }
    }

    fn send(&self, event: AuditEvent, dropped: u64) {
        if self.sender.try_send(AuditEvent { dropped, ..event }).is_err() {
            left_out("bus_away");
        }
    }

    /// Sends what was held of callers that have room again. Returns whether more is held.
    fn send_due(&self, now: Millis) -> bool {
        let (due, holds) = {
            let mut gate = self.gate.lock();
            (gate.due(now), gate.holds())
        };
        for (event, dropped) in due {
            self.send(event, dropped);
        }
        holds
    }
}

fn left_out(reason: &'static str) {
    count(Counter::AuditDropped, &[(Label::Reason, reason)], 1);
}
