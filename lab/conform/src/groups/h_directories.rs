//! Checks 134–138: output directories.

use std::collections::BTreeSet;

use prost::Message as _;
use reapi::execution::{
    Directory, OutputDirectory, Tree,
    command::OutputDirectoryFormat::{self, DirectoryOnly, TreeAndDirectory},
};

use super::a_digests::is_canonical;
use crate::{
    check::{Check, check},
    context::{Cx, vacuous},
    job::{Inputs, Job},
    names::fresh_text,
    stop::{Judged, Stop, fail, need, pass},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(
        134,
        H,
        Must,
        Execution,
        "an output directory is a Tree of all its directories, always the same",
        tree
    ),
    check!(135, H, Must, Execution, "a Tree that is declared sorted is sorted", sorted),
    check!(136, H, Should, Execution, "output directories come as Directories when asked for", formats),
    check!(137, H, Must, Execution, "an empty output directory is an empty root", empty),
    check!(138, H, Must, Execution, "the output directory \"\" is the whole working directory", whole),
];

fn output<'a>(directories: &'a [OutputDirectory], path: &str) -> Result<&'a OutputDirectory, Stop> {
    match directories.iter().find(|directory| directory.path == path) {
        Some(directory) => Ok(directory),
        None => Err(Stop::Fail(format!("the output directory {path:?} is missing"))),
    }
}

async fn read_tree(cx: &Cx, output: &OutputDirectory) -> Result<(Vec<u8>, Tree), Stop> {
    let Some(digest) = &output.tree_digest else { fail!("the output directory has no Tree") };
    let content = cx.client.read(digest).await?;
    let tree = Tree::decode(&*content)
        .map_err(|error| Stop::Fail(format!("the Tree cannot be decoded: {error}")))?;
    Ok((content, tree))
}

fn hash(cx: &Cx, directory: &Directory) -> String {
    cx.client.digest(&directory.encode_to_vec()).hash
}

/// A script that makes equal and distinct directories on three levels.
fn script(text: &str) -> String {
    format!(
        "mkdir -p d/a/x d/b/x d/c/y; for p in a/x b/x; do echo {text} > d/$p/same; done; echo {text} 2 > d/c/y/other; \
         echo top > d/top; ln -s top d/link; mkdir d/empty"
    )
}

async fn tree(cx: &Cx) -> Judged {
    let job = Job::sh(&script(&fresh_text())).outputs(["d"]);
    let run = cx.ok(&job).await?;
    let first = output(&run.result()?.output_directories, "d")?.clone();
    let (content, whole) = read_tree(cx, &first).await?;
    need!(is_canonical::<Tree>(&content), "the Tree is not in canonical form");
    let Some(root) = &whole.root else { fail!("the Tree has no root") };
    let names: Vec<&str> = root.directories.iter().map(|node| &*node.name).collect();
    need!(names == ["a", "b", "c", "empty"], "the directories of the root are {names:?}");
    need!(root.files.iter().map(|node| &*node.name).eq(["top"]), "the files of the root are wrong");
    need!(root.symlinks.iter().any(|node| node.target == "top"), "the symlink of the root is missing");
    let children: BTreeSet<String> = whole.children.iter().map(|child| hash(cx, child)).collect();
    need!(children.len() == whole.children.len(), "the Tree has a directory twice");
    // a and b are equal, and so are a/x and b/x: with c, c/y and empty that is five.
    need!(children.len() == 5, "the Tree has {} distinct children, expected 5", children.len());
    for directory in whole.root.iter().chain(&whole.children) {
        for node in &directory.directories {
            let child = node.digest.clone().unwrap_or_default().hash;
            need!(children.contains(&child), "the directory {} is not in the Tree", node.name);
        }
    }
    let run = cx.ok(&job.again()).await?;
    let second = output(&run.result()?.output_directories, "d")?;
    need!(second.tree_digest == first.tree_digest, "the same directory has two Trees");
    pass()
}

/// Returns the tags and contents of an encoded message's fields, all of which must be length-delimited.
fn records(content: &[u8]) -> Option<Vec<(u8, &[u8])>> {
    let (mut rest, mut records) = (content, Vec::new());
    while let Some((tag, after)) = rest.split_first() {
        rest = after;
        let (mut size, mut shift) = (0_usize, 0_u32);
        loop {
            let (byte, after) = rest.split_first()?;
            rest = after;
            size |= usize::from(byte & 0x7f).checked_shl(shift)?;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        records.push((*tag, rest.get(..size)?));
        rest = rest.get(size..)?;
    }
    Some(records)
}

async fn sorted(cx: &Cx) -> Judged {
    let run = cx.ok(&Job::sh(&script(&fresh_text())).outputs(["d"])).await?;
    let output = output(&run.result()?.output_directories, "d")?;
    if !output.is_topologically_sorted {
        return vacuous("is_topologically_sorted is not set");
    }
    let (content, _) = read_tree(cx, output).await?;
    let Some(records) = records(&content) else { fail!("the Tree contains fields other than directories") };
    let mut named = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for (number, (tag, encoded)) in records.iter().enumerate() {
        let wanted = if number == 0 { 0x0a } else { 0x12 };
        need!(*tag == wanted, "record {number} of the Tree has the tag {tag:#04x}");
        let directory = Directory::decode(*encoded)
            .map_err(|error| Stop::Fail(format!("record {number} of the Tree cannot be decoded: {error}")))?;
        let own = cx.client.digest(encoded).hash;
        need!(number == 0 || named.contains(&own), "record {number} of the Tree comes before its parent");
        need!(seen.insert(own), "record {number} of the Tree is listed twice");
        named.extend(
            directory.directories.into_iter().filter_map(|node| node.digest).map(|digest| digest.hash),
        );
    }
    need!(named.is_subset(&seen), "the Tree lacks a directory");
    pass()
}

async fn with_format(cx: &Cx, format: OutputDirectoryFormat) -> Result<OutputDirectory, Stop> {
    let mut job = Job::sh(&script(&fresh_text())).outputs(["d"]);
    job.command.output_directory_format = format.into();
    let run = cx.ok(&job).await?;
    output(&run.result()?.output_directories, "d").cloned()
}

async fn formats(cx: &Cx) -> Judged {
    for format in [DirectoryOnly, TreeAndDirectory] {
        let name = format.as_str_name();
        let output = with_format(cx, format).await?;
        let Some(root) = &output.root_directory_digest else {
            fail!("with {name}, root_directory_digest is not set")
        };
        let directories = cx.client.tree_directories(root).await?;
        need!(directories.len() == 6, "with {name}, {} of 6 directories are stored", directories.len());
        for directory in &directories {
            let digest = cx.client.digest(&directory.encode_to_vec());
            need!(cx.client.has(&digest).await?, "with {name}, a Directory is not stored");
        }
        if format == TreeAndDirectory || output.tree_digest.is_some() {
            let (_, tree) = read_tree(cx, &output).await?;
            let own = tree.root.as_ref().map(|root| hash(cx, root));
            need!(
                own.as_ref() == Some(&root.hash),
                "with {name}, the Tree has another root than the Directory"
            );
        }
    }
    let mut job = Job::sh("mkdir d").outputs(["d"]);
    job.command.output_directory_format = 99;
    let run = cx.ok(&job).await?;
    let odd = output(&run.result()?.output_directories, "d")?;
    need!(odd.tree_digest.is_some(), "with an unknown format, the result has no Tree");
    pass()
}

async fn empty(cx: &Cx) -> Judged {
    for job in [Job::sh("mkdir d").outputs(["d"]), Job::sh("mkdir d").output_directories(["d"])] {
        let run = cx.ok(&job).await?;
        let output = output(&run.result()?.output_directories, "d")?;
        let (_, tree) = read_tree(cx, output).await?;
        need!(
            tree.root == Some(Directory::default()) && tree.children.is_empty(),
            "an empty output directory has the Tree {tree:?}"
        );
    }
    pass()
}

async fn whole(cx: &Cx) -> Judged {
    let inputs = Inputs::default().file("w/in", fresh_text()).file("beside", fresh_text());
    for job in [
        Job::sh("echo 1 > out; mkdir d; echo 2 > d/deep").output_directories([""]),
        Job::sh("echo 1 > out; mkdir d; echo 2 > d/deep").outputs([""]),
    ] {
        let job = job.inputs(inputs.clone()).within("w");
        let run = cx.ok(&job).await?;
        let output = output(&run.result()?.output_directories, "")?;
        let (_, tree) = read_tree(cx, output).await?;
        let root = tree.root.unwrap_or_default();
        let files: Vec<&str> = root.files.iter().map(|file| &*file.name).collect();
        need!(files.contains(&"out") && !files.contains(&"beside"), "the files are {files:?}");
        need!(root.directories.iter().any(|node| node.name == "d"), "the directory d is missing");
    }
    pass()
}
