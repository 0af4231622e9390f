//! Headers of tar archives that precede an entry and apply to it.

use std::io::{self, Read};

use tar::{Entry, EntryType};

use crate::error::ImageError;

/// Maximum bytes of such a header.
const EXTRA_MAX: u64 = 1 << 20;

/// What the headers before an entry say about it.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link: Option<Vec<u8>>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

impl Extra {
    /// Reads `entry` if it is such a header; returns whether it is.
    pub(crate) fn read(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<bool, ImageError> {
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
    fn read_pax(&mut self, records: &[u8]) -> Result<(), ImageError> {
        for record in tar::PaxExtensions::new(records) {
            let record = record.map_err(|error| unreadable(&error))?;
            let number = || std::str::from_utf8(record.value_bytes()).ok().and_then(|text| text.parse().ok());
            match record.key_bytes() {
                b"path" => self.path = Some(record.value_bytes().to_vec()),
                b"linkpath" => self.link = Some(record.value_bytes().to_vec()),
                b"uid" => self.uid = number(),
                b"gid" => self.gid = number(),
                b"size" => {
                    return Err(ImageError::Invalid("a file in a layer is larger than 8 GiB".to_owned()));
                }
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(ImageError::Invalid("a layer has sparse files".to_owned()));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn unreadable(error: &io::Error) -> ImageError {
    ImageError::Invalid(format!("a layer is damaged or not a tar archive: {error}"))
}

fn content(entry: &mut impl Read) -> Result<Vec<u8>, ImageError> {
    let mut content = Vec::new();
    entry.take(EXTRA_MAX + 1).read_to_end(&mut content).map_err(|error| unreadable(&error))?;
    if content.len() as u64 > EXTRA_MAX {
        return Err(ImageError::Invalid("a name in a layer is too long".to_owned()));
    }
    Ok(content)
}

fn trimmed(mut name: Vec<u8>) -> Vec<u8> {
    while name.last() == Some(&0) {
        name.pop();
    }
    name
}
