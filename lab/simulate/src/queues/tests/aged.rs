//! Ageing: under lasting overload nothing starves, and short work is still served soon.

use super::*;

/// An hour at 120 % of the workers' capacity, then 80 % until a first-come-first-served queue would be empty.
fn overload(workers: u32, seed: u64) -> Stream {
    // Of the workload long+short: 4 of 5 jobs run for 0.5 s, the others for 10 s.
    let mean_ms = 0.8 * 500.0 + 0.2 * 10_000.0;
    let delay = |now_ms: u64| mean_ms / (f64::from(workers) * if now_ms < 3_600_000 { 1.2 } else { 0.8 });
    let jobs = f64::from(workers) * 3_600_000.0 / mean_ms * 4.0;
    let mut stream = two_lengths(whole(jobs).try_into().unwrap(), delay, seed);
    stream.workers = alike_workers(workers.into(), &stream.requirements).unwrap();
    let waits = waits(&stream, &starts(&stream, "1/fcfs/-", Reading::Text));
    let drained =
        (0..stream.jobs.len()).find(|at| stream.jobs[*at].arrival_ms > 3_600_000 && waits[*at] == 0);
    stream.jobs.truncate(drained.expect("it drains"));
    stream
}

/// Returns the longest wait of the longest tenth of the jobs, and the share of jobs on time.
fn judged(stream: &Stream, policy: &str) -> (u64, f64) {
    let waits = waits(stream, &starts(stream, policy, Reading::Text));
    let mut by_length: Vec<(u64, u64)> =
        stream.jobs.iter().zip(&waits).map(|(job, wait)| (job.duration_ms, *wait)).collect();
    by_length.sort_unstable_by(|a, b| b.cmp(a));
    let longest = by_length[..by_length.len() / 10].iter().map(|(_, wait)| *wait).max().unwrap();
    let on_time =
        by_length.iter().filter(|(duration, wait)| lateness(*duration, *wait) == Lateness::OnTime).count();
    (longest, on_time as f64 / by_length.len() as f64)
}

#[test]
fn by_ageing_the_longest_wait_little_longer_and_most_are_still_on_time() {
    for workers in [4, 10, 40] {
        for seed in 1..=4 {
            let stream = overload(workers, seed);
            let (first_come, _) = judged(&stream, "1/fcfs/-");
            let (starved, best) = judged(&stream, "1/spt/oracle");
            let (longest, on_time) = judged(&stream, "1/spt-aged/oracle");
            let context =
                format!("{workers} workers, seed {seed}: {first_come} {longest} {starved}; {on_time} {best}");
            assert!(longest as f64 <= 1.2 * first_come as f64, "{context}");
            assert!(on_time >= 0.8 * best, "{context}");
            // Without ageing, long jobs do wait.
            assert!(starved > 3 * first_come, "{context}");
        }
    }
}
