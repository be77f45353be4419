//! Caches the checks and locations of bindings for a number of rows.
//!
//! A decoded token submits the same bindings as the previous one. Checking and locating them again
//! would take some percent of a small model's token.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Weak};

use troika_device::{Bindings, DeviceError, ExecutableId, Rect, Run, SpaceId};

use crate::compile::{Loaded, ValueMemory};
use crate::device::bindings::{self, Mem, Staged};

/// Bindings checked for an executable and a number of rows.
pub(crate) struct Prepared {
    /// Reserves the address of the bindings without keeping them alive, so that no others get it.
    of: Weak<Bindings>,
    /// The bytes of all bound values.
    pub bound: Vec<Rect>,
    /// Values to stage, since ops need dense rows.
    pub staged: Vec<Staged>,
    /// The floats that they need together.
    pub staging: usize,
    /// The memory of each value.
    pub memory: Vec<Mem>,
    /// The count of reallocations when `memory` was computed.
    pub moves: u64,
}

impl Prepared {
    /// Finds every value's memory: bound, in the arena, or staged.
    pub fn resolve(&mut self, exe: &Loaded, task: &Run, arena: &mut [f32], staging: &mut [f32]) {
        let (inputs, states) = (exe.code.inputs.len(), exe.code.states.len());
        self.memory.clear();
        for slot in &exe.code.slots {
            let bound = |at: usize| bindings::memory(&task.bindings, &self.bound, at);
            let mem = match slot.place {
                ValueMemory::Input(i) => bound(i),
                ValueMemory::State(i) => bound(inputs + i),
                ValueMemory::Output(i) => bound(inputs + states + i),
                ValueMemory::Temp(at) => {
                    let r = at * task.rows..(at + slot.cols) * task.rows;
                    let room = &mut arena[r];
                    let bytes = task.rows * slot.row_bytes();
                    Mem { ptr: room.as_mut_ptr().cast(), bytes, stride: slot.row_bytes() }
                }
                ValueMemory::Nowhere => {
                    Mem { ptr: std::ptr::dangling_mut::<f32>().cast(), bytes: 0, stride: 0 }
                }
            };
            self.memory.push(mem);
        }
        for s in &self.staged {
            let row = exe.code.slots[s.slot].row_bytes();
            let room = &mut staging[s.at..][..(task.rows * row).div_ceil(4)];
            let ptr = room.as_mut_ptr().cast();
            self.memory[s.slot] = Mem { ptr, bytes: task.rows * row, stride: row };
        }
    }
}

/// Executable, address of the bindings, and rows.
type Key = (ExecutableId, usize, usize);

/// The most bindings kept: several times as many as a token of the largest models has. Beyond that,
/// the dropped ones are removed; if that is not enough, all are.
const MOST: usize = 4096;

/// Bindings that were checked before.
#[derive(Default)]
pub(crate) struct Known {
    prepared: HashMap<Key, Prepared, Mixed>,
}

impl Known {
    /// Checks a run's bindings against its executable, unless that was done before.
    ///
    /// Bindings do not change: an `Arc` to which a `Weak` points gives no exclusive access to its
    /// contents.
    pub fn prepare(
        &mut self,
        exe: &Loaded,
        task: &Run,
        spaces: &[SpaceId],
    ) -> Result<&mut Prepared, DeviceError> {
        let key = (task.weights.executable().id(), Arc::as_ptr(&task.bindings) as usize, task.rows);
        if self.prepared.len() >= MOST {
            self.prepared.retain(|_, p| p.of.strong_count() > 0);
            if self.prepared.len() > MOST / 2 {
                self.prepared.clear();
            }
        }
        match self.prepared.entry(key) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => Ok(new.insert(check(exe, task, spaces)?)),
        }
    }
}

fn check(exe: &Loaded, task: &Run, spaces: &[SpaceId]) -> Result<Prepared, DeviceError> {
    bindings::check_counts(exe, &task.bindings)?;
    bindings::check_rows(exe, task)?;
    let bound = bindings::locate(exe, task, spaces)?;
    let (staged, staging) = bindings::staged(exe, task.rows, &bound);
    let of = Arc::downgrade(&task.bindings);
    // Not located yet.
    let (memory, moves) = (Vec::new(), u64::MAX);
    Ok(Prepared { of, bound, staged, staging, memory, moves })
}

/// For keys that this process chose itself: nobody can cause collisions, so spreading is enough.
pub(crate) type Mixed = BuildHasherDefault<Mixer>;

/// Spreads numbers over all bits.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(26)
    }
}
