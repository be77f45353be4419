//! How devices get at weights. The store that implements this lives in `troika-model`.

use std::ops::Range;
use std::sync::Arc;

use troika_graph::DType;

use crate::error::DeviceError;
use crate::memory::ZeroedBytes;

/// Owner of bytes: a memory map or a heap block.
pub type WeightOwner = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A range of somebody's bytes, kept alive by reference count.
#[derive(Clone)]
pub struct WeightBytes {
    owner: WeightOwner,
    range: Range<usize>,
}

impl WeightBytes {
    /// A range of an owner's bytes; `None` when it does not lie inside.
    pub fn new(owner: WeightOwner, range: Range<usize>) -> Option<WeightBytes> {
        let len = (*owner).as_ref().len();
        (range.start <= range.end && range.end <= len).then_some(WeightBytes { owner, range })
    }

    /// Bytes owned by the heap.
    pub fn owned(bytes: Vec<u8>) -> WeightBytes {
        let range = 0..bytes.len();
        WeightBytes { owner: Arc::new(bytes), range }
    }

    /// The whole of an owner's bytes.
    pub fn whole(owner: WeightOwner) -> WeightBytes {
        let range = 0..(*owner).as_ref().len();
        WeightBytes { owner, range }
    }

    /// A part of these bytes; `None` when it does not lie inside.
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
    /// The bytes; aligned to the element size of plain types.
    pub bytes: WeightBytes,
}

impl WeightData {
    /// Some of the rows; `None` when they do not lie inside, or the bytes are not the rows.
    pub fn rows(&self, rows: Range<usize>) -> Option<WeightData> {
        let row = self.dtype.row_bytes(self.cols)?;
        let range = rows.start.checked_mul(row)?..rows.end.checked_mul(row)?;
        let inside = rows.start <= rows.end && rows.end <= self.rows;
        let bytes = self.bytes.slice(range).filter(|_| inside)?;
        Some(WeightData { rows: rows.len(), bytes, ..self.clone() })
    }
}

/// A device's packed form of a weight.
#[derive(Clone, Debug)]
pub struct Packed {
    /// The packed bytes, 64-byte aligned.
    pub bytes: WeightBytes,
}

/// A device's layout of a weight: panels of rows, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackLayout<'a> {
    /// Name. Packed forms are kept on disk by it, so it changes whenever the bytes' meaning does.
    pub name: &'a str,
    /// Weight rows of a panel; the last panel may have fewer.
    pub rows: usize,
    /// Bytes of a panel.
    pub panel: usize,
}

impl PackLayout<'_> {
    /// Bytes of a packed weight of `rows` rows; `None` when they overflow.
    pub fn bytes(&self, rows: usize) -> Option<usize> {
        rows.div_ceil(self.rows.max(1)).checked_mul(self.panel)
    }

    /// The bytes of some rows within a packed weight that has them, when the first of them begins
    /// a panel. The last panel may then go on with rows behind them.
    pub fn slice(&self, rows: &Range<usize>) -> Option<Range<usize>> {
        let each = self.rows.max(1);
        let begins = rows.start <= rows.end && rows.start.is_multiple_of(each);
        let start = (rows.start / each).checked_mul(self.panel).filter(|_| begins)?;
        Some(start..rows.end.div_ceil(each).checked_mul(self.panel)?)
    }
}

/// Packs some of a weight's rows, from the first row of a panel on, into the zeroed bytes of their
/// panels. Called from several threads at once, so that a weight is never there twice.
pub type PackFn<'a> = &'a (dyn Fn(&WeightData, &mut [u8]) -> Result<(), DeviceError> + Sync);

/// Where devices get weights when they load them.
pub trait WeightSource: Sync {
    /// The weight as stored.
    ///
    /// # Errors
    /// [`DeviceError::Weight`] naming the tensor.
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError>;

    /// The weight in a device's layout, made once by `pack` and shared by all that ask for the
    /// same layout.
    ///
    /// # Errors
    /// [`DeviceError::Weight`] naming the tensor, or what `pack` reports.
    fn packed(
        &self,
        name: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError>;

    /// Some rows of a weight in a device's layout. Rows that begin a panel are a view of the
    /// packed form of the whole weight, which is made once; others are packed by themselves.
    ///
    /// # Errors
    /// As [`WeightSource::packed`], or when the weight does not have the rows.
    fn packed_rows(
        &self,
        name: &str,
        rows: Range<usize>,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError> {
        let wrong = |why: String| DeviceError::Weight { name: name.into(), why };
        let outside = || wrong(format!("does not have rows {} to {}", rows.start, rows.end));
        if let Some(range) = layout.slice(&rows) {
            let whole = self.packed(name, layout, pack)?;
            let bytes = whole.bytes.slice(range).ok_or_else(outside)?;
            return Ok(Packed { bytes });
        }
        let data = self.weight(name)?.rows(rows.clone()).ok_or_else(outside)?;
        let len = layout.bytes(rows.len()).ok_or_else(outside)?;
        let mut bytes = ZeroedBytes::new(len).map_err(|e| wrong(e.to_string()))?;
        pack(&data, &mut bytes)?;
        Ok(Packed { bytes: WeightBytes::whole(Arc::new(bytes)) })
    }
}
