//! Two commands that talk over pipes: what one writes, the other reads, and they share nothing else.

use std::fs;
use std::os::unix::fs::chown;
use std::time::Duration;

use nix::unistd::geteuid;
use sandbox::{Cause, Ended, Interactor, JoinedStreams, Outcome, Run, SlotConfig};

use crate::support::{Place, USER, Way};

/// A command and its interactor.
struct Pair {
    place: Place,
}

impl Pair {
    fn new() -> Self {
        Self { place: Place::new(Way::Kept) }
    }

    /// Runs both scripts at once, of which each reads what the other writes. Returns the end of the command
    /// and that of the interactor.
    async fn run(&self, command: Run, interactor: &str) -> (Ended, Ended) {
        let work = self.place.path("interactor");
        let root = work.join("root");
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("answer"), "42").unwrap();
        if geteuid().is_root() {
            chown(&root, Some(USER.uid), Some(USER.gid)).unwrap();
        }
        let config = SlotConfig { work, ..self.place.config() };
        let [of_command, of_interactor] = JoinedStreams::pair(config.user).unwrap();
        let run = Run {
            root,
            stdout: self.place.path("interactor-stdout"),
            stderr: self.place.path("interactor-stderr"),
            ..self.place.script(interactor)
        };
        let mut interactor = Interactor::new(config, run, of_interactor);
        assert_eq!(interactor.started().await.unwrap(), None);
        let mut slot = self.place.slot().await;
        let running = slot.run_joined(command, of_command).await.unwrap();
        let (command, interactor) = futures::join!(running.finish(), interactor.ended());
        (ended(command.unwrap()), ended(interactor.unwrap()))
    }

    fn said(&self) -> String {
        fs::read_to_string(self.place.path("interactor-stderr")).unwrap()
    }
}

fn ended(outcome: Outcome) -> Ended {
    match outcome {
        Outcome::Ended(ended) => ended,
        other @ Outcome::NotStarted { .. } => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_reads_what_the_other_writes() {
    let pair = Pair::new();
    let command =
        pair.place.script("read question; echo \"$question is 6\"; read verdict; echo $verdict >&2; exit 3");
    let interactor = "echo 2 times 3; read answer; echo \"got $answer\" >&2; echo right; exit 4";
    let (command, interactor) = pair.run(command, interactor).await;
    assert_eq!((command.exit_code, interactor.exit_code), (3, 4));
    assert_eq!((pair.place.stdout(), pair.place.stderr()), (String::new(), "right\n".to_owned()));
    assert_eq!(pair.said(), "got 2 times 3 is 6\n");
}

#[tokio::test]
async fn neither_sees_files_or_processes_of_the_other() {
    let pair = Pair::new();
    fs::write(pair.place.root().join("solution"), "").unwrap();
    // Each looks while the other waits for it.
    let look = "ls -R /forebay >&2; cat /proc/[0-9]*/cmdline >&2";
    let command = pair.place.script(&format!(": mark-of-command; read go; {look}; echo go; read go"));
    let interactor = format!(": mark-of-interactor; echo go; read go; {look}; echo go; read go; exit 0");
    let (command, interactor) = pair.run(command, &interactor).await;
    assert_eq!((command.exit_code, interactor.exit_code), (0, 0), "{}", pair.place.stderr());
    let (seen, of_interactor) = (pair.place.stderr(), pair.said());
    assert!(seen.contains("solution") && seen.contains("mark-of-command"), "{seen}");
    assert!(!seen.contains("answer") && !seen.contains("mark-of-interactor"), "{seen}");
    assert!(
        of_interactor.contains("answer") && of_interactor.contains("mark-of-interactor"),
        "{of_interactor}"
    );
    assert!(
        !of_interactor.contains("solution") && !of_interactor.contains("mark-of-command"),
        "{of_interactor}"
    );
}

#[tokio::test]
async fn the_end_of_one_is_the_end_of_input_of_the_other() {
    let pair = Pair::new();
    let (command, interactor) = pair.run(pair.place.script("exit 5"), "cat; echo over >&2; exit 6").await;
    assert_eq!((command.exit_code, interactor.exit_code), (5, 6));
    assert_eq!(pair.said(), "over\n");
    let pair = Pair::new();
    let (command, interactor) = pair.run(pair.place.script("cat; echo over >&2; exit 7"), "exit 8").await;
    assert_eq!((command.exit_code, interactor.exit_code, pair.place.stderr().as_str()), (7, 8, "over\n"));
}

#[tokio::test]
async fn what_writes_to_one_that_has_ended_is_stopped_by_a_signal() {
    let pair = Pair::new();
    let (command, interactor) =
        pair.run(pair.place.script("while :; do echo more; done"), "read line; exit 9").await;
    assert_eq!((command.exit_code, interactor.exit_code), (128 + 13, 9), "SIGPIPE");
    assert_eq!(command.cause, Cause::Ended);
}

#[tokio::test]
async fn two_that_wait_for_each_other_end_at_the_time_limit() {
    let pair = Pair::new();
    let limit = Duration::from_millis(500);
    let command = Run { timeout: Some(limit), ..pair.place.script("read line") };
    let (command, interactor) = pair.run(command, "read line || exit 2").await;
    assert_eq!((command.cause, interactor.cause), (Cause::Deadline, Cause::Ended));
    assert!(command.wall >= limit, "{command:?}");
    assert_eq!(interactor.exit_code, 2, "the kill of the command is the end of its input");
}

#[tokio::test]
async fn each_is_measured_alone() {
    let pair = Pair::new();
    let busy = "i=0; while [ $i -lt 600000 ]; do i=$((i+1)); done; echo done";
    let (command, interactor) = pair.run(pair.place.script("read line"), busy).await;
    assert!(interactor.cpu > 4 * command.cpu, "{command:?} {interactor:?}");
}

#[tokio::test]
async fn a_stopped_interactor_is_dead_and_says_so_again() {
    let pair = Pair::new();
    let work = pair.place.path("interactor");
    fs::create_dir_all(work.join("root")).unwrap();
    let config = SlotConfig { work: work.clone(), ..pair.place.config() };
    let [_kept, streams] = JoinedStreams::pair(config.user).unwrap();
    let run = Run { root: work.join("root"), ..pair.place.script("sleep 100") };
    let mut interactor = Interactor::new(config, run, streams);
    assert_eq!(interactor.started().await.unwrap(), None);
    let killed = interactor.stop().await.unwrap();
    assert_eq!(ended(killed.clone()).cause, Cause::Killed);
    assert_eq!(interactor.ended().await.unwrap(), killed);
    let pair = Pair::new();
    let work = pair.place.path("interactor");
    fs::create_dir_all(work.join("root")).unwrap();
    let config = SlotConfig { work: work.clone(), ..pair.place.config() };
    let [_kept, streams] = JoinedStreams::pair(config.user).unwrap();
    let run = Run { root: work.join("root"), ..pair.place.run(&["no-such-program"]) };
    let mut interactor = Interactor::new(config, run, streams);
    let outcome = if let Some(outcome) = interactor.started().await.unwrap() {
        outcome
    } else {
        assert!(!geteuid().is_root(), "only a sandbox for one command starts before its command");
        interactor.ended().await.unwrap()
    };
    assert!(matches!(outcome, Outcome::NotStarted { .. }), "{outcome:?}");
}
