//! How devices get at weights. The store that implements this lives in `troika-model`.

use std::ops::Range;
use std::sync::Arc;

use troika_graph::DType;

use crate::error::DeviceError;

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
}

/// Packs some of a weight's rows, from the first row of a panel on, into the zeroed bytes of their
/// panels. Called from several threads at once, so that a weight is never there twice.
pub type PackFn<'a> = &'a (dyn Fn(&WeightData, &mut [u8]) -> Result<(), DeviceError> + Sync);

/// Where devices get weights when they compile.
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
}
