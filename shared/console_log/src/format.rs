//! A frame as a blob: one zstd frame with the output, then one skippable frame with the table of streams. Programs for
//! zstd show the output.
//!
//! The table is, in little endian: the offset of each stream at the start of the frame (stdout, stderr: 8 bytes each), the
//! lengths of runs (4 bytes each; the streams alternate, stdout first), and the length of the table (4 bytes).

use bytes::Bytes;
use model::OutputStream;

use crate::packer::{FRAME_MAX, RUNS_MAX, Raw, Run};

/// Maximum size of the blob of a frame.
pub const BLOB_MAX: u64 = 2 << 20;
/// Compression level of zstd, its fastest: a worker compresses while the build runs.
const LEVEL: i32 = 1;
const SKIPPABLE: u32 = 0x184D_2A5F;
/// Bytes of the head of a skippable frame, of the offsets, and of the length at the end.
const HEAD: usize = 8;
const OFFSETS: usize = 16;
const LENGTH: usize = 4;

/// Why a blob is not a frame.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("the blob has no table of streams")]
    NoTable,
    #[error("the table of streams does not match the output")]
    Mismatch,
    #[error("cannot compress or decompress a frame")]
    Zstd(#[from] std::io::Error),
}

/// Encodes console output as one frame.
///
/// # Errors
///
/// Fails if the output cannot be compressed.
pub fn pack(raw: &Raw) -> Result<Bytes, FrameError> {
    let mut blob = zstd::bulk::compress(&raw.data, LEVEL)?;
    let mut table = Vec::with_capacity(OFFSETS + LENGTH * (raw.runs.len() + 2));
    table.extend_from_slice(&raw.stdout_offset.to_le_bytes());
    table.extend_from_slice(&raw.stderr_offset.to_le_bytes());
    let mut expected = OutputStream::Stdout;
    for run in &raw.runs {
        if run.stream != expected {
            table.extend_from_slice(&0_u32.to_le_bytes());
        }
        table.extend_from_slice(&length(run.bytes)?.to_le_bytes());
        expected = other(run.stream);
    }
    let size = length(table.len() + LENGTH)?.to_le_bytes();
    blob.extend_from_slice(&SKIPPABLE.to_le_bytes());
    blob.extend_from_slice(&size);
    blob.extend_from_slice(&table);
    blob.extend_from_slice(&size);
    Ok(blob.into())
}

/// Decodes a frame. Never takes more memory than a frame may have.
///
/// # Errors
///
/// Fails if the blob is not a frame, or a larger one than [`pack`] writes.
pub fn unpack(blob: &[u8]) -> Result<Raw, FrameError> {
    let (rest, size) = blob.split_last_chunk::<LENGTH>().ok_or(FrameError::NoTable)?;
    let size_in = usize::try_from(u32::from_le_bytes(*size)).map_err(|_| FrameError::NoTable)?;
    let table_at = (rest.len() + LENGTH).checked_sub(size_in).ok_or(FrameError::NoTable)?;
    let head_at = table_at.checked_sub(HEAD).ok_or(FrameError::NoTable)?;
    let head = [SKIPPABLE.to_le_bytes(), *size].concat();
    if blob.get(head_at..table_at) != Some(head.as_slice()) || size_in > OFFSETS + LENGTH * (RUNS_MAX * 2 + 2)
    {
        return Err(FrameError::NoTable);
    }
    let table = rest.get(table_at..).ok_or(FrameError::NoTable)?;
    let (stdout, table) = table.split_first_chunk::<8>().ok_or(FrameError::NoTable)?;
    let (stderr, table) = table.split_first_chunk::<8>().ok_or(FrameError::NoTable)?;
    let data = zstd::bulk::decompress(blob.get(..head_at).unwrap_or_default(), FRAME_MAX)?;
    let mut raw = Raw { data, stdout_offset: u64::from_le_bytes(*stdout), ..Raw::default() };
    raw.stderr_offset = u64::from_le_bytes(*stderr);
    let (lengths, odd) = table.as_chunks::<LENGTH>();
    let mut stream = OutputStream::Stdout;
    let mut total = 0_usize;
    for length in lengths {
        let bytes = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| FrameError::Mismatch)?;
        total = total.saturating_add(bytes);
        if bytes > 0 {
            raw.runs.push(Run { stream, bytes });
        }
        stream = other(stream);
    }
    if !odd.is_empty() || total != raw.data.len() {
        return Err(FrameError::Mismatch);
    }
    Ok(raw)
}

fn length(bytes: usize) -> Result<u32, FrameError> {
    u32::try_from(bytes).map_err(|_| FrameError::Mismatch)
}

fn other(stream: OutputStream) -> OutputStream {
    match stream {
        OutputStream::Stdout => OutputStream::Stderr,
        OutputStream::Stderr => OutputStream::Stdout,
    }
}

#[cfg(test)]
mod tests {
    use model::OutputStream::{self, Stderr, Stdout};
    use proptest::prelude::*;

    use crate::{BLOB_MAX, FRAME_MAX, Packer, Raw, pack, unpack};

    fn frames(output: &[(OutputStream, Vec<u8>)]) -> Vec<Raw> {
        let mut packer = Packer::after(7, 9);
        let mut frames = Vec::new();
        for (stream, data) in output {
            packer.push(*stream, data);
            while let Some(raw) = packer.full() {
                frames.push(raw);
            }
        }
        frames.extend(packer.rest());
        frames
    }

    fn of_stream(frames: &[Raw], wanted: OutputStream) -> Vec<u8> {
        let mut all = Vec::new();
        for frame in frames {
            let mut rest = frame.data.as_slice();
            for run in &frame.runs {
                let (part, after) = rest.split_at(run.bytes);
                rest = after;
                if run.stream == wanted {
                    all.extend_from_slice(part);
                }
            }
        }
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn output_comes_back_by_stream(parts in prop::collection::vec((any::<bool>(), 0..200_000_usize, any::<u8>()), 0..20)) {
            let stream = |first: bool| if first { Stdout } else { Stderr };
            let output: Vec<_> = parts.iter().map(|(first, size, byte)| (stream(*first), vec![*byte; *size])).collect();
            let packed = frames(&output);
            let read: Vec<Raw> = packed.iter().map(|raw| unpack(&pack(raw).unwrap()).unwrap()).collect();
            prop_assert_eq!(&read, &packed);
            let mut end = 16;
            for frame in &read {
                prop_assert!(!frame.data.is_empty() && frame.data.len() <= FRAME_MAX);
                prop_assert_eq!(frame.offset(), end);
                end += frame.data.len() as u64;
            }
            for wanted in [Stdout, Stderr] {
                let whole: Vec<u8> = output.iter().filter(|it| it.0 == wanted).flat_map(|it| it.1.clone()).collect();
                prop_assert!(of_stream(&read, wanted) == whole);
            }
        }

        #[test]
        fn any_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0..200_usize) {
            let _ = unpack(&bytes);
            let blob = pack(&Raw { data: bytes.clone(), ..frames(&[(Stderr, bytes)]).pop().unwrap_or_default() }).unwrap();
            prop_assert!(unpack(&blob).is_ok());
            prop_assert!(cut == 0 || unpack(&blob[..blob.len().saturating_sub(cut)]).is_err());
        }
    }

    #[test]
    fn a_frame_ends_at_a_line_end() {
        let mut data = vec![b'x'; FRAME_MAX + 10];
        data[FRAME_MAX - 100] = b'\n';
        assert_eq!(frames(&[(Stdout, data)])[0].data.len(), FRAME_MAX - 99);
        assert_eq!(frames(&[(Stdout, vec![b'x'; FRAME_MAX + 10])])[0].data.len(), FRAME_MAX);
    }

    #[test]
    fn a_bomb_is_refused() {
        let raw = Raw { data: vec![0; 64 << 20], ..Raw::default() };
        assert!(unpack(&pack(&raw).unwrap()).is_err());
    }

    #[test]
    fn the_worst_frame_fits_into_a_blob() {
        let mut random = 1_u64;
        let mut byte = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            u8::try_from(random >> 56).unwrap()
        };
        let one: Vec<_> =
            (0..70_000).map(|n| (if n % 2 == 0 { Stderr } else { Stdout }, vec![byte(); 15])).collect();
        let packed = frames(&one);
        assert!(packed.len() > 1);
        assert!(packed.iter().all(|raw| pack(raw).unwrap().len() as u64 <= BLOB_MAX));
    }
}
