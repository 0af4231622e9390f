//! Recording which subjects each kind of process uses, from the traces of nats-server.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
};

/// Names a folder: each nats-server of a test then traces what its clients send, and a file in the folder lists it.
const VARIABLE: &str = "FOREBAY_TEST_TRAFFIC";

/// Lines of the configuration of a nats-server that is recorded, whose log is at `log`.
pub(crate) fn config_lines(log: &Path) -> String {
    if folder().is_none() {
        return String::new();
    }
    format!("trace: true\nmax_traced_msg_len: 1\nlogfile: \"{}\"\n", log.display())
}

/// The log with the traces of a node.
pub(crate) fn log_of(folder: &Path, node: usize) -> PathBuf {
    folder.join(format!("traffic-{node}.log"))
}

fn folder() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Writes what the logs of these nodes have, one line `ROLE VERB SUBJECT` for each kind of subject.
pub(crate) fn record(logs: impl IntoIterator<Item = PathBuf>) {
    let Some(folder) = folder() else { return };
    let mut used = BTreeSet::new();
    for log in logs {
        let Ok(file) = fs::File::open(&log) else { continue };
        let mut lines = BufReader::new(file);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            used.extend(used_in(&String::from_utf8_lossy(&line)));
            line.clear();
        }
    }
    if used.is_empty() {
        return;
    }
    let text: String = used.into_iter().map(|line| line + "\n").collect();
    let name = tempfile::Builder::new().prefix("traffic-").suffix(".txt").tempfile_in(&folder);
    let file = name.and_then(|file| file.keep().map_err(|error| error.error));
    let (_, path) = file.unwrap_or_else(|error| panic!("{VARIABLE}={}: {error}", folder.display()));
    fs::write(path, text).expect("the recorded traffic");
}

/// `ROLE VERB SUBJECT` of a line of the log, if a process of the farm published or subscribed.
fn used_in(line: &str) -> Option<String> {
    let (head, command) = line.split_once(" - <<- [")?;
    let name = head.rsplit_once(":forebay ").map(|(_, name)| name)?;
    let role = name.split([' ', '"', '-']).next()?;
    let mut words = command.split(' ');
    let verb = match words.next()? {
        "SUB" => "SUB",
        "PUB" | "HPUB" => "PUB",
        _ => return None,
    };
    let subject = words.next()?.trim_end_matches(|c: char| c == ']' || c.is_whitespace());
    Some(format!("{role} {verb} {}", generalised(subject)))
}

/// The subject with `*` for what differs between runs, such as ids.
fn generalised(subject: &str) -> String {
    if let Some(inbox) = subject.strip_prefix("_INBOX") {
        let own = if inbox.starts_with('_') { "_INBOX_" } else { "_INBOX." };
        return format!("{own}>");
    }
    let varies = |token: &str| {
        let digits = token.bytes().filter(u8::is_ascii_digit).count();
        digits == token.len() || (token.len() >= 12 && digits >= 2 && !token.contains("FOREBAY"))
    };
    let tokens = subject.split('.').map(|token| if token != ">" && varies(token) { "*" } else { token });
    tokens.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_sends_is_read_from_a_trace() {
        let line = |name: &str, command: &str| {
            format!(
                "[1] 2026/11/27 15:17:18.1 [TRC] 127.0.0.1:1 - cid:5 - \"v0.51:rust:{name}\" - {command}\n"
            )
        };
        let gateway = |command: &str| used_in(&line("forebay gateway gateway-0a1b2c3d4e5f", command));
        assert_eq!(gateway("<<- [SUB forebay.build.live.>  7]").unwrap(), "gateway SUB forebay.build.live.>");
        assert_eq!(
            gateway(
                "<<- [HPUB forebay.action.event.ci.0197c4f0-1111-7abc-8def-001122334455 _INBOX.x.y 80 95]"
            )
            .unwrap(),
            "gateway PUB forebay.action.event.ci.*"
        );
        assert_eq!(gateway("<<- [PUB _INBOX_worker.1.abc.def 2]").unwrap(), "gateway PUB _INBOX_>");
        assert_eq!(gateway("->> [MSG forebay.x 1 2]"), None);
        assert_eq!(gateway("<<- [PING]"), None);
        assert_eq!(used_in(&line("test", "<<- [PUB a 1]")), None);
        assert_eq!(used_in(&line("forebay cli", "<<- [PUB a 1]")).unwrap(), "cli PUB a");
    }
}
