//! Reads files of a job into memory, if they are small.

use model::JobPath;
use remote::Remote;
use tokio::io::AsyncReadExt as _;

use crate::{
    blobs,
    patience::Patience,
    task_error::TaskError,
    tree::{Folder, Node},
};

/// The content of the file `node`, which is called `name` and may have at most `bytes_max` bytes.
pub(crate) async fn read(
    node: &Node,
    name: &str,
    bytes_max: u64,
    (remote, patience): (&Remote, &Patience),
) -> Result<Vec<u8>, TaskError> {
    let Node::File { content, .. } = node else {
        return Err(TaskError::Own(format!("{name} is not a file: it is a folder or a broken link")));
    };
    let check = |bytes: u64| {
        let is_small = bytes <= bytes_max;
        is_small.then_some(()).ok_or_else(|| {
            TaskError::Own(format!("{name} has {bytes} bytes: at most {bytes_max} can be read here"))
        })
    };
    let Some(path) = content.path() else {
        let digest = content.digest()?;
        check(digest.size)?;
        return Ok(patience.patiently(|| blobs::read(remote, &digest)).await?);
    };
    let unreadable = |error: std::io::Error| TaskError::Farm(format!("cannot read {name}: {error}"));
    let mut file = tokio::fs::File::from_std(disk::open_file(path).map_err(unreadable)?);
    check(file.metadata().await.map_err(unreadable)?.len())?;
    let mut bytes = Vec::new();
    (&mut file).take(bytes_max).read_to_end(&mut bytes).await.map_err(unreadable)?;
    Ok(bytes)
}

/// The file or folder at `path` among the outputs `added` of a task; links are followed.
pub(crate) fn find(added: &[(String, Node)], path: &JobPath) -> Result<Node, TaskError> {
    let mut root = std::sync::Arc::default();
    for (place, node) in added {
        Folder::insert_at(&mut root, place, node.clone());
    }
    let found = root.resolve(path.as_str()).and_then(|mut found| found.pop());
    found.map(|(_, node)| node).ok_or_else(|| TaskError::Own(format!("output {path} is missing")))
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, sync::Arc};

    use super::*;
    use crate::tree::Content;

    fn parts() -> (Remote, Patience) {
        let remote = Remote::lazily("http://127.0.0.1:1", "", crate::tree::FUNCTION).unwrap();
        (remote, Patience::new())
    }

    #[tokio::test]
    async fn only_small_files_are_read_and_the_error_says_how_small() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"12345").unwrap();
        let content = Arc::new(Content::local(file.path().to_owned()));
        let node = Node::File { content, executable: false };
        let (remote, patience) = parts();
        let farm = (&remote, &patience);
        assert_eq!(read(&node, "a", 5, farm).await.ok().unwrap(), b"12345");
        let error = read(&node, "a", 4, farm).await.err().unwrap().into_reason();
        assert_eq!(error, "a has 5 bytes: at most 4 can be read here");
        // Content that only the farm's store has is refused by its digest, without reading it.
        let far = crate::tree::FUNCTION.digest(b"123456");
        let far = Node::File { content: Arc::new(Content::remote(far)), executable: false };
        assert!(read(&far, "b", 5, farm).await.err().unwrap().into_reason().contains("has 6 bytes"));
        let folder = Node::Folder(Arc::default());
        assert!(read(&folder, "c", 5, farm).await.err().unwrap().into_reason().contains("is not a file"));
    }

    #[test]
    fn a_file_is_found_in_an_output_folder_and_behind_a_link() {
        let content = Arc::new(Content::remote(crate::tree::FUNCTION.digest(b"x")));
        let mut folder = Arc::default();
        Folder::put(&mut folder, "real", Node::File { content, executable: false });
        Folder::put(&mut folder, "link", Node::Link("real".into()));
        let added = [("out".to_owned(), Node::Folder(folder))];
        for path in ["out/real", "out/link"] {
            assert!(matches!(find(&added, &JobPath::parse(path).unwrap()), Ok(Node::File { .. })), "{path}");
        }
        let error = find(&added, &JobPath::parse("out/other").unwrap()).err().unwrap().into_reason();
        assert_eq!(error, "output out/other is missing");
    }
}
