//! Headers of tar archives that precede an entry and apply to it. The crate `tar` would read them without any limit.

use std::io::{self, Read};

use tar::{Entry, EntryType};

/// Maximum bytes of such a header.
const HEADER_MAX: u64 = 1 << 20;

/// Why a header cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    #[error("it is damaged or not a tar archive: {0}")]
    Unreadable(io::Error),
    #[error("a name in it is too long")]
    TooLong,
    #[error("a file in it is larger than 8 GiB")]
    TooLarge,
    #[error("it has sparse files: pack it without --sparse")]
    Sparse,
}

/// What the headers before an entry say about it.
#[derive(Debug, Default)]
pub struct EntryHeaders {
    /// Its path, if that is too long for the entry itself.
    pub path: Option<Vec<u8>>,
    /// The target of its link, if that is too long.
    pub link: Option<Vec<u8>>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

impl EntryHeaders {
    /// Reads `entry` if it is such a header; returns whether it is. The archive must be read with `Entries::raw`.
    pub fn read(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<bool, HeaderError> {
        let kind = entry.header().entry_type();
        if kind == EntryType::GNULongName {
            self.path = Some(trimmed(content(entry)?));
        } else if kind == EntryType::GNULongLink {
            self.link = Some(trimmed(content(entry)?));
        } else if kind == EntryType::XHeader {
            self.read_pax(&content(entry)?)?;
        } else if kind != EntryType::XGlobalHeader {
            return Ok(false);
        }
        Ok(true)
    }

    /// Parses repeated records `LENGTH KEY=VALUE\n`.
    fn read_pax(&mut self, records: &[u8]) -> Result<(), HeaderError> {
        for record in tar::PaxExtensions::new(records) {
            let record = record.map_err(HeaderError::Unreadable)?;
            let number = || std::str::from_utf8(record.value_bytes()).ok().and_then(|text| text.parse().ok());
            match record.key_bytes() {
                b"path" => self.path = Some(record.value_bytes().to_vec()),
                b"linkpath" => self.link = Some(record.value_bytes().to_vec()),
                b"uid" => self.uid = number(),
                b"gid" => self.gid = number(),
                b"size" => return Err(HeaderError::TooLarge),
                key if key.starts_with(b"GNU.sparse.") => return Err(HeaderError::Sparse),
                _ => {}
            }
        }
        Ok(())
    }
}

fn content(entry: &mut impl Read) -> Result<Vec<u8>, HeaderError> {
    let mut content = Vec::new();
    entry.take(HEADER_MAX + 1).read_to_end(&mut content).map_err(HeaderError::Unreadable)?;
    if content.len() as u64 > HEADER_MAX { Err(HeaderError::TooLong) } else { Ok(content) }
}

fn trimmed(mut name: Vec<u8>) -> Vec<u8> {
    while name.last() == Some(&0) {
        name.pop();
    }
    name
}
