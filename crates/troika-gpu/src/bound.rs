//! Dispatches with all that they are bound to.

use std::ops::Range;
use std::sync::Arc;

use troika_device::{DeviceError, Rect, View};

use crate::gpu::Gpu;
use crate::kernels::{Dispatch, Loc};
use crate::pipelines::Pipeline;

/// Multiplications of a dispatch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MultiplyCount {
    pub fixed: u64,
    /// For each position of the longest sequence.
    pub each: u64,
}

impl MultiplyCount {
    /// All of them, where the longest sequence has this number of positions.
    pub fn at(self, positions: u64) -> u64 {
        self.fixed.saturating_add(self.each.saturating_mul(positions))
    }
}

/// A dispatch with all that it is bound to.
pub(crate) struct Ready {
    pipeline: Arc<Pipeline>,
    group: wgpu::BindGroup,
    params: Vec<u32>,
    grid: [u32; 3],
    pub work: MultiplyCount,
}

impl Ready {
    /// Binds a dispatch to parts of buffers.
    pub fn new(
        gpu: &Gpu,
        of: Dispatch,
        parts: &[(&wgpu::Buffer, Range<u64>)],
        work: MultiplyCount,
    ) -> Result<Ready, DeviceError> {
        let pipeline = gpu.pipeline(&of)?;
        let group = gpu.bind(of.spec, &pipeline, parts);
        Ok(Ready { pipeline, group, params: of.params, grid: of.grid, work })
    }

    /// Submits it by itself, this number of times.
    pub fn submit(&self, gpu: &Gpu, times: u32) -> wgpu::SubmissionIndex {
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        (0..times).for_each(|_| self.record(&mut pass));
        drop(pass);
        gpu.submit(encoder.finish())
    }

    /// Adds it to a pass.
    pub fn record(&self, pass: &mut wgpu::ComputePass<'_>) {
        pass.set_pipeline(&self.pipeline.pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        pass.set_immediates(0, bytemuck::cast_slice(&self.params));
        let [x, y, z] = self.grid;
        pass.dispatch_workgroups(x, y, z);
    }
}

/// Where a value is: a buffer, the bytes of it that are bound, and the value in them.
#[derive(Clone)]
pub(crate) struct Bound {
    pub buffer: wgpu::Buffer,
    pub range: Range<u64>,
    pub loc: Loc,
}

/// The part of a buffer to bind for a view: from an offset that the device takes.
pub(crate) fn window(gpu: &Gpu, view: &View, rect: &Rect) -> Result<Bound, String> {
    let limits = &gpu.limits;
    let buffer = gpu.buffer_of(view.buffer())?;
    let aligned = u64::from(limits.min_storage_buffer_offset_alignment.max(4));
    let span = rect.span();
    let start = span.start as u64 / aligned * aligned;
    let end = (span.end as u64).next_multiple_of(16).min(buffer.size());
    let range = start..end.max((start + 16).min(buffer.size()));
    if range.end - range.start > limits.max_storage_buffer_binding_size {
        let (bytes, most) = (range.end - range.start, limits.max_storage_buffer_binding_size);
        return Err(format!("has {bytes} bytes, and a binding at most {most}"));
    }
    let offset = (span.start as u64 - start) / 4;
    let stride = rect.stride().div_ceil(4);
    let loc = Loc { offset: offset as u32, stride: stride as u32 };
    Ok(Bound { buffer, range, loc })
}
