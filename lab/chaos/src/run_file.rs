//! Evidence from the builds themselves: a script that records that it is alive, and the reader of its file.

use model::{Attempt, BuildKey};

use crate::Run;

/// Returns a command for `sh -c` that appends `start`, a `tick` every 50 ms and `end` to the file
/// `$CHAOS_FILE`, each with its attempt, the time in microseconds and its workspace; it runs for `$CHAOS_TICKS`
/// ticks and exits with `$CHAOS_EXIT`.
pub fn script() -> String {
    let lines = [
        r#"say() { echo "$1 $FOREBAY_ATTEMPT $(date +%s%6N) $FOREBAY_WORKSPACE" >> "$CHAOS_FILE"; }"#,
        "say start",
        r#"echo "attempt $FOREBAY_ATTEMPT starts""#,
        "n=$CHAOS_TICKS",
        r#"while [ "$n" -gt 0 ]; do sleep 0.05; say tick; echo "$n left"; n=$((n - 1)); done"#,
        r#"echo "attempt $FOREBAY_ATTEMPT ends""#,
        "say end",
        r#"exit "$CHAOS_EXIT""#,
    ];
    lines.join("\n")
}

/// Reads the file of one build. Skips a line that a kill truncated.
pub fn parse_runs(key: &BuildKey, text: &str) -> Vec<Run> {
    let mut runs: Vec<(Run, &str)> = Vec::new();
    for line in text.lines() {
        let mut words = line.split(' ');
        let (Some(word), Some(attempt), Some(time), Some(place), None) =
            (words.next(), words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        let (Ok(attempt), Ok(time)) = (attempt.parse().map(Attempt), time.parse::<u64>()) else { continue };
        // The last run of this attempt in this workspace: another workspace means another process.
        let known = runs.iter_mut().rev().find(|(run, at)| run.attempt == attempt && *at == place);
        match (word, known) {
            ("start", _) | (_, None) => {
                let run = Run { key: key.clone(), attempt, start_us: time, last_us: time, end_us: None };
                runs.push((run, place));
            }
            (_, Some((run, _))) => {
                run.last_us = run.last_us.max(time);
                if word == "end" {
                    run.end_us = Some(time);
                }
            }
        }
    }
    runs.into_iter().map(|(run, _)| run).collect()
}

#[cfg(test)]
mod tests {
    use model::{Attempt, BuildId, BuildKey};

    use super::parse_runs;

    #[test]
    fn a_killed_run_is_bounded_by_its_last_tick() {
        let key = BuildKey { group: "g".parse().unwrap(), id: BuildId::generate() };
        let text = "start 1 100 /w/a/0\ntick 1 150 /w/a/0\nstart 2 300 /w/b/1\ntick 1 310 /w/a/0\nend 2 350 /w/b/1\nti";
        let runs = parse_runs(&key, text);
        let seen: Vec<_> =
            runs.iter().map(|run| (run.attempt.0, run.start_us, run.last_us, run.end_us)).collect();
        assert_eq!(seen, [(1, 100, 310, None), (2, 300, 350, Some(350))]);
    }

    #[test]
    fn two_processes_of_one_attempt_are_two_runs() {
        let key = BuildKey { group: "g".parse().unwrap(), id: BuildId::generate() };
        let runs = parse_runs(&key, "start 1 100 a\nstart 1 120 b\ntick 1 150 a\nend 1 160 b\n");
        assert_eq!(runs.iter().map(|run| run.last_us).collect::<Vec<_>>(), [150, 160]);
        assert!(runs.iter().all(|run| run.attempt == Attempt(1)));
    }
}
