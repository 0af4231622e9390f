//! The internal step `truncate`: copies the first bytes of a file.

use std::{
    fs::File,
    io::{self, Read as _},
    path::PathBuf,
    sync::Arc,
};

use hashing::CopyError;
use remote::Remote;

use crate::{
    blobs,
    patience::Patience,
    task_error::TaskError,
    tree::{Content, FUNCTION, Node},
};

/// Copies the first `bytes` bytes of the file `node`, which is called `name`, into the new file `to`.
/// Fails if they are more than `bytes_max`.
pub(crate) async fn truncate(
    node: &Node,
    name: &str,
    (bytes, bytes_max): (u64, u64),
    to: PathBuf,
    (remote, patience): (&Remote, &Patience),
) -> Result<Node, TaskError> {
    let Node::File { content, executable } = node else {
        return Err(TaskError::Own(format!("{name} is not a file: it is a folder or a broken link")));
    };
    let ours = |error: io::Error| TaskError::Farm(format!("truncating {name} failed: {error}"));
    let check = |size: u64| {
        let kept = size.min(bytes);
        let fits = kept <= bytes_max;
        fits.then_some(()).ok_or_else(|| {
            TaskError::Own(format!("the copy of {name} has {kept} bytes, more than the limit of {bytes_max}"))
        })
    };
    let digest = if let Some(path) = content.path() {
        let from = disk::open_file(path).map_err(ours)?;
        check(from.metadata().map_err(ours)?.len())?;
        let to = to.clone();
        let copied = tokio::task::spawn_blocking(move || {
            let to = File::create(to).map_err(CopyError::Write)?;
            hashing::copy_reader(from.take(bytes), to, FUNCTION)
        });
        let copied = copied.await.map_err(|error| ours(io::Error::other(error)))?;
        copied.map_err(|error| match error {
            CopyError::Read(error) | CopyError::Write(error) => ours(error),
        })?
    } else {
        let digest = content.digest()?;
        check(digest.size)?;
        patience.patiently(|| blobs::fetch_start(remote, &digest, bytes, &to)).await?
    };
    Ok(Node::File { content: Arc::new(Content::hashed(to, digest)), executable: *executable })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_copy_has_at_most_as_many_bytes_and_the_limit_counts_for_the_copy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("from");
        std::fs::write(&path, "12345").unwrap();
        let node = Node::File { content: Arc::new(Content::local(path)), executable: true };
        let (remote, patience) =
            (Remote::lazily("http://127.0.0.1:1", "", FUNCTION).unwrap(), Patience::new());
        let cut = |bytes, most| {
            let (node, to, farm) = (&node, folder.path().join(format!("{bytes}")), (&remote, &patience));
            async move { truncate(node, "a", (bytes, most), to, farm).await.map_err(TaskError::into_reason) }
        };
        for (bytes, wanted) in [(0, ""), (3, "123"), (5, "12345"), (u64::MAX, "12345")] {
            let Node::File { content, executable: true } = cut(bytes, 5).await.unwrap() else { panic!() };
            assert_eq!(std::fs::read_to_string(content.path().unwrap()).unwrap(), wanted);
            assert_eq!(content.digest().unwrap(), FUNCTION.digest(wanted.as_bytes()));
        }
        assert!(cut(4, 4).await.is_ok());
        let error = cut(6, 4).await.unwrap_err();
        assert_eq!(error, "the copy of a has 5 bytes, more than the limit of 4");
        let folder = Node::Folder(Arc::default());
        let farm = (&remote, &patience);
        let error =
            truncate(&folder, "a", (1, 1), PathBuf::new(), farm).await.err().map(TaskError::into_reason);
        assert_eq!(error.as_deref(), Some("a is not a file: it is a folder or a broken link"));
    }
}
