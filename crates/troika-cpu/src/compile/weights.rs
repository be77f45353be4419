//! Weights packed for the integer kernels, by way of the store.

use std::sync::atomic::{AtomicUsize, Ordering};

use troika_device::{DeviceError, PackLayout, WeightBytes, WeightData};
use troika_graph::{WeightDecl, WeightRef};

use crate::compile::{Code, Compiler};
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

/// What a weight is, besides what the graph says.
pub(crate) fn mismatch(data: &WeightData, decl: &WeightDecl) -> String {
    let (rows, cols) = decl.stored();
    format!(
        "is {}x{} {} of {} bytes, the graph says {}x{} {}",
        data.rows,
        data.cols,
        data.dtype,
        data.bytes.len(),
        rows,
        cols,
        decl.dtype
    )
}

impl Compiler<'_> {
    /// A weight packed once for all that use it; its raw bytes are not kept.
    pub fn packed(&self, w: WeightRef) -> Result<PackedMatrix, DeviceError> {
        let decl = self.graph.weight(w);
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

    /// A form of a weight, made by `pack` of the bytes of some rows. Of a weight of which the
    /// graph reads some rows, these, as a part of the whole weight's form where panels allow it.
    pub fn pack(
        &self,
        decl: &WeightDecl,
        form: PackLayout<'_>,
        pack: &(dyn Fn(&[u8], &mut [u8]) + Sync),
    ) -> Result<WeightBytes, DeviceError> {
        let wrong = |why: String| DeviceError::Weight { name: decl.name.to_string(), why };
        let rows = AtomicUsize::new(0);
        let (all_rows, cols) = decl.stored();
        let pack_rows = |data: &WeightData, out: &mut [u8]| {
            let need = decl.dtype.row_bytes(cols).and_then(|r| r.checked_mul(data.rows));
            let is = (data.cols, data.dtype, Some(data.bytes.len()), form.bytes(data.rows));
            if is != (cols, decl.dtype, need, Some(out.len())) || data.rows > all_rows {
                return Err(wrong(mismatch(data, decl)));
            }
            if !(out.as_ptr() as usize).is_multiple_of(align_of::<f32>()) {
                return Err(wrong("is to be packed into memory that is not aligned".into()));
            }
            rows.fetch_add(data.rows, Ordering::Relaxed);
            pack(&data.bytes, out);
            Ok(())
        };
        let packed = if all_rows == decl.rows {
            self.weights.packed(&decl.name, form, &pack_rows)
        } else {
            self.weights.packed_rows(&decl.name, decl.stored_rows(), form, &pack_rows)
        }?;
        // Of a form that was there already, no rows were packed.
        let rows = rows.into_inner();
        if rows != 0 && rows != decl.rows && rows != all_rows {
            return Err(wrong(format!("has {rows} rows, the graph says {all_rows}")));
        }
        if Some(packed.bytes.len()) != form.bytes(decl.rows) {
            return Err(wrong(format!("{} packed bytes do not hold it", packed.bytes.len())));
        }
        Ok(packed.bytes)
    }

    /// Experts with activations in eight bits.
    pub fn packed_experts(&self, e: &troika_graph::Experts) -> Result<Code, DeviceError> {
        let experts = self.expert_weights(e, |w| self.packed(w))?;
        Ok(Code::PackedExperts { experts, act: e.act })
    }
}
