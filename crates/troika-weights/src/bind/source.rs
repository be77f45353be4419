//! The source of a weight's values, and making some of its rows.

use std::ops::Range;

use troika_device::{WeightBytes, WeightData};
use troika_graph::{DType, blocks};
use troika_model::lower::WeightShape;
use troika_model::spec::{Recipe, StoredTensor, WeightRequirement};

use crate::bind::cut::{aligned_with, cut, quantize_row};
use crate::bind::packed::PackedWeight;
use crate::bind::synthetic;

/// The source of a weight's values.
pub(crate) enum ValueSource {
    /// The values themselves, in the weight's type.
    Ready {
        bytes: WeightBytes,
        /// Whether they are on the heap and not in the file.
        owned: bool,
    },
    /// A part of a tensor, quantized on demand.
    Cut { tensor: StoredTensor, recipe: Recipe },
    /// Rows of NVFP4, and a number that they are multiplied with.
    Scaled(ScaledNvfp4),
    /// Random numbers, generated and quantized on demand.
    Random { need: WeightRequirement, dtype: DType, seed: u64 },
    /// Codes in a checkpoint's own layout.
    Packed(Box<PackedWeight>),
}

/// Rows of NVFP4, and the number that they are multiplied with on demand.
pub(crate) struct ScaledNvfp4 {
    pub blocks: WeightBytes,
    pub factor: f32,
}

/// A source prepared for making rows.
pub(crate) enum Opened<'a> {
    /// Rows in the weight's type.
    Same(WeightData),
    Float(WeightData),
    /// Rows that are multiplied with a number.
    Scaled(&'a ScaledNvfp4),
    /// Rows assembled from a checkpoint's tensors.
    Packed(&'a PackedWeight),
}

impl ValueSource {
    /// Prepares making rows of the shape. The error is the reason why the file does not fit.
    pub fn open(&self, shape: WeightShape) -> Result<Opened<'_>, String> {
        let WeightShape { rows, cols, dtype } = shape;
        match self {
            ValueSource::Ready { bytes, .. } => {
                Ok(Opened::Same(WeightData { dtype, rows, cols, bytes: bytes.clone() }))
            }
            ValueSource::Cut { tensor, recipe } => {
                let piece = cut(tensor, recipe).map_err(|e| e.to_string())?;
                let (bytes, from) = (piece.bytes, piece.dtype);
                Ok(Opened::Float(WeightData { dtype: from, rows, cols, bytes }))
            }
            ValueSource::Random { need, dtype, seed } => {
                let data = synthetic::weight(*need, *dtype, *seed);
                Ok(if data.dtype == shape.dtype { Opened::Same(data) } else { Opened::Float(data) })
            }
            ValueSource::Scaled(weight) => Ok(Opened::Scaled(weight)),
            ValueSource::Packed(weight) => Ok(Opened::Packed(weight)),
        }
    }

    /// Tensors that hold a part of every row.
    pub fn packed_tensors(&self) -> Vec<&WeightBytes> {
        match self {
            ValueSource::Packed(weight) => weight.tensors(),
            ValueSource::Cut { tensor, recipe } if recipe.transpose || recipe.cols.is_some() => {
                vec![&tensor.bytes]
            }
            _ => Vec::new(),
        }
    }

    /// Whether the weight's bytes are made on demand.
    pub fn is_made(&self) -> bool {
        !matches!(self, ValueSource::Ready { .. })
    }
}

pub(crate) struct WeightRows {
    pub data: WeightData,
    /// The source bytes, if they are contiguous.
    pub read: Option<WeightBytes>,
    /// Whether no NaN or infinity was seen.
    pub finite: bool,
}

impl Opened<'_> {
    /// The bytes that rows are taken from, if they are contiguous.
    pub fn read(&self) -> Option<&WeightBytes> {
        match self {
            Opened::Same(data) | Opened::Float(data) => Some(&data.bytes),
            Opened::Scaled(weight) => Some(&weight.blocks),
            Opened::Packed(_) => None,
        }
    }

    /// Some rows in the weight's type. `None` if the bytes do not match the shape, or there is no
    /// memory for a copy.
    pub fn rows(&self, shape: WeightShape, rows: Range<usize>) -> Option<WeightRows> {
        let part = |data: &WeightData| Some(data.rows(rows.clone())?.bytes);
        let all = WeightShape { rows: rows.len(), ..shape };
        match self {
            Opened::Same(data) => {
                let bytes = part(data)?;
                let read = Some(bytes.clone());
                Some(WeightRows { data: with(all, bytes), read, finite: true })
            }
            Opened::Float(data) => {
                let from = part(data)?;
                let (bytes, finite) = quantized(&from, data, all)?;
                Some(WeightRows { data: with(all, bytes), read: Some(from), finite })
            }
            Opened::Scaled(weight) => {
                let from = DType::NVFP4.row_bytes(shape.cols)?;
                let range = rows.start.checked_mul(from)?..rows.end.checked_mul(from)?;
                let read = weight.blocks.slice(range)?;
                let len = shape.dtype.row_bytes(shape.cols)?.checked_mul(rows.len())?;
                let mut finite = true;
                let made = aligned_with(len, |out| {
                    finite = blocks::scaled_nvfp4(&read, weight.factor, out);
                });
                Some(WeightRows { data: with(all, made.ok()?), read: Some(read), finite })
            }
            Opened::Packed(weight) => {
                let (bytes, finite) = weight.rows(shape, rows)?;
                Some(WeightRows { data: with(all, bytes), read: None, finite })
            }
        }
    }
}

fn with(shape: WeightShape, bytes: WeightBytes) -> WeightData {
    WeightData { dtype: shape.dtype, rows: shape.rows, cols: shape.cols, bytes }
}

/// Converts rows of floats to another type.
fn quantized(from: &[u8], data: &WeightData, shape: WeightShape) -> Option<(WeightBytes, bool)> {
    let (from_row, to_row) = (data.dtype.row_bytes(data.cols)?, shape.dtype.row_bytes(shape.cols)?);
    let mut finite = true;
    let mut row = vec![0.0f32; shape.cols];
    let made = aligned_with(to_row.checked_mul(shape.rows)?, |out| {
        let rows = from.chunks_exact(from_row.max(1)).zip(out.chunks_exact_mut(to_row.max(1)));
        for (from, to) in rows {
            blocks::dequantize(data.dtype, from, &mut row);
            finite &= quantize_row(shape.dtype, &row, to);
        }
    });
    made.ok().map(|bytes| (bytes, finite))
}
