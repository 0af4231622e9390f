//! Removes secrets from build events before they are stored: values of headers and of environment variables, and the
//! users and passwords in URLs.
//!
//! Only the kinds of events that carry options, commands or metadata are changed. Other kinds keep their bytes, and so do
//! fields that this program does not know.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::wire::{Edit, Malformed, edit, shared, tags, text};

/// Stands in place of a removed value.
pub const REDACTED: &str = "<REDACTED>";

/// Options whose value is `NAME=SECRET`: headers, and variables of environments.
const NAMED_SECRETS: [&str; 13] = [
    "remote_header",
    "remote_cache_header",
    "remote_exec_header",
    "remote_downloader_header",
    "bes_header",
    "action_env",
    "host_action_env",
    "client_env",
    "repo_env",
    "test_env",
    "run_env",
    "experimental_remote_downloader_header",
    "credential_helper_env",
];

/// Fields of an event of the Build Event Protocol (`build_event_stream.BuildEvent`).
mod field {
    pub(super) const ID: u32 = 1;
    pub(super) const STARTED: u32 = 5;
    pub(super) const ACTION: u32 = 7;
    pub(super) const UNSTRUCTURED_COMMAND_LINE: u32 = 12;
    pub(super) const OPTIONS_PARSED: u32 = 13;
    pub(super) const WORKSPACE_STATUS: u32 = 16;
    pub(super) const STRUCTURED_COMMAND_LINE: u32 = 22;
    pub(super) const BUILD_METADATA: u32 = 26;
    pub(super) const EXEC_REQUEST: u32 = 29;
    pub(super) const RUN_TARGET_ANALYZED: u32 = 1004;
    pub(super) const FETCH: u32 = 21;
}

/// A copy of an encoded event of the Build Event Protocol without secrets; the same bytes if it has none.
///
/// # Errors
///
/// Fails if the bytes are not such an event: then it is not known where its secrets are.
pub fn redact(event: &Bytes) -> Result<Bytes, Malformed> {
    use field::{
        ACTION, BUILD_METADATA, EXEC_REQUEST, FETCH, OPTIONS_PARSED, RUN_TARGET_ANALYZED, STARTED,
        STRUCTURED_COMMAND_LINE, UNSTRUCTURED_COMMAND_LINE, WORKSPACE_STATUS,
    };
    const CHANGED: [u32; 10] = [
        STARTED,
        ACTION,
        UNSTRUCTURED_COMMAND_LINE,
        OPTIONS_PARSED,
        WORKSPACE_STATUS,
        STRUCTURED_COMMAND_LINE,
        BUILD_METADATA,
        EXEC_REQUEST,
        RUN_TARGET_ANALYZED,
        FETCH,
    ];
    if !tags(event)?.iter().any(|tag| CHANGED.contains(tag)) {
        return Ok(event.clone());
    }
    let edited = edit(event, |tag, value| match tag {
        field::ID => fetched_id(value),
        STARTED => started(value),
        ACTION => words(value, 9),
        UNSTRUCTURED_COMMAND_LINE | RUN_TARGET_ANALYZED => words(value, 1),
        OPTIONS_PARSED => options_parsed(value),
        WORKSPACE_STATUS | BUILD_METADATA => nested(value, 1, |item| values(item, 2)),
        STRUCTURED_COMMAND_LINE => nested(value, 2, command_line_section),
        EXEC_REQUEST => exec_request(value),
        _ => Ok(Edit::Keep),
    })?;
    Ok(shared(event, edited))
}

/// The id of a fetch is its URL.
fn fetched_id(id: &[u8]) -> Result<Edit, Malformed> {
    nested(id, 17, |fetch| values(fetch, 1))
}

/// The description of all options is one text that cannot be taken apart: it is removed.
fn started(started: &[u8]) -> Result<Edit, Malformed> {
    edit(started, |tag, _| Ok(if tag == 4 { Edit::Remove } else { Edit::Keep })).map(Edit::Replace)
}

/// Four lists of options: all and explicit ones, of the server's start and of the command.
fn options_parsed(options: &[u8]) -> Result<Edit, Malformed> {
    let mut lists = BTreeMap::from([1, 2, 3, 4].map(|tag| (tag, Redactor::default())));
    edit(options, |tag, value| match lists.get_mut(&tag) {
        Some(list) => Ok(list.word(text(value)?)),
        None => Ok(Edit::Keep),
    })
    .map(Edit::Replace)
}

/// A section is a list of words, or a list of options with their names and values apart.
fn command_line_section(section: &[u8]) -> Result<Edit, Malformed> {
    edit(section, |tag, value| match tag {
        2 => words(value, 1),
        3 => nested(value, 1, structured_option),
        _ => Ok(Edit::Keep),
    })
    .map(Edit::Replace)
}

fn structured_option(option: &[u8]) -> Result<Edit, Malformed> {
    let mut name = String::new();
    edit(option, |tag, value| {
        if tag == 2 {
            text(value)?.clone_into(&mut name);
        }
        Ok(Edit::Keep)
    })?;
    edit(option, |tag, value| match tag {
        1 => Ok(Redactor::default().word(text(value)?)),
        3 => Ok(replaced(text(value)?, &option_value(&name, text(value)?))),
        _ => Ok(Edit::Keep),
    })
    .map(Edit::Replace)
}

/// The command that `bazel run` starts: words, and variables of its environment.
fn exec_request(request: &[u8]) -> Result<Edit, Malformed> {
    let mut argv = Redactor::default();
    edit(request, |tag, value| match tag {
        2 => Ok(argv.word(&String::from_utf8_lossy(value))),
        3 => edit(value, |tag, _| {
            Ok(if tag == 2 { Edit::Replace(REDACTED.as_bytes().to_vec()) } else { Edit::Keep })
        })
        .map(Edit::Replace),
        _ => Ok(Edit::Keep),
    })
    .map(Edit::Replace)
}

/// Edits the messages in field `tag`.
fn nested(
    message: &[u8],
    tag: u32,
    change: impl Fn(&[u8]) -> Result<Edit, Malformed>,
) -> Result<Edit, Malformed> {
    edit(message, |found, value| if found == tag { change(value) } else { Ok(Edit::Keep) }).map(Edit::Replace)
}

/// Removes secrets from the words of a command in field `tag`.
fn words(message: &[u8], tag: u32) -> Result<Edit, Malformed> {
    let mut redactor = Redactor::default();
    edit(message, |found, value| if found == tag { Ok(redactor.word(text(value)?)) } else { Ok(Edit::Keep) })
        .map(Edit::Replace)
}

/// Removes passwords of URLs from the texts in field `tag`.
fn values(message: &[u8], tag: u32) -> Result<Edit, Malformed> {
    edit(message, |found, value| {
        if found != tag {
            return Ok(Edit::Keep);
        }
        let text = text(value)?;
        Ok(replaced(text, &without_passwords(text)))
    })
    .map(Edit::Replace)
}

fn replaced(before: &str, after: &str) -> Edit {
    if before == after { Edit::Keep } else { Edit::Replace(after.as_bytes().to_vec()) }
}

/// Redacts the words of one command line in order: an option and its value may be two words.
#[derive(Default)]
struct Redactor {
    /// The option whose value is the next word.
    option: Option<String>,
}

impl Redactor {
    fn word(&mut self, word: &str) -> Edit {
        let after = match self.option.take() {
            Some(option) => option_value(&option, word),
            None => self.option_or_word(word),
        };
        replaced(word, &after)
    }

    fn option_or_word(&mut self, word: &str) -> String {
        let Some(option) = word.strip_prefix("--") else { return without_passwords(word) };
        if let Some((name, value)) = option.split_once('=') {
            return format!("--{name}={}", option_value(name, value));
        }
        self.option = has_named_secret(option).then(|| option.to_owned());
        word.to_owned()
    }
}

fn has_named_secret(option: &str) -> bool {
    NAMED_SECRETS.contains(&option)
}

/// The value of `option` without secrets.
fn option_value(option: &str, value: &str) -> String {
    if has_named_secret(option) {
        return match value.split_once('=') {
            Some((name, _)) => format!("{name}={REDACTED}"),
            // The name of a variable that is passed on, without its value.
            None => value.to_owned(),
        };
    }
    // An option of a whole option: `COUNT:COMMAND:OPTION=VALUE`.
    if option == "default_override"
        && let Some((before, inner)) = value.split_once("--")
    {
        let mut redactor = Redactor::default();
        return format!("{before}{}", redactor.option_or_word(&format!("--{inner}")));
    }
    without_passwords(value)
}

/// `text` without what stands between `://` and `@` of its URLs.
fn without_passwords(text: &str) -> String {
    let (mut safe, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        safe.push_str(before);
        let host_end = after.find(['/', '?', '#', ' ', '"', '\'', '\n']).unwrap_or(after.len());
        rest = after;
        if let Some(user_end) = after[..host_end].rfind('@') {
            safe.push_str(REDACTED);
            rest = &after[user_end..];
        }
    }
    safe.push_str(rest);
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_urls_are_removed() {
        let safe = without_passwords;
        assert_eq!(safe("https://user:pw@host/a@b"), "https://<REDACTED>@host/a@b");
        assert_eq!(safe("x=grpcs://t@h and http://a:b@c"), "x=grpcs://<REDACTED>@h and http://<REDACTED>@c");
        assert_eq!(safe("https://host/path@1"), "https://host/path@1");
        assert_eq!(safe("git@host:repo"), "git@host:repo");
        assert_eq!(safe("://"), "://");
    }

    #[test]
    fn secrets_of_options_are_removed() {
        let value = option_value;
        assert_eq!(value("remote_header", "x-key=se=cret"), "x-key=<REDACTED>");
        assert_eq!(value("action_env", "PATH"), "PATH");
        assert_eq!(value("jobs", "7"), "7");
        let inner = "0:common=--remote_header=x=secret";
        assert_eq!(value("default_override", inner), "0:common=--remote_header=x=<REDACTED>");
    }
}
