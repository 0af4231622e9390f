//! Files of `forebay sim run`: streams, workers, starts of jobs, plots.

use std::{
    collections::BTreeSet,
    error::Error,
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::Path,
};

use command_line::failure::{Failure, USAGE, say};
use serde::{Serialize, de::DeserializeOwned};
use simulate::{
    plot_lateness, plot_makespans, plot_waits,
    queues::{Batch, Reading, Run, Tally, run_queue, write_trace, write_workers},
};

use super::source::Source;

/// Writes each stream of each seed, and the workers of each source.
pub(super) fn dump(place: &Path, sources: &[Source], batch: &Batch) -> Result<(), Failure> {
    let is_file = place.extension().is_some_and(|end| end == "jsonl" || end == "ndjson" || end == "json");
    if let (true, [source], 1) = (is_file, sources, batch.seeds) {
        let stream = source.stream(batch.first_seed, batch.reading);
        write(&place.with_extension("workers.json"), &write_workers(&stream.workers))?;
        return write(place, &write_trace(&stream));
    }
    if is_file {
        return Err(Failure::usage(format!(
            "--dump {}: a file can contain only one stream; choose one --workload without --seeds, or give a folder",
            place.display()
        )));
    }
    folder(place)?;
    for source in sources {
        for seed in (0..batch.seeds).map(|more| batch.first_seed.wrapping_add(more)) {
            let stream = source.stream(seed, batch.reading);
            write(&place.join(format!("{}.workers.json", stream.name)), &write_workers(&stream.workers))?;
            write(&place.join(format!("{}.{seed}.jsonl", stream.name)), &write_trace(&stream))?;
        }
    }
    say(&format!("wrote the streams and their workers to {}", place.display()));
    Ok(())
}

/// The start of a job, one line of the output.
#[derive(Serialize)]
struct JobLine<'a> {
    workload: &'a str,
    policy: &'a str,
    reading: Reading,
    seed: u64,
    /// Index in the stream, from 0.
    job: usize,
    arrival_ms: u64,
    duration_ms: u64,
    start_ms: u64,
    wait_ms: u64,
    worker: &'a str,
}

/// Writes when and where each job started.
pub(super) fn per_job(file: &Path, sources: &[Source], batch: &Batch) -> Result<(), Failure> {
    let unwritten =
        |error: &dyn Error| Failure::new(USAGE, format!("cannot write {}", file.display()), error);
    let mut out = BufWriter::new(File::create(file).map_err(|error| unwritten(&error))?);
    for source in sources {
        for seed in (0..batch.seeds).map(|more| batch.first_seed.wrapping_add(more)) {
            let stream = source.stream(seed, batch.reading);
            for policy in &batch.policies {
                let run = Run { policy: *policy, reading: batch.reading, seed };
                let starts = run_queue(&stream, &run).map_err(|error| Failure::of(USAGE, &error))?;
                let policy = policy.to_string();
                for (job, (of, start)) in stream.jobs.iter().zip(&starts).enumerate() {
                    let line = JobLine {
                        workload: &stream.name,
                        policy: &policy,
                        reading: batch.reading,
                        seed,
                        job,
                        arrival_ms: of.arrival_ms,
                        duration_ms: of.duration_ms,
                        start_ms: start.start_ms,
                        wait_ms: start.start_ms - of.arrival_ms,
                        worker: stream.workers.get(start.worker as usize).map_or("", |worker| &worker.name),
                    };
                    serde_json::to_writer(&mut out, &line).map_err(|error| unwritten(&error))?;
                    out.write_all(b"\n").map_err(|error| unwritten(&error))?;
                }
            }
        }
    }
    out.flush().map_err(|error| unwritten(&error))
}

/// Plots the results of each workload.
pub(super) fn plot(place: &Path, tallies: &[Tally]) -> Result<(), Failure> {
    folder(place)?;
    let workloads: BTreeSet<&str> = tallies.iter().map(|tally| tally.workload.as_str()).collect();
    for workload in workloads {
        let of_it: Vec<&Tally> = tallies.iter().filter(|tally| tally.workload == workload).collect();
        write(&place.join(format!("lateness,{workload}.svg")), &plot_lateness(&of_it))?;
        write(&place.join(format!("waits,{workload}.svg")), &plot_waits(&of_it))?;
    }
    write(&place.join("makespans.svg"), &plot_makespans(tallies))?;
    say(&format!("wrote plots of lateness, waits and makespans to {}", place.display()));
    Ok(())
}

fn folder(place: &Path) -> Result<(), Failure> {
    fs::create_dir_all(place)
        .map_err(|error| Failure::new(USAGE, format!("cannot create the folder {}", place.display()), &error))
}

/// Reads a text file.
pub(super) fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file)
        .map_err(|error| Failure::new(USAGE, format!("cannot read {}", file.display()), &error))
}

/// Writes a text file.
pub(super) fn write(file: &Path, text: &str) -> Result<(), Failure> {
    fs::write(file, text)
        .map_err(|error| Failure::new(USAGE, format!("cannot write {}", file.display()), &error))
}

/// Reads a scenario, in JSON or YAML.
pub(super) fn scenario<T: DeserializeOwned>(file: &Path) -> Result<T, Failure> {
    let unreadable =
        |error: &dyn Error| Failure::new(USAGE, format!("cannot read {}", file.display()), error);
    let text = read(file)?;
    // JSON is a subset of YAML, except that the two parsers expect different forms of enums.
    if text.trim_start().starts_with('{') {
        serde_json::from_str(&text).map_err(|error| unreadable(&error))
    } else {
        serde_norway::from_str(&text).map_err(|error| unreadable(&error))
    }
}
