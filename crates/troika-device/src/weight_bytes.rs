//! The bytes of weights, as stored and as devices lay them out.

use std::ops::Range;
use std::sync::Arc;

use troika_graph::DType;

use crate::error::DeviceError;

/// Owner of bytes: a memory map or a heap block.
pub type WeightOwner = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A range of an owner's bytes, kept alive by reference count.
#[derive(Clone)]
pub struct WeightBytes {
    owner: WeightOwner,
    range: Range<usize>,
}

impl WeightBytes {
    /// A range of an owner's bytes; `None` if it is not inside.
    pub fn new(owner: WeightOwner, range: Range<usize>) -> Option<WeightBytes> {
        let len = (*owner).as_ref().len();
        (range.start <= range.end && range.end <= len).then_some(WeightBytes { owner, range })
    }

    /// Bytes on the heap.
    pub fn owned(bytes: Vec<u8>) -> WeightBytes {
        let range = 0..bytes.len();
        WeightBytes { owner: Arc::new(bytes), range }
    }

    /// All bytes of an owner.
    pub fn whole(owner: WeightOwner) -> WeightBytes {
        let range = 0..(*owner).as_ref().len();
        WeightBytes { owner, range }
    }

    /// A part of these bytes; `None` if it is not inside.
    pub fn slice(&self, range: Range<usize>) -> Option<WeightBytes> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        let fits = start <= end && end <= self.range.end;
        fits.then(|| WeightBytes { owner: self.owner.clone(), range: start..end })
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl std::ops::Deref for WeightBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::fmt::Debug for WeightBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WeightBytes({})", self.range.len())
    }
}

/// A weight matrix, row-major `[rows, cols]` in its type's blocks.
#[derive(Clone, Debug)]
pub struct WeightData {
    /// Element or block type.
    pub dtype: DType,
    /// Rows (1 for vectors).
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// The bytes, aligned to the element size for plain types.
    pub bytes: WeightBytes,
}

impl WeightData {
    /// Some of the rows; `None` if they are not inside, or the bytes do not consist of rows.
    pub fn rows(&self, rows: Range<usize>) -> Option<WeightData> {
        let row = self.dtype.row_bytes(self.cols)?;
        let range = rows.start.checked_mul(row)?..rows.end.checked_mul(row)?;
        let inside = rows.start <= rows.end && rows.end <= self.rows;
        let bytes = self.bytes.slice(range).filter(|_| inside)?;
        Some(WeightData { rows: rows.len(), bytes, ..self.clone() })
    }
}

/// A weight in a device's packed form.
#[derive(Clone, Debug)]
pub struct Packed {
    /// The packed bytes, 64-byte aligned.
    pub bytes: WeightBytes,
    /// Whether they are the rows as they are stored, in place of the form: where memory does not
    /// hold a form that is kept ([`PackLayout::keep`]), rows are packed anew whenever they are used.
    pub stored: bool,
}

/// A device's layout of a weight: panels of rows, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackLayout<'a> {
    /// Its name, which keys packed forms on disk: it must change with the bytes' meaning.
    pub name: &'a str,
    /// Weight rows per panel; the last panel may have fewer.
    pub rows: usize,
    /// Bytes per panel.
    pub panel: usize,
    /// Whether the source keeps the form for others. A device that copies it into memory of its own
    /// wants it once: the bytes are freed when it drops them. Who keeps a form can also compute with
    /// the rows as they are stored ([`Packed::stored`]).
    pub keep: bool,
}

impl PackLayout<'_> {
    /// Bytes of a packed weight of `rows` rows; `None` on overflow.
    pub fn bytes(&self, rows: usize) -> Option<usize> {
        rows.div_ceil(self.rows.max(1)).checked_mul(self.panel)
    }

    /// The bytes of some rows within a packed weight that contains them, if the first row begins a
    /// panel. The last panel may also contain rows behind them.
    pub fn slice(&self, rows: &Range<usize>) -> Option<Range<usize>> {
        let each = self.rows.max(1);
        let begins = rows.start <= rows.end && rows.start.is_multiple_of(each);
        let start = (rows.start / each).checked_mul(self.panel).filter(|_| begins)?;
        Some(start..rows.end.div_ceil(each).checked_mul(self.panel)?)
    }
}

/// Packs some rows of a weight, starting at a panel, into the zeroed bytes of their panels. Runs on
/// several threads at once and in parts, so that a weight is never in memory twice.
pub type PackFn<'a> = &'a (dyn Fn(&WeightData, &mut [u8]) -> Result<(), DeviceError> + Sync);
