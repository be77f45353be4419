//! Runs single dispatches on lavapipe, for comparisons with plain code.

pub mod needed;

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use half::{bf16, f16};
use troika_gpu::kernels::repack::repack;
use troika_gpu::kernels::{Binding, Dispatch, Loc, WeightFormat};
use troika_graph::blocks::{dequantize, set_scale};
use troika_graph::{Activation, DType};

/// A device that runs kernels one by one.
pub struct Runner {
    /// Whether the adapter has matrix units.
    #[allow(dead_code, reason = "some tests do not use them")]
    pub matrix_units: bool,
    /// The device by the interface.
    pub device: wgpu::Device,
    /// Its queue.
    pub queue: wgpu::Queue,
    pipelines: Mutex<HashMap<String, Pipeline>>,
}

type Pipeline = (wgpu::ComputePipeline, wgpu::BindGroupLayout);

/// The software device; `None`, said in one line, where there is none.
pub fn runner() -> Option<&'static Runner> {
    static RUNNER: OnceLock<Option<Runner>> = OnceLock::new();
    let runner = RUNNER.get_or_init(Runner::open).as_ref();
    if runner.is_none() {
        needed::not_run("no software adapter is installed");
    }
    runner
}

/// The result of a future that is ready at once, as those of native devices are.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("a native device answers at once"),
    }
}

impl Runner {
    #[expect(unsafe_code, reason = "the interface asks for it")]
    fn open() -> Option<Runner> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let adapters = now(instance.enumerate_adapters(wgpu::Backends::VULKAN));
        let name = needed::adapter();
        let adapter = adapters.into_iter().find(|a| a.get_info().name.contains(&name))?;
        let units = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX
            | wgpu::Features::SHADER_F16
            | wgpu::Features::SUBGROUP;
        let matrix_units = adapter.features().contains(units);
        let units = if matrix_units { units } else { wgpu::Features::empty() };
        let description = wgpu::DeviceDescriptor {
            required_features: wgpu::Features::IMMEDIATES | units,
            required_limits: adapter.limits(),
            // SAFETY: matrix units are what is tested here.
            experimental_features: unsafe { wgpu::ExperimentalFeatures::enabled() },
            ..Default::default()
        };
        let (device, queue) = now(adapter.request_device(&description)).expect("a device");
        Some(Runner { device, queue, matrix_units, pipelines: Mutex::default() })
    }

    /// Memory with some words.
    pub fn words(&self, words: &[u32]) -> wgpu::Buffer {
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: (4 * words.len() as u64).next_multiple_of(16).max(16),
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: true,
        });
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let mut mapped = buffer.slice(..).get_mapped_range_mut().expect("mapped memory");
        mapped.slice(..bytes.len()).copy_from_slice(&bytes);
        drop(mapped);
        buffer.unmap();
        buffer
    }

    /// Memory with some floats.
    pub fn floats(&self, x: &[f32]) -> wgpu::Buffer {
        self.words(&x.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
    }

    /// Memory with some bytes.
    pub fn bytes(&self, x: &[u8]) -> wgpu::Buffer {
        let (words, rest) = x.as_chunks::<4>();
        assert!(rest.is_empty(), "whole words");
        self.words(&words.iter().map(|w| u32::from_ne_bytes(*w)).collect::<Vec<_>>())
    }

    /// The code of a dispatch, and how it is bound.
    pub fn pipeline(&self, dispatch: &Dispatch) -> Pipeline {
        let (spec, name) = (dispatch.spec, Some(dispatch.spec.name));
        let entry = |(i, of): (usize, &Binding)| wgpu::BindGroupLayoutEntry {
            binding: i as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only: *of == Binding::Weight },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let entries: Vec<_> = spec.bindings.iter().enumerate().map(entry).collect();
        let d = &self.device;
        let layout = d.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: name,
            entries: &entries,
        });
        let whole = d.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: name,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 4 * dispatch.params.len() as u32,
        });
        let module = d.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: name,
            source: wgpu::ShaderSource::Wgsl(spec.source().into()),
        });
        let pipeline = d.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: name,
            layout: Some(&whole),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &dispatch.overrides,
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        (pipeline, layout)
    }

    /// Buffers as a dispatch is bound to them.
    pub fn group(
        &self,
        layout: &wgpu::BindGroupLayout,
        buffers: &[&wgpu::Buffer],
    ) -> wgpu::BindGroup {
        let mut entries = Vec::new();
        for (i, buffer) in buffers.iter().enumerate() {
            let resource = buffer.as_entire_binding();
            entries.push(wgpu::BindGroupEntry { binding: i as u32, resource });
        }
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout,
            entries: &entries,
        })
    }

    /// Waits for what was submitted.
    pub fn wait(&self, index: wgpu::SubmissionIndex) {
        let wait = wgpu::PollType::Wait { submission_index: Some(index), timeout: None };
        self.device.poll(wait).expect("finished work");
    }

    /// Runs a dispatch, and waits.
    pub fn run(&self, dispatch: &Dispatch, buffers: &[&wgpu::Buffer]) {
        let spec = dispatch.spec;
        assert_eq!(spec.bindings.len(), buffers.len(), "bindings of {}", spec.name);
        let d = &self.device;
        let key = format!("{} {:?}", spec.name, dispatch.overrides);
        let mut made = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let (pipeline, layout) = made.entry(key).or_insert_with(|| self.pipeline(dispatch)).clone();
        drop(made);
        let group = self.group(&layout, buffers);
        let mut encoder = d.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        let params: Vec<u8> = dispatch.params.iter().flat_map(|p| p.to_ne_bytes()).collect();
        pass.set_immediates(0, &params);
        let [x, y, z] = dispatch.grid;
        pass.dispatch_workgroups(x, y, z);
        drop(pass);
        self.wait(self.queue.submit([encoder.finish()]));
    }

    /// The words of a buffer.
    pub fn read(&self, buffer: &wgpu::Buffer) -> Vec<u32> {
        let d = &self.device;
        let to = d.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: buffer.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = d.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &to, 0, buffer.size());
        let index = self.queue.submit([encoder.finish()]);
        to.slice(..).map_async(wgpu::MapMode::Read, |done| done.expect("mapped memory"));
        self.wait(index);
        let mapped = to.slice(..).get_mapped_range().expect("mapped memory");
        mapped.as_chunks::<4>().0.iter().map(|w| u32::from_ne_bytes(*w)).collect()
    }

    /// The floats of a buffer.
    pub fn read_floats(&self, buffer: &wgpu::Buffer) -> Vec<f32> {
        self.read(buffer).into_iter().map(f32::from_bits).collect()
    }
}

/// Numbers that look random, the same in each run.
pub struct Numbers(pub u64);

impl Numbers {
    /// 32 bits.
    pub fn bits(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 ^ (self.0 >> 13) as u32
    }

    /// Between -1 and 1.
    pub fn float(&mut self) -> f32 {
        self.bits() as f32 / 2.0f32.powi(31) - 1.0
    }

    /// So many floats between -1 and 1.
    pub fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// Asserts that numbers are near each other, relative to the largest of the expected.
#[track_caller]
pub fn near(what: &str, is: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(is.len(), expected.len(), "{what}: numbers");
    let scale = expected.iter().fold(1e-30, |m: f64, x| m.max(x.abs()));
    for (i, (a, b)) in is.iter().zip(expected).enumerate() {
        let error = (f64::from(*a) - b).abs() / scale;
        assert!(error <= bound, "{what}: number {i} is {a}, not {b} (error {error:e})");
    }
}

/// How far sums may be from those in double precision.
pub const BOUND: f64 = 1e-5;

/// A place.
pub fn loc(offset: u32, stride: usize) -> Loc {
    Loc { offset, stride: stride as u32 }
}

/// A weight of a type with reasonable numbers: its floats, and its rows on the device.
pub fn weight(n: &mut Numbers, dtype: DType, rows: usize, cols: usize) -> (Vec<f32>, Vec<u8>) {
    let bytes = match dtype {
        DType::F32 => n.floats(rows * cols).into_iter().flat_map(f32::to_le_bytes).collect(),
        DType::F16 => {
            let x = n.floats(rows * cols).into_iter();
            x.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect::<Vec<u8>>()
        }
        DType::BF16 => {
            let x = n.floats(rows * cols).into_iter();
            x.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect()
        }
        _ => {
            let len = rows * cols / dtype.block_len() * dtype.block_bytes();
            let mut bytes: Vec<u8> = (0..len).map(|_| n.bits() as u8).collect();
            for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                set_scale(dtype, block, n.float() / 16.0);
            }
            bytes
        }
    };
    let mut floats = vec![0.0; rows * cols];
    dequantize(dtype, &bytes, &mut floats);
    let format = WeightFormat::of(dtype).expect("a format");
    let mut packed = vec![0xaa; rows * format.row_bytes(cols as u32)];
    assert!(repack(dtype, &bytes, cols as u32, &mut packed));
    (floats, packed)
}

/// Rows of activations as the kernels round them to eight bits, if they do.
pub fn rounded(x: &[f32], eight_bits: bool) -> Vec<f32> {
    if !eight_bits {
        return x.to_vec();
    }
    let group = |x: &[f32]| -> Vec<f32> {
        let largest = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let (inverse, scale) = (127.0 / largest, largest / 127.0);
        x.iter().map(|x| (x * inverse).round_ties_even().clamp(-127.0, 127.0) * scale).collect()
    };
    x.chunks(32).flat_map(group).collect()
}

/// A product in double precision.
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// An activation.
pub fn act(of: Activation, g: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match of {
        Activation::Silu => g * sigmoid(g),
        Activation::Gelu => {
            // The integral of the normal density by Simpson's rule.
            let (steps, density) = (2000, |x: f64| (-x * x / 2.0).exp());
            let h = g / f64::from(steps);
            let inner: f64 =
                (1..steps).map(|i| f64::from(2 + 2 * (i % 2)) * density(h * f64::from(i))).sum();
            let integral = h / 3.0 * (density(0.0) + inner + density(g));
            g * (0.5 + integral / (2.0 * std::f64::consts::PI).sqrt())
        }
        Activation::GeluTanh => {
            let z = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
            0.5 * g * (1.0 + z.tanh())
        }
        Activation::Relu => g.max(0.0),
        Activation::ReluSquared => g.max(0.0).powi(2),
        Activation::Sigmoid => sigmoid(g),
        Activation::Softplus => g.max(0.0) + (-g.abs()).exp().ln_1p(),
        Activation::Xielu { alpha_p, .. } if g > 0.0 => f64::from(alpha_p) * g * g + 0.5 * g,
        Activation::Xielu { alpha_n, .. } => {
            f64::from(alpha_n) * (g.min(-1e-6).exp_m1() - g) + 0.5 * g
        }
        Activation::ClampedSwiglu { alpha, limit } => {
            let top = g.min(f64::from(limit));
            top * sigmoid(f64::from(alpha) * top)
        }
    }
}

/// An activated gate times up.
pub fn gated(of: Activation, g: f64, u: f64) -> f64 {
    match of {
        Activation::ClampedSwiglu { limit, .. } => {
            act(of, g) * (u.clamp(-f64::from(limit), f64::from(limit)) + 1.0)
        }
        _ => act(of, g) * u,
    }
}

/// All activations.
pub const ACTIVATIONS: [Activation; 9] = [
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Relu,
    Activation::ReluSquared,
    Activation::Sigmoid,
    Activation::Softplus,
    Activation::Xielu { alpha_p: 0.7, alpha_n: 0.9 },
    Activation::ClampedSwiglu { alpha: 1.702, limit: 3.0 },
];
