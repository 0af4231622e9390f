//! The output of a task, for the console of its build: complete if it is short, otherwise its beginning and its end.

use bus::ChunkFault;
use bytes::Bytes;
use futures::StreamExt as _;
use model::{BlobDigest, OutputStream, TaskReport, TaskStatus};
use reapi::{
    digest::from_proto,
    execution::{ActionResult, Digest},
};
use remote::{Remote, RemoteError};

use crate::{blobs, host::Host, tree::FUNCTION};

/// Bytes kept of the beginning of each output, and the same number of its end.
const KEPT: usize = 32 << 10;

/// The output of a task.
#[derive(Debug, Default)]
pub(crate) struct TaskOutput {
    stdout: Bytes,
    stderr: Bytes,
}

impl TaskOutput {
    /// Reads the output of `result`: embedded in it, or from the store by digest.
    pub(crate) async fn of(remote: &Remote, result: &ActionResult) -> Result<Self, RemoteError> {
        Ok(Self {
            stdout: read_stream(remote, &result.stdout_raw, result.stdout_digest.as_ref()).await?,
            stderr: read_stream(remote, &result.stderr_raw, result.stderr_digest.as_ref()).await?,
        })
    }

    /// Standard output; if it is long, at least its beginning.
    pub(crate) fn stdout(&self) -> &[u8] {
        &self.stdout
    }

    /// Adds a line that the farm itself says about the task.
    pub(crate) fn add_line(&mut self, line: &str) {
        let gap = if self.stdout.last().is_none_or(|last| *last == b'\n') { "" } else { "\n" };
        self.stdout = [&self.stdout[..], gap.as_bytes(), line.as_bytes(), b"\n"].concat().into();
    }

    /// Writes the output to the console under the task's name, with the reason if the task failed.
    pub(crate) async fn write(self, report: &TaskReport, host: &mut dyn Host) -> Result<(), ChunkFault> {
        let silent = self.stdout.is_empty() && self.stderr.is_empty();
        let head = match (report.status, report.reason.as_deref()) {
            (TaskStatus::Succeeded, _) if silent => return Ok(()),
            (TaskStatus::Succeeded, _) => format!("task {}:", report.id),
            (TaskStatus::OverLimit, reason) => {
                format!("task {} exceeded a limit: {}", report.id, reason.unwrap_or("unknown reason"))
            }
            (TaskStatus::Failed | TaskStatus::FarmFailed | TaskStatus::Skipped, reason) => {
                format!("task {} failed: {}", report.id, reason.unwrap_or("unknown reason"))
            }
        };
        host.say(&head).await?;
        for (stream, data) in [(OutputStream::Stdout, self.stdout), (OutputStream::Stderr, self.stderr)] {
            if data.is_empty() {
                continue;
            }
            let ends = data.last() == Some(&b'\n');
            host.write(stream, data).await?;
            if !ends {
                host.write(stream, Bytes::from_static(b"\n")).await?;
            }
        }
        Ok(())
    }
}

async fn read_stream(remote: &Remote, raw: &[u8], digest: Option<&Digest>) -> Result<Bytes, RemoteError> {
    if !raw.is_empty() {
        return Ok(shorten(raw));
    }
    let digest = digest.and_then(|digest| from_proto(digest, FUNCTION).ok());
    let Some(digest) = digest.filter(|digest| !digest.is_empty_blob()) else { return Ok(Bytes::new()) };
    let kept = KEPT as u64;
    if digest.size <= 2 * kept {
        return Ok(blobs::read(remote, &digest).await?.into());
    }
    let start = part(remote, &digest, 0).await?;
    let end = part(remote, &digest, digest.size - kept).await?;
    Ok(with_gap(&start, &end, digest.size - 2 * kept))
}

/// Reads at most the number of bytes to keep, from `offset` on.
async fn part(remote: &Remote, digest: &BlobDigest, offset: u64) -> Result<Vec<u8>, RemoteError> {
    let Some(mut pieces) = remote.open(digest, offset).await? else {
        return Err(RemoteError::Missing { digest: *digest });
    };
    let mut part = Vec::with_capacity(KEPT);
    while part.len() < KEPT
        && let Some(piece) = pieces.next().await
    {
        part.extend_from_slice(&piece?);
    }
    part.truncate(KEPT);
    Ok(part)
}

fn shorten(text: &[u8]) -> Bytes {
    let left_out = text.len().saturating_sub(2 * KEPT);
    match (text.split_at_checked(KEPT), text.split_at_checked(KEPT + left_out)) {
        (Some((start, _)), Some((_, end))) if left_out > 0 => with_gap(start, end, left_out as u64),
        (Some(_) | None, _) => Bytes::copy_from_slice(text),
    }
}

fn with_gap(start: &[u8], end: &[u8], left_out: u64) -> Bytes {
    let gap = format!("\nforebay: {left_out} bytes omitted\n");
    [start, gap.as_bytes(), end].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_text_the_beginning_and_the_end_are_kept() {
        let text: Vec<u8> = (0..2 * KEPT + 7).map(|at| b'a' + u8::try_from(at % 26).unwrap()).collect();
        let short = shorten(&text);
        assert!(short.starts_with(&text[..KEPT]) && short.ends_with(&text[KEPT + 7..]));
        assert!(String::from_utf8_lossy(&short).contains("\nforebay: 7 bytes omitted\n"));
        assert_eq!(shorten(&text[..2 * KEPT]), text[..2 * KEPT]);
    }
}
