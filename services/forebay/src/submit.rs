//! `forebay submit`: queues a build, and follows it if requested.

use std::{
    io::{IsTerminal as _, Write as _},
    path::Path,
    process::ExitCode,
};

use client::WatchFilter;
use command_line::{
    failure::{Failure, say},
    globals::Globals,
    stdout,
};
use model::{BuildId, BuildKey, Sequence};
use settings::Settings;

use crate::{
    context_folder::ContextFolder, farm::Farm, follow, job, request::build_request, submit_args::SubmitArgs,
    submit_trace::SubmitTrace,
};

/// Queues the build, and follows it if requested.
pub(crate) async fn run(
    args: &SubmitArgs,
    globals: &Globals,
    settings: &Settings,
) -> Result<ExitCode, Failure> {
    let id = args.id.unwrap_or_else(BuildId::generate);
    let mut request = build_request(args, id)?;
    let folder = ContextFolder::of(args)?;
    if let Some(hint) = shell_hint(&args.command) {
        say(&hint);
    }
    let job = args.job.read()?;
    let farm = Farm::connect(globals, settings).await?;
    let mut uploaded = None;
    if let Some(folder) = folder {
        let (context, sent) = folder.upload(&args.gateway, &farm, globals, settings, &args.group).await?;
        request.context = context;
        // Reported after the id of the build, which is the first line.
        uploaded = sent.line().filter(|_| !globals.json);
    }
    if let Some(job) = job {
        request.job = Some(job::source(&args.gateway, &farm, globals, settings, (job, &args.group)).await?);
    }
    let key = BuildKey { group: args.group.clone(), id };
    let trace = SubmitTrace::begin();
    let parent = trace.parent();
    let create = farm.call(async |client| client.create(&key.group, &request, parent.as_deref()).await);
    let reply = create.await?;
    trace.end(&key);
    farm.last().remember(&key);
    if args.follow {
        if !globals.json {
            // Before the first event, so that a reader of the output knows the id of the build.
            say_build(&key);
        }
        if let Some(line) = &uploaded {
            say(line);
        }
        return follow::follow(
            &farm,
            (globals, settings),
            &args.following,
            &key,
            (Sequence(0), &WatchFilter::default()),
        )
        .await;
    }
    if globals.json {
        stdout::json(&reply)?;
    } else {
        stdout::line(&reply.id.to_string())?;
        if let Some(line) = &uploaded {
            say(line);
        }
        // On a terminal, make clear that the id does not mean success.
        if std::io::stderr().is_terminal() {
            say("build queued; to follow it: forebay watch @last");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn say_build(key: &BuildKey) {
    // A closed stderr is not a failure.
    let _ = writeln!(std::io::stderr(), "build {} in group {}", key.id, key.group);
}

/// A hint if the command looks like a shell line in a single argument.
pub(crate) fn shell_hint(command: &[String]) -> Option<String> {
    let [line] = command else { return None };
    let is_line = line.contains(char::is_whitespace) && !Path::new(line).exists();
    is_line.then(|| {
        format!("{line:?} is run as the name of one program; to run a shell line: -- sh -c {line:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::shell_hint;

    #[test]
    fn a_line_for_a_shell_is_recognized() {
        let hint =
            |words: &[&str]| shell_hint(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        assert!(hint(&["echo hi | wc"]).unwrap().contains("sh -c"));
        assert_eq!(hint(&["true"]), None);
        assert_eq!(hint(&["echo", "a b"]), None);
        assert_eq!(hint(&[]), None);
    }
}
