//! Verbs as ONNX's operators.

use troika_device::DeviceError;
use troika_graph::{DType, WeightRef};

use super::verb::{Product, Verb};
use super::{Emitter, GraphWriter, element, half_bytes};
use crate::onnx::{Attribute, ElementType, OnnxModel};

impl GraphWriter for OnnxModel {
    fn input(&mut self, name: &str, dtype: DType, dims: &[usize]) {
        self.declare(name, element(dtype).unwrap_or(ElementType::F32), dims);
    }

    fn typed(&mut self, halves: bool, dims: &[usize], values: &[f32]) -> String {
        let (element, bytes) = match halves {
            true => (ElementType::F16, half_bytes(values)),
            false => (ElementType::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        };
        self.constant(element, dims, bytes)
    }

    fn output(&mut self, name: &str, tensor: &str, dtype: DType, dims: &[usize]) {
        self.declare_output(name, tensor, element(dtype).unwrap_or(ElementType::F32), dims);
    }

    fn verb(&mut self, verb: Verb<'_>, inputs: &[&str]) -> String {
        let x = inputs[0];
        match verb {
            Verb::Clamp { low, high } => {
                let [low, high] = [low, high].map(|limit| self.floats(&[], &[limit]));
                self.node("Clip", &[x, &low, &high], &[])
            }
            Verb::Rsqrt(epsilon) => {
                let epsilon = self.floats(&[1], &[epsilon]);
                let above = self.node("Add", &[x, &epsilon], &[]);
                let root = self.node("Sqrt", &[&above], &[]);
                self.node("Reciprocal", &[&root], &[])
            }
            Verb::ReduceMax | Verb::ReduceMean | Verb::Reshape(_) => {
                let how = self.integers(if let Verb::Reshape(dims) = verb { dims } else { &[-1] });
                self.node(operator(verb), &[x, &how], &[])
            }
            Verb::Slice { axis, from, to, step } => {
                let [axis, from, to, step] = [axis, from as i64, to as i64, step as i64]
                    .map(|number| self.integers(&[number]));
                self.node("Slice", &[x, &from, &to, &axis, &step], &[])
            }
            Verb::Softmax => self.node("Softmax", &[x], &[Attribute::Int("axis", -1)]),
            Verb::Concat(axis) => self.node("Concat", inputs, &[Attribute::Int("axis", axis)]),
            Verb::Transpose(perm) => self.node("Transpose", &[x], &[Attribute::Ints("perm", perm)]),
            Verb::GeluTanh => self.node("Gelu", &[x], &[Attribute::Text("approximate", "tanh")]),
            Verb::Linear => self.node("Gemm", inputs, &[Attribute::Int("transB", 1)]),
            Verb::Cast(to) => {
                let to = element(to).unwrap_or(ElementType::F32) as i64;
                self.node("Cast", &[x], &[Attribute::Int("to", to)])
            }
            _ => self.node(operator(verb), inputs, &[]),
        }
    }

    fn scope(&mut self, op: &str, about: &str) {
        self.scoped(op, about);
    }

    fn whole_norm(&mut self, x: &str, eps: f32, weight: &str) -> Option<String> {
        let attributes = [Attribute::Int("axis", -1), Attribute::Float("epsilon", eps)];
        Some(self.node("SimplifiedLayerNormalization", &[x, weight], &attributes))
    }

    fn product(e: &mut Emitter<'_, Self>, of: Product<'_>) -> Result<String, DeviceError> {
        e.product_in(of)
    }

    fn rows_of_table(
        e: &mut Emitter<'_, Self>,
        table: WeightRef,
        ids: &str,
    ) -> Result<String, DeviceError> {
        e.table_rows(table, ids)
    }
}

/// The operator that a verb is, where it has the same operands.
fn operator(verb: Verb<'_>) -> &'static str {
    match verb {
        Verb::Add => "Add",
        Verb::Sub => "Sub",
        Verb::Mul => "Mul",
        Verb::Div => "Div",
        Verb::Pow => "Pow",
        Verb::Maximum => "Max",
        Verb::MatMul => "MatMul",
        Verb::Abs => "Abs",
        Verb::Exp => "Exp",
        Verb::Gelu | Verb::GeluTanh => "Gelu",
        Verb::Relu => "Relu",
        Verb::Sigmoid => "Sigmoid",
        Verb::Softplus => "Softplus",
        Verb::Sqrt | Verb::Rsqrt(_) => "Sqrt",
        Verb::Tanh => "Tanh",
        Verb::Clamp { .. } => "Clip",
        Verb::ReduceMax => "ReduceMax",
        Verb::ReduceMean => "ReduceMean",
        Verb::Softmax => "Softmax",
        Verb::Gather => "Gather",
        Verb::Reshape(_) => "Reshape",
        Verb::Transpose(_) => "Transpose",
        Verb::Concat(_) => "Concat",
        Verb::Slice { .. } => "Slice",
        Verb::Cast(_) => "Cast",
        Verb::Linear => "Gemm",
        Verb::Convolution => "Conv",
    }
}
