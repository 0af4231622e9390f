//! The terminal of `forebay top`: reads keys, asks the farm, draws, and restores the terminal in any case.

use std::{process::ExitCode, time::Duration};

use client::ClientError;
use command_line::failure::{FAILED, Failure};
use futures::{
    FutureExt as _,
    future::{BoxFuture, OptionFuture},
};
use model::CancelReply;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyEventKind},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use super::{
    draw::{Status, draw, page},
    snapshot::Snapshot,
    state::{Effect, Screen},
    tables::{Table, table},
};
use crate::farm::Farm;

/// Time limit of a question to the farm. Lists wait 3 s for an archive that does not answer, by group and once more.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the thread that reads keys waits before it looks whether it is still needed.
const KEY_WAIT: Duration = Duration::from_millis(200);

/// Restores the terminal when it is dropped.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// The screen, and what runs in the background: at most one question and one cancel at a time.
struct Top<'a> {
    farm: &'a Farm,
    screen: Screen,
    snapshot: Option<Snapshot>,
    read_at: Instant,
    status: Status,
    reading: Option<BoxFuture<'a, Result<Snapshot, String>>>,
    cancelling: Option<BoxFuture<'a, Result<CancelReply, ClientError>>>,
}

/// Shows the farm until the user quits or a signal ends the program.
pub(super) async fn run(farm: &Farm, screen: Screen, every: Duration) -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| Failure::new(FAILED, "cannot use the terminal", &error);
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(failed)?;
    // Also restores the terminal before the message of a panic.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let _restore = Restore;
    let mut keys = read_keys();
    let mut tick = interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let url = farm.client().bus().url().to_string();
    let status = Status { colours, farm: url, ..Status::default() };
    let (snapshot, read_at) = (None, Instant::now());
    let mut top = Top { farm, screen, snapshot, read_at, status, reading: None, cancelling: None };
    loop {
        top.draw(&mut terminal).map_err(failed)?;
        tokio::select! {
            _ = tick.tick() => top.read(),
            Some(read) = OptionFuture::from(top.reading.as_mut()) => top.answered(read),
            Some(cancelled) = OptionFuture::from(top.cancelling.as_mut()) => top.cancelled(cancelled),
            event = keys.recv() => match event {
                Some(event) => {
                    let size = terminal.size().map_err(failed)?;
                    if top.event(&event, page(size.height)) {
                        return Ok(ExitCode::SUCCESS);
                    }
                }
                // The terminal is gone.
                None => return Ok(ExitCode::SUCCESS),
            },
            _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
            _ = hang_up.recv() => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// The events of the terminal, read by a thread that ends with the receiver.
fn read_keys() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(64);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            match event::poll(KEY_WAIT) {
                Ok(false) => {}
                Ok(true) => {
                    let Ok(event) = event::read() else { return };
                    if sender.blocking_send(event).is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    });
    receiver
}

impl Top<'_> {
    fn draw(&mut self, terminal: &mut DefaultTerminal) -> std::io::Result<()> {
        if let Some((_, age)) = &mut self.status.stale {
            *age = self.read_at.elapsed().as_secs();
        }
        terminal.draw(|frame| draw(frame, &self.screen, self.snapshot.as_ref(), &self.status))?;
        Ok(())
    }

    /// Asks the farm, unless a question is open.
    fn read(&mut self) {
        if self.reading.is_some() || self.screen.paused {
            return;
        }
        let (farm, detail) = (self.farm, self.screen.detail().cloned());
        let question = async move {
            match timeout(PATIENCE, Snapshot::read(farm.client(), detail.as_ref())).await {
                Ok(answer) => answer.map_err(|error| telemetry::error_chain(&error)),
                Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
            }
        };
        self.reading = Some(question.boxed());
    }

    fn answered(&mut self, read: Result<Snapshot, String>) {
        self.reading = None;
        match read {
            Ok(snapshot) => {
                (self.snapshot, self.read_at, self.status.stale) = (Some(snapshot), Instant::now(), None);
            }
            Err(why) => self.status.stale = Some((why, self.read_at.elapsed().as_secs())),
        }
    }

    fn cancelled(&mut self, cancelled: Result<CancelReply, ClientError>) {
        self.cancelling = None;
        self.status.message = Some(match cancelled {
            Ok(reply) if reply.cancelled => format!("cancelled {}", reply.build.record.build.key()),
            Ok(reply) => format!("{} had ended already", reply.build.record.build.key()),
            Err(error) => format!("not cancelled: {}", telemetry::error_chain(&error)),
        });
        self.read();
    }

    /// Handles an event; returns whether to quit.
    fn event(&mut self, event: &Event, page: usize) -> bool {
        let Event::Key(key) = event else { return false };
        if key.kind == KeyEventKind::Release {
            return false;
        }
        self.status.message = None;
        let shown = match &self.snapshot {
            Some(snapshot) => self.screen.arrange(table(self.screen.view, snapshot)),
            None => Table::default(),
        };
        match self.screen.key(*key, &shown, page) {
            Effect::None => {}
            Effect::Quit => return true,
            Effect::Read => {
                // An open question does not know what is wanted now.
                self.reading = None;
                self.read();
            }
            Effect::Address(path) => {
                let pages = self.snapshot.as_ref().and_then(|snapshot| snapshot.pages.as_ref());
                self.status.message = Some(match pages {
                    Some(pages) => format!("{pages}{path}"),
                    None => "no gateway that serves pages answers".to_owned(),
                });
            }
            Effect::Message(text) => self.status.message = Some(text.to_owned()),
            Effect::Cancel(build) => {
                let farm = self.farm;
                let order = async move {
                    farm.client().cancel(&build, Some("cancelled in forebay top".into())).await
                };
                self.cancelling = Some(order.boxed());
            }
        }
        false
    }
}
