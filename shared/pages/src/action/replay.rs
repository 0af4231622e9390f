//! An action to run on another machine: a script, and its inputs as a tar archive.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes},
    extract::{Extension as FromExtensions, State as FromState},
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use callers::Caller;
use futures::{Stream, StreamExt as _, stream};
use http_api::{Failure, PathParameters, header_text};
use model::{BlobDigest, ErrorCode};
use tokio::sync::Semaphore;

use super::content::Content;
use crate::{blob, build::quoted, layout::ErrorPage, site::Site};

/// Maximum number of files and folders, and of bytes, of the inputs.
const ENTRIES_MAX: usize = 100_000;
const BYTES_MAX: u64 = 4 << 30;
/// Maximum length of a path, and of all paths, in bytes.
const PATH_MAX: usize = 4096;
const PATHS_MAX: usize = 32 << 20;
/// Maximum number of archives that this process makes at a time.
static ARCHIVES: Semaphore = Semaphore::const_new(4);

/// Handles `GET /action-script/{digest}`: a shell script that runs the action where it is called.
pub(crate) async fn script(
    FromState(site): FromState<Site>,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    names: PathParameters,
    headers: HeaderMap,
) -> Result<Response, ErrorPage> {
    let site = site.seen_by(&caller)?;
    let digest = blob::digest(names.text("digest"))?;
    let content = Content::read(&site, digest).await?;
    let host = header_text(&headers, header::HOST).unwrap_or("127.0.0.1:8080");
    let text = script_of(&content, &format!("http://{host}"));
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}

/// Why a script could not do the same as the farm; none if it can.
fn obstacle(content: &Content) -> Option<String> {
    let command = &content.command;
    let is_name = |name: &str| {
        let mut bytes = name.bytes();
        let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        first && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let is_inside = |path: &str| !path.starts_with('/') && !path.split('/').any(|part| part == "..");
    if command.arguments.is_empty() {
        return Some("it has no command".to_owned());
    }
    if let Some(it) = command.environment_variables.iter().find(|it| !is_name(&it.name)) {
        return Some(format!("no shell has a variable {:?}", it.name));
    }
    let mut paths = content.outputs();
    paths.push(command.working_directory.clone());
    let outside = paths.into_iter().find(|path| !is_inside(path))?;
    Some(format!("the path {outside:?} leads out of its folder"))
}

fn script_of(content: &Content, origin: &str) -> String {
    let digest = &content.digest;
    let command = &content.command;
    if let Some(why) = obstacle(content) {
        return format!(
            "#!/bin/sh\necho {} >&2\nexit 2\n",
            quoted(&format!("this action cannot run outside of the farm: {why}"))
        );
    }
    let name: String = digest.to_string().trim_start_matches("blake3/").chars().take(12).collect();
    let parents = content
        .outputs()
        .into_iter()
        .filter_map(|path| path.rsplit_once('/').map(|(parent, _)| parent.to_owned()));
    let parents: Vec<String> = parents.map(|parent| quoted(&parent)).collect();
    let make =
        if parents.is_empty() { String::new() } else { format!("mkdir -p -- {}\n", parents.join(" ")) };
    let variables =
        command.environment_variables.iter().map(|it| quoted(&format!("{}={}", it.name, it.value)));
    let words = command.arguments.iter().map(|word| quoted(word));
    // The shell in between runs the first word as the command, also if `env` would read it as an option or a variable.
    let shell = ["/bin/sh".to_owned(), "-c".to_owned(), "'exec \"$@\"'".to_owned(), "sh".to_owned()];
    let run: Vec<String> = variables.chain(shell).chain(words).collect();
    let folder = if command.working_directory.is_empty() {
        ".".to_owned()
    } else {
        quoted(&command.working_directory)
    };
    format!(
        "#!/bin/sh\n# Runs action {digest} with the inputs, the environment and the command that the farm has.\n# Usage: sh \
         SCRIPT [FOLDER]; FOREBAY_URL is the farm.\nset -eu\nfarm=${{FOREBAY_URL:-{}}}\nfolder=${{1:-action-{name}}}\nmkdir -p \
         -- \"$folder\"\ncurl -fsS -o \"$folder.tar\" \"$farm/action-inputs/{digest}\"\ntar -x -f \"$folder.tar\" -C \
         \"$folder\"\nrm -f -- \"$folder.tar\"\nmkdir -p -- \"$folder\"/{folder}\ncd -- \"$folder\"/{folder}\n{make}exec env \
         -i -- \\\n  {}\n",
        quoted(origin),
        run.join(" \\\n  ")
    )
}

/// An entry of the inputs.
enum Entry {
    Folder(String),
    File { path: String, digest: BlobDigest, is_executable: bool },
    Link { path: String, target: String },
}

/// Handles `GET /action-inputs/{digest}`: the inputs as a tar archive.
pub(crate) async fn inputs(
    FromState(site): FromState<Site>,
    FromExtensions(caller): FromExtensions<Arc<Caller>>,
    names: PathParameters,
) -> Result<Response, ErrorPage> {
    let site = site.seen_by(&caller)?;
    let digest = blob::digest(names.text("digest"))?;
    let content = Content::read(&site, digest).await?;
    let entries = entries(&site, content.root()?).await?;
    let busy = |_| Failure::new(ErrorCode::Unavailable, "4 archives are being sent: try again in a moment");
    let permit = ARCHIVES.try_acquire().map_err(busy)?;
    let archive = archive(site, entries).chain(stream::once(async move {
        drop(permit);
        Ok(Bytes::new())
    }));
    Ok(([(header::CONTENT_TYPE, "application/x-tar")], Body::from_stream(archive)).into_response())
}

/// All entries below a folder; a folder comes before what it contains.
async fn entries(site: &Site, root: BlobDigest) -> Result<Vec<Entry>, Failure> {
    let (mut entries, mut bytes, mut paths) = (Vec::new(), 0_u64, 0_usize);
    let mut open = vec![(String::new(), root)];
    while let Some((path, digest)) = open.pop() {
        let folder = Content::folder(site, &digest).await?;
        let names =
            folder.directories.iter().map(|it| &it.name).chain(folder.files.iter().map(|it| &it.name));
        let names = names.chain(folder.symlinks.iter().map(|it| &it.name));
        let longest = names.map(|name| {
            paths = paths.saturating_add(path.len() + name.len());
            path.len() + name.len()
        });
        if longest.max().unwrap_or_default() > PATH_MAX || paths > PATHS_MAX {
            return Err(Failure::invalid(
                "the paths of the inputs are too long for an archive: use forebay cas get",
            ));
        }
        reapi::directory::check(&folder).map_err(|fault| Failure::invalid(fault.to_string()))?;
        let wrong = || Failure::invalid(format!("folder {digest} names an invalid digest"));
        let of = |it: Option<&reapi::execution::Digest>| {
            reapi::digest::from_proto(it.ok_or_else(wrong)?, digest.function).map_err(|_| wrong())
        };
        for it in &folder.directories {
            let below = format!("{path}{}/", it.name);
            entries.push(Entry::Folder(below.clone()));
            open.push((below, of(it.digest.as_ref())?));
        }
        for it in &folder.files {
            let digest = of(it.digest.as_ref())?;
            bytes = bytes.saturating_add(digest.size);
            entries.push(Entry::File {
                path: format!("{path}{}", it.name),
                digest,
                is_executable: it.is_executable,
            });
        }
        for it in &folder.symlinks {
            entries.push(Entry::Link { path: format!("{path}{}", it.name), target: it.target.clone() });
        }
        if entries.len() > ENTRIES_MAX || bytes > BYTES_MAX {
            let what = format!(
                "the inputs are larger than {ENTRIES_MAX} entries or {BYTES_MAX} bytes: use forebay cas get"
            );
            return Err(Failure::invalid(what));
        }
    }
    Ok(entries)
}

type Part = Result<Bytes, std::io::Error>;

fn archive(site: Site, entries: Vec<Entry>) -> impl Stream<Item = Part> + Send {
    let parts = stream::iter(entries).then(move |entry| {
        let site = site.clone();
        async move { entry_parts(&site, entry).await }
    });
    // Two blocks of zeros end an archive.
    parts.flatten().chain(stream::iter([Ok(Bytes::from_static(&[0; 1024]))]))
}

async fn entry_parts(site: &Site, entry: Entry) -> stream::BoxStream<'static, Part> {
    let (head, blob, length) = match &entry {
        Entry::Folder(path) => (head(tar::EntryType::Directory, path, None, 0, 0o755), None, 0),
        Entry::Link { path, target } => {
            (head(tar::EntryType::Symlink, path, Some(target), 0, 0o777), None, 0)
        }
        Entry::File { path, digest, is_executable } => {
            let mode = if *is_executable { 0o755 } else { 0o644 };
            (head(tar::EntryType::Regular, path, None, digest.size, mode), Some(*digest), digest.size)
        }
    };
    let head = stream::iter([head.map(Bytes::from)]);
    let Some(digest) = blob else { return head.boxed() };
    let missing = move |why: String| std::io::Error::other(format!("blob {digest} cannot be read: {why}"));
    let content = match site.api.cas.read(&digest, 0, None).await {
        Ok(Some(parts)) => parts.map(move |part| part.map_err(|error| missing(error.to_string()))).boxed(),
        Ok(None) => stream::iter([Err(missing("the store has it no more".to_owned()))]).boxed(),
        Err(error) => stream::iter([Err(missing(error.to_string()))]).boxed(),
    };
    let padding = usize::try_from((512 - length % 512) % 512).unwrap_or_default();
    head.chain(content).chain(stream::iter([Ok(Bytes::from(vec![0; padding]))])).boxed()
}

/// The head of an entry; a long path is an entry of its own before it.
fn head(
    kind: tar::EntryType,
    path: &str,
    target: Option<&str>,
    size: u64,
    mode: u32,
) -> Result<Vec<u8>, std::io::Error> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    let mut builder = tar::Builder::new(Vec::new());
    match target {
        Some(target) => builder.append_link(&mut header, path, target)?,
        // The content is sent after it.
        None => builder.append_data(&mut header, path, std::io::empty())?,
    }
    Ok(builder.get_ref().clone())
}

#[cfg(test)]
mod tests {
    use reapi::execution::{Action, Command, command::EnvironmentVariable};

    use super::{Content, head, script_of};

    fn script(command: Command) -> String {
        let digest = format!("{}/1", "a".repeat(64)).parse().unwrap();
        script_of(&Content { digest, action: Action::default(), command }, "http://127.0.0.1:1")
    }

    fn command(words: &[&str]) -> Command {
        Command { arguments: words.iter().map(|word| (*word).to_owned()).collect(), ..Command::default() }
    }

    #[test]
    fn a_script_refuses_what_it_would_do_otherwise_than_the_farm() {
        let variable =
            EnvironmentVariable { name: "--split-string=touch x ".to_owned(), value: String::new() };
        let refused = [
            command(&[]),
            Command { environment_variables: vec![variable], ..command(&["true"]) },
            Command { working_directory: "../../out".to_owned(), ..command(&["true"]) },
            Command { output_paths: vec!["../x/y".to_owned()], ..command(&["true"]) },
            Command { output_paths: vec!["/etc/x".to_owned()], ..command(&["true"]) },
        ];
        for command in refused {
            let text = script(command.clone());
            assert!(
                text.contains("cannot run outside of the farm") && !text.contains("curl"),
                "{command:?}: {text}"
            );
        }
    }

    #[test]
    fn a_command_with_any_characters_is_run_as_it_is() {
        let text = script(command(&["A=B", "-S touch x", "it's"]));
        let run = text.split("exec env -i -- ").nth(1).unwrap();
        assert!(run.contains("sh \\\n  A=B \\\n  '-S touch x' \\\n  'it'\\''s'"), "{run}");
    }

    #[test]
    fn an_archive_of_heads_and_contents_is_read_back() {
        let long = format!("{}/file", "folder".repeat(30));
        let mut archive = head(tar::EntryType::Directory, "a/", None, 0, 0o755).unwrap();
        for path in ["a/b", &long] {
            archive.extend(head(tar::EntryType::Regular, path, None, 3, 0o644).unwrap());
            archive.extend(b"abc");
            archive.extend([0; 509]);
        }
        archive.extend(head(tar::EntryType::Symlink, "l", Some("a/b"), 0, 0o777).unwrap());
        archive.extend([0; 1024]);
        let mut read = tar::Archive::new(archive.as_slice());
        let found: Vec<(String, u64)> = read
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (entry.path().unwrap().display().to_string(), entry.size())
            })
            .collect();
        let wanted = [("a/", 0), ("a/b", 3), (long.as_str(), 3), ("l", 0)];
        assert_eq!(found, wanted.map(|(path, size)| (path.to_owned(), size)));
    }
}
