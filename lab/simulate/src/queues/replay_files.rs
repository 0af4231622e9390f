//! The files of a replay: a stream and its workers.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    trace::{InvalidTrace, Trace},
    worker_file::{InvalidWorkers, alike_workers, read_workers},
};

/// Reason why a replay cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum InvalidReplay {
    #[error("cannot read {}: {error}", file.display())]
    Unreadable { file: PathBuf, error: io::Error },
    #[error("{}: {error}", file.display())]
    Stream { file: PathBuf, error: InvalidTrace },
    #[error("{workers}: {error}")]
    Workers {
        /// File of the workers, or the option with their number.
        workers: String,
        error: InvalidWorkers,
    },
}

/// Reads a stream and its workers. `workers` is a file, or a number of workers that meet all requirements.
pub fn read_replay(file: &Path, workers: &str) -> Result<Trace, InvalidReplay> {
    let name =
        file.file_stem().map_or_else(|| "replay".to_owned(), |stem| stem.to_string_lossy().into_owned());
    let mut trace = Trace::read(&name, &read(file)?)
        .map_err(|error| InvalidReplay::Stream { file: file.to_owned(), error })?;
    let (named, found) = match workers.parse() {
        Ok(count) => (format!("--workers {count}"), alike_workers(count, &trace.stream.requirements)),
        Err(_) => (workers.to_owned(), read_workers(&read(Path::new(workers))?)),
    };
    trace.stream.workers = found.map_err(|error| InvalidReplay::Workers { workers: named, error })?;
    Ok(trace)
}

fn read(file: &Path) -> Result<String, InvalidReplay> {
    fs::read_to_string(file).map_err(|error| InvalidReplay::Unreadable { file: file.to_owned(), error })
}
