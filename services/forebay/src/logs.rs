//! `forebay logs`: prints the output of a build so far.

use std::{process::ExitCode, time::Duration};

use bus::{EventKind, EventSubject, stream};
use clap::Args;
use client::{ClientError, WatchBody, WatchEvent};
use model::{OutputStream, Sequence};
use settings::Settings;
use telemetry::escaped;

use crate::{
    failure::{Failure, say},
    farm::{BuildArgs, Farm},
    frames::Frames,
    globals::Globals,
    present::dropped_line,
    stdout,
};

const EXAMPLES: &str = "\
Examples:
  forebay logs @last
      prints the output of the build that you submitted last
  forebay watch ID
      prints the output and follows the build until it ends";

/// Time limit for the next stored event. Stored events arrive at once; one that does not was written
/// by a superseded attempt.
const NEXT_WITHIN: Duration = Duration::from_secs(3);

/// Options of `forebay logs`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    build: BuildArgs,
}

/// Prints the stored console output of the build.
pub(crate) async fn run(args: LogsArgs, globals: &Globals, settings: &Settings) -> Result<ExitCode, Failure> {
    let farm = Farm::connect(globals, settings).await?;
    let key = farm.resolve(&args.build).await?;
    let build = farm.call(async |client| client.get(&key).await).await?;
    let mut frames = Frames::new(&farm, globals, settings);
    let archived = farm.call(async |client| client.archived_console(&build, None).await).await?;
    if let Some(mut console) = archived {
        while let Some(event) = console.next().await? {
            show(event, &mut frames, globals).await?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let subject = EventSubject { key: key.clone(), kind: EventKind::Console }.to_string();
    let last = farm.call(async |client| {
        let stored = client.bus().stream(stream::EVENTS).last(&subject).await?;
        Ok::<_, ClientError>(stored.map_or(Sequence(0), |stored| stored.sequence))
    });
    let until = last.await?;
    let mut watch = farm.client().watch(&key, Sequence(0), &[EventKind::Console]).giving_up();
    let mut position = Sequence(0);
    while position < until {
        let Ok(next) = tokio::time::timeout(NEXT_WITHIN, watch.next()).await else { break };
        let Some(event) = next? else { break };
        position = event.position;
        show(event, &mut frames, globals).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn show(mut event: WatchEvent, frames: &mut Frames<'_>, globals: &Globals) -> Result<(), Failure> {
    frames.fill(&mut event).await;
    if globals.json {
        return stdout::json(&event.to_json());
    }
    match &event.body {
        WatchBody::Console(chunk) => {
            if let Some(bytes) = chunk.dropped {
                say(&dropped_line(chunk.stream, bytes));
            }
            print(chunk.stream, &chunk.data)
        }
        WatchBody::Frame(frame) => {
            if let Some(line) = frame.lost_line() {
                say(&format!("... {}", escaped(&line)));
            }
            frame.parts().iter().try_for_each(|part| print(part.stream, part.data))
        }
        WatchBody::Lifecycle(_) | WatchBody::Tool(_) | WatchBody::Bazel(_) => Ok(()),
    }
}

fn print(stream: OutputStream, data: &[u8]) -> Result<(), Failure> {
    match stream {
        OutputStream::Stdout => stdout::bytes(data),
        OutputStream::Stderr => {
            // A closed stderr is not a failure.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), data);
            Ok(())
        }
    }
}
