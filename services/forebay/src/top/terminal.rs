//! The terminal of `forebay top`: reads keys, asks the farm, draws, and restores the terminal in any case.

use std::{
    io::{self, Write as _},
    os::fd::AsFd as _,
    process::ExitCode,
    time::Duration,
};

use client::ClientError;
use command_line::failure::{FAILED, Failure};
use console::{Key, Term};
use futures::{
    FutureExt as _,
    future::{BoxFuture, OptionFuture},
};
use model::CancelReply;
use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use parking_lot::Mutex;
use tokio::{
    io::AsyncReadExt as _,
    signal::unix::{SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use super::{
    draw::{Size, Status, draw, frame, page},
    keys::keys,
    snapshot::Snapshot,
    state::{Effect, Screen},
    tables::{Table, table},
};
use crate::farm::Farm;

/// Time limit of a question to the farm. Lists wait 3 s for an archive that does not answer, by group and once more.
const PATIENCE: Duration = Duration::from_secs(10);
/// Switches to a screen that leaves the lines of before untouched, and hides the cursor; and the reverse.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l";
const LEAVE: &str = "\u{1b}[?25h\u{1b}[?1049l";
/// Modes of the terminal before it was used, until they are restored.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Restores the terminal when it is dropped.
struct Restore;

impl Restore {
    /// Takes the terminal. It is also restored before the message of a panic.
    fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        *BEFORE.lock() = Some(before);
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
        let entered = Self;
        tcsetattr(io::stdin(), SetArg::TCSADRAIN, &raw)?;
        print(ENTER)?;
        Ok(entered)
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    if let Some(before) = BEFORE.lock().take() {
        // The terminal may be gone.
        let _ = print(LEAVE);
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &before);
    }
}

fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn size() -> Size {
    let (rows, columns) = Term::stdout().size();
    (usize::from(columns), usize::from(rows))
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
    let failed = |error: io::Error| Failure::new(FAILED, "cannot use the terminal", &error);
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(failed)?;
    let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
    let _restore = Restore::enter().map_err(failed)?;
    let keyboard = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let (mut keyboard, mut bytes) = (tokio::fs::File::from_std(keyboard.into()), [0; 256]);
    let mut tick = interval(every);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let url = farm.client().bus().url().to_string();
    let status = Status { colours, farm: url, ..Status::default() };
    let (snapshot, read_at) = (None, Instant::now());
    let mut top = Top { farm, screen, snapshot, read_at, status, reading: None, cancelling: None };
    loop {
        top.draw().map_err(failed)?;
        tokio::select! {
            _ = tick.tick() => top.read(),
            Some(read) = OptionFuture::from(top.reading.as_mut()) => top.answered(read),
            Some(cancelled) = OptionFuture::from(top.cancelling.as_mut()) => top.cancelled(cancelled),
            read = keyboard.read(&mut bytes) => match read {
                Ok(length @ 1..) => {
                    for key in keys(bytes.get(..length).unwrap_or_default()) {
                        if top.key(&key, page(size())) {
                            return Ok(ExitCode::SUCCESS);
                        }
                    }
                }
                // The terminal is gone.
                Ok(_) | Err(_) => return Ok(ExitCode::SUCCESS),
            },
            _ = resized.recv() => {}
            _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
            _ = hang_up.recv() => return Ok(ExitCode::SUCCESS),
        }
    }
}

impl Top<'_> {
    fn draw(&mut self) -> io::Result<()> {
        if let Some((_, age)) = &mut self.status.stale {
            *age = self.read_at.elapsed().as_secs();
        }
        let lines = draw(size(), &self.screen, self.snapshot.as_ref(), &self.status);
        print(&frame(&lines))
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

    /// Handles a key; returns whether to quit.
    fn key(&mut self, key: &Key, page: usize) -> bool {
        self.status.message = None;
        let shown = match &self.snapshot {
            Some(snapshot) => self.screen.arrange(table(self.screen.view, snapshot)),
            None => Table::default(),
        };
        match self.screen.key(key, &shown, page) {
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
