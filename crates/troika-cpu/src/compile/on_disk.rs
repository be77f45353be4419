//! Experts that are read from disk when rows choose them.

use std::sync::Arc;

use troika_device::{
    DeviceError, EXPERT_PARTS, ExpertPart, ExpertSource, ExpertsOnDisk, PackLayout, WeightData,
    WeightSource,
};
use troika_graph::{Experts, Node, Op, Subgraph, WeightDecl, WeightRef};

use super::weights::{Form, Loaded, Loader, MatrixAt, PackedAt, mismatch};
use crate::compile::Executable;
use crate::kernels::int8::{PackedView, ROWS};
use crate::kernels::linear::WeightView;
use crate::kernels::moe;
use crate::machine::Isa;

/// Where code finds a weight of an expert, which may be read from disk.
pub(crate) trait ExpertView: Copy + Sync {
    /// In the kernel's form.
    type View<'b>: moe::Weight;

    /// The weight, with these bytes if it was read from disk.
    fn view<'b>(self, of: &'b Loaded, bytes: Option<&'b [u8]>) -> Self::View<'b>;
}

impl ExpertView for MatrixAt {
    type View<'b> = WeightView<'b>;

    fn view<'b>(self, of: &'b Loaded, bytes: Option<&'b [u8]>) -> WeightView<'b> {
        let view = of.matrix(self).view();
        WeightView { bytes: bytes.unwrap_or(view.bytes), ..view }
    }
}

impl ExpertView for PackedAt {
    type View<'b> = PackedView<'b>;

    fn view<'b>(self, of: &'b Loaded, bytes: Option<&'b [u8]>) -> PackedView<'b> {
        let view = of.packed(self);
        PackedView { bytes: bytes.unwrap_or(view.bytes), ..view }
    }
}

/// The ops of experts whose weights are read from disk when rows choose them.
pub(super) struct OnDisk<'a> {
    code: &'a Executable,
    graph: &'a Subgraph,
    source: &'a dyn WeightSource,
    /// All ops of experts; `None` where all are in memory.
    ops: Vec<Option<&'a Experts>>,
}

impl<'a> OnDisk<'a> {
    pub fn new(
        code: &'a Executable,
        graph: &'a Subgraph,
        source: &'a dyn WeightSource,
    ) -> OnDisk<'a> {
        let whole = |weight: &WeightRef| {
            let decl = graph.weight(*weight);
            decl.stored() == (decl.rows, decl.cols)
        };
        let on_disk = |e: &&Experts| source.experts().is_some() && matrices(e).flatten().all(whole);
        let op = |node: &'a Node| match &node.op {
            Op::Experts(e) => Some(Some(e).filter(on_disk)),
            // Experts of a group are computed together, and so they are in memory.
            Op::ExpertGroup(_) => Some(None),
            _ => None,
        };
        let ops = graph.nodes.iter().filter_map(op).collect();
        OnDisk { code, graph, source, ops }
    }

    /// Whether it is the weight of an expert on disk.
    pub fn has(&self, weight: WeightRef) -> bool {
        let mut all = self.ops.iter().flatten().flat_map(|e| matrices(e).flatten());
        all.any(|w| *w == weight)
    }

    /// Sees to it that the experts are on disk.
    pub fn load(&self, isa: Isa) -> Result<Vec<Option<Arc<dyn ExpertsOnDisk>>>, DeviceError> {
        let Some(source) = self.source.experts() else { return Ok(vec![None; self.ops.len()]) };
        let part = |weight: &WeightRef| {
            let form = self.code.weights.form(*weight).unwrap_or(Form::Stored);
            let loader = Loader { isa, source: self.source, decl: self.graph.weight(*weight) };
            keep(&loader, source, form)
        };
        let layer = |e: &&Experts| {
            let experts =
                matrices(e).map(|[gate, up, down]| Ok([part(gate)?, part(up)?, part(down)?]));
            source.layer(experts.collect::<Result<_, DeviceError>>()?)
        };
        self.ops.iter().map(|op| op.as_ref().map(layer).transpose()).collect()
    }
}

/// Gate, up and down of each expert.
fn matrices(e: &Experts) -> impl Iterator<Item = [&WeightRef; EXPERT_PARTS]> {
    e.gate.iter().zip(&e.up).zip(&e.down).map(|((gate, up), down)| [gate, up, down])
}

/// Sees to it that the weight of an expert is on disk.
fn keep(
    loader: &Loader<'_>,
    source: &dyn ExpertSource,
    form: Form,
) -> Result<ExpertPart, DeviceError> {
    let WeightDecl { rows, cols, dtype, .. } = *loader.decl;
    let row = dtype.row_bytes(cols).unwrap_or(0);
    let (name, panel_rows, panel, packed) = match form {
        Form::Packed(layout) => (layout.name(), ROWS, layout.panel, Some(layout)),
        _ => ("rows".to_string(), 1, row, None),
    };
    let layout = PackLayout { name: &name, rows: panel_rows, panel, keep: false };
    let pack = |data: &WeightData, out: &mut [u8]| {
        let is = (data.cols, data.dtype, Some(out.len()));
        if is != (cols, dtype, layout.bytes(data.rows)) || data.rows > rows {
            return loader.wrong(mismatch(data, loader.decl));
        }
        match packed {
            Some(layout) => layout.pack_panels(&data.bytes, out),
            None => out.copy_from_slice(&data.bytes),
        }
        Ok(())
    };
    source.keep(&loader.decl.name, layout, &pack)?;
    let Some(bytes) = layout.bytes(rows) else { return loader.wrong("is too large") };
    Ok(ExpertPart { weight: loader.decl.name.clone(), layout: name, bytes })
}
