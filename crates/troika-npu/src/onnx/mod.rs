//! ONNX models as bytes.

mod graph;
mod proto;

use prost::Message;

pub(crate) use graph::{Attribute, ElementType, OnnxFiles, OnnxModel};
pub(crate) use proto::ModelProto;

/// What a vendor's compiler made, in a model that holds it.
pub(crate) fn compiled_context(model: &[u8]) -> Option<Vec<u8>> {
    let nodes = ModelProto::decode(model).ok()?.graph?.node.into_iter();
    nodes.flat_map(|node| node.attribute).find(|a| a.name == "ep_cache_context").map(|a| a.s)
}
