//! What wgpu does not tell of Vulkan, or offers for it only: the size of a device's memory, and the
//! host's memory as the device's own, where both are the same chips
//! (`VK_EXT_external_memory_host`).

#![expect(unsafe_code, reason = "calls of the driver")]

use std::any::Any;
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex};

use ash::{ext, vk};
use troika_device::{Buffer, BufferWatch};
use wgpu::hal::api::Vulkan;

use crate::error::locked;

/// Buffers of the host lie in pages of their own, which are at least as large.
const PAGE: u64 = 4096;
/// How the host's memory is named to the driver.
const OF_HOST: vk::ExternalMemoryHandleTypeFlags =
    vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;

/// Bytes of the largest memory next to the device; `None` for other interfaces.
pub(crate) fn memory(adapter: &wgpu::Adapter) -> Option<u64> {
    let memory = properties_of_memory(adapter)?;
    let heaps = memory.memory_heaps_as_slice().iter();
    let own = heaps.filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    own.map(|heap| heap.size).max()
}

fn properties_of_memory(adapter: &wgpu::Adapter) -> Option<vk::PhysicalDeviceMemoryProperties> {
    // SAFETY: the guard is dropped before this function ends, while the adapter is alive; nothing
    // is destroyed.
    let vulkan = unsafe { adapter.as_hal::<Vulkan>() }?;
    let instance = vulkan.shared_instance().raw_instance();
    // SAFETY: the physical device is of this instance, and both are alive.
    Some(unsafe { instance.get_physical_device_memory_properties(vulkan.raw_physical_device()) })
}

/// Whether an adapter has an extension, and version 1.1 with the calls that it needs.
fn has(adapter: &wgpu::hal::vulkan::Adapter, extension: &CStr) -> bool {
    let (device, instance) = (adapter.physical_device_capabilities(), adapter.shared_instance());
    let versions = [device.properties().api_version, instance.instance_api_version()];
    device.supports_extension(extension) && versions.iter().all(|v| *v >= vk::API_VERSION_1_1)
}

/// Bytes of the largest memory next to the device that this process may still take, where the driver
/// counts what others took (`VK_EXT_memory_budget`).
pub(crate) fn free(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: the guard is dropped before this function ends, while the adapter is alive; nothing
    // is destroyed.
    let vulkan = unsafe { adapter.as_hal::<Vulkan>() }?;
    if !has(&vulkan, ext::memory_budget::NAME) {
        return None;
    }
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut all = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
    let instance = vulkan.shared_instance().raw_instance();
    // SAFETY: the physical device is of this instance, and both are alive.
    unsafe {
        instance.get_physical_device_memory_properties2(vulkan.raw_physical_device(), &mut all);
    }
    let memory = all.memory_properties;
    let own = memory.memory_heaps_as_slice().iter().enumerate();
    let own = own.filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    let (at, _) = own.max_by_key(|(_, heap)| heap.size)?;
    Some(budget.heap_budget[at].saturating_sub(budget.heap_usage[at]))
}

/// Whether buffers of the host can become buffers of an adapter's kernels.
pub(crate) fn takes_host_memory(adapter: &wgpu::Adapter) -> bool {
    // SAFETY: the guard is dropped before this function ends, while the adapter is alive; nothing
    // is destroyed.
    let Some(vulkan) = (unsafe { adapter.as_hal::<Vulkan>() }) else { return false };
    if !has(&vulkan, ext::external_memory_host::NAME) {
        return false;
    }
    let mut of_host = vk::PhysicalDeviceExternalMemoryHostPropertiesEXT::default();
    let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut of_host);
    let instance = vulkan.shared_instance().raw_instance();
    // SAFETY: the physical device is of this instance, and both are alive.
    unsafe { instance.get_physical_device_properties2(vulkan.raw_physical_device(), &mut all) };
    of_host.min_imported_host_pointer_alignment <= PAGE
}

/// The host's memory as a device's own.
pub(crate) struct HostMemory {
    device: ash::Device,
    functions: ext::external_memory_host::Device,
    /// A bit for each kind of memory that host and device see alike.
    coherent: u32,
    /// The buffers of kernels, by [`Buffer::id`]. Those of buffers that are gone, and with them the
    /// memory, are let go with the next new one.
    known: Mutex<HashMap<usize, (BufferWatch, wgpu::Buffer)>>,
}

/// A buffer of the driver over the host's memory.
struct Imported {
    device: ash::Device,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    /// The memory is freed after the driver has let go of it.
    _keep: Arc<dyn Any + Send + Sync>,
}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: whoever used the buffer is done, and the device is alive, since it outlives its
        // buffers. A handle that was not made is null, which the calls take.
        unsafe {
            self.device.destroy_buffer(self.buffer, None);
            self.device.free_memory(self.memory, None);
        }
    }
}

impl HostMemory {
    /// Opens a device that can take the host's memory.
    ///
    /// # Errors
    /// The driver's reason.
    pub fn open(
        adapter: &wgpu::Adapter,
        description: &wgpu::DeviceDescriptor<'_>,
    ) -> Result<(wgpu::Device, wgpu::Queue, HostMemory), String> {
        let other = || "its interface is not Vulkan".to_string();
        let kinds = properties_of_memory(adapter).ok_or_else(other)?;
        // SAFETY: the guard is dropped before this function ends, while the adapter is alive.
        let vulkan = unsafe { adapter.as_hal::<Vulkan>() }.ok_or_else(other)?;
        let wgpu::DeviceDescriptor { required_features, required_limits, memory_hints, .. } =
            description;
        // SAFETY: the adapter has the extension, which adds no feature.
        let open = unsafe {
            vulkan.open_with_callback(
                *required_features,
                required_limits,
                memory_hints,
                Some(Box::new(|args| args.extensions.push(ext::external_memory_host::NAME))),
            )
        };
        let open = open.map_err(|e| e.to_string())?;
        let device = open.device.raw_device().clone();
        let instance = vulkan.shared_instance().raw_instance();
        let functions = ext::external_memory_host::Device::new(instance, &device);
        drop(vulkan);
        // SAFETY: the device was opened from this adapter with these features and limits.
        let opened = unsafe { adapter.create_device_from_hal::<Vulkan>(open, description) };
        let (wgpu_device, queue) = opened.map_err(|e| e.to_string())?;
        let alike = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let list = kinds.memory_types_as_slice().iter().enumerate();
        let list = list.filter(|(_, kind)| kind.property_flags.contains(alike));
        let coherent = list.fold(0, |bits, (i, _)| bits | 1 << i);
        let known = Mutex::default();
        Ok((wgpu_device, queue, HostMemory { device, functions, coherent, known }))
    }

    /// The buffer of kernels for a buffer of the host.
    pub fn buffer(&self, device: &wgpu::Device, of: &Buffer) -> Result<wgpu::Buffer, String> {
        let mut known = locked(&self.known);
        if let Some((_, buffer)) = known.get(&of.id()) {
            return Ok(buffer.clone());
        }
        known.retain(|_, (watch, _)| watch.is_alive());
        let size = (of.len().max(1) as u64).next_multiple_of(PAGE);
        if !(of.as_ptr() as u64).is_multiple_of(PAGE) {
            return Err("lies in memory that does not begin with a page".into());
        }
        let imported = self.import(of, size).map_err(|e| {
            format!("lies in memory of the host that the driver does not take ({e})")
        })?;
        let (raw, gone) = (imported.buffer, Box::new(move || drop(imported)));
        // SAFETY: the buffer outlives what is made of it here, which drops it.
        let hal = unsafe { wgpu::hal::vulkan::Buffer::from_raw_externally_owned(raw, gone) };
        use wgpu::BufferUsages as Of;
        let description = wgpu::BufferDescriptor {
            label: Some("host memory"),
            size,
            usage: Of::STORAGE | Of::COPY_SRC | Of::COPY_DST,
            mapped_at_creation: false,
        };
        // SAFETY: the buffer is of this device, of this size and use, and all its bytes have values.
        let buffer = unsafe { device.create_buffer_from_hal::<Vulkan>(hal, &description) };
        known.insert(of.id(), (of.watch(), buffer.clone()));
        Ok(buffer)
    }

    fn import(&self, of: &Buffer, size: u64) -> Result<Imported, vk::Result> {
        let pointer = of.as_ptr().cast::<c_void>();
        let mut imported = Imported {
            device: self.device.clone(),
            buffer: vk::Buffer::null(),
            memory: vk::DeviceMemory::null(),
            _keep: of.keep(),
        };
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(OF_HOST);
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let create =
            vk::BufferCreateInfo::default().size(size).usage(usage).push_next(&mut external);
        let mut takes = vk::MemoryHostPointerPropertiesEXT::default();
        // SAFETY: all handles are of this device, which is alive. The pointer begins a page, and
        // `size` bytes from it on are whole pages with the buffer's bytes, which are kept until the
        // driver has let go of them. Kernels use them under claims only.
        unsafe {
            imported.buffer = self.device.create_buffer(&create, None)?;
            let needs = self.device.get_buffer_memory_requirements(imported.buffer);
            let call = self.functions.fp().get_memory_host_pointer_properties_ext;
            call(self.device.handle(), OF_HOST, pointer, &mut takes).result()?;
            let kinds = needs.memory_type_bits & takes.memory_type_bits & self.coherent;
            if kinds == 0 || needs.size > size {
                return Err(vk::Result::ERROR_INVALID_EXTERNAL_HANDLE);
            }
            let mut import = vk::ImportMemoryHostPointerInfoEXT::default()
                .handle_type(OF_HOST)
                .host_pointer(pointer);
            let allocate = vk::MemoryAllocateInfo::default()
                .allocation_size(size)
                .memory_type_index(kinds.trailing_zeros())
                .push_next(&mut import);
            imported.memory = self.device.allocate_memory(&allocate, None)?;
            self.device.bind_buffer_memory(imported.buffer, imported.memory, 0)?;
        }
        Ok(imported)
    }

    /// Commands after which the host may read what kernels wrote before. They are a list of their own,
    /// since wgpu does not take calls of the driver among its own.
    pub fn show_host(&self, device: &wgpu::Device) -> wgpu::CommandBuffer {
        let mut encoder = device.create_command_encoder(&Default::default());
        let barrier = vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE | vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ | vk::AccessFlags::HOST_WRITE);
        let from = vk::PipelineStageFlags::COMPUTE_SHADER | vk::PipelineStageFlags::TRANSFER;
        let (to, none) = (vk::PipelineStageFlags::HOST, vk::DependencyFlags::empty());
        // SAFETY: the command buffer is being recorded, outside of passes, and of this device.
        unsafe {
            encoder.as_hal_mut::<Vulkan, _, _>(|encoder| {
                let Some(encoder) = encoder else { return };
                let commands = encoder.raw_handle();
                self.device.cmd_pipeline_barrier(commands, from, to, none, &[barrier], &[], &[]);
            });
        }
        encoder.finish()
    }
}
