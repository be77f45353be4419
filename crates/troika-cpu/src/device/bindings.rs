//! The memory a submission binds: sizes checked, buffers opened, values located.

use smallvec::SmallVec;
use troika_device::{Binding, Bindings, Buffer, DeviceError, ReadGuard, Submission, WriteGuard};
use troika_graph::{DType, Dim};

use crate::compile::{Executable, Place, Slot};

/// Where a value's bytes are during a run.
#[derive(Clone, Copy)]
pub(crate) struct Mem {
    pub ptr: *mut u8,
    pub bytes: usize,
}

// SAFETY: pointers are set at the start of a run and used within it, by one queue.
unsafe impl Send for Mem {}

/// An opened buffer.
pub(crate) struct Open<'a> {
    id: usize,
    ptr: *mut u8,
    len: usize,
    _guard: Guard<'a>,
}

#[allow(dead_code)]
enum Guard<'a> {
    Read(ReadGuard<'a>),
    Write(WriteGuard<'a>),
}

/// Most buffers of a submission before its list goes to the heap.
const INLINE: usize = 12;
/// The buffers of a submission.
pub(crate) type Opened<'a> = SmallVec<[Open<'a>; INLINE]>;

/// A submission that does not fit.
pub(crate) fn misfit(exe: &Executable, why: String) -> DeviceError {
    DeviceError::Submission { task: exe.name.clone(), why }
}

fn element_bytes(dtype: DType) -> usize {
    dtype.block_bytes()
}

/// As many bindings as the subgraph has inputs, states and outputs.
pub(crate) fn check_counts(exe: &Executable, b: &Bindings) -> Result<(), DeviceError> {
    let need = (exe.inputs.len(), exe.states.len(), exe.outputs.len());
    let got = (b.inputs.len(), b.states.len(), b.outputs.len());
    if need != got {
        let why = format!("binds {got:?} inputs, states and outputs; needs {need:?}");
        return Err(misfit(exe, why));
    }
    Ok(())
}

/// Rows that fit every value, and a step that has as many.
pub(crate) fn check_rows(exe: &Executable, task: &Submission) -> Result<(), DeviceError> {
    for s in exe.slots.iter().filter(|s| !matches!(s.place, Place::State(_))) {
        let fits = match s.rows {
            Dim::Rows(most) => task.rows <= most,
            Dim::Fixed(n) | Dim::KvLen(n) => task.rows == n,
        };
        if !fits {
            return Err(misfit(exe, format!("{} rows do not fit value {}", task.rows, s.name)));
        }
    }
    if !exe.uses_step {
        return Ok(());
    }
    let tables = task
        .step
        .seqs
        .iter()
        .all(|s| exe.groups.iter().all(|g| s.tables.get(*g).is_some_and(|t| t.page_len > 0)));
    if !task.step.is_whole() || !tables {
        return Err(misfit(exe, "sequences have gaps, or lack page tables".into()));
    }
    let rows = task.step.rows();
    if rows != task.rows {
        return Err(misfit(exe, format!("{} rows, but sequences have {rows}", task.rows)));
    }
    Ok(())
}

/// Opens every buffer once: for writing if any of its bindings is written.
pub(crate) fn open<'a>(exe: &Executable, b: &'a Bindings) -> Result<Opened<'a>, DeviceError> {
    let mut want: SmallVec<[(&'a Buffer, bool); INLINE]> = SmallVec::new();
    let states = b.states.iter().zip(&exe.state_written).map(|(s, w)| (s, *w));
    let all = b.inputs.iter().map(|i| (i, false)).chain(states);
    for (binding, write) in all.chain(b.outputs.iter().map(|o| (o, true))) {
        match want.iter_mut().find(|w| w.0.id() == binding.buffer.id()) {
            Some(w) => w.1 |= write,
            None => want.push((&binding.buffer, write)),
        }
    }
    let mut opened = Opened::new();
    for (buffer, write) in want {
        let (id, len) = (buffer.id(), buffer.len());
        opened.push(if write {
            let mut guard = buffer.write()?;
            Open { id, ptr: guard.as_mut_ptr(), len, _guard: Guard::Write(guard) }
        } else {
            let guard = buffer.read()?;
            Open { id, ptr: guard.as_ptr().cast_mut(), len, _guard: Guard::Read(guard) }
        });
    }
    Ok(opened)
}

/// The memory of a bound value. States take all the bytes there are.
pub(crate) fn bound(
    exe: &Executable,
    slot: &Slot,
    binding: &Binding,
    opened: &Opened<'_>,
    rows: usize,
) -> Result<Mem, DeviceError> {
    if !matches!(slot.place, Place::State(_)) {
        return bound_as(exe, slot, binding, opened, rows);
    }
    let all = binding.buffer.len().saturating_sub(binding.offset);
    let row = (slot.cols * element_bytes(slot.dtype)).max(1);
    at(exe, slot, binding, opened, all / row * row)
}

/// The memory of a value of `rows` rows at a binding.
pub(crate) fn bound_as(
    exe: &Executable,
    slot: &Slot,
    binding: &Binding,
    opened: &Opened<'_>,
    rows: usize,
) -> Result<Mem, DeviceError> {
    at(exe, slot, binding, opened, rows * slot.cols * element_bytes(slot.dtype))
}

fn at(
    exe: &Executable,
    slot: &Slot,
    binding: &Binding,
    opened: &Opened<'_>,
    bytes: usize,
) -> Result<Mem, DeviceError> {
    let open = opened.iter().find(|o| o.id == binding.buffer.id());
    let end = binding.offset.checked_add(bytes);
    match (open, end) {
        (Some(open), Some(end))
            if end <= open.len && binding.offset.is_multiple_of(element_bytes(slot.dtype)) =>
        {
            // SAFETY: the offset lies inside the buffer.
            Ok(Mem { ptr: unsafe { open.ptr.add(binding.offset) }, bytes })
        }
        _ => Err(misfit(
            exe,
            format!(
                "value {} needs {bytes} bytes at {}, its buffer has {}",
                slot.name,
                binding.offset,
                binding.buffer.len()
            ),
        )),
    }
}

/// Written bindings may share a buffer with others, but no bytes.
pub(crate) fn check_overlap(exe: &Executable, memory: &[Mem]) -> Result<(), DeviceError> {
    let range = |i: usize| {
        let m = memory[i];
        m.ptr as usize..m.ptr as usize + m.bytes
    };
    let written_states = exe.states.iter().zip(&exe.state_written).filter(|s| *s.1).map(|s| *s.0);
    let placed = exe.outputs.iter().copied();
    let placed = placed.filter(|o| matches!(exe.slots[*o].place, Place::Output(_)));
    for w in written_states.chain(placed) {
        let a = range(w);
        let all = exe.inputs.iter().chain(&exe.states).chain(&exe.outputs);
        for other in all.filter(|o| **o != w) {
            let b = range(*other);
            if a.start < b.end && b.start < a.end {
                let (a, b) = (&exe.slots[w].name, &exe.slots[*other].name);
                return Err(misfit(exe, format!("values {a} and {b} overlap in memory")));
            }
        }
    }
    Ok(())
}

/// Copies a value to a second place it is wanted at.
pub(crate) fn copy(
    exe: &Executable,
    memory: &[Mem],
    (slot, output): (usize, usize),
    b: &Bindings,
    opened: &Opened<'_>,
) {
    let binding = &b.outputs[output];
    let from = memory[slot];
    if let Some(open) = opened.iter().find(|o| o.id == binding.buffer.id())
        && exe.slots[slot].place != Place::Nowhere
    {
        // SAFETY: `resolve` checked that both ranges lie inside their buffers, and the target's
        // buffer is open for writing. `copy` allows overlap.
        unsafe { std::ptr::copy(from.ptr, open.ptr.add(binding.offset), from.bytes) }
    }
}
