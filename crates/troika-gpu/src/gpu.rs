//! An open adapter: what its device, its queues and all memory on it share.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use troika_device::{Buffer, DeviceError, OutOfMemory, SpaceId, WeightBytes};
use troika_graph::DType;

use crate::adapter::{Adapter, AdapterKind, MATRIX_FEATURES, now};
use crate::cache::PipelineStore;
use crate::error::{GpuError, locked, one_line};
use crate::kernels::{Dispatch, KernelSpec};
use crate::pipelines::{Pipeline, Pipelines};
use crate::vulkan::HostMemory;

/// The longest that one submission may take before the device counts as lost.
const LONGEST: Duration = Duration::from_secs(600);

/// An open adapter.
pub(crate) struct Gpu {
    /// The device's name, unique in the process.
    pub name: String,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: wgpu::Limits,
    /// Whether the host's cores stand in for a GPU.
    pub is_software: bool,
    /// Whether kernels for matrix units run.
    pub matrix_units: bool,
    /// The memory that kernels read and write: the host's, or the device's own.
    pub space: SpaceId,
    /// How the host's memory becomes theirs, if they work there.
    pub host: Option<HostMemory>,
    pub pipelines: Pipelines,
    pub staging: Staging,
    /// What the driver reported last.
    fault: Arc<Fault>,
    /// The packs of weights that some graph holds.
    pub weights: Mutex<HashMap<PackKey, Weak<Loaded>>>,
    /// A weight that kernels are bound to and do not read.
    pub spare: wgpu::Buffer,
    /// A value that nothing reads.
    pub unread: wgpu::Buffer,
    /// Bytes of values, caches and weights in the device's memory.
    held: Arc<AtomicU64>,
    /// Bytes of those that hold weights.
    of_weights: Arc<AtomicU64>,
}

/// A report of the driver that no call returned.
#[derive(Default)]
struct Fault {
    lost: Mutex<Option<String>>,
    wrong: Mutex<Option<String>>,
}

impl Fault {
    /// What a device's driver will report.
    fn of(device: &wgpu::Device) -> Arc<Fault> {
        let fault = Arc::new(Fault::default());
        let (of_loss, of_error) = (fault.clone(), fault.clone());
        device.set_device_lost_callback(move |reason, text| {
            let text = one_line(&text);
            let text = if text.is_empty() { format!("{reason:?}") } else { text };
            locked(&of_loss.lost).get_or_insert(text);
        });
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            locked(&of_error.wrong).get_or_insert(one_line(&e.to_string()));
        }));
        fault
    }
}

/// Device memory, as the handle of a [`Buffer`] or for weights. Dropping it frees it.
pub(crate) struct Memory {
    pub buffer: wgpu::Buffer,
    /// Sums that it is part of.
    held: Vec<Arc<AtomicU64>>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        let size = self.buffer.size();
        self.held.iter().for_each(|held| _ = held.fetch_sub(size, Ordering::Relaxed));
    }
}

/// How memory is used besides copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Values, which kernels read and write.
    Storage,
    /// Weights, which kernels read.
    Weights,
    /// Memory that the host fills and a copy reads.
    Upload,
    /// Memory that a copy fills and the host reads.
    Download,
}

/// The leave to use features that the interface calls experimental.
#[expect(unsafe_code, reason = "the interface asks for it")]
fn experimental() -> wgpu::ExperimentalFeatures {
    // SAFETY: of these features only matrix units are asked for, where the adapter says that it has
    // them; what kernels compute by them is compared with the CPU before they are used.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}

/// A buffer that fills a binding which a kernel does not use.
fn small(device: &wgpu::Device, label: &str) -> wgpu::Buffer {
    let (label, usage) = (Some(label), wgpu::BufferUsages::STORAGE);
    let description = wgpu::BufferDescriptor { label, size: 256, usage, mapped_at_creation: false };
    device.create_buffer(&description)
}

impl Gpu {
    /// Opens an adapter, to work in the host's memory where that is possible, unless it is to have
    /// its own.
    ///
    /// # Errors
    /// The adapter lacks something, or the driver refuses it.
    pub fn open(
        name: &str,
        adapter: &Adapter,
        kept: Option<Arc<dyn PipelineStore>>,
        own_memory: bool,
    ) -> Result<Gpu, GpuError> {
        if let Some(why) = adapter.fault() {
            return Err(GpuError::unusable(adapter.name(), why));
        }
        let limits = adapter.inner.limits();
        let matrix_units = adapter.has_matrix_units();
        let units = if matrix_units { MATRIX_FEATURES } else { wgpu::Features::empty() };
        let cache = adapter.inner.features() & wgpu::Features::PIPELINE_CACHE;
        let description = wgpu::DeviceDescriptor {
            label: Some(name),
            required_features: wgpu::Features::IMMEDIATES | cache | units,
            required_limits: limits.clone(),
            experimental_features: experimental(),
            ..wgpu::DeviceDescriptor::default()
        };
        let opened = match adapter.shares_memory() && !own_memory {
            true => HostMemory::open(&adapter.inner, &description)
                .map(|(device, queue, host)| (device, queue, Some(host))),
            false => now(adapter.inner.request_device(&description))
                .map(|(device, queue)| (device, queue, None))
                .map_err(|e| e.to_string()),
        };
        let (device, queue, host) = opened.map_err(|why| {
            let (name, why) = (adapter.name(), one_line(&why));
            GpuError::Unusable(format!("GPU adapter {name} does not open: {why}"))
        })?;
        // A driver that offers to take the host's memory may still refuse to.
        let host = host
            .filter(|host| Buffer::zeroed(1).is_ok_and(|page| host.buffer(&device, &page).is_ok()));
        let fault = Fault::of(&device);
        let [spare, unread] = ["spare", "unread"].map(|label| small(&device, label));
        let pipelines = Pipelines::new(&device, adapter, kept);
        Ok(Gpu {
            name: name.to_string(),
            device,
            queue,
            limits,
            is_software: adapter.kind() == AdapterKind::Software,
            matrix_units,
            space: if host.is_some() { SpaceId::HOST } else { SpaceId::unique() },
            host,
            pipelines,
            staging: Staging::default(),
            fault,
            weights: Mutex::default(),
            spare,
            unread,
            held: Arc::default(),
            of_weights: Arc::default(),
        })
    }

    /// The kernel of a dispatch, compiled if it is the first of its kind.
    pub fn pipeline(&self, of: &Dispatch) -> Result<Arc<Pipeline>, DeviceError> {
        let bytes = self.limits.max_compute_workgroup_storage_size;
        self.pipelines.get(&self.device, bytes, of).map_err(|why| self.error(why))
    }

    /// Binds a kernel to parts of buffers, in order.
    pub fn bind(
        &self,
        spec: &KernelSpec,
        pipeline: &Pipeline,
        parts: &[(&wgpu::Buffer, Range<u64>)],
    ) -> wgpu::BindGroup {
        let mut entries: SmallVec<[wgpu::BindGroupEntry<'_>; 8]> = SmallVec::new();
        for (binding, (buffer, range)) in (0..).zip(parts) {
            let size = NonZeroU64::new(range.end - range.start);
            let part = wgpu::BufferBinding { buffer, offset: range.start, size };
            let resource = wgpu::BindingResource::Buffer(part);
            entries.push(wgpu::BindGroupEntry { binding, resource });
        }
        let (label, layout, entries) = (Some(spec.name), &pipeline.layout, &entries[..]);
        self.device.create_bind_group(&wgpu::BindGroupDescriptor { label, layout, entries })
    }

    /// An error of this device. Once it is lost, that is why everything fails.
    pub fn error(&self, why: impl Into<String>) -> DeviceError {
        // The driver tells of a loss when it is asked.
        let _ = self.device.poll(wgpu::PollType::Poll);
        let device = self.name.clone();
        match &*locked(&self.fault.lost) {
            Some(why) => DeviceError::Lost { device, why: why.clone() },
            None => DeviceError::System { device, why: one_line(&why.into()) },
        }
    }

    /// What the driver reported since the last call.
    pub fn check(&self) -> Result<(), DeviceError> {
        if self.is_lost() {
            return Err(self.error("it is lost"));
        }
        match locked(&self.fault.wrong).take() {
            Some(why) => Err(self.error(why)),
            None => Ok(()),
        }
    }

    /// Whether the driver lost the device.
    pub fn is_lost(&self) -> bool {
        locked(&self.fault.lost).is_some()
    }

    /// Bytes of all memory on the device that is in use.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Bytes of all weights on the device.
    pub fn weights_held(&self) -> u64 {
        self.of_weights.load(Ordering::Relaxed)
    }

    /// Zeroed memory of at least this number of bytes.
    pub fn memory(&self, bytes: u64, used: Use) -> Result<Memory, OutOfMemory> {
        let refused = OutOfMemory { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) };
        let size = bytes.max(256).checked_next_multiple_of(16).ok_or(refused)?;
        if size > self.limits.max_buffer_size {
            return Err(refused);
        }
        use wgpu::BufferUsages as Of;
        let usage = match used {
            Use::Storage | Use::Weights => Of::STORAGE | Of::COPY_SRC | Of::COPY_DST,
            Use::Upload => Of::MAP_WRITE | Of::COPY_SRC,
            Use::Download => Of::MAP_READ | Of::COPY_DST,
        };
        let short = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let wrong = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let mapped_at_creation = used == Use::Upload;
        let description = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation };
        let buffer = self.device.create_buffer(&description);
        let failed = [now(wrong.pop()), now(short.pop())];
        if failed.iter().any(Option::is_some) {
            return Err(refused);
        }
        // What the host fills or reads lies in its own memory.
        let held: Vec<_> = match used {
            Use::Storage => vec![self.held.clone()],
            Use::Weights => vec![self.held.clone(), self.of_weights.clone()],
            Use::Upload | Use::Download => Vec::new(),
        };
        held.iter().for_each(|held| _ = held.fetch_add(buffer.size(), Ordering::Relaxed));
        Ok(Memory { buffer, held })
    }

    /// Replaces memory that is not there or too small, and says whether it did. Later needs are
    /// expected to be larger.
    pub fn grow(
        &self,
        memory: &mut Option<Memory>,
        bytes: u64,
        used: Use,
        what: &str,
    ) -> Result<bool, DeviceError> {
        if memory.as_ref().is_some_and(|m| m.buffer.size() >= bytes) {
            return Ok(false);
        }
        let size = bytes.checked_next_power_of_two().unwrap_or(bytes);
        let size = size.min(self.limits.max_storage_buffer_binding_size).max(bytes);
        let made = self.memory(size, used);
        let what = || format!("{what} on device {}", self.name);
        *memory = Some(made.map_err(|e| DeviceError::memory(what())(e))?);
        Ok(true)
    }

    /// Memory for values, as other parts of the engine know it.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        if self.host.is_some() {
            return Buffer::zeroed(bytes);
        }
        let memory = self.memory(bytes as u64, Use::Storage)?;
        Ok(Buffer::of_handle(self.space, bytes, memory))
    }

    /// The buffer of kernels behind one that other parts of the engine know.
    pub fn buffer_of(&self, of: &Buffer) -> Result<wgpu::Buffer, String> {
        match (of.owner::<Memory>(), &self.host) {
            (Some(memory), _) => Ok(memory.buffer.clone()),
            (None, Some(host)) if of.space() == SpaceId::HOST => host.buffer(&self.device, of),
            (None, _) => Err("is bound to memory of another device".into()),
        }
    }

    /// Waits until all that was submitted before is done.
    ///
    /// # Errors
    /// The device is lost, or takes too long.
    pub fn wait(&self, until: Option<wgpu::SubmissionIndex>) -> Result<(), DeviceError> {
        let poll = wgpu::PollType::Wait { submission_index: until, timeout: Some(LONGEST) };
        match self.device.poll(poll) {
            Ok(_) => self.check(),
            Err(wgpu::PollError::Timeout) => {
                self.check()?;
                let secs = LONGEST.as_secs();
                Err(self.error(format!("it has not finished its work for {secs} seconds")))
            }
            Err(e) => Err(self.error(one_line(&e.to_string()))),
        }
    }

    /// Submits a recorded list of commands.
    pub fn submit(&self, commands: wgpu::CommandBuffer) -> wgpu::SubmissionIndex {
        let shown = self.host.as_ref().map(|host| host.show_host(&self.device));
        self.queue.submit(std::iter::once(commands).chain(shown))
    }
}

/// A pack in device memory: its parts, one for each binding.
pub(crate) struct Loaded {
    pub parts: Vec<Memory>,
    /// Keeps the address of the bytes that it was made from, by which it is found again.
    pub _source: Vec<WeightBytes>,
}

impl Loaded {
    /// A pack that is not looked for again.
    pub fn own(parts: Vec<Memory>) -> Arc<Loaded> {
        Arc::new(Loaded { parts, _source: Vec::new() })
    }
}

/// A pack's name: the addresses and lengths of its bytes, their type, its columns, and whether it is
/// a vector.
pub(crate) type PackKey = (Vec<(usize, usize)>, DType, usize, bool);

/// Bytes of a piece. Weights go through several pieces in turn.
pub(crate) const PIECE: u64 = 8 << 20;
/// The most pieces.
const MOST_PIECES: usize = 4;

/// Pieces of staging memory.
#[derive(Default)]
pub(crate) struct Staging(Arc<Mutex<Pieces>>);

#[derive(Default)]
struct Pieces {
    free: Vec<Memory>,
    made: usize,
}

impl Staging {
    /// A mapped piece; waits for one where all are in use.
    pub fn take(&self, gpu: &Gpu) -> Result<Memory, DeviceError> {
        for _ in 0..1000 {
            {
                let mut pieces = locked(&self.0);
                if let Some(piece) = pieces.free.pop() {
                    return Ok(piece);
                }
                if pieces.made < MOST_PIECES {
                    let what = format!("copies to device {}", gpu.name);
                    let made = gpu.memory(PIECE, Use::Upload).map_err(DeviceError::memory(what))?;
                    pieces.made += 1;
                    return Ok(made);
                }
            }
            // Callbacks of what is done run here.
            gpu.wait(None)?;
            std::thread::yield_now();
        }
        Err(gpu.error("its driver does not give back memory that it has copied"))
    }

    /// Gives back a mapped piece that no command reads.
    pub fn give_back_unused(&self, piece: Memory) {
        locked(&self.0).free.push(piece);
    }

    /// Gives a piece back whose copies were submitted: it is free when they are done.
    pub fn give_back(&self, piece: Memory) {
        let pieces = self.0.clone();
        let buffer = piece.buffer.clone();
        buffer.slice(..).map_async(wgpu::MapMode::Write, move |mapped| {
            let mut pieces = locked(&pieces);
            match mapped {
                Ok(()) => pieces.free.push(piece),
                // One that cannot be mapped again is made anew.
                Err(_) => pieces.made -= 1,
            }
        });
    }
}

#[cfg(test)]
#[allow(clippy::print_stdout)]
#[path = "../tests/common/needed.rs"]
mod needed;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::adapter::{GpuSpec, choose};

    static BROKEN: KernelSpec = KernelSpec {
        name: "broken",
        parts: &["@compute @workgroup_size(64) fn main() { let x = nothing; }"],
        bindings: &[],
        workgroup_bytes: 0,
    };
    static LARGE: KernelSpec = KernelSpec {
        name: "large",
        parts: &["@compute @workgroup_size(1) fn main() {}"],
        bindings: &[],
        workgroup_bytes: u32::MAX,
    };

    #[test]
    fn kernels_that_do_not_compile_are_one_line() {
        let adapter = match choose(&GpuSpec::Named("llvmpipe".into())) {
            Ok(adapter) => adapter,
            Err(why) => return needed::not_run(&why.to_string()),
        };
        let gpu = Gpu::open("gpu", &adapter, None, false).unwrap();
        for (spec, says) in [(&BROKEN, "does not compile"), (&LARGE, "workgroup memory")] {
            let dispatch = Dispatch { spec, overrides: vec![], params: vec![], grid: [1, 1, 1] };
            for _ in 0..2 {
                let why = gpu.pipeline(&dispatch).err().unwrap().to_string();
                assert!(why.contains(says) && why.contains("device gpu"), "{why}");
                assert!(!why.contains('\n'), "{why}");
            }
        }
        // No later call is told of it.
        gpu.check().unwrap();
    }
}
