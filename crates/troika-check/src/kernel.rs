//! The kernels that devices are checked for, each with small graphs of odd sizes that run it.

use troika_device::DeviceError;
use troika_graph::{
    Activation, ActivationFormat, Attention, DType, ExpertGroup, Node, Op, RopeStyle, ScaleOrigin,
    Subgraph, WeightRef,
};

use crate::build::{Build, DeviceCase, MOST_ROWS, plain_attention};
use crate::ops::caches;

/// Columns that are a multiple of all blocks.
const WHOLE: usize = 512;

/// A kernel, as far as checks tell kernels apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kernel {
    /// Products with weights of a type and activations in a format, also several at once, and with
    /// what precedes or follows them in a layer.
    Linear(DType, ActivationFormat),
    /// What clipping takes from products.
    Outliers(DType),
    /// Rows of a table.
    Embed(DType),
    /// Products that experts share out, with the router before them.
    Experts(DType, ActivationFormat),
    /// Activated gates.
    Gate(Activation),
    /// Norms by the root mean square.
    RmsNorm,
    /// Norms by mean and variance.
    LayerNorm,
    /// Rotations.
    Rope(RopeStyle),
    /// Attention to a cache of a type, whose rows it also appends.
    Attention {
        /// The cache's type.
        cache: DType,
        /// Whether it sees a window only, with a cap.
        window: bool,
    },
    /// An op whose state is one row, by its name.
    Recurrence(&'static str),
    /// Picks the largest numbers of rows that the host reads. No graph has it.
    TopK,
}

impl Kernel {
    /// All of them.
    pub fn all() -> Vec<Kernel> {
        use Activation::{
            ClampedSwiglu, Gelu, GeluTanh, Relu, ReluSquared, Sigmoid, Silu, Softplus, Xielu,
        };
        let mut all = Vec::new();
        for &dtype in DType::WEIGHTS {
            let eight_bits = dtype.is_quantized().then_some(ActivationFormat::INT8);
            for format in eight_bits.into_iter().chain([ActivationFormat::F32]) {
                all.extend([Kernel::Linear(dtype, format), Kernel::Experts(dtype, format)]);
            }
            all.extend([Kernel::Embed(dtype), Kernel::Outliers(dtype)]);
        }
        let clamped = ClampedSwiglu { alpha: 1.7, limit: 0.5 };
        let xielu = Xielu { alpha_p: 0.7, alpha_n: 0.9 };
        let plain = [Silu, Gelu, GeluTanh, Relu, ReluSquared, Sigmoid, Softplus, xielu, clamped];
        all.extend(plain.map(Kernel::Gate));
        all.extend([Kernel::RmsNorm, Kernel::LayerNorm, Kernel::TopK]);
        all.extend(["short_conv", "mamba2", "delta_rule"].map(Kernel::Recurrence));
        all.extend([RopeStyle::Half, RopeStyle::Interleaved].map(Kernel::Rope));
        for cache in [DType::F32, DType::F16] {
            all.extend([false, true].map(|window| Kernel::Attention { cache, window }));
        }
        all
    }

    /// The kernel of a node, if there is a check for it.
    pub fn of(graph: &Subgraph, node: &Node) -> Option<Kernel> {
        let dtype = |w: &WeightRef| graph.weight(*w).dtype;
        Some(match &node.op {
            Op::Linear { weight, activations, .. } => Kernel::Linear(dtype(weight), *activations),
            Op::HeadLinear(h) => Kernel::Linear(dtype(h.weights.first()?), ActivationFormat::F32),
            Op::Outliers { weight, .. } => Kernel::Outliers(dtype(weight)),
            Op::Embed { table, .. } => Kernel::Embed(dtype(table)),
            Op::Experts(e) | Op::ExpertGroup(ExpertGroup { experts: e, .. }) => {
                Kernel::Experts(dtype(e.gate.first()?), e.activations)
            }
            Op::Gate(act) => Kernel::Gate(*act),
            Op::RmsNorm { .. } => Kernel::RmsNorm,
            Op::LayerNorm { .. } => Kernel::LayerNorm,
            Op::Rope(rope) => Kernel::Rope(rope.style),
            op @ (Op::ShortConv(_) | Op::Mamba2(_) | Op::DeltaRule(_)) => {
                Kernel::Recurrence(op.name())
            }
            Op::Attention(a) => {
                let cache = graph.value(*node.states.first()?).dtype;
                Kernel::Attention { cache, window: a.window.is_some() }
            }
            _ => return None,
        })
    }

    /// The largest difference that is not a fault.
    pub fn most(self) -> f32 {
        match self {
            // What lies between two whole numbers may be rounded to either.
            Kernel::Linear(_, activations) | Kernel::Experts(_, activations)
                if activations != ActivationFormat::F32 =>
            {
                2e-2
            }
            Kernel::TopK => 0.0,
            // Sums of f32 in another order differ by less.
            _ => 1e-4,
        }
    }

    /// Its name, for people and for what is kept.
    pub fn name(self) -> String {
        let products = |what: &str, dtype: DType, activations| match activations {
            ActivationFormat::F32 => format!("{what} of {dtype}"),
            other => format!("{what} of {dtype} and {other}"),
        };
        match self {
            Kernel::Linear(dtype, activations) => products("linear", dtype, activations),
            Kernel::Embed(dtype) => format!("embed of {dtype}"),
            Kernel::Outliers(dtype) => format!("outliers of {dtype}"),
            Kernel::Experts(dtype, activations) => products("experts", dtype, activations),
            Kernel::Gate(Activation::Silu) => "gate with silu".into(),
            Kernel::Gate(Activation::Gelu) => "gate with gelu".into(),
            Kernel::Gate(Activation::GeluTanh) => "gate with gelu by tanh".into(),
            Kernel::Gate(Activation::Relu) => "gate with relu".into(),
            Kernel::Gate(Activation::ReluSquared) => "gate with relu squared".into(),
            Kernel::Gate(Activation::Sigmoid) => "gate with sigmoid".into(),
            Kernel::Gate(Activation::Softplus) => "gate with softplus".into(),
            Kernel::Gate(Activation::Xielu { .. }) => "gate with xielu".into(),
            Kernel::Gate(Activation::ClampedSwiglu { .. }) => "clamped gate".into(),
            Kernel::RmsNorm => "rms_norm".into(),
            Kernel::LayerNorm => "layer_norm".into(),
            Kernel::TopK => "top_k".into(),
            Kernel::Recurrence(op) => op.into(),
            Kernel::Rope(RopeStyle::Half) => "rope".into(),
            Kernel::Rope(RopeStyle::Interleaved) => "rope of neighbours".into(),
            Kernel::Attention { cache, window } => {
                format!("attention to {cache}{}", if window { " in a window" } else { "" })
            }
        }
    }

    /// Graphs that run it.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn cases(self) -> Result<Vec<DeviceCase>, DeviceError> {
        let new = |name: &str| Build::new(name, MOST_ROWS, self.most());
        let b = new(&self.name());
        let odd = |dtype: DType| if dtype.block_len() == 1 { 97 } else { WHOLE };
        match self {
            Kernel::Linear(dtype, activations) => {
                let of = |b: Build| b.of(dtype, activations);
                Ok(vec![
                    of(b).linear(53, odd(dtype))?,
                    of(new("several products")).products(WHOLE)?,
                    of(new("a feed-forward")).feed_forward(WHOLE, WHOLE, true)?,
                ])
            }
            Kernel::Attention { cache, window } => {
                let (window, softcap) = (window.then_some(9), window.then_some(5.0));
                let of = |dim| Attention { window, softcap, ..plain_attention(dim, dim) };
                let rotated = new("with norms and rotations").attention(of(32), cache, true)?;
                Ok(vec![b.attention(of(34), cache, false)?, rotated])
            }
            Kernel::Outliers(dtype) => {
                Ok(vec![b.outliers(dtype, ScaleOrigin::SmoothedClipped, odd(dtype))?])
            }
            Kernel::Embed(dtype) => Ok(vec![b.embed(dtype, odd(dtype))?]),
            Kernel::Experts(dtype, activations) => {
                let width = if dtype.block_len() == 1 { 72 } else { 256 };
                Ok(vec![b.of(dtype, activations).routed_experts(5, width)?])
            }
            Kernel::Gate(act) => Ok(vec![b.plain(Op::Gate(act), &[301, 301], 301)?]),
            Kernel::RmsNorm => Ok(vec![b.rms_norm(77, 3 * 77)?]),
            Kernel::LayerNorm => Ok(vec![b.layer_norm(DType::F32, 301)?]),
            Kernel::Rope(style) => Ok(vec![b.rope(style, false)?]),
            Kernel::Recurrence(op) => {
                let of_op = |case: &DeviceCase| case.graph.nodes.iter().any(|n| n.op.name() == op);
                Ok(caches()?.into_iter().filter(of_op).collect())
            }
            Kernel::TopK => Ok(Vec::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Kernel;

    #[test]
    fn each_kernel_is_found_in_its_own_cases() {
        let mut names = Vec::new();
        for kernel in Kernel::all() {
            for case in kernel.cases().unwrap() {
                let found = case.graph.nodes.iter().filter_map(|n| Kernel::of(&case.graph, n));
                let found: Vec<String> = found.map(Kernel::name).collect();
                assert!(found.contains(&kernel.name()), "{}: {found:?}", kernel.name());
            }
            names.push(kernel.name());
        }
        let all = names.len();
        names.sort();
        names.dedup();
        assert!(names.len() == all && all > 60);
    }
}
