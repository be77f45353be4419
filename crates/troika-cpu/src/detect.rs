//! What this machine has: cores, instruction sets and, on request, memory bandwidth.

use std::time::Instant;

use crate::memory::Lines;
use crate::threads::Pool;

/// Instruction sets kernels are built for, weakest first within a family of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// No intrinsics: what the compiler makes of arrays of floats.
    Scalar,
    /// 64-bit ARM: what all such processors have.
    Neon,
    /// NEON with products of bytes, four to a sum (`dotprod`).
    NeonDot,
    /// The above with products of matrices of bytes (`i8mm`).
    NeonI8mm,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL beside the above.
    Avx512,
}

impl Isa {
    const ALL: [Isa; 6] =
        [Isa::Scalar, Isa::Neon, Isa::NeonDot, Isa::NeonI8mm, Isa::Avx2, Isa::Avx512];

    /// Whether this machine has it (cheap: the standard library remembers).
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = || has!("avx2") && has!("fma") && has!("f16c");
            let avx512 =
                || has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            match self {
                Isa::Scalar => true,
                Isa::Avx2 => avx2(),
                Isa::Avx512 => avx2() && avx512(),
                _ => false,
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            use std::arch::is_aarch64_feature_detected as has;
            match self {
                Isa::Scalar | Isa::Neon => true,
                Isa::NeonDot => has!("dotprod"),
                Isa::NeonI8mm => has!("dotprod") && has!("i8mm"),
                _ => false,
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            self == Isa::Scalar
        }
    }

    /// Whether this build runs it in plain Rust, for tests on other families of processors.
    pub fn is_emulated(self) -> bool {
        let foreign = match self {
            Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => !cfg!(target_arch = "aarch64"),
            _ => false,
        };
        cfg!(feature = "emulate") && foreign
    }

    /// Whether kernels can run on it here.
    pub fn can_run(self) -> bool {
        self.is_available() || self.is_emulated()
    }

    /// The best set of this machine.
    pub fn detect() -> Isa {
        let best = Isa::ALL.into_iter().rev().find(|i| i.is_available());
        best.unwrap_or(Isa::Scalar)
    }

    /// All sets this machine has, weakest first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|i| i.is_available()).collect()
    }

    /// All sets, weakest first.
    pub fn all() -> [Isa; 6] {
        Isa::ALL
    }

    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::NeonDot => "neon dotprod",
            Isa::NeonI8mm => "neon i8mm",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
}

/// Logical cores this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// CPU features that matter to kernels, present on this machine, separated by commas.
pub fn features() -> String {
    let mut found: Vec<&str> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! list {
            ($($f:tt),*) => {
                $(if std::arch::is_x86_feature_detected!($f) { found.push($f); })*
            };
        }
        list!("avx2", "fma", "f16c", "avxvnni", "avx512f", "avx512bw", "avx512dq", "avx512vl");
        list!("avx512vnni", "avx512bf16", "avx512fp16");
    }
    #[cfg(target_arch = "aarch64")]
    {
        macro_rules! list {
            ($($f:tt),*) => {
                $(if std::arch::is_aarch64_feature_detected!($f) { found.push($f); })*
            };
        }
        list!("neon", "dotprod", "i8mm", "fp16", "bf16");
    }
    if found.is_empty() {
        found.push("none");
    }
    found.join(",")
}

/// Bytes read per pass of [`measure_bandwidth`]: larger than caches.
const SWEEP_BYTES: usize = 256 << 20;

/// Measured read bandwidth of main memory with `threads` threads, in GB/s. Takes about half a
/// second; 0 when there is no memory or thread to measure with.
pub fn measure_bandwidth(threads: usize) -> f64 {
    let Ok(mut pool) = Pool::new(threads.max(1), None) else { return 0.0 };
    let mut lines = Lines::default();
    lines.grow(SWEEP_BYTES / 4);
    let data = lines.as_mut_slice();
    data.fill(1.0);
    let data = &*data;
    let part = 1 << 18;
    let mut best = 0.0f64;
    for _ in 0..5 {
        let start = Instant::now();
        let swept = pool.run(data.len() / part, &|_, i| {
            let sum = sweep(&data[i * part..][..part]);
            std::hint::black_box(sum);
        });
        if swept.is_err() {
            return 0.0;
        }
        best = best.max(SWEEP_BYTES as f64 / start.elapsed().as_secs_f64() / 1e9);
    }
    best
}

/// Adds with many independent sums, so that memory and not latency is the limit.
fn sweep(data: &[f32]) -> f32 {
    let mut sums = [0.0f32; 64];
    for chunk in data.chunks_exact(64) {
        for (s, x) in sums.iter_mut().zip(chunk) {
            *s += x;
        }
    }
    sums.iter().sum()
}
