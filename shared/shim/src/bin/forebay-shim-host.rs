//! For the tests only: acts as `forebay shim`, and as a worker that can be killed or stopped from outside.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test program may panic")]

use std::env;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use shim::{Command, Deadline, Event, Mode, Options, Shim};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["shim", ..] => shim::main(),
        ["worker", mode, deadline_millis, script] => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let mode = if *mode == "subreaper" { Some(Mode::Subreaper) } else { None };
            let deadline_millis = deadline_millis.parse().expect("milliseconds, 0 for no deadline");
            runtime.expect("a runtime").block_on(work(mode, deadline_millis, script));
            ExitCode::SUCCESS
        }
        _ => ExitCode::from(2),
    }
}

/// Runs a shell script in a shim with a kernel deadline, and copies its standard output, until this process
/// is killed or stopped.
async fn work(mode: Option<Mode>, deadline_millis: u64, script: &str) {
    let program = env::current_exe().unwrap();
    let options = Options { mode, kernel_deadline: true, ..Options::default() };
    let mut shim = Shim::start_with(&program, &options).await.expect("a shim");
    let deadline = (deadline_millis > 0).then(|| Deadline::after(Duration::from_millis(deadline_millis)));
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let command = Command { argv, env: Vec::new(), cwd: "/".into(), deadline };
    let mut running = shim.run(&command).await.expect("a run");
    while let Some(event) = running.next_event().await.expect("an event") {
        if let Event::Output { data, .. } = event {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(&data).and_then(|()| stdout.flush()).unwrap();
        }
    }
}
