//! Products of whole numbers, as pairs of QuantizeLinear and DequantizeLinear around MatMul that
//! compilers turn into integer code.

use troika_device::calibrated;
use troika_graph::{
    ActivationFormat, CalibrationTensor, DType, InputRange, IntFormat, Rounding, ScaleGranularity,
    ScaleOrigin, WeightRef,
};

use super::int4::{has_int4_blocks, pack_blocks};
use super::verb::{Result, Verb};
use super::{Emitter, GraphWriter};
use crate::onnx::{Attribute, ElementType, OnnxModel};
use crate::provider::Provider;

/// Inputs above it are multiplied as floats where each row has a scale (LLM.int8(), section 3.2).
const ROW_OUTLIER: f32 = 6.0;
/// The largest number of a weight.
const WEIGHT_MOST: f32 = 127.0;

impl Emitter<'_, OnnxModel> {
    /// A product in a format for which weights are converted: 4-bit weights with a scale for each
    /// block stay so with 16-bit inputs, all others get 8 bits and a scale for each row.
    pub fn quantized(
        &mut self,
        x: &str,
        weight: WeightRef,
        bias: Option<WeightRef>,
        format: IntFormat,
    ) -> Result<String> {
        let y = match (format.scales, format.granularity) {
            (ScaleOrigin::Dynamic, _) => self.by_rows(x, weight, format)?,
            (_, ScaleGranularity::Columns(n)) => self.by_columns(x, weight, format, n)?,
            _ => self.calibrated(x, weight, format)?,
        };
        let bias = bias.map(|b| self.vector(b, 0.0)).transpose()?;
        Ok(bias.map_or(y.clone(), |b| self.two(Verb::Add, &y, &b)))
    }

    /// One scale for all inputs.
    fn calibrated(&mut self, x: &str, weight: WeightRef, format: IntFormat) -> Result<String> {
        let decl = self.graph.weight(weight).clone();
        let read = |tensor, n| calibrated(self.weights, &decl.name, (tensor, n));
        let InputRange { factors, limit, .. } = InputRange::of(format.scales, decl.cols, read)?;
        let mut x = x.to_string();
        if !factors.is_empty() {
            let inverse: Vec<f32> = factors.iter().map(|f| 1.0 / f).collect();
            let inverse = self.model.floats(&[1, decl.cols], &inverse);
            x = self.two(Verb::Mul, &x, &inverse);
        }
        let x = self.rounded(&x, format, limit);
        let w = if format.bits == 16 && factors.is_empty() && has_int4_blocks(decl.dtype) {
            let w = self.int4(weight)?;
            if self.exchanged { self.turned(&w) } else { w }
        } else {
            let mut values = self.read(weight)?;
            for row in values.chunks_exact_mut(decl.cols) {
                row.iter_mut().zip(&factors).for_each(|(v, f)| *v *= f);
            }
            self.int8(&values, decl.cols)
        };
        let y = self.multiply(&x, &w);
        if self.options.provider != Provider::Qnn {
            return Ok(y);
        }
        // This compiler places no product whose result is not rounded.
        let most = calibrated(self.weights, &decl.name, (CalibrationTensor::OutputMax, 1))?;
        Ok(self.rounded(&y, format, largest(most.iter().copied())))
    }

    /// Rounds to whole numbers with one scale, and back.
    fn rounded(&mut self, x: &str, format: IntFormat, limit: f32) -> String {
        let limit = if limit > 0.0 { limit } else { 1.0 };
        let step = Rounding::of(ActivationFormat::Int(format), limit).map_or(1.0, |r| r.step);
        let (element, zero) = match format.bits {
            0..=8 => (ElementType::U8, vec![1 << 7]),
            _ => (ElementType::U16, (1_u16 << 15).to_le_bytes().to_vec()),
        };
        let mut x = x.to_string();
        if format.bits > 8 && self.options.provider == Provider::OpenVino {
            // Where its CPU has VNNI, it leaves out a rounding to 16 bits, and with it the limit.
            let most = f32::from(i16::MAX) * step;
            x = self.clamp(&x, -most - step, most);
        }
        let scale = self.model.floats(&[], &[step]);
        let zero = self.model.constant(element, &[], zero);
        let q = self.model.node("QuantizeLinear", &[&x, &scale, &zero], &[]);
        self.model.node("DequantizeLinear", &[&q, &scale, &zero], &[])
    }

    /// A product for each few columns, with a scale for them; floats add the products up (the way by
    /// groups of llm.npu, figure 3).
    fn by_columns(
        &mut self,
        x: &str,
        weight: WeightRef,
        format: IntFormat,
        columns: usize,
    ) -> Result<String> {
        let decl = self.graph.weight(weight).clone();
        let values = self.read(weight)?;
        let most = calibrated(self.weights, &decl.name, (CalibrationTensor::InputMax, decl.cols))?;
        let mut sum: Option<String> = None;
        for (i, most) in most.chunks(columns).enumerate() {
            let at = i * columns..i * columns + most.len();
            let part = self.slice(x, at.start, at.end, 1);
            let part = self.rounded(&part, format, largest(most.iter().copied()));
            let rows = values.chunks_exact(decl.cols);
            let w: Vec<f32> = rows.flat_map(|row| &row[at.clone()]).copied().collect();
            let w = self.int8(&w, at.len());
            let y = self.multiply(&part, &w);
            sum = Some(sum.map_or(y.clone(), |sum| self.two(Verb::Add, &sum, &y)));
        }
        Ok(sum.unwrap_or_default())
    }

    /// A weight `[k, n]` of 8-bit numbers with a scale for each of the `n`, from rows of `k`; `[n, k]`
    /// with operands exchanged.
    fn int8(&mut self, values: &[f32], k: usize) -> String {
        let n = values.len() / k;
        let (mut numbers, mut scales) = (vec![0_u8; n * k], Vec::with_capacity(n));
        for (i, row) in values.chunks_exact(k).enumerate() {
            let most = largest(row.iter().map(|v| v.abs()));
            let scale = if most > 0.0 { most / WEIGHT_MOST } else { 1.0 };
            scales.push(scale);
            for (j, v) in row.iter().enumerate() {
                let at = if self.exchanged { i * k + j } else { j * n + i };
                numbers[at] = (v / scale).round_ties_even() as i8 as u8;
            }
        }
        let dims = if self.exchanged { [n, k] } else { [k, n] };
        let numbers = self.model.constant(ElementType::I8, &dims, numbers);
        if self.exchanged && self.options.provider == Provider::Reference {
            // Its fused product takes one zero point for a left operand, where the rows have one each.
            let numbers = self.one(Verb::Cast(DType::F32), &numbers);
            let scales = self.model.floats(&[n, 1], &scales);
            return self.two(Verb::Mul, &numbers, &scales);
        }
        let scales = self.model.floats(&[n], &scales);
        let zeros = self.model.constant(ElementType::I8, &[n], vec![0; n]);
        let axis = [Attribute::Int("axis", i64::from(!self.exchanged))];
        self.model.node("DequantizeLinear", &[&numbers, &scales, &zeros], &axis)
    }

    /// A weight `[k, n]` of 4-bit numbers with scales for blocks of columns.
    fn int4(&mut self, weight: WeightRef) -> Result<String> {
        let decl = self.graph.weight(weight);
        let (n, k, len) = (decl.rows, decl.cols, decl.dtype.block_len());
        let packed = pack_blocks(decl.dtype, &self.stored(weight)?.bytes, n, k);
        let count = k / len;
        let numbers = self.model.constant(ElementType::I4, &[k, n], packed.numbers);
        let scales = self.model.floats(&[count, n], &packed.scales);
        let attributes = [Attribute::Int("axis", 0), Attribute::Int("block_size", len as i64)];
        let zeros = packed.zeros.map(|z| self.model.constant(ElementType::I4, &[count, n], z));
        let inputs: Vec<&str> = [&*numbers, &scales].into_iter().chain(zeros.as_deref()).collect();
        Ok(self.model.node("DequantizeLinear", &inputs, &attributes))
    }

    /// A scale for each row of inputs, with large inputs apart, as floats.
    fn by_rows(&mut self, x: &str, weight: WeightRef, format: IntFormat) -> Result<String> {
        let w = self.int8(&self.read(weight)?, self.graph.weight(weight).cols);
        let usual = self.clamp(x, -ROW_OUTLIER, ROW_OUTLIER);
        let same = self.model.node("Equal", &[x, &usual], &[]);
        let zero = self.model.floats(&[], &[0.0]);
        let usual = self.model.node("Where", &[&same, x, &zero], &[]);
        let large = self.two(Verb::Sub, x, &usual);
        let magnitude = self.one(Verb::Abs, &usual);
        let most = self.one(Verb::ReduceMax, &magnitude);
        let number = ((1_u32 << (format.bits - 1)) - 1) as f32;
        let scale = self.times(&most, 1.0 / number);
        let scale = self.plus(&scale, f32::MIN_POSITIVE);
        let numbers = self.two(Verb::Div, &usual, &scale);
        let numbers = self.model.node("Round", &[&numbers], &[]);
        let sums = self.multiply(&numbers, &w);
        let sums = self.two(Verb::Mul, &sums, &scale);
        let large = self.matrix_product(&large, weight, None, false)?;
        Ok(self.two(Verb::Add, &sums, &large))
    }
}

fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(0.0, f32::max)
}
