//! Checks 57–61: directory trees.

use std::{collections::BTreeSet, time::Duration};

use prost::Message as _;
use reapi::execution::{Digest, Directory, DirectoryNode};
use tonic::Code;

use crate::{
    check::{Check, check},
    client::Client,
    context::{Cx, within},
    job::Inputs,
    names::{fresh, fresh_text},
    stop::{Judged, Stop, describe, fail, need, pass, refused},
};

pub(crate) const CHECKS: &[Check] = &[
    check!(57, C, Must, Store, "the tree of an absent root is NOT_FOUND", absent_root).each_function(),
    check!(58, C, Must, Store, "a tree with an absent directory returns the others", absent_child)
        .each_function(),
    check!(
        59,
        C,
        Must,
        Store,
        "page sizes are limits, page tokens continue, foreign tokens are refused",
        paging
    )
    .each_function(),
    check!(60, C, Must, Store, "a diamond of depth 30 is a tree of 31 directories", diamond).each_function(),
    check!(61, C, Must, Store, "the tree of a blob that is not a directory is refused", not_a_directory)
        .each_function(),
];

fn digests(client: &Client, directories: &[Directory]) -> BTreeSet<String> {
    directories.iter().map(|directory| client.digest(&directory.encode_to_vec()).hash).collect()
}

async fn absent_root(cx: &Cx) -> Judged {
    let client = &cx.client;
    refused(client.tree(&client.absent(), 0, "").await, &[Code::NotFound], "the tree of an absent root")?;
    pass()
}

/// Encodes a tree with this many directories below its root, none of which has children.
fn wide(client: &Client, directories: usize, blobs: &mut Vec<Vec<u8>>) -> Digest {
    let inputs = (0..directories).fold(Inputs::default(), |inputs, number| {
        inputs.file(&format!("directory-{number:03}/file"), fresh_text())
    });
    inputs.encode(client, blobs)
}

async fn absent_child(cx: &Cx) -> Judged {
    let client = &cx.client;
    let mut blobs = Vec::new();
    let root = wide(client, 5, &mut blobs);
    let lost = blobs
        .iter()
        .position(|blob| Directory::decode(&**blob).is_ok_and(|directory| !directory.files.is_empty()));
    let Some(lost) = lost else { fail!("the tool made no directory") };
    blobs.remove(lost);
    client.put_all(&blobs).await?;
    let directories = match client.tree_directories(&root).await {
        Ok(directories) => directories,
        Err(status) => fail!("a tree with an absent directory is answered with {}", describe(&status)),
    };
    let found = digests(client, &directories).len();
    need!(found == 5, "{found} of a tree of six directories, one of them absent, are returned");
    pass()
}

async fn paging(cx: &Cx) -> Judged {
    let client = &cx.client;
    let mut blobs = Vec::new();
    let root = wide(client, 9, &mut blobs);
    client.put_all(&blobs).await?;
    let whole = client.tree(&root, 0, "").await?;
    let all: Vec<Directory> = whole.iter().flat_map(|page| page.directories.clone()).collect();
    need!(all.len() == 10, "a tree of ten directories has {}", all.len());
    need!(
        whole.last().is_some_and(|page| page.next_page_token.is_empty()),
        "the last page of a tree has a token"
    );
    let (mut token, mut seen, mut rounds) = (String::new(), Vec::new(), 0);
    loop {
        let pages = client.tree(&root, 3, &token).await?;
        let Some(largest) = pages.iter().map(|page| page.directories.len()).max() else {
            fail!("a page of a tree is missing")
        };
        need!(largest <= 3, "with page_size 3 a response has {largest} directories");
        need!(rounds < 20, "the page tokens of a tree do not end");
        rounds += 1;
        let Some(first) = pages.into_iter().next() else { break };
        seen.extend(first.directories);
        token = first.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    need!(
        seen.len() == 10 && digests(client, &seen) == digests(client, &all),
        "following the page tokens returns {} directories of 10",
        seen.len()
    );
    refused(
        client.tree(&root, 3, "not-a-token-of-yours").await,
        &[Code::InvalidArgument],
        "a foreign token",
    )?;
    pass()
}

/// Encodes directories that each name the previous one twice; 2^depth paths.
pub(crate) fn diamonds(client: &Client, depth: usize, blobs: &mut Vec<Vec<u8>>) -> Digest {
    let mut below = Inputs::default().file("leaf", fresh_text()).encode(client, blobs);
    for _ in 0..depth {
        let node = |name: &str| DirectoryNode { name: name.to_owned(), digest: Some(below.clone()) };
        let directory = Directory { directories: vec![node("a"), node("b")], ..Directory::default() };
        let content = directory.encode_to_vec();
        below = client.digest(&content);
        blobs.push(content);
    }
    below
}

async fn diamond(cx: &Cx) -> Judged {
    let client = &cx.client;
    let mut blobs = Vec::new();
    let root = diamonds(client, 30, &mut blobs);
    client.put_all(&blobs).await?;
    let tree = first_directories(client, &root, 1000);
    let directories = within(Duration::from_secs(10), "a diamond of depth 30", tree).await??;
    let distinct = digests(client, &directories).len();
    need!(distinct == 31, "a diamond of depth 30 has {distinct} distinct directories, expected 31");
    need!(directories.len() == 31, "a diamond of depth 30 repeats directories");
    pass()
}

/// Returns the directories of a tree; fails if there are `enough` or more.
async fn first_directories(client: &Client, root: &Digest, enough: usize) -> Result<Vec<Directory>, Stop> {
    let request = reapi::execution::GetTreeRequest {
        instance_name: client.instance.clone(),
        root_digest: Some(root.clone()),
        digest_function: client.function_value(),
        ..Default::default()
    };
    let mut stream = client.cas().get_tree(request).await?.into_inner();
    let mut all = Vec::new();
    while let Some(page) = stream.message().await? {
        all.extend(page.directories);
        need!(all.len() < enough, "a diamond of depth 30 returns more than {enough} directories");
    }
    Ok(all)
}

async fn not_a_directory(cx: &Cx) -> Judged {
    let client = &cx.client;
    let content = [vec![0xff; 40], fresh(40)].concat();
    let root = client.put(&content).await?;
    let codes = [Code::InvalidArgument, Code::FailedPrecondition];
    refused(client.tree(&root, 0, "").await, &codes, "the tree of a blob that is not a Directory")?;
    need!(client.read(&root).await? == content, "the server fails afterwards");
    pass()
}
