//! Zstandard compression of whole blobs and streams.

use std::io;

use bytes::{Buf as _, Bytes};
use cas::BlobStream;
use futures::{StreamExt as _, stream, stream::BoxStream};
use tonic::Status;
use zstd::stream::raw::{CParameter, DParameter, Decoder, Encoder, InBuffer, Operation as _, OutBuffer};

use crate::{budget::Held, fault::status_of};

/// Compression level: the fastest of the regular levels.
const LEVEL: i32 = 1;
/// Window of encoders, as a power of two: 1 MiB, which is half of the default.
const WINDOW_LOG: u32 = 20;
/// Maximum window of a frame, as a power of two: 8 MiB, as RFC 8878 advises.
const WINDOW_LOG_MAX: u32 = 23;
/// Size in bytes of output pieces.
const PIECE_BYTES: usize = 128 << 10;
/// Bytes of memory of an encoder.
const ENCODER_BYTES: u64 = 3 << 19;
/// Bytes of memory of a decoder, in addition to its window.
const DECODER_BYTES: u64 = 3 << 17;

/// Compresses the stream `content` of `blob`.
pub(crate) async fn compress(
    blob: BlobStream,
    held: Held,
) -> Result<BoxStream<'static, Result<Bytes, Status>>, Status> {
    held.grow(ENCODER_BYTES).await?;
    let compression = Compression::new(blob, held).map_err(|error| zstd_failed(&error))?;
    Ok(stream::try_unfold(compression, Compression::next).boxed())
}

fn zstd_failed(error: &io::Error) -> Status {
    Status::internal(format!("zstd failed: {error}"))
}

/// A blob that is being compressed.
struct Compression {
    blob: BlobStream,
    encoder: Encoder<'static>,
    piece: Bytes,
    state: CompressionState,
    _held: Held,
}

#[derive(PartialEq)]
enum CompressionState {
    Reading,
    Ending,
    Ended,
}

impl Compression {
    fn new(blob: BlobStream, held: Held) -> io::Result<Self> {
        let mut encoder = Encoder::new(LEVEL)?;
        encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
        Ok(Self { blob, encoder, piece: Bytes::new(), state: CompressionState::Reading, _held: held })
    }

    async fn next(mut self) -> Result<Option<(Bytes, Self)>, Status> {
        let mut output = Vec::with_capacity(PIECE_BYTES);
        while output.len() < PIECE_BYTES && self.state != CompressionState::Ended {
            if self.state == CompressionState::Reading && self.piece.is_empty() {
                match self.blob.next().await {
                    Some(piece) => self.piece = piece.map_err(|error| status_of(&error))?,
                    None => self.state = CompressionState::Ending,
                }
            }
            self.step(&mut output).map_err(|error| zstd_failed(&error))?;
        }
        Ok((!output.is_empty()).then(|| (output.into(), self)))
    }

    fn step(&mut self, output: &mut Vec<u8>) -> io::Result<()> {
        let written = output.len();
        let mut room = OutBuffer::around_pos(output, written);
        if self.state == CompressionState::Ending {
            if self.encoder.finish(&mut room, true)? == 0 {
                self.state = CompressionState::Ended;
            }
            return Ok(());
        }
        let mut input = InBuffer::around(&self.piece);
        self.encoder.run(&mut input, &mut room)?;
        let taken = input.pos();
        self.piece.advance(taken);
        Ok(())
    }
}

/// A decoder of a compressed stream.
pub(crate) struct Decompression {
    decoder: Decoder<'static>,
    /// Whether a frame has started and not ended.
    inside: bool,
    _held: Held,
}

impl Decompression {
    /// Creates a decoder for a blob of `size` bytes, which also bounds the window.
    pub(crate) async fn new(size: u64, held: Held) -> Result<Self, Status> {
        held.grow_before(DECODER_BYTES + size.min(1 << WINDOW_LOG_MAX), size).await?;
        let mut decoder = Decoder::new().map_err(|error| zstd_failed(&error))?;
        let limit = DParameter::WindowLogMax(WINDOW_LOG_MAX);
        decoder.set_parameter(limit).map_err(|error| zstd_failed(&error))?;
        Ok(Self { decoder, inside: false, _held: held })
    }

    /// Returns the next piece of output of `packed`, and removes the consumed bytes from `packed`. `None` when there
    /// is no more output.
    pub(crate) fn next(&mut self, packed: &mut Bytes) -> Result<Option<Bytes>, Status> {
        loop {
            if packed.is_empty() && !self.inside {
                return Ok(None);
            }
            let mut output = Vec::with_capacity(PIECE_BYTES);
            let mut input = InBuffer::around(packed);
            let hint = self
                .decoder
                .run(&mut input, &mut OutBuffer::around(&mut output))
                .map_err(|error| Status::invalid_argument(format!("not a valid zstd stream: {error}")))?;
            let taken = input.pos();
            packed.advance(taken);
            self.inside = hint != 0;
            if !output.is_empty() {
                return Ok(Some(output.into()));
            }
            if packed.is_empty() || taken == 0 {
                return Ok(None);
            }
        }
    }

    /// Whether the input ended at the end of a frame.
    pub(crate) fn is_whole(&self) -> bool {
        !self.inside
    }
}

/// Compresses a whole blob; `None` if that does not make it smaller.
pub(crate) fn compress_blob(content: &[u8]) -> Option<Vec<u8>> {
    const WORTH_IT: usize = 512;
    if content.len() < WORTH_IT {
        return None;
    }
    zstd::bulk::compress(content, LEVEL)
        .inspect_err(|error| tracing::debug!(%error, "cannot compress a blob; it is sent uncompressed"))
        .ok()
        .filter(|packed| packed.len() < content.len())
}

/// Decompresses a whole blob of `size` bytes.
pub(crate) fn decompress_blob(packed: &[u8], size: u64) -> Result<Bytes, Status> {
    let wrong = |error: &dyn std::fmt::Display| {
        Status::invalid_argument(format!("not valid zstd data of a blob of {size} bytes: {error}"))
    };
    let capacity = usize::try_from(size).map_err(|error| wrong(&error))?;
    let mut decoder = zstd::bulk::Decompressor::new().map_err(|error| wrong(&error))?;
    decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG_MAX)).map_err(|error| wrong(&error))?;
    let content = decoder.decompress(packed, capacity).map_err(|error| wrong(&error))?;
    Ok(content.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use tonic::Code;

    use super::*;
    use crate::budget::Budget;

    fn held() -> Held {
        Held::new(&Arc::new(Budget::new(64 << 20)))
    }

    async fn decompression() -> Decompression {
        Decompression::new(1 << 20, held()).await.unwrap()
    }

    async fn through(content: Bytes, cut: usize) -> (usize, Vec<u8>) {
        let pieces: Vec<_> = content.chunks(100_000).map(|c| Ok(Bytes::copy_from_slice(c))).collect();
        let packed = compress(stream::iter(pieces).boxed(), held()).await.unwrap();
        let packed: Vec<Bytes> = packed.map(Result::unwrap).collect().await;
        let packed = packed.concat();
        let mut unpacker = decompression().await;
        let mut out = Vec::new();
        for piece in packed.chunks(cut) {
            let mut piece = Bytes::copy_from_slice(piece);
            while let Some(part) = unpacker.next(&mut piece).unwrap() {
                out.extend_from_slice(&part);
            }
            assert!(piece.is_empty());
        }
        assert!(unpacker.is_whole());
        (packed.len(), out)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn what_is_packed_unpacks_to_the_same(
            seed in any::<u64>(), length in 0..700_000usize, cut in 1..90_000usize, spread in 1..256u64,
        ) {
            let mut state = seed | 1;
            let content: Vec<u8> = (0..length).map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                u8::try_from((state >> 33) % spread).unwrap()
            }).collect();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let (_, out) = runtime.block_on(through(content.clone().into(), cut));
            prop_assert!(out == content);
        }
    }

    #[tokio::test]
    async fn nothing_is_a_whole_frame() {
        let (packed, out) = through(Bytes::new(), 1).await;
        assert!(packed > 0);
        assert!(out.is_empty());
    }

    #[tokio::test]
    async fn frames_one_after_another_and_cut_short() {
        let both =
            [zstd::bulk::compress(b"one", 3).unwrap(), zstd::bulk::compress(b"two", 3).unwrap()].concat();
        let mut unpacker = decompression().await;
        let (mut packed, mut out) = (Bytes::from(both), Vec::new());
        while let Some(part) = unpacker.next(&mut packed).unwrap() {
            out.extend_from_slice(&part);
        }
        assert_eq!(out, b"onetwo");
        assert!(unpacker.is_whole());
        drop(unpacker);
        let mut unpacker = decompression().await;
        let whole = zstd::bulk::compress(b"something longer", 3).unwrap();
        let mut cut = Bytes::copy_from_slice(&whole[..whole.len() - 2]);
        while unpacker.next(&mut cut).unwrap().is_some() {}
        assert!(!unpacker.is_whole());
        drop(unpacker);
        let mut unpacker = decompression().await;
        assert_eq!(
            unpacker.next(&mut Bytes::from_static(b"garbage")).unwrap_err().code(),
            Code::InvalidArgument
        );
    }

    #[test]
    fn a_blob_is_unpacked_to_no_more_than_it_says() {
        let packed = compress_blob(&vec![7; 100_000]).unwrap();
        assert_eq!(decompress_blob(&packed, 100_000).unwrap().len(), 100_000);
        assert!(decompress_blob(&packed, 99_999).is_err());
        assert!(decompress_blob(b"garbage", 10).is_err());
        assert!(compress_blob(b"short").is_none());
    }
}
