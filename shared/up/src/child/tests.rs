use super::{
    BTreeMap, DELAY_MAX, Duration, Instant, LOG_BYTES_MAX, PathBuf, Roster, Spec, Supervisor, fs, next_delay,
    open_log, process, tail,
};

fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("forebay-child-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn shell(folder: &std::path::Path, script: &str) -> Spec {
    Spec {
        name: "child".into(),
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        env: BTreeMap::new(),
        log: folder.join("child.log"),
        lock: Some(folder.join("child.lock")),
        tethered: false,
        remember: |_| BTreeMap::from([("AGAIN".to_owned(), "yes".to_owned())]),
    }
}

async fn soon(what: &str, mut test: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !test() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn delays_double_while_the_child_dies_young() {
    let young = Duration::from_secs(1);
    let mut delay = Duration::ZERO;
    let mut seen = Vec::new();
    for _ in 0..8 {
        delay = next_delay(delay, young);
        seen.push(delay.as_millis());
    }
    assert_eq!(seen, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    assert_eq!(next_delay(DELAY_MAX, Duration::from_secs(6)), Duration::ZERO);
}

#[test]
fn long_logs_are_put_aside_and_the_tail_is_short() {
    let folder = scratch("log");
    let path = folder.join("x.log");
    fs::write(&path, "one\n\ntwo\nthree\nfour\n").unwrap();
    assert_eq!(tail(&path, 0), "\n  | two\n  | three\n  | four");
    assert_eq!(tail(&path, 15), "\n  | four");
    assert_eq!(tail(&folder.join("none"), 0), "");
    drop(open_log(&path).unwrap());
    assert!(path.metadata().unwrap().len() > 0);
    fs::File::options().write(true).open(&path).unwrap().set_len(LOG_BYTES_MAX + 1).unwrap();
    drop(open_log(&path).unwrap());
    assert_eq!(path.metadata().unwrap().len(), 0);
    assert!(folder.join("x.log.1").exists());
    fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn a_dead_child_is_replaced_and_a_stopped_one_is_not() {
    let folder = scratch("replace");
    let roster = Roster::new(&folder);
    let mut supervisor = Supervisor::start(shell(&folder, "echo run=$AGAIN; exec sleep 100"), roster.clone());
    soon("start", || roster.pid("child").is_some()).await;
    let first = roster.pid("child").unwrap();
    process::send(first, nix::sys::signal::Signal::SIGKILL);
    assert!(supervisor.exited().await.contains("signal: 9"));
    soon("restart", || roster.pid("child").is_some_and(|pid| pid != first)).await;
    let second = roster.pid("child").unwrap();
    soon("output", || fs::read_to_string(folder.join("child.log")).unwrap().contains("run=yes")).await;
    supervisor.stop(Duration::from_secs(5));
    supervisor.ended().await;
    assert_eq!((roster.pid("child"), process::start_of(second)), (None, None));
    fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn a_child_that_ignores_sigterm_is_killed() {
    let folder = scratch("stubborn");
    let roster = Roster::new(&folder);
    let spec = shell(&folder, "trap '' TERM; echo ready; while :; do sleep 0.05; done");
    let log = spec.log.clone();
    let mut supervisor = Supervisor::start(spec, roster.clone());
    soon("start", || fs::read_to_string(&log).is_ok_and(|text| text.contains("ready"))).await;
    let began = Instant::now();
    supervisor.stop(Duration::from_millis(200));
    supervisor.ended().await;
    assert!(began.elapsed() >= Duration::from_millis(200) && began.elapsed() < Duration::from_secs(5));
    assert_eq!(roster.pid("child"), None);
    fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test]
async fn the_lock_of_a_living_child_keeps_a_second_one_away() {
    let folder = scratch("lock");
    let mut first = Supervisor::start(shell(&folder, "exec sleep 100"), Roster::new(&folder));
    soon("start", || super::lock(&folder.join("child.lock")).is_err()).await;
    let mut second = Supervisor::start(shell(&folder, "exec sleep 100"), Roster::new(&scratch("lock2")));
    assert!(second.exited().await.contains("another process"));
    second.kill();
    first.kill();
    second.ended().await;
    first.ended().await;
    drop(super::lock(&folder.join("child.lock")).unwrap());
    fs::remove_dir_all(&folder).unwrap();
}
