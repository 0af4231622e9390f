//! A command that talks with another one over standard input and output.

use std::fmt;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use invariant::impossible;
use tokio::sync::{oneshot, watch};

use crate::config::{Run, SlotConfig};
use crate::error::SandboxError;
use crate::joined_streams::JoinedStreams;
use crate::outcome::Outcome;
use crate::running::Event;
use crate::slot::Slot;

/// A command in a slot and folder of its own whose streams are joined to those of another one. It makes progress only while a
/// method of this value is awaited. Dropping it kills it.
pub struct Interactor {
    state: State,
    started: oneshot::Receiver<()>,
    stop: watch::Sender<bool>,
}

enum State {
    Running(LocalBoxFuture<'static, Result<Outcome, SandboxError>>),
    Ended(Outcome),
    Failed,
}

impl fmt::Debug for Interactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interactor").finish_non_exhaustive()
    }
}

impl Interactor {
    /// An interactor that is started by [`Interactor::started`].
    pub fn new(slot: SlotConfig, run: Run, streams: JoinedStreams) -> Self {
        let (report_start, started) = oneshot::channel();
        let stop = watch::Sender::new(false);
        let state = State::Running(Box::pin(interact(slot, run, streams, report_start, stop.subscribe())));
        Self { state, started, stop }
    }

    /// Starts it; returns when its process runs, or why it cannot run.
    pub async fn started(&mut self) -> Result<Option<Outcome>, SandboxError> {
        let Self { state, started, .. } = self;
        tokio::select! {
            biased;
            Ok(()) = started => Ok(None),
            outcome = outcome(state) => outcome.map(Some),
        }
    }

    /// Returns when all its processes are dead. May be dropped and called again; after the end it returns the same again.
    pub async fn ended(&mut self) -> Result<Outcome, SandboxError> {
        outcome(&mut self.state).await
    }

    /// Kills it; returns when all its processes are dead.
    pub async fn stop(&mut self) -> Result<Outcome, SandboxError> {
        self.stop.send_replace(true);
        outcome(&mut self.state).await
    }
}

async fn outcome(state: &mut State) -> Result<Outcome, SandboxError> {
    let running = match state {
        State::Running(running) => running,
        State::Ended(outcome) => return Ok(outcome.clone()),
        State::Failed => return Err(SandboxError::Shim(shim::ShimError::Gone)),
    };
    let ended = running.await;
    *state = match &ended {
        Ok(outcome) => State::Ended(outcome.clone()),
        Err(_) => State::Failed,
    };
    ended
}

async fn interact(
    config: SlotConfig,
    run: Run,
    streams: JoinedStreams,
    started: oneshot::Sender<()>,
    stop: watch::Receiver<bool>,
) -> Result<Outcome, SandboxError> {
    let mut slot = Slot::start(config).await?;
    let outcome = attend(&mut slot, run, streams, started, stop).await;
    slot.stop().await?;
    outcome
}

async fn attend(
    slot: &mut Slot,
    run: Run,
    streams: JoinedStreams,
    started: oneshot::Sender<()>,
    mut stop: watch::Receiver<bool>,
) -> Result<Outcome, SandboxError> {
    let mut running = slot.run_joined(run, streams).await?;
    let (mut started, mut is_stopped) = (Some(started), false);
    loop {
        tokio::select! {
            event = running.next_event() => match event? {
                Event::Started(_) => match started.take() {
                    // The receiver may not be interested in the start.
                    Some(started) => drop(started.send(())),
                    None => impossible!("a command has started twice"),
                },
                Event::Done(outcome) => return Ok(outcome),
            },
            _ = stop.wait_for(|stop| *stop), if !is_stopped => {
                is_stopped = true;
                running.control().kill(Duration::ZERO).await?;
            }
        }
    }
}
