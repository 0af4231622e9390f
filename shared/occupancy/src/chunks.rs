use crate::number::{count, to_index};
use invariant::{Present as _, impossible};

/// Size of a chunk in bytes: large compared to a row, small compared to the memory of a machine.
const CHUNK: usize = 4 << 20;

/// Rows of bytes, stored one after the other in chunks, so that growing never copies existing rows.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    chunks: Vec<Vec<u8>>,
    rows: Vec<Row>,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    chunk: u32,
    start: u32,
}

impl Chunks {
    /// Appends a row of bytes.
    pub(crate) fn push(&mut self, row: &[u8]) {
        if self.chunks.last().is_none_or(|chunk| chunk.len() + row.len() > CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK.max(row.len())));
        }
        let chunk = count(self.chunks.len().saturating_sub(1));
        if let Some(last) = self.chunks.last_mut() {
            self.rows.push(Row { chunk, start: count(last.len()) });
            last.extend_from_slice(row);
        } else {
            impossible!("no chunk has room for a row of {} bytes", row.len());
        }
    }

    /// The bytes from the start of a row to the end of its chunk; the row's encoding defines where it ends.
    pub(crate) fn row(&self, row: u32) -> &[u8] {
        self.rows
            .get(to_index(row))
            .and_then(|row| self.chunks.get(to_index(row.chunk))?.get(to_index(row.start)..))
            .present("the bytes of a row")
    }

    /// Number of rows stored.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Memory held, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK + self.rows.len() * size_of::<Row>()
    }
}
