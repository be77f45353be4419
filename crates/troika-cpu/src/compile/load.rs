//! Loads the weights of a graph.

use std::sync::Arc;

use troika_device::{DeviceError, DeviceId, WeightSource};
use troika_graph::{Subgraph, verify};

use super::on_disk::OnDisk;
use super::weights::{Loaded, Loader};
use crate::compile::Executable;
use crate::machine::Isa;

/// Loads the weights of a graph for code of its shape.
pub(crate) fn load(
    device: DeviceId,
    isa: Isa,
    code: &Arc<Executable>,
    graph: &Subgraph,
    source: &dyn WeightSource,
) -> Result<Loaded, DeviceError> {
    verify(graph)?;
    if !graph.same_code(&code.graph) {
        let compiled = &code.graph.name;
        let why = format!("its weights are not of the shape of {compiled}, which was compiled");
        return Err(DeviceError::Submission { task: graph.name.clone(), why });
    }
    let mut loaded = Loaded::new(device, code, graph);
    let disk = OnDisk::new(code, graph, source);
    loaded.on_disk = disk.load(isa)?;
    for (weight, form) in code.weights.all() {
        let decl = graph.weight(weight);
        if disk.has(weight) {
            loaded.add_absent(decl, form);
        } else {
            loaded.add(&Loader { isa, source, decl }, form)?;
        }
    }
    Ok(loaded)
}
