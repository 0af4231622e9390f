//! The files that services write their output to.

use std::{
    fs,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use model::ServiceName;

/// Maximum bytes at the end of a log that a message repeats.
const SHOWN_BYTES: u64 = 500;
const STREAMS: [&str; 2] = ["stdout", "stderr"];

/// The files that a service writes its output to.
#[derive(Debug, Clone)]
pub(crate) struct ServiceLogs {
    name: ServiceName,
    files: [PathBuf; 2],
}

impl ServiceLogs {
    /// The logs of a service in its folder.
    pub(crate) fn new(name: ServiceName, folder: &Path) -> Self {
        Self { name, files: STREAMS.map(|stream| folder.join(stream)) }
    }

    pub(crate) fn files(&self) -> [PathBuf; 2] {
        self.files.clone()
    }

    pub(crate) fn is_of(&self, service: &str) -> bool {
        self.name.as_str() == service
    }

    /// Those that are not empty, each with the name of the service and of the stream.
    pub(crate) fn written(&self) -> impl Iterator<Item = (String, PathBuf)> {
        let all = STREAMS.into_iter().zip(&self.files);
        let written = all.filter(|(_, path)| fs::metadata(path).is_ok_and(|file| file.len() > 0));
        written.map(|(stream, path)| (format!("{}.{stream}", self.name), path.clone()))
    }

    /// The end of both, for a message.
    pub(crate) fn end(&self) -> String {
        let said: Vec<String> = self.files.iter().map(|path| end_of(path)).collect();
        said.join("\n").trim().to_owned()
    }
}

/// The end of a log, for a message; nothing if there is none.
pub fn end_of(path: &Path) -> String {
    let read = || {
        let mut file = fs::File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(SHOWN_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(SHOWN_BYTES).read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    };
    // A service that was not started has no log.
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_end_of_what_was_written_and_empty_logs_are_left_out() {
        let folder = std::env::temp_dir().join(format!("forebay-logs-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let logs = ServiceLogs::new("db".parse().unwrap(), &folder);
        assert_eq!((logs.end(), logs.written().count()), (String::new(), 0));
        let [stdout, stderr] = logs.files();
        fs::write(&stdout, "").unwrap();
        fs::write(&stderr, format!("{}\nno room\n", "x".repeat(1000))).unwrap();
        assert!(logs.end().ends_with("x\nno room") && logs.end().len() <= 500);
        assert_eq!(logs.written().collect::<Vec<_>>(), [("db.stderr".to_owned(), stderr)]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
