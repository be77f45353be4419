//! Weights packed for the integer kernels, by way of the store.

use troika_device::{DeviceError, PackLayout, WeightBytes, WeightData};
use troika_graph::{WeightDecl, WeightRef};

use crate::compile::{Code, Compiler, ExpertWeights};
use crate::kernels::int8::{Layout, PackedView, ROWS};

/// A packed weight, kept alive by the executable.
#[derive(Clone, Debug)]
pub(crate) struct PackedMatrix {
    layout: Layout,
    bytes: WeightBytes,
}

impl PackedMatrix {
    pub fn view(&self) -> PackedView<'_> {
        PackedView { layout: self.layout, bytes: &self.bytes }
    }
}

impl Compiler<'_> {
    /// A weight packed once for all that use it; its raw bytes are not kept.
    pub fn packed(&self, w: WeightRef) -> Result<PackedMatrix, DeviceError> {
        let Some(decl) = self.graph.weights.get(w.0 as usize) else {
            return self.refuse("graph", "a weight is not among its weights");
        };
        let wrong = |why: String| DeviceError::Weight { name: decl.name.to_string(), why };
        let Some(layout) = Layout::new(decl.dtype, decl.rows, decl.cols) else {
            let (rows, cols, dtype) = (decl.rows, decl.cols, decl.dtype);
            return Err(wrong(format!("{rows}x{cols} {dtype} has no integer path")));
        };
        let name = layout.name();
        let form = PackLayout { name: &name, rows: ROWS, panel: layout.panel_bytes() };
        let bytes = self.pack(decl, form, &|raw, out| layout.pack_panels(raw, out))?;
        Ok(PackedMatrix { layout, bytes })
    }

    /// A form of a weight, made by `pack` of the bytes of some rows.
    pub fn pack(
        &self,
        decl: &WeightDecl,
        form: PackLayout<'_>,
        pack: &(dyn Fn(&[u8], &mut [u8]) + Sync),
    ) -> Result<WeightBytes, DeviceError> {
        let wrong = |why: String| DeviceError::Weight { name: decl.name.to_string(), why };
        let packed = self.weights.packed(&decl.name, form, &|data: &WeightData, out| {
            let need = decl.dtype.row_bytes(decl.cols).and_then(|r| r.checked_mul(data.rows));
            let is = (data.cols, data.dtype, Some(data.bytes.len()), form.bytes(data.rows));
            if is != (decl.cols, decl.dtype, need, Some(out.len())) {
                let len = data.bytes.len();
                let why = format!("is {}x{} {} of {len} bytes", data.rows, data.cols, data.dtype);
                return Err(wrong(why));
            }
            pack(&data.bytes, out);
            Ok(())
        })?;
        if Some(packed.bytes.len()) != form.bytes(decl.rows) {
            return Err(wrong(format!("{} packed bytes do not hold it", packed.bytes.len())));
        }
        Ok(packed.bytes)
    }

    /// Experts with activations in eight bits.
    pub fn packed_experts(&self, e: &troika_graph::Experts) -> Result<Code, DeviceError> {
        let experts = self.expert_weights(e, |w| self.packed(w))?;
        let dtype = |m: &PackedMatrix| m.layout.dtype;
        let one = |x: &ExpertWeights<PackedMatrix>| {
            let inner = dtype(&experts[0].gate);
            dtype(&x.gate) == inner
                && dtype(&x.up) == inner
                && dtype(&x.down) == dtype(&experts[0].down)
        };
        if !experts.iter().all(one) {
            return self.refuse("experts", "they have several weight types");
        }
        Ok(Code::PackedExperts { experts, act: e.act })
    }
}
