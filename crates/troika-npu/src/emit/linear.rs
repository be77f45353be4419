//! Products, and those of floats and of halves as ONNX has them.

use troika_graph::{ActivationFormat, DType, ExpertGroup, HeadLinear, WeightRef};

use super::int4::{int4_rows, nibbles};
use super::verb::{Product, Result, Verb};
use super::{Emitter, GraphWriter};
use crate::onnx::{Attribute, ElementType, OnnxModel};
use crate::rewrites::Rewrite;

/// What some compilers want numbers of columns to be multiples of.
const MULTIPLE: usize = 16;

/// A weight `[n, k]` with the bias.
struct Matrix {
    n: usize,
    k: usize,
    values: Vec<f32>,
    bias: Option<Vec<f32>>,
    /// Whether it is multiplied as halves.
    halves: bool,
}

impl<W: GraphWriter> Emitter<'_, W> {
    /// `x * weight^T + bias` in a format, perhaps with rows in groups: `[groups, rows, columns]`.
    pub(super) fn projection(
        &mut self,
        x: &str,
        weight: WeightRef,
        bias: Option<WeightRef>,
        activations: ActivationFormat,
    ) -> Result<String> {
        let of = |x| Product { x, weight, bias, activations };
        let Some(rows) = self.group else { return W::product(self, of(x)) };
        let (n, k) = (self.graph.weight(weight).rows as i64, self.graph.weight(weight).cols as i64);
        let x = self.viewed(x, &[-1, rows as i64, k]);
        let y = W::product(self, of(&x))?;
        Ok(self.viewed(&y, &[-1, n]))
    }

    /// Each expert on its rows.
    pub(super) fn expert_group(&mut self, x: &str, group: &ExpertGroup) -> Result<String> {
        let (e, all) = (&group.experts, self.rows);
        let mut parts = Vec::with_capacity(e.gate.len());
        for i in 0..e.gate.len() {
            let rows = self.slice_rows(x, i * group.capacity, (i + 1) * group.capacity);
            self.rows = group.capacity;
            let bias = |list: &[WeightRef]| list.get(i).copied();
            let gate = self.projection(&rows, e.gate[i], bias(&e.gate_bias), e.activations)?;
            let up = self.projection(&rows, e.up[i], bias(&e.up_bias), e.activations)?;
            let hidden = self.gate(&gate, &up, e.act);
            let down = bias(&e.down_bias);
            parts.push(self.projection(&hidden, e.down[i], down, e.activations)?);
            self.rows = all;
        }
        Ok(self.concat_along(&parts, 0))
    }

    pub(super) fn head_linear(
        &mut self,
        x: &str,
        cols: usize,
        heads: &HeadLinear,
    ) -> Result<String> {
        let each = cols / heads.weights.len().max(1);
        let mut parts = Vec::new();
        for (i, weight) in heads.weights.iter().enumerate() {
            let head = self.slice(x, i * each, (i + 1) * each, 1);
            parts.push(self.projection(&head, *weight, None, ActivationFormat::F32)?);
        }
        Ok(self.concat(&parts))
    }

    /// `x * weight^T + bias` of a weight that rewrites take as a whole.
    pub(crate) fn whole_product(&mut self, of: Product<'_>) -> Result<String> {
        let halves = of.activations == ActivationFormat::F16;
        let matrix = self.matrix_of(of.weight, of.bias, halves)?;
        Ok(self.whole(of.x, &matrix))
    }

    fn matrix_of(
        &self,
        weight: WeightRef,
        bias: Option<WeightRef>,
        halves: bool,
    ) -> Result<Matrix> {
        let (values, decl) = (self.read(weight)?, self.graph.weight(weight));
        let bias = bias.map(|b| self.read(b)).transpose()?;
        Ok(Matrix { n: decl.rows, k: decl.cols, values, bias, halves })
    }

    /// Whether rewrites take a weight's floats as a whole.
    pub(crate) fn takes_whole(&self) -> bool {
        self.options.rewrites.has(Rewrite::MultiplesOf16) || self.convolves()
    }

    /// A product with a matrix as a whole, perhaps padded.
    fn whole(&mut self, x: &str, matrix: &Matrix) -> String {
        let (n, k) = (matrix.n, matrix.k);
        if !self.options.rewrites.has(Rewrite::MultiplesOf16) {
            return self.product(x, matrix);
        }
        let wide = matrix.padded();
        let x = match wide.k - k {
            0 => x.to_string(),
            more => {
                let zeros = self.model.floats(&[self.rows, more], &vec![0.0; self.rows * more]);
                self.concat(&[x, &zeros])
            }
        };
        let y = self.product(&x, &wide);
        if wide.n == n { y } else { self.slice(&y, 0, n, 1) }
    }

    fn product(&mut self, x: &str, m: &Matrix) -> String {
        let x = self.narrowed(x, m.halves);
        let y = if self.convolves() {
            self.convolution(&x, m)
        } else {
            let weight = self.model.typed(m.halves, &[m.n, m.k], &m.values);
            let bias = m.bias.as_ref().map(|b| self.model.typed(m.halves, &[m.n], b));
            self.gemm(&x, &weight, bias.as_deref())
        };
        self.widened(y, m.halves)
    }

    /// Floats as what a product takes.
    fn narrowed(&mut self, x: &str, halves: bool) -> String {
        if halves { self.one(Verb::Cast(DType::F16), x) } else { x.to_string() }
    }

    /// A product's result as floats.
    fn widened(&mut self, y: String, halves: bool) -> String {
        if halves { self.one(Verb::Cast(DType::F32), &y) } else { y }
    }

    /// `x * weight^T + bias`; with operands exchanged `(weight * x^T)^T + bias`.
    fn gemm(&mut self, x: &str, weight: &str, bias: Option<&str>) -> String {
        let y = if self.exchanged {
            let x = self.turned(x);
            let y = self.two(Verb::MatMul, weight, &x);
            self.turned(&y)
        } else if self.group.is_some() {
            let weight = self.turned(weight);
            self.two(Verb::MatMul, x, &weight)
        } else {
            let inputs: Vec<&str> = [x, weight].into_iter().chain(bias).collect();
            return self.model.verb(Verb::Linear, &inputs);
        };
        bias.map_or(y.clone(), |b| self.two(Verb::Add, &y, b))
    }

    pub(super) fn turned(&mut self, x: &str) -> String {
        self.transposed(x, &[1, 0])
    }

    /// Whether a product of floats is a convolution: it has no other form.
    fn convolves(&self) -> bool {
        let formed = self.exchanged || self.group.is_some();
        self.options.rewrites.has(Rewrite::LinearAsConv) && !formed
    }

    /// The same as a convolution of one by one: rows are the places of an image, columns its
    /// channels.
    fn convolution(&mut self, x: &str, m: &Matrix) -> String {
        let x = self.turned(x);
        let x = self.reshape(&x, &[1, m.k, 1, self.rows]);
        let weight = self.model.typed(m.halves, &[m.n, m.k, 1, 1], &m.values);
        let bias = m.bias.as_ref().map(|b| self.model.typed(m.halves, &[m.n], b));
        let inputs: Vec<&str> = [&*x, &weight].into_iter().chain(bias.as_deref()).collect();
        let y = self.model.verb(Verb::Convolution, &inputs);
        let y = self.reshape(&y, &[m.n, self.rows]);
        self.turned(&y)
    }
}

impl Emitter<'_, OnnxModel> {
    /// `x * weight^T + bias` in a format.
    pub(super) fn product_in(&mut self, of: Product<'_>) -> Result<String> {
        let Product { x, weight, bias, activations } = of;
        if let Some(format) = activations.converted_numbers() {
            return self.quantized(x, weight, bias, format);
        }
        if activations == ActivationFormat::F16Int4 {
            return self.int4_product(x, weight, bias);
        }
        if self.takes_whole() {
            return self.whole_product(of);
        }
        self.matrix_product(x, weight, bias, activations == ActivationFormat::F16)
    }

    /// A product of halves with a weight of numbers of 4 bits, one scale for each row.
    fn int4_product(
        &mut self,
        x: &str,
        weight: WeightRef,
        bias: Option<WeightRef>,
    ) -> Result<String> {
        let mut matrix = self.matrix_of(weight, bias, true)?;
        let (n, k) = (matrix.n, matrix.k);
        let (numbers, scales) = int4_rows(&std::mem::take(&mut matrix.values), k);
        // OpenVINO misreads numbers of odd rows, takes the scales of a single row for a weight, and
        // weights of numbers as second operands only.
        let fits = n > 1 && k.is_multiple_of(2) && !self.exchanged;
        if self.takes_whole() || !fits || !self.options.provider.keeps_blocks() {
            let rows = numbers.chunks_exact(k.max(1)).zip(&scales);
            let values = rows.flat_map(|(row, s)| row.iter().map(move |n| f32::from(*n) * s));
            matrix.values = values.collect();
            return Ok(self.whole(x, &matrix));
        }
        let numbers = self.model.constant(ElementType::I4, &[n, k], nibbles(&numbers));
        let scales = self.model.typed(true, &[n], &scales);
        let axis = [Attribute::Int("axis", 0)];
        let weight = self.model.node("DequantizeLinear", &[&numbers, &scales], &axis);
        let bias = matrix.bias.map(|b| self.model.typed(true, &[n], &b));
        let x = self.narrowed(x, true);
        let y = self.gemm(&x, &weight, bias.as_deref());
        Ok(self.widened(y, true))
    }

    /// `x * weight^T + bias` as it is, the rows of a large weight in parts.
    pub(super) fn matrix_product(
        &mut self,
        x: &str,
        weight: WeightRef,
        bias: Option<WeightRef>,
        halves: bool,
    ) -> Result<String> {
        let x = self.narrowed(x, halves);
        let bias = bias.map(|b| self.read(b)).transpose()?;
        let mut parts = Vec::new();
        for (rows, weight) in self.matrices(weight, halves)? {
            let bias = bias.as_ref().map(|b| &b[rows.clone()]);
            let bias = bias.map(|b| self.model.typed(halves, &[rows.len()], b));
            parts.push(self.gemm(&x, &weight, bias.as_deref()));
        }
        let y = match &parts[..] {
            [y] => y.clone(),
            _ => self.concat(&parts),
        };
        Ok(self.widened(y, halves))
    }

    /// `x * weight` of a weight `[k, n]`; with operands exchanged `(weight * x^T)^T` of one `[n, k]`.
    pub(super) fn multiply(&mut self, x: &str, weight: &str) -> String {
        if self.exchanged { self.gemm(x, weight, None) } else { self.two(Verb::MatMul, x, weight) }
    }
}

impl Matrix {
    /// With zeros behind, so that both numbers are multiples of 16.
    fn padded(&self) -> Matrix {
        let [n, k] = [self.n, self.k].map(|n| n.next_multiple_of(MULTIPLE));
        let mut values = vec![0.0; n * k];
        for (to, from) in values.chunks_exact_mut(k).zip(self.values.chunks_exact(self.k)) {
            to[..self.k].copy_from_slice(from);
        }
        let bias = self.bias.clone().map(|mut bias| {
            bias.resize(n, 0.0);
            bias
        });
        Matrix { n, k, values, bias, halves: self.halves }
    }
}
