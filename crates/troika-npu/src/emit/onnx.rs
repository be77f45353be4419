//! Verbs as ONNX's operators.

use troika_graph::{DType, WeightRef};

use super::verb::{Product, Result, Verb};
use super::{Emitter, GraphWriter, element, half_bytes};
use crate::onnx::{Attribute, ElementType, OnnxModel};

impl OnnxModel {
    /// A node with integers as its second operand.
    fn node_by(&mut self, operator: &str, x: &str, how: &[i64]) -> String {
        let how = self.integers(how);
        self.node(operator, &[x, &how], &[])
    }
}

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
        let (operator, attribute) = match verb {
            Verb::Clamp { low, high } => {
                let [low, high] = [low, high].map(|limit| self.floats(&[], &[limit]));
                return self.node("Clip", &[x, &low, &high], &[]);
            }
            Verb::Rsqrt(epsilon) => {
                let epsilon = self.floats(&[1], &[epsilon]);
                let above = self.node("Add", &[x, &epsilon], &[]);
                let root = self.node("Sqrt", &[&above], &[]);
                return self.node("Reciprocal", &[&root], &[]);
            }
            Verb::ReduceMax => return self.node_by("ReduceMax", x, &[-1]),
            Verb::ReduceMean => return self.node_by("ReduceMean", x, &[-1]),
            Verb::Reshape(dims) => return self.node_by("Reshape", x, dims),
            Verb::Slice { axis, from, to, step } => {
                let [axis, from, to, step] = [axis, from as i64, to as i64, step as i64]
                    .map(|number| self.integers(&[number]));
                return self.node("Slice", &[x, &from, &to, &axis, &step], &[]);
            }
            Verb::Cast(to) => {
                let to = element(to).unwrap_or(ElementType::F32) as i64;
                ("Cast", Some(Attribute::Int("to", to)))
            }
            Verb::Softmax => ("Softmax", Some(Attribute::Int("axis", -1))),
            Verb::Concat(axis) => ("Concat", Some(Attribute::Int("axis", axis))),
            Verb::Transpose(perm) => ("Transpose", Some(Attribute::Ints("perm", perm))),
            Verb::GeluTanh => ("Gelu", Some(Attribute::Text("approximate", "tanh"))),
            Verb::Linear => ("Gemm", Some(Attribute::Int("transB", 1))),
            Verb::Add => ("Add", None),
            Verb::Sub => ("Sub", None),
            Verb::Mul => ("Mul", None),
            Verb::Div => ("Div", None),
            Verb::Pow => ("Pow", None),
            Verb::Maximum => ("Max", None),
            Verb::MatMul => ("MatMul", None),
            Verb::Abs => ("Abs", None),
            Verb::Exp => ("Exp", None),
            Verb::Gelu => ("Gelu", None),
            Verb::Relu => ("Relu", None),
            Verb::Sigmoid => ("Sigmoid", None),
            Verb::Softplus => ("Softplus", None),
            Verb::Sqrt => ("Sqrt", None),
            Verb::Tanh => ("Tanh", None),
            Verb::Gather => ("Gather", None),
            Verb::Convolution => ("Conv", None),
        };
        self.node(operator, inputs, attribute.as_slice())
    }

    fn scope(&mut self, op: &str, about: &str) {
        self.scoped(op, about);
    }

    fn whole_norm(&mut self, x: &str, eps: f32, weight: &str) -> Option<String> {
        let attributes = [Attribute::Int("axis", -1), Attribute::Float("epsilon", eps)];
        Some(self.node("SimplifiedLayerNormalization", &[x, weight], &attributes))
    }

    fn product(e: &mut Emitter<'_, Self>, of: Product<'_>) -> Result<String> {
        e.product_in(of)
    }

    fn rows_of_table(e: &mut Emitter<'_, Self>, table: WeightRef, ids: &str) -> Result<String> {
        e.table_rows(table, ids)
    }
}
