//! ONNX models as bytes.

mod graph;
mod proto;

pub(crate) use graph::{Attribute, ElementType, OnnxFiles, OnnxModel};
#[cfg(test)]
pub(crate) use proto::ModelProto;
