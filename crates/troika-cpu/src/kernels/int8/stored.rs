//! Products with weights that lie as they are stored: their panels are packed when they are met, a
//! few at a time. Results have the same bits, since the same kernels multiply the same panels.

use std::cell::RefCell;
use std::ops::Range;

use super::{Int8Part, Product, ROWS, run_part};
use crate::Isa;
use crate::kernels::linear::OutView;
use crate::kernels::quantized::{Layout, PackedView};

/// Panels that are packed at a time: few enough that the nearer caches have them still when they are
/// multiplied.
const PANELS: usize = 4;

thread_local! {
    /// The panels of a thread.
    static ROOM: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Computes the rows `n` of a product's weight with the activation rows `m`.
///
/// # Safety
/// As for [`Int8Part::new`].
///
/// # Panics
/// If something does not fit.
pub(super) unsafe fn run(
    isa: Isa,
    product: Product<'_>,
    n: Range<usize>,
    m: Range<usize>,
    scratch: &mut [f32],
) {
    let PackedView { layout, bytes } = product.weight;
    assert_eq!(bytes.len(), layout.bytes(), "bytes of a stored weight");
    assert!(product.bias.is_none_or(|b| b.len() == layout.rows), "length of a bias");
    let row = bytes.len() / layout.rows.max(1);
    ROOM.with_borrow_mut(|room| {
        for start in n.clone().step_by(PANELS * ROWS) {
            let rows = start..(start + PANELS * ROWS).min(n.end);
            let packed = Layout { rows: rows.len(), stored: false, ..layout };
            room.clear();
            room.resize(packed.bytes().div_ceil(size_of::<u64>()), 0);
            let panels = &mut bytemuck::cast_slice_mut(room)[..packed.bytes()];
            packed.pack_panels(&bytes[rows.start * row..rows.end * row], panels);
            let product = Product {
                weight: PackedView { layout: packed, bytes: panels },
                bias: product.bias.map(|bias| &bias[rows.clone()]),
                y: OutView { offset: product.y.offset + rows.start, ..product.y },
                ..product
            };
            // SAFETY: by the caller: these are results of the rows `n`.
            let part = unsafe { Int8Part::new(product, 0..rows.len(), m.clone(), 0, scratch) };
            run_part(isa, part);
        }
    });
}
