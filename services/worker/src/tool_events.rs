//! Reads the build events that Bazel writes for the worker: its version, and the rules and tags of its targets.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::SystemTime,
};

use disk::Confined;
use model::{TargetFacts, ToolCall, ToolFacts};
use policy::{ConfiguredTarget, tool_facts};
use serde::Deserialize;
use tracing::debug;

/// Maximum number of files read of one build, each the events of one call of Bazel; the latest ones are read.
const FILES_MAX: usize = 16;
/// Maximum number of entries of the folder that are looked at.
const ENTRIES_MAX: usize = 1000;
/// Maximum number of bytes read of one file.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Maximum length of an event that is read, in bytes: the wanted ones are short.
const EVENT_BYTES_MAX: u64 = 64 << 10;
/// Maximum memory for the targets of one build in bytes, about.
const TARGETS_BYTES_MAX: usize = 16 << 20;
/// Memory that a target takes in addition to its texts, and that each text takes, in bytes, about.
const OVERHEAD_BYTES: usize = 100;

/// The facts in the events in `folder`, by target of `call`, and removes the folder. The files were written by the build: what
/// is not an event is skipped.
pub(crate) fn take(folder: &Path, call: &ToolCall) -> Option<ToolFacts> {
    let files = match event_files(folder) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            debug!(path = %folder.display(), %error, "cannot read the events of the build's tool");
            Vec::new()
        }
    };
    let mut seen = Seen::default();
    for file in files {
        if let Err(error) = seen.read(BufReader::new(file.take(FILE_BYTES_MAX))) {
            debug!(path = %folder.display(), %error, "cannot read the events of the build's tool");
        }
    }
    if let Err(error) = disk::remove_tree(folder).or_else(|_| fs::remove_file(folder)) {
        debug!(path = %folder.display(), %error, "cannot remove the events of the build's tool");
    }
    let facts = tool_facts(call, &seen.version, &seen.targets);
    (facts != ToolFacts::default()).then_some(facts)
}

/// The files in the order in which they were written last.
fn event_files(folder: &Path) -> io::Result<Vec<File>> {
    // The build could have replaced the folder, or put pipes and links into it.
    if !fs::symlink_metadata(folder)?.is_dir() {
        return Ok(Vec::new());
    }
    let folder = Confined::at(folder)?;
    let mut files: Vec<(SystemTime, File)> = Vec::new();
    for entry in folder.entries()?.take(ENTRIES_MAX) {
        let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
        let Ok(file) = fs::OpenOptions::new().read(true).custom_flags(flags).open(entry?.path()) else {
            continue;
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            continue;
        }
        files.push((metadata.modified()?, file));
        if files.len() > FILES_MAX {
            files.sort_by_key(|(modified, _)| *modified);
            files.remove(0);
        }
    }
    files.sort_by_key(|(modified, _)| *modified);
    Ok(files.into_iter().map(|(_, file)| file).collect())
}

/// What the events of a build showed so far.
#[derive(Default)]
struct Seen {
    version: String,
    targets: BTreeSet<ConfiguredTarget>,
    /// Memory of the targets in bytes, about.
    bytes: usize,
}

/// The fields of an event of the Build Event Protocol that are used.
#[derive(Deserialize)]
struct Event {
    id: EventId,
    started: Option<Started>,
    configured: Option<Configured>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventId {
    target_configured: Option<Target>,
}

#[derive(Deserialize)]
struct Target {
    label: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    #[serde(default)]
    build_tool_version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configured {
    #[serde(default)]
    target_kind: String,
    #[serde(default)]
    tag: BTreeSet<String>,
}

impl Seen {
    fn read(&mut self, mut events: impl io::BufRead) -> io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = (&mut events).take(EVENT_BYTES_MAX).read_until(b'\n', &mut line)?;
            if length == 0 {
                return Ok(());
            }
            if line.last() == Some(&b'\n') {
                self.see(&line);
            } else {
                events.skip_until(b'\n')?;
            }
        }
    }

    fn see(&mut self, line: &[u8]) {
        let is_wanted = [&b"{\"id\":{\"started\""[..], b"{\"id\":{\"targetConfigured\""];
        if !is_wanted.iter().any(|start| line.starts_with(start)) {
            return;
        }
        let Ok(Event { id, started, configured }) = serde_json::from_slice(line) else { return };
        if let Some(Started { build_tool_version }) = started {
            self.version = build_tool_version;
        }
        let (Some(Target { label }), Some(Configured { target_kind, tag })) =
            (id.target_configured, configured)
        else {
            return;
        };
        // A source file is configured too, and has no rule.
        let rule = target_kind.strip_suffix(" rule").map(str::to_owned);
        let facts = TargetFacts { tags: tag, rules: rule.into_iter().collect() };
        let names = facts.tags.iter().chain(&facts.rules).map(|name| name.len() + OVERHEAD_BYTES);
        let bytes = OVERHEAD_BYTES + label.len() + names.sum::<usize>();
        if self.bytes + bytes <= TARGETS_BYTES_MAX && self.targets.insert(ConfiguredTarget { label, facts }) {
            self.bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const EVENTS: &str = r#"{"id":{"started":{}},"children":[],"started":{"uuid":"1","buildToolVersion":"7.4.1"}}
{"id":{"targetConfigured":{"label":"//a:b"}},"configured":{"targetKind":"swift_binary rule","tag":["requires-gpu"]}}
{"id":{"targetConfigured":{"label":"//a:c.txt"}},"configured":{"targetKind":"source file"}}
{"id":{"targetConfigured":{"label":7}},"configured":{"targetKind":"bad rule"}}
"#;

    fn call() -> ToolCall {
        ToolCall { targets: vec!["//a/...".to_owned()], ..ToolCall::default() }
    }

    #[test]
    fn the_events_of_bazel_have_its_version_and_the_rules_and_tags_of_targets() {
        let folder = tempfile::tempdir().unwrap();
        let events = folder.path().join("events");
        assert_eq!(take(&events, &call()), None, "without a call of Bazel");
        fs::create_dir(&events).unwrap();
        let long = format!("{{\"id\":{{\"started\":{{}}}},\"x\":\"{}\"}}\n", "x".repeat(1 << 20));
        fs::write(events.join("1.json"), format!("{long}{EVENTS}not an event\n{{\"id\":{{\"started\""))
            .unwrap();
        let facts = take(&events, &call()).unwrap();
        assert_eq!(facts.version, "7.4.1");
        let of_all = &facts.targets["//a/..."];
        assert_eq!(of_all.rules, ["swift_binary".to_owned()].into());
        assert_eq!(of_all.tags, ["requires-gpu".to_owned()].into());
        assert!(!events.exists());
    }

    #[test]
    fn pipes_links_and_folders_of_a_build_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let events = folder.path().join("events");
        fs::create_dir_all(events.join("folder.json")).unwrap();
        nix::unistd::mkfifo(&events.join("pipe.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(folder.path().join("secret"), EVENTS).unwrap();
        symlink(folder.path().join("secret"), events.join("link.json")).unwrap();
        assert_eq!(take(&events, &call()), None);
        symlink(folder.path(), folder.path().join("elsewhere")).unwrap();
        assert_eq!(take(&folder.path().join("elsewhere"), &call()), None);
        assert!(folder.path().join("secret").exists());
    }
}
