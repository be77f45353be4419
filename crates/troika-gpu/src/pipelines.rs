//! Kernels as the driver compiled them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use crate::adapter::{Adapter, now};
use crate::cache::{DriverCache, PipelineStore};
use crate::error::{locked, one_line};
use crate::kernels::{Binding, Dispatch, KernelSpec};
use smallvec::SmallVec;

/// A compiled kernel.
pub(crate) struct Pipeline {
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// A kernel's name, its constants' bits, and bytes of immediates.
pub(crate) type PipelineKey = (&'static str, SmallVec<[(&'static str, u64); 8]>, usize);

/// The key of the kernel of a dispatch.
pub(crate) fn key(of: &Dispatch) -> PipelineKey {
    let constants = of.overrides.iter().map(|(name, value)| (*name, value.to_bits()));
    (of.spec.name, constants.collect(), 4 * of.params.len())
}

/// A kernel's source as the interface read it, and what it is bound to.
struct Module {
    module: wgpu::ShaderModule,
    layout: wgpu::BindGroupLayout,
}

/// A module that one thread makes and others wait for.
type SharedModule = Arc<OnceLock<Result<Module, String>>>;

/// The compiled kernels of a device.
pub(crate) struct Pipelines {
    made: Mutex<HashMap<PipelineKey, Arc<Pipeline>>>,
    modules: Mutex<HashMap<&'static str, SharedModule>>,
    cache: Option<DriverCache>,
}

impl Pipelines {
    /// None yet; some that the store has cost the driver little.
    pub fn new(
        device: &wgpu::Device,
        adapter: &Adapter,
        kept: Option<Arc<dyn PipelineStore>>,
    ) -> Pipelines {
        let cache = DriverCache::open(device, adapter.cache_key(), kept);
        Pipelines { made: Mutex::default(), modules: Mutex::default(), cache }
    }

    /// Whether a kernel is compiled.
    pub fn has(&self, key: &PipelineKey) -> bool {
        locked(&self.made).contains_key(key)
    }

    /// The kernel of a dispatch, compiled if it is the first of its kind, for a device that has
    /// `bytes` of workgroup memory.
    pub fn get(
        &self,
        device: &wgpu::Device,
        bytes: u32,
        of: &Dispatch,
    ) -> Result<Arc<Pipeline>, String> {
        let key = key(of);
        let made = || locked(&self.made);
        if let Some(known) = made().get(&key) {
            return Ok(known.clone());
        }
        let pipeline = Arc::new(self.compile(device, bytes, of)?);
        Ok(made().entry(key).or_insert(pipeline).clone())
    }

    /// Keeps what the driver compiled for the next start.
    pub fn keep(&self) {
        self.cache.iter().for_each(DriverCache::keep);
    }

    fn compile(
        &self,
        device: &wgpu::Device,
        bytes: u32,
        of: &Dispatch,
    ) -> Result<Pipeline, String> {
        let shared = locked(&self.modules).entry(of.spec.name).or_default().clone();
        let made = shared.get_or_init(|| Module::new(device, bytes, of.spec));
        let Module { module, layout } = made.as_ref().map_err(Clone::clone)?;
        let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let inner = device.push_error_scope(wgpu::ErrorFilter::Internal);
        let whole = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(of.spec.name),
            bind_group_layouts: &[Some(layout)],
            immediate_size: 4 * of.params.len() as u32,
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(of.spec.name),
            layout: Some(&whole),
            module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &of.overrides,
                zero_initialize_workgroup_memory: false,
            },
            cache: self.cache.as_ref().map(|cache| &cache.inner),
        });
        let failed = now(inner.pop()).or(now(scope.pop()));
        match failed {
            Some(e) => Err(refused(of.spec, &e)),
            None => Ok(Pipeline { pipeline, layout: layout.clone() }),
        }
    }
}

impl Module {
    fn new(device: &wgpu::Device, bytes: u32, spec: &KernelSpec) -> Result<Module, String> {
        let (name, needs) = (spec.name, spec.workgroup_bytes);
        if needs > bytes {
            return Err(format!(
                "kernel {name} needs {needs} bytes of workgroup memory; it has {bytes}"
            ));
        }
        let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let module = module(device, spec);
        let entries: Vec<wgpu::BindGroupLayoutEntry> =
            spec.bindings.iter().enumerate().map(|(i, b)| entry(i as u32, *b)).collect();
        let (label, entries) = (Some(name), &entries);
        let description = wgpu::BindGroupLayoutDescriptor { label, entries };
        let layout = device.create_bind_group_layout(&description);
        match now(scope.pop()) {
            Some(e) => Err(refused(spec, &e)),
            None => Ok(Module { module, layout }),
        }
    }
}

/// A kernel's source, without the guards that the interface adds to loops, divisions and indices,
/// except in builds for debugging. Guards of loops keep drivers from unrolling them, and arrays in
/// loops then go through memory: on an NVIDIA H200 products take two to three times as long.
#[expect(unsafe_code, reason = "guards are left out by a promise only")]
fn module(device: &wgpu::Device, spec: &KernelSpec) -> wgpu::ShaderModule {
    let checks = match cfg!(debug_assertions) {
        true => wgpu::ShaderRuntimeChecks::checked(),
        false => wgpu::ShaderRuntimeChecks::unchecked(),
    };
    let source = wgpu::ShaderSource::Wgsl(spec.source().into());
    let descriptor = wgpu::ShaderModuleDescriptor { label: Some(spec.name), source };
    // SAFETY: the kernels are this crate's own. Their loops count up to a number of rows, columns,
    // positions or threads, or double up to one, or halve; divisors are at least 1; indices stay
    // within what is bound, whose sizes and positions are checked where it is.
    unsafe { device.create_shader_module_trusted(descriptor, checks) }
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

fn refused(spec: &KernelSpec, error: &wgpu::Error) -> String {
    let why = one_line(&error.to_string());
    format!("its driver does not compile kernel {}: {why}", spec.name)
}
