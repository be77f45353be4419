//! In the place of `vulkan` on systems without it.

use troika_device::Buffer;

/// Unknown.
pub(crate) fn memory(_: &wgpu::Adapter) -> Option<u64> {
    None
}

/// Unknown.
pub(crate) fn free(_: &wgpu::Adapter) -> Option<u64> {
    None
}

/// Not yet on interfaces other than Vulkan.
pub(crate) fn takes_host_memory(_: &wgpu::Adapter) -> bool {
    false
}

/// There is none.
pub(crate) enum HostMemory {}

impl HostMemory {
    /// # Errors
    /// Always.
    pub fn open(
        _: &wgpu::Adapter,
        _: &wgpu::DeviceDescriptor<'_>,
    ) -> Result<(wgpu::Device, wgpu::Queue, HostMemory), String> {
        Err("its interface is not Vulkan".into())
    }

    /// # Errors
    /// None.
    pub fn buffer(&self, _: &wgpu::Device, _: &Buffer) -> Result<wgpu::Buffer, String> {
        match *self {}
    }

    pub fn show_host(&self, _: &wgpu::Device) -> wgpu::CommandBuffer {
        match *self {}
    }
}
