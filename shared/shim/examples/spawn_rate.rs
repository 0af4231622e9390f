//! Measures how many `/bin/true` run per second: a bare loop, one shim, several shims. `cargo
//! run --example spawn_rate [SECONDS]`
#![allow(clippy::unwrap_used, reason = "a measurement may panic")]

use std::env;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shim::{Mode, Shim};

fn main() -> ExitCode {
    if env::args().nth(1).as_deref() == Some("shim") {
        return shim::main();
    }
    let seconds = env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3);
    let time = Duration::from_secs(seconds);
    for threads in [1, 2] {
        let rate = bare(threads, time);
        println!("bare std::process::Command, {threads} thread(s): {rate:.0}/s");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for (mode, shims) in [(Mode::PidNamespace, 1), (Mode::PidNamespace, 4), (Mode::Subreaper, 4)] {
        let rate = runtime.block_on(shims_at_once(mode, shims, time));
        println!("{shims} shim(s), {mode:?}: {rate:.0}/s");
    }
    ExitCode::SUCCESS
}

fn bare(threads: usize, time: Duration) -> f64 {
    let count = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while began.elapsed() < time {
                    assert!(Command::new("/bin/true").status().unwrap().success());
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    count.into_inner() as f64 / began.elapsed().as_secs_f64()
}

async fn shims_at_once(mode: Mode, shims: usize, time: Duration) -> f64 {
    let began = Instant::now();
    let tasks: Vec<_> = (0..shims).map(|_| tokio::spawn(one_shim(mode, time))).collect();
    let mut count = 0;
    for task in tasks {
        count += task.await.unwrap();
    }
    f64::from(count) / began.elapsed().as_secs_f64()
}

async fn one_shim(mode: Mode, time: Duration) -> u32 {
    let mut shim = Shim::start_in(&env::current_exe().unwrap(), mode).await.unwrap();
    let argv = vec!["/bin/true".to_owned()];
    let deadline = Some(shim::Deadline::after(Duration::from_hours(1)));
    let command = shim::Command { argv, env: Vec::new(), cwd: "/".into(), deadline };
    let began = Instant::now();
    let mut count = 0;
    while began.elapsed() < time {
        let mut running = shim.run(&command).await.unwrap();
        while running.next_event().await.unwrap().is_some() {}
        count += 1;
    }
    count
}
