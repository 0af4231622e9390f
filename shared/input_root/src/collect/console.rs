//! Standard output and standard error of an action.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use invariant::Present as _;
use model::DigestFunction;
use reapi::{digest::to_proto, execution::Digest};

use super::{Collected, Console};
use crate::{CollectError, InputRoots, blocking::blocking};

/// Maximum size in bytes of a stream that is stored from memory, so that its file can be reused.
const HELD_BYTES: u64 = 256 << 10;

/// The content of an output stream.
enum Stream {
    Short(Bytes),
    Long(PathBuf),
}

impl Stream {
    const EMPTY: Self = Self::Short(Bytes::new());
}

impl InputRoots {
    /// Stores standard output and standard error only: for actions that ended without outputs.
    pub async fn console(
        &self,
        console: &Console,
        function: DigestFunction,
    ) -> Result<Collected, CollectError> {
        let Console { stdout, stderr, is_watched } = console.clone();
        let (stdout, stderr) = match (stdout, stderr) {
            (None, None) => (Stream::EMPTY, Stream::EMPTY),
            (stdout, stderr) => {
                let read = |path: Option<PathBuf>| path.map_or(Ok(Stream::EMPTY), |path| read(&path));
                blocking(move || Ok::<_, CollectError>((read(stdout)?, read(stderr)?))).await?
            }
        };
        let (stdout, stdout_digest) = self.stream(stdout, !is_watched, function).await?;
        let (stderr, stderr_digest) = self.stream(stderr, !is_watched, function).await?;
        let (stdout_digest, stderr_digest) = (Some(stdout_digest), Some(stderr_digest));
        Ok(Collected { stdout, stdout_digest, stderr, stderr_digest, ..Collected::default() })
    }

    async fn stream(
        &self,
        stream: Stream,
        takes: bool,
        function: DigestFunction,
    ) -> Result<(Vec<u8>, Digest), CollectError> {
        let cas = self.output_store();
        match stream {
            Stream::Short(bytes) if bytes.is_empty() => Ok((Vec::new(), to_proto(&function.empty()))),
            Stream::Short(bytes) => {
                let inline = bytes.len() as u64 <= self.inner.config.inline_bytes;
                let inlined = if inline { bytes.to_vec() } else { Vec::new() };
                Ok((inlined, to_proto(&cas.put_bytes(function, bytes).await?)))
            }
            Stream::Long(path) => Ok((Vec::new(), to_proto(&cas.put_file(function, &path, takes).await?))),
        }
    }
}

fn read(path: &Path) -> Result<Stream, CollectError> {
    let failed = || CollectError::io("reading", path.display().to_string());
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Stream::EMPTY),
        Err(error) => return Err(failed()(error)),
    };
    let size = file.metadata().map_err(failed())?.len();
    if size > HELD_BYTES {
        return Ok(Stream::Long(path.to_owned()));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).present("the size of a short stream"));
    file.read_to_end(&mut bytes).map_err(failed())?;
    Ok(Stream::Short(bytes.into()))
}
