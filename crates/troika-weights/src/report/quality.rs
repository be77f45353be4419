//! Measures how far quantized weights are from the file's.

use std::collections::BTreeMap;

use troika_device::{DeviceError, WeightData};
use troika_graph::{DType, blocks};

use crate::bind::bound::Bound;
use crate::bind::source::Opened;
use crate::parallel;
use crate::report::account::class_of;
use crate::store::WeightStore;

/// Rows compared at once.
const ROWS: usize = 256;

/// The error of a class of quantized weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassError {
    /// As in [`crate::ClassBytes`].
    pub class: &'static str,
    /// The quantized type.
    pub dtype: DType,
    /// Number of weights compared.
    pub parameters: u64,
    /// Root mean square error, relative to the root mean square of the weights.
    pub relative_rms: f64,
    /// The largest value among tensors, and its tensor's name.
    pub worst: (f64, String),
}

/// Sums of squares of the errors and of the weights.
#[derive(Clone, Copy, Default)]
struct Squares {
    error: f64,
    weight: f64,
}

impl Squares {
    fn add(&mut self, other: Squares) {
        self.error += other.error;
        self.weight += other.weight;
    }

    fn relative(self) -> f64 {
        if self.error == 0.0 { 0.0 } else { (self.error / self.weight).sqrt() }
    }
}

impl WeightStore {
    /// Quantizes all weights that would be quantized, and compares them with the file's, by class.
    /// Results are not kept.
    ///
    /// # Errors
    /// A weight that does not fit its tensor.
    pub fn quantization_error(&self) -> Result<Vec<ClassError>, DeviceError> {
        let mut classes: BTreeMap<(&str, &str), (ClassError, Squares)> = BTreeMap::new();
        for b in self.bound.iter().filter(|b| b.source.is_made()) {
            let wrong = |why| DeviceError::Weight { name: b.key.to_string(), why };
            // A checkpoint that is itself quantized has no original to compare with.
            let Opened::Float(floats) = b.source.open(b.shape).map_err(wrong)? else { continue };
            let squares = compare(b, &floats);
            let squares = squares.ok_or_else(|| wrong("is shorter than its shape".into()))?;
            let (class, dtype) = (class_of(b.key.role, b.shape.rows), b.shape.dtype);
            let (entry, sum) = classes.entry((class, dtype.name())).or_insert_with(|| {
                let worst = (0.0, b.tensor.clone());
                let none = ClassError { class, dtype, parameters: 0, relative_rms: 0.0, worst };
                (none, Squares::default())
            });
            sum.add(squares);
            entry.parameters += b.values();
            entry.relative_rms = sum.relative();
            if squares.relative() > entry.worst.0 {
                entry.worst = (squares.relative(), b.tensor.clone());
            }
        }
        Ok(classes.into_values().map(|(class, _)| class).collect())
    }
}

fn compare(b: &Bound, from: &WeightData) -> Option<Squares> {
    let opened = Opened::Float(from.clone());
    let pieces = b.shape.rows.div_ceil(ROWS);
    let squares = parallel::map(pieces, |i| {
        let rows = i * ROWS..((i + 1) * ROWS).min(b.shape.rows);
        let values = rows.len() * b.shape.cols;
        let (mut got, mut want) = (vec![0.0f32; values], vec![0.0f32; values]);
        let made = opened.rows(b.shape, rows.clone())?.data;
        blocks::dequantize(made.dtype, &made.bytes, &mut got);
        let row = from.dtype.row_bytes(from.cols)?;
        let bytes = from.bytes.get(rows.start * row..rows.end * row)?;
        blocks::dequantize(from.dtype, bytes, &mut want);
        let mut sum = Squares::default();
        for (got, want) in got.iter().zip(&want) {
            let (error, weight) = (f64::from(got - want), f64::from(*want));
            sum.add(Squares { error: error * error, weight: weight * weight });
        }
        Some(sum)
    });
    squares.into_iter().try_fold(Squares::default(), |mut all, piece| {
        all.add(piece?);
        Some(all)
    })
}
