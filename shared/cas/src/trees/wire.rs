//! Extracts the files that an encoded `Tree` references, record by record, without holding
//! the whole message in memory.

use bytes::{Buf as _, Bytes, BytesMut};
use model::{BlobDigest, DigestFunction};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Maximum size in bytes of a directory.
pub(crate) const DIRECTORY_BYTES_MAX: u64 = 64 << 20;
/// Maximum length in bytes of a field's key and length.
const HEADER_BYTES_MAX: usize = 20;

/// A description of the error in an encoded message.
pub(crate) type Fault = String;

/// Decodes an encoded `Tree` piece by piece.
#[derive(Debug)]
pub(crate) struct TreeScanner {
    function: DigestFunction,
    buffer: BytesMut,
}

impl TreeScanner {
    pub(crate) fn new(function: DigestFunction) -> Self {
        Self { function, buffer: BytesMut::new() }
    }

    /// Reads the next piece and adds to `files` the files of the directories that it completes.
    pub(crate) fn take(&mut self, piece: &Bytes, files: &mut Vec<BlobDigest>) -> Result<(), Fault> {
        self.buffer.extend_from_slice(piece);
        loop {
            let mut rest: &[u8] = &self.buffer;
            let Some((tag, length)) = header(&mut rest)? else { return Ok(()) };
            if length > DIRECTORY_BYTES_MAX {
                return Err(format!("a directory of {length} bytes exceeds the size limit"));
            }
            let length = usize::try_from(length).map_err(|error| error.to_string())?;
            let Some(record) = rest.get(..length) else { return Ok(()) };
            if matches!(tag, 1 | 2) {
                directory_files(record, self.function, files)?;
            }
            let taken = self.buffer.len() - rest.len() + length;
            self.buffer.advance(taken);
        }
    }

    /// Checks that no incomplete record is left.
    pub(crate) fn finish(&self) -> Result<(), Fault> {
        if self.buffer.is_empty() { Ok(()) } else { Err("it ends in the middle of a directory".to_owned()) }
    }
}

/// Reads the tag and length of the next record; `None` if more bytes are needed.
fn header(rest: &mut &[u8]) -> Result<Option<(u32, u64)>, Fault> {
    let mut look = *rest;
    let read = read_header(&mut look);
    match read {
        Ok(header) => {
            *rest = look;
            Ok(Some(header))
        }
        Err(_) if rest.len() < HEADER_BYTES_MAX => Ok(None),
        Err(fault) => Err(fault),
    }
}

fn read_header(rest: &mut &[u8]) -> Result<(u32, u64), Fault> {
    let (tag, kind) = decode_key(rest).map_err(|error| error.to_string())?;
    if kind != WireType::LengthDelimited {
        return Err(format!("field {tag} is not a message"));
    }
    Ok((tag, decode_varint(rest).map_err(|error| error.to_string())?))
}

/// Calls a function for each length-delimited field of a message.
fn each_field<'a>(
    mut message: &'a [u8],
    mut take: impl FnMut(u32, Field<'a>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let fault = |error: prost::DecodeError| error.to_string();
    while !message.is_empty() {
        let (tag, kind) = decode_key(&mut message).map_err(fault)?;
        match kind {
            WireType::LengthDelimited => {
                let length = decode_varint(&mut message).map_err(fault)?;
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let (content, rest) = message.split_at_checked(length).ok_or("it is truncated")?;
                message = rest;
                take(tag, Field::Content(content))?;
            }
            WireType::Varint => take(tag, Field::Number(decode_varint(&mut message).map_err(fault)?))?,
            WireType::StartGroup | WireType::EndGroup | WireType::ThirtyTwoBit | WireType::SixtyFourBit => {
                skip_field(kind, tag, &mut message, DecodeContext::default()).map_err(fault)?;
            }
        }
    }
    Ok(())
}

enum Field<'a> {
    Content(&'a [u8]),
    Number(u64),
}

/// Returns the digests of the files of an encoded `Directory`.
fn directory_files(
    directory: &[u8],
    function: DigestFunction,
    files: &mut Vec<BlobDigest>,
) -> Result<(), Fault> {
    each_field(directory, |tag, field| match (tag, field) {
        (1, Field::Content(node)) => {
            let mut digest = None;
            each_field(node, |tag, field| {
                if let (2, Field::Content(content)) = (tag, field) {
                    digest = Some(read_digest(content, function)?);
                }
                Ok(())
            })?;
            files.push(digest.ok_or("a file has no digest")?);
            Ok(())
        }
        _ => Ok(()),
    })
}

fn read_digest(digest: &[u8], function: DigestFunction) -> Result<BlobDigest, Fault> {
    let (mut hash, mut size) = ("", 0);
    each_field(digest, |tag, field| {
        match (tag, field) {
            (1, Field::Content(text)) => hash = std::str::from_utf8(text).map_err(|e| e.to_string())?,
            (2, Field::Number(number)) => size = number.cast_signed(),
            _ => {}
        }
        Ok(())
    })?;
    BlobDigest::from_parts(function, hash, size).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use prost::Message as _;
    use reapi::execution::{Digest, Directory, DirectoryNode, FileNode, NodeProperties, SymlinkNode, Tree};

    const FUNCTION: DigestFunction = DigestFunction::Blake3;

    fn directory(files: &[(String, Vec<u8>)]) -> Directory {
        let digest = |content: &[u8]| Some(reapi::digest::to_proto(&FUNCTION.digest(content)));
        Directory {
            files: files
                .iter()
                .map(|(name, content)| FileNode {
                    name: name.clone(),
                    digest: digest(content),
                    is_executable: content.len().is_multiple_of(2),
                    node_properties: Some(NodeProperties {
                        unix_mode: Some(reapi::protobuf::UInt32Value { value: 0o644 }),
                        ..Default::default()
                    }),
                })
                .collect(),
            directories: vec![DirectoryNode { name: "d".into(), digest: digest(b"x") }],
            symlinks: vec![SymlinkNode { name: "l".into(), target: "t".into(), ..Default::default() }],
            ..Default::default()
        }
    }

    fn scan(encoded: &[u8], piece: usize) -> Result<Vec<BlobDigest>, Fault> {
        let mut scanner = TreeScanner::new(FUNCTION);
        let mut files = Vec::new();
        for piece in encoded.chunks(piece) {
            scanner.take(&Bytes::copy_from_slice(piece), &mut files)?;
        }
        scanner.finish().map(|()| files)
    }

    type Files = Vec<(String, Vec<u8>)>;

    fn files() -> impl Strategy<Value = Files> {
        prop::collection::vec(("[a-z]{1,9}", prop::collection::vec(any::<u8>(), 0..4)), 0..6)
    }

    proptest! {
        #[test]
        fn all_files_are_found_however_the_tree_is_cut(
            root in files(), children in prop::collection::vec(files(), 0..5), piece in 1_usize..200,
        ) {
            let wanted: Vec<BlobDigest> =
                root.iter().chain(children.iter().flatten()).map(|(_, content)| FUNCTION.digest(content)).collect();
            let tree = Tree { root: Some(directory(&root)), children: children.iter().map(|f| directory(f)).collect() };
            prop_assert_eq!(scan(&tree.encode_to_vec(), piece), Ok(wanted));
        }

        #[test]
        fn rubbish_is_a_fault_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), piece in 1_usize..50) {
            let _ = scan(&bytes, piece);
        }

        #[test]
        fn a_tree_cut_short_is_a_fault(root in files(), cut in 1_usize..40) {
            let encoded = Tree { root: Some(directory(&root)), children: Vec::new() }.encode_to_vec();
            let cut = cut.min(encoded.len() - 1);
            prop_assert!(scan(&encoded[..encoded.len() - cut], 64).is_err());
        }
    }

    #[test]
    fn a_bad_digest_is_a_fault() {
        let bad = FileNode {
            digest: Some(Digest { hash: "../x".into(), size_bytes: 1 }),
            name: "f".into(),
            ..Default::default()
        };
        for node in [bad, FileNode { name: "f".into(), ..Default::default() }] {
            let root = Directory { files: vec![node], ..Default::default() };
            let tree = Tree { root: Some(root), children: Vec::new() };
            assert!(scan(&tree.encode_to_vec(), 64).is_err());
        }
    }
}
