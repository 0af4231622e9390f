//! `forebay cas ls`: lists a folder.

use std::process::ExitCode;

use clap::Args;
use comfy_table::{Table, presets};
use command_line::{
    failure::{FAILED, Failure},
    globals::Globals,
    stdout,
};
use model::BlobDigest;
use prost::Message as _;
use reapi::execution::Directory;
use remote::Remote;
use serde::Serialize;

use telemetry::escaped;

/// Options of `forebay cas ls`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Digest of the folder: HASH/SIZE of its Directory message
    #[arg(value_name = "DIGEST")]
    digest: BlobDigest,
    /// List all subfolders recursively too
    #[arg(long, short)]
    recursive: bool,
}

impl ListArgs {
    /// Options to list one folder without its subfolders.
    pub(super) fn of(digest: BlobDigest) -> Self {
        Self { digest, recursive: false }
    }
}

/// One entry of a folder.
#[derive(Debug, Serialize)]
struct Entry {
    kind: &'static str,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<BlobDigest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

/// Lists a folder, recursively if requested.
pub(super) async fn run(args: &ListArgs, remote: &Remote, globals: &Globals) -> Result<ExitCode, Failure> {
    let mut entries = Vec::new();
    let mut waiting = vec![(String::new(), args.digest)];
    while let Some((prefix, digest)) = waiting.pop() {
        for entry in read(remote, &prefix, &digest).await? {
            if let (true, "folder", Some(digest)) = (args.recursive, entry.kind, entry.digest) {
                waiting.push((format!("{}/", entry.path), digest));
            }
            entries.push(entry);
        }
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    if globals.json {
        for entry in &entries {
            stdout::json(entry)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["KIND", "PATH", "DIGEST"]);
    for entry in entries {
        let points = entry.digest.map(|digest| digest.to_string()).or(entry.target).unwrap_or_default();
        table.add_row([entry.kind.to_owned(), escaped(&entry.path), escaped(&points)]);
    }
    stdout::line(&table.trim_fmt())?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the message of a folder.
pub(super) async fn folder(remote: &Remote, digest: &BlobDigest) -> Result<Directory, Failure> {
    let content = if digest.is_empty_blob() { Vec::new() } else { remote.read(digest).await? };
    let folder = Directory::decode(content.as_slice()).ok();
    // Some texts are valid messages, with unknown fields only.
    let is_folder = |it: &Directory| content.is_empty() || *it != Directory::default();
    folder.filter(is_folder).ok_or_else(|| Failure::plain(FAILED, format!("{digest} is not a folder")))
}

async fn read(remote: &Remote, prefix: &str, digest: &BlobDigest) -> Result<Vec<Entry>, Failure> {
    let directory = folder(remote, digest).await?;
    let of = |digest: Option<&reapi::execution::Digest>| {
        digest.and_then(|digest| reapi::digest::from_proto(digest, remote.function()).ok())
    };
    let folders = directory.directories.iter().map(|it| Entry {
        kind: "folder",
        path: format!("{prefix}{}", it.name),
        digest: of(it.digest.as_ref()),
        target: None,
    });
    let files = directory.files.iter().map(|it| Entry {
        kind: if it.is_executable { "program" } else { "file" },
        path: format!("{prefix}{}", it.name),
        digest: of(it.digest.as_ref()),
        target: None,
    });
    let links = directory.symlinks.iter().map(|it| Entry {
        kind: "link",
        path: format!("{prefix}{}", it.name),
        digest: None,
        target: Some(it.target.clone()),
    });
    Ok(folders.chain(files).chain(links).collect())
}
