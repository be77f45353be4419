//! How devices read weights. `WeightStore` in `troika-weights` implements the trait.

use std::ops::Range;
use std::sync::Arc;

use troika_graph::{CalibrationTensor, DType};

use crate::error::DeviceError;
use crate::experts::ExpertSource;
use crate::memory::ZeroedBytes;
use crate::weight_bytes::{PackFn, PackLayout, Packed, WeightBytes, WeightData};

/// Where devices get the weights that they load.
pub trait WeightSource: Sync {
    /// The weight as stored.
    ///
    /// # Errors
    /// [`DeviceError::Weight`] naming the tensor.
    fn weight(&self, name: &str) -> Result<WeightData, DeviceError>;

    /// A hash of the weight's content, for what is kept beyond this process; `None` if the source
    /// cannot tell. It may read the whole weight.
    fn digest(&self, name: &str) -> Option<[u8; 32]> {
        let _ = name;
        None
    }

    /// Experts that are read when rows have chosen them; `None`: they are loaded as other weights.
    fn experts(&self) -> Option<&dyn ExpertSource> {
        None
    }

    /// The weight in a device's layout, packed once and shared by all that request the same layout
    /// while it is kept ([`PackLayout::keep`]).
    ///
    /// # Errors
    /// [`DeviceError::Weight`] naming the tensor, or the error of `pack`.
    fn packed(
        &self,
        name: &str,
        layout: PackLayout<'_>,
        pack: PackFn<'_>,
    ) -> Result<Packed, DeviceError>;

    /// Some rows of a weight in a device's layout: a view of the whole packed weight if the first
    /// row begins a panel, else packed separately.
    ///
    /// # Errors
    /// Those of [`WeightSource::packed`], or the weight does not have these rows.
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
            return Ok(Packed { bytes, stored: false });
        }
        let data = self.weight(name)?.rows(rows.clone()).ok_or_else(outside)?;
        let len = layout.bytes(rows.len()).ok_or_else(outside)?;
        let mut bytes = ZeroedBytes::new(len).map_err(|e| wrong(e.to_string()))?;
        pack(&data, &mut bytes)?;
        Ok(Packed { bytes: WeightBytes::whole(Arc::new(bytes)), stored: false })
    }
}

/// A tensor of a calibration, which must have `count` floats.
///
/// # Errors
/// There is no calibration, it lacks the weight, or it has other tensors.
pub fn calibrated(
    source: &dyn WeightSource,
    weight: &str,
    (tensor, count): (CalibrationTensor, usize),
) -> Result<Vec<f32>, DeviceError> {
    let name = tensor.of(weight);
    let wrong = |why: String| DeviceError::Weight { name: weight.into(), why };
    let missing =
        |_| wrong(format!("its format needs a calibration that has {name} (troika calibrate)"));
    let data = source.weight(&name).map_err(missing)?;
    let is = (data.dtype, data.rows, data.cols, data.bytes.len());
    if is != (DType::F32, 1, count, 4 * count) {
        return Err(wrong(format!("{name} of its calibration is not {count} floats")));
    }
    let floats = data.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    Ok(floats.collect())
}
