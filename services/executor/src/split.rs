//! Splits an input root in two: a folder of it, and all the rest.

use cas::Cas;
use model::BlobDigest;
use prost::Message as _;
use reapi::{
    canonical::encode,
    digest::{from_proto, to_proto},
    execution::Directory,
};

use crate::outcome::Fault;

/// The folder at this path in an input root, and the input root without it. The folders above it stay, even if they are empty.
pub(crate) async fn split(
    cas: &Cas,
    root: BlobDigest,
    path: &str,
) -> Result<(BlobDigest, BlobDigest), Fault> {
    let missing = || {
        let message = format!("the folder {path:?} of the interactor is not in the input root of the action");
        Fault::precondition(message)
    };
    let mut above = Vec::new();
    let mut below = root;
    for name in path.split('/') {
        let directory = read(cas, &below).await?;
        let node = directory.directories.iter().find(|node| node.name == name).ok_or_else(missing)?;
        let digest = node.digest.as_ref().ok_or_else(missing)?;
        below = from_proto(digest, root.function)
            .map_err(|error| Fault::invalid(format!("the folder {path:?} of the interactor: {error}")))?;
        above.push((name, directory));
    }
    let mut changed = None;
    for (name, mut directory) in above.into_iter().rev() {
        match changed {
            None => directory.directories.retain(|node| node.name != name),
            Some(digest) => {
                for node in directory.directories.iter_mut().filter(|node| node.name == name) {
                    node.digest = Some(to_proto(&digest));
                }
            }
        }
        let (_, content) = encode(&directory, root.function);
        let stored = cas.put_bytes(root.function, content).await;
        changed = Some(stored.map_err(|error| Fault::machine(&error))?);
    }
    Ok((below, changed.unwrap_or(root)))
}

async fn read(cas: &Cas, digest: &BlobDigest) -> Result<Directory, Fault> {
    match cas.get(digest).await {
        Ok(Some(content)) => Directory::decode(content).map_err(|error| {
            Fault::invalid(format!("a folder of the input root cannot be decoded: {error}"))
        }),
        Ok(None) if digest.is_empty_blob() => Ok(Directory::default()),
        Ok(None) => Err(Fault::missing(vec![*digest])),
        Err(error) => Err(Fault::machine(&error)),
    }
}

#[cfg(test)]
mod tests {
    use model::DigestFunction;
    use reapi::execution::{DirectoryNode, FileNode};

    use super::*;

    const FUNCTION: DigestFunction = DigestFunction::Sha256;

    async fn put(cas: &Cas, directory: &Directory) -> BlobDigest {
        cas.put_bytes(FUNCTION, encode(directory, FUNCTION).1).await.unwrap()
    }

    fn with(files: &[&str], folders: &[(&str, BlobDigest)]) -> Directory {
        let file = |name: &&str| FileNode {
            name: (*name).to_owned(),
            digest: Some(to_proto(&FUNCTION.empty())),
            ..FileNode::default()
        };
        let folder = |(name, digest): &(&str, BlobDigest)| DirectoryNode {
            name: (*name).to_owned(),
            digest: Some(to_proto(digest)),
        };
        Directory {
            files: files.iter().map(file).collect(),
            directories: folders.iter().map(folder).collect(),
            ..Directory::default()
        }
    }

    #[tokio::test]
    async fn the_folder_is_in_one_part_and_all_else_in_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let cas = Cas::open(cas::CasConfig::new(folder.path())).unwrap();
        let secret = put(&cas, &with(&["answer"], &[])).await;
        let other = put(&cas, &with(&["input"], &[])).await;
        let tests = put(&cas, &with(&["plain"], &[("other", other), ("secret", secret)])).await;
        let root = put(&cas, &with(&["solution"], &[("tests", tests)])).await;
        let (found, rest) = split(&cas, root, "tests/secret").await.unwrap();
        assert_eq!(found, secret);
        let tests = put(&cas, &with(&["plain"], &[("other", other)])).await;
        assert_eq!(rest, put(&cas, &with(&["solution"], &[("tests", tests)])).await);
        assert_eq!(read(&cas, &rest).await, Ok(with(&["solution"], &[("tests", tests)])));
        for missing in ["secret", "tests/plain", "solution", "tests/secret/answer"] {
            let Err(Fault::Ends { message, .. }) = split(&cas, root, missing).await else {
                panic!("{missing}")
            };
            assert!(message.contains(missing), "{message}");
        }
    }
}
