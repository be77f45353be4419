//! The memory bound to a submission: checks sizes, locates values, claims bytes.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use troika_device::{
    Access, AccessError, Bindings, Claim, DeviceError, ForwardBatch, PagesView, Rect, Run, SpaceId,
    View,
};
use troika_graph::Dim;

use crate::compile::{Loaded, ValueMemory, ValueSlot};
use crate::runtime::LINE;

/// The bytes of a value during a run.
#[derive(Clone, Copy)]
pub(crate) struct Mem {
    pub ptr: *mut u8,
    /// From the first byte to the last, including gaps between rows.
    pub bytes: usize,
    /// Bytes from one row to the next.
    pub stride: usize,
}

// SAFETY: pointers are set at the start of a run and used within it, by one queue.
unsafe impl Send for Mem {}

/// Number of bindings of a submission before their lists move to the heap.
const INLINE: usize = 12;
/// The claims of a run.
pub(crate) type Claims<'a> = SmallVec<[Claim<'a>; INLINE]>;

/// A value and its name.
type Named<'a> = (&'a ValueSlot, &'a str);

/// The error for a submission that does not fit.
pub(crate) fn misfit(exe: &Loaded, why: String) -> DeviceError {
    DeviceError::Submission { task: exe.name.clone(), why }
}

/// Checks that there are as many bindings as inputs, states and outputs.
pub(crate) fn check_counts(exe: &Loaded, b: &Bindings) -> Result<(), DeviceError> {
    let need = (exe.code.inputs.len(), exe.code.states.len(), exe.code.outputs.len());
    let got = (b.inputs.len(), b.states.len(), b.outputs.len());
    if need != got {
        let why = format!("binds {got:?} inputs, states and outputs; needs {need:?}");
        return Err(misfit(exe, why));
    }
    Ok(())
}

/// Checks that the rows fit every value.
pub(crate) fn check_rows(exe: &Loaded, task: &Run) -> Result<(), DeviceError> {
    let slots = exe.code.slots.iter().enumerate();
    for (slot, s) in slots.filter(|(_, s)| !matches!(s.place, ValueMemory::State(_))) {
        let fits = match s.rows {
            Dim::Rows(most) => task.rows <= most,
            Dim::Fixed(n) | Dim::KvLen(n) => task.rows == n,
        };
        if !fits {
            let name = exe.value_name(slot);
            return Err(misfit(exe, format!("{} rows do not fit value {name}", task.rows)));
        }
    }
    Ok(())
}

/// Checks that the forward batch has as many rows, if ops use it.
pub(crate) fn check_forward(exe: &Loaded, task: &Run) -> Result<(), DeviceError> {
    if !exe.code.uses_forward_batch {
        return Ok(());
    }
    let tables = task.forward.seqs.iter().all(|s| {
        exe.code.page_groups.iter().all(|g| s.tables.get(*g).is_some_and(|t| t.page_len > 0))
    });
    if !task.forward.is_whole() || !tables {
        return Err(misfit(exe, "sequences have gaps, or lack page tables".into()));
    }
    let rows = task.forward.rows();
    if rows != task.rows {
        return Err(misfit(exe, format!("{} rows, but sequences have {rows}", task.rows)));
    }
    Ok(())
}

/// The bytes of all bound values, in the order of [`views`].
pub(crate) fn locate(
    exe: &Loaded,
    task: &Run,
    spaces: &[SpaceId],
) -> Result<Vec<Rect>, DeviceError> {
    let mut bound = Vec::new();
    let first_output = exe.code.inputs.len() + exe.code.states.len();
    for (i, (slot, view)) in exe.code.bound().zip(views(&task.bindings)).enumerate() {
        let (slot, name) = (&exe.code.slots[*slot], exe.value_name(*slot));
        let space = view.buffer().space();
        let reached = space == SpaceId::HOST || spaces.contains(&space);
        if !reached || !view.buffer().is_addressable() {
            let why = format!("value {name} is bound to memory that is not the host's");
            return Err(misfit(exe, why));
        }
        let rect = if (exe.code.inputs.len()..first_output).contains(&i) {
            state(exe, (slot, name), view)?
        } else {
            rows(exe, (slot, name), view, task.rows)?
        };
        bound.push(rect);
    }
    check_overlap(exe, &task.bindings, &bound)?;
    Ok(bound)
}

/// Inputs, states and outputs, in this order.
fn views(b: &Bindings) -> impl Iterator<Item = &View> {
    b.inputs.iter().chain(&b.states).chain(&b.outputs)
}

/// The bytes of a state: all of the view, in whole rows.
fn state(exe: &Loaded, (slot, name): Named<'_>, view: &View) -> Result<Rect, DeviceError> {
    let row = slot.row_bytes().max(1);
    if !view.rect().is_dense() {
        let why = format!("the rows of cache {name} lie apart in its view");
        return Err(misfit(exe, why));
    }
    let all = view.rect().span();
    let end = all.start + all.len() / row * row;
    aligned(exe, (slot, name), Rect::bytes(all.start..end))
}

/// The first rows of a view, with the value's width.
fn rows(
    exe: &Loaded,
    (slot, name): Named<'_>,
    view: &View,
    rows: usize,
) -> Result<Rect, DeviceError> {
    let r = view.rect();
    let row = slot.dtype.row_bytes(slot.cols);
    match row.and_then(|row| r.first_rows(rows, row)) {
        Some(rect) => aligned(exe, (slot, name), rect),
        None => {
            let (row, has, each) = (row.unwrap_or(usize::MAX), r.rows(), r.row_bytes());
            let why =
                format!("value {name} has {rows} rows of {row} bytes, its view {has} of {each}");
            Err(misfit(exe, why))
        }
    }
}

/// Checks alignment to whole elements.
fn aligned(exe: &Loaded, (slot, name): Named<'_>, rect: Rect) -> Result<Rect, DeviceError> {
    let size = slot.dtype.block_bytes();
    if rect.offset().is_multiple_of(size) && rect.stride().is_multiple_of(size) {
        return Ok(rect);
    }
    let (at, stride) = (rect.offset(), rect.stride());
    let why = format!(
        "value {name} has elements of {size} bytes; its view starts at byte {at}, its rows lie \
         {stride} bytes apart"
    );
    Err(misfit(exe, why))
}

/// Checks that written bindings share no bytes with others; they may share a buffer.
fn check_overlap(exe: &Loaded, b: &Bindings, bound: &[Rect]) -> Result<(), DeviceError> {
    let written = |i: usize| match i.checked_sub(exe.code.inputs.len()) {
        None => false,
        Some(i) => exe.code.state_written.get(i).is_none_or(|w| *w),
    };
    // Compares buffers first, since every submission is checked here.
    let buffers: SmallVec<[usize; INLINE]> = views(b).map(|v| v.buffer().id()).collect();
    for (j, &buffer) in buffers.iter().enumerate() {
        for i in 0..j {
            let clash =
                buffers[i] == buffer && (written(i) || written(j)) && bound[i].overlaps(&bound[j]);
            if clash {
                let name = |i| exe.code.bound().nth(i).map_or("", |slot| exe.value_name(*slot));
                let (a, b) = (name(i), name(j));
                return Err(misfit(exe, format!("values {a} and {b} overlap in memory")));
            }
        }
    }
    Ok(())
}

/// The memory of a binding, by index over inputs, states and outputs.
pub(crate) fn memory(b: &Bindings, bound: &[Rect], at: usize) -> Mem {
    let Some((view, rect)) = views(b).nth(at).zip(bound.get(at)) else {
        return Mem { ptr: std::ptr::dangling_mut::<u64>().cast(), bytes: 0, stride: 0 };
    };
    let ptr = view.buffer().as_ptr().wrapping_add(rect.offset());
    Mem { ptr, bytes: rect.span().len(), stride: rect.stride() }
}

/// Claims the memory of a run; of states only the rows in its sequences' pages.
pub(crate) fn claim<'a>(
    exe: &Loaded,
    task: &'a Run,
    bound: &[Rect],
    pages: &mut Pages,
) -> Result<Claims<'a>, AccessError> {
    let b = &*task.bindings;
    let mut claims = Claims::new();
    let (inputs, states) = (exe.code.inputs.len(), exe.code.states.len());
    for (view, rect) in b.inputs.iter().zip(bound) {
        claims.push(view.buffer().claim(&[(*rect, Access::Read)])?);
    }
    for (i, (view, rect)) in b.states.iter().zip(&bound[inputs..]).enumerate() {
        let slot = &exe.code.slots[exe.code.states[i]];
        let row = slot.row_bytes();
        pages.wanted.clear();
        for group in exe.code.state_groups.iter().filter(|g| g.0 == i).map(|g| g.1) {
            pages.want(&task.forward, group, rect, row, exe.code.state_written[i]);
        }
        if !pages.wanted.is_empty() {
            claims.push(view.buffer().claim(&pages.wanted)?);
        }
    }
    for (view, rect) in b.outputs.iter().zip(&bound[inputs + states..]) {
        claims.push(view.buffer().claim(&[(*rect, Access::Write)])?);
    }
    Ok(claims)
}

/// The cache rows that a forward batch uses, computed once for all layers of a group.
#[derive(Default)]
pub(crate) struct Pages {
    step: Option<Arc<ForwardBatch>>,
    groups: Vec<Group>,
    wanted: Vec<(Rect, Access)>,
}

#[derive(Default)]
struct Group {
    group: usize,
    /// Whether `runs` belongs to the current forward batch.
    known: bool,
    runs: Vec<(Range<usize>, bool)>,
}

impl Pages {
    /// Adds the rows of a state that a forward batch uses; `row` is its bytes per row.
    fn want(
        &mut self,
        step: &Arc<ForwardBatch>,
        group: usize,
        state: &Rect,
        row: usize,
        written: bool,
    ) {
        if !self.step.as_ref().is_some_and(|s| Arc::ptr_eq(s, step)) {
            self.groups.iter_mut().for_each(|g| g.known = false);
            self.step = Some(step.clone());
        }
        let at = self.groups.iter().position(|g| g.group == group).unwrap_or_else(|| {
            self.groups.push(Group { group, ..Group::default() });
            self.groups.len() - 1
        });
        let g = &mut self.groups[at];
        if !g.known {
            g.runs.clear();
            g.known = true;
            for pages in step.seqs.iter().filter_map(|s| PagesView::new(s, group)) {
                pages.runs(|rows, written| g.runs.push((rows, written)));
            }
        }
        let all = state.span();
        // Kernels refuse positions past the end.
        let byte = |r: usize| r.saturating_mul(row).saturating_add(all.start).min(all.end);
        self.wanted.extend(g.runs.iter().map(|(rows, appended)| {
            let access = if *appended && written { Access::Write } else { Access::Read };
            (Rect::bytes(byte(rows.start)..byte(rows.end)), access)
        }));
    }
}

/// A value with gaps between rows in its binding, while ops need dense rows.
#[derive(Clone, Copy)]
pub(crate) struct Staged {
    pub slot: usize,
    /// Index of the binding over inputs, states and outputs.
    pub binding: usize,
    /// Its place in the staging memory, in floats.
    pub at: usize,
}

/// Finds the values to stage, and the floats that they need together. Not staged: results of
/// products and element-wise ops that nothing else reads, copies, and operands of element-wise ops,
/// since all of these may have gaps between rows.
pub(crate) fn staged(exe: &Loaded, rows: usize, bound: &[Rect]) -> (Vec<Staged>, usize) {
    let inputs = exe.code.inputs.len();
    let first_output = inputs + exe.code.states.len();
    let (mut out, mut floats) = (Vec::new(), 0);
    for (binding, rect) in bound.iter().enumerate() {
        if rect.is_dense() || (inputs..first_output).contains(&binding) {
            continue;
        }
        let slot = match binding.checked_sub(first_output) {
            None if exe.code.slots[exe.code.inputs[binding]].strided => continue,
            None => exe.code.inputs[binding],
            Some(output) => {
                let slot = exe.code.outputs[output];
                let wants = !exe.code.slots[slot].strided
                    && exe.code.slots[slot].place == ValueMemory::Output(output);
                if !wants {
                    continue;
                }
                slot
            }
        };
        out.push(Staged { slot, binding, at: floats });
        floats += (rows * exe.code.slots[slot].row_bytes()).div_ceil(4).next_multiple_of(LINE);
    }
    (out, floats)
}

/// Copies a value to a second place row by row.
///
/// # Safety
/// Both places are memory of `rows` rows of the value's width, claimed for it, and share none.
pub(crate) unsafe fn copy(slot: &ValueSlot, rows: usize, from: Mem, to: Mem) {
    if slot.place == ValueMemory::Nowhere {
        return;
    }
    let row = slot.row_bytes();
    for i in 0..rows {
        // SAFETY: by the caller.
        unsafe {
            let (from, to) = (from.ptr.add(i * from.stride), to.ptr.add(i * to.stride));
            std::ptr::copy_nonoverlapping(from, to, row);
        }
    }
}
