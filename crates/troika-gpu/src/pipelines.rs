//! Kernels as the driver compiled them, each once for its override constants.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::SmallVec;
use troika_device::DeviceError;

use crate::adapter::now;
use crate::gpu::{Gpu, one_line};
use crate::kernels::{Binding, Dispatch, KernelSpec};

/// A compiled kernel.
pub(crate) struct Pipeline {
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// A kernel's name, its constants' bits, and bytes of immediates.
type Key = (&'static str, SmallVec<[(&'static str, u64); 8]>, usize);

/// The compiled kernels of a device.
#[derive(Default)]
pub(crate) struct Pipelines {
    made: Mutex<HashMap<Key, Arc<Pipeline>>>,
    modules: Mutex<HashMap<&'static str, Arc<(wgpu::ShaderModule, wgpu::BindGroupLayout)>>>,
}

impl Pipelines {
    /// The kernel of a dispatch, compiled if it is the first of its kind.
    ///
    /// # Errors
    /// The driver does not compile it.
    pub fn get(&self, gpu: &Gpu, of: &Dispatch) -> Result<Arc<Pipeline>, DeviceError> {
        let constants = of.overrides.iter().map(|(name, value)| (*name, value.to_bits()));
        let key: Key = (of.spec.name, constants.collect(), 4 * of.params.len());
        let made = || self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = made().get(&key) {
            return Ok(known.clone());
        }
        let pipeline = Arc::new(self.compile(gpu, of)?);
        Ok(made().entry(key).or_insert(pipeline).clone())
    }

    fn compile(&self, gpu: &Gpu, of: &Dispatch) -> Result<Pipeline, DeviceError> {
        let shared = self.module(gpu, of.spec)?;
        let (module, layout) = (&shared.0, &shared.1);
        let scope = gpu.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let inner = gpu.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let whole = gpu.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(of.spec.name),
            bind_group_layouts: &[Some(layout)],
            immediate_size: 4 * of.params.len() as u32,
        });
        let pipeline = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(of.spec.name),
            layout: Some(&whole),
            module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &of.overrides,
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        let failed = now(inner.pop()).or(now(scope.pop()));
        match failed {
            Some(e) => Err(refused(gpu, of.spec, &e)),
            None => Ok(Pipeline { pipeline, layout: layout.clone() }),
        }
    }

    fn module(
        &self,
        gpu: &Gpu,
        spec: &'static KernelSpec,
    ) -> Result<Arc<(wgpu::ShaderModule, wgpu::BindGroupLayout)>, DeviceError> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = modules.get(spec.name) {
            return Ok(known.clone());
        }
        if spec.workgroup_bytes > gpu.limits.max_compute_workgroup_storage_size {
            let has = gpu.limits.max_compute_workgroup_storage_size;
            let needs = spec.workgroup_bytes;
            let name = spec.name;
            return Err(gpu.error(format!(
                "kernel {name} needs {needs} bytes of workgroup memory; it has {has}"
            )));
        }
        let scope = gpu.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let module = gpu.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(spec.name),
            source: wgpu::ShaderSource::Wgsl(spec.source.into()),
        });
        let entries: Vec<wgpu::BindGroupLayoutEntry> =
            spec.bindings.iter().enumerate().map(|(i, b)| entry(i as u32, *b)).collect();
        let layout = gpu.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(spec.name),
            entries: &entries,
        });
        if let Some(e) = now(scope.pop()) {
            return Err(refused(gpu, spec, &e));
        }
        let made = Arc::new((module, layout));
        modules.insert(spec.name, made.clone());
        Ok(made)
    }
}

fn entry(binding: u32, of: Binding) -> wgpu::BindGroupLayoutEntry {
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only: of == Binding::Weight },
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    }
}

fn refused(gpu: &Gpu, spec: &KernelSpec, error: &wgpu::Error) -> DeviceError {
    let why = one_line(&error.to_string());
    gpu.error(format!("its driver does not compile kernel {}: {why}", spec.name))
}
