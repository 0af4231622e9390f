//! Decompresses archives by their first bytes.

use std::io::{self, BufReader, Cursor, Read};

use flate2::read::MultiGzDecoder;

const BUFFER: usize = 256 << 10;

/// Why an archive cannot be decompressed.
#[derive(Debug, thiserror::Error)]
pub enum DecompressError {
    #[error("it is compressed with xz or bzip2, expected gzip, zstd or none")]
    Unsupported,
    /// Its beginning cannot be read.
    #[error(transparent)]
    Unreadable(#[from] io::Error),
}

/// The content of an archive that is uncompressed or compressed with gzip or zstd. This function blocks.
pub fn decompress(mut archive: impl Read + 'static) -> Result<Box<dyn Read>, DecompressError> {
    let mut start = Vec::with_capacity(6);
    archive.by_ref().take(6).read_to_end(&mut start)?;
    let is_gzip = start.starts_with(&[0x1f, 0x8b]);
    let is_zstd = start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    if start.starts_with(&[0xfd, b'7', b'z', b'X', b'Z']) || start.starts_with(b"BZh") {
        return Err(DecompressError::Unsupported);
    }
    let all = BufReader::with_capacity(BUFFER, Cursor::new(start).chain(archive));
    Ok(if is_gzip {
        Box::new(MultiGzDecoder::new(all))
    } else if is_zstd {
        Box::new(zstd::stream::read::Decoder::with_buffer(all)?)
    } else {
        Box::new(all)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    #[test]
    fn content_is_the_same_in_every_compression() {
        let content = b"some content".repeat(1000);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&content).unwrap();
        for archive in
            [gzip.finish().unwrap(), zstd::encode_all(content.as_slice(), 1).unwrap(), content.clone()]
        {
            let mut found = Vec::new();
            decompress(Cursor::new(archive)).unwrap().read_to_end(&mut found).unwrap();
            assert!(found == content);
        }
        let mut short = Vec::new();
        decompress(Cursor::new(b"ab")).unwrap().read_to_end(&mut short).unwrap();
        assert_eq!(short, b"ab");
        for archive in [&b"BZh91AY&SY"[..], &[0xfd, b'7', b'z', b'X', b'Z', 0]] {
            let refused = decompress(Cursor::new(archive.to_vec())).err().unwrap();
            assert!(matches!(refused, DecompressError::Unsupported));
        }
    }
}
