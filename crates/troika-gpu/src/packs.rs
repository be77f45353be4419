//! What ops need of their weights, in which form, and how it is split over bindings.

use std::ops::Range;
use std::sync::Arc;

use troika_graph::{
    ActivationFormat, ExpertGroup, Experts, Node, Op, Subgraph, WeightDecl, WeightRef,
};

use crate::kernels::{KernelError, Matrix, Stack, WeightFormat, is_eight_bits, unsupported};

/// What a node needs of its weights.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pack {
    /// A matrix, split by rows where it is beyond the limit of a binding.
    Matrix(WeightRef),
    /// Matrices of one shape, one after another, split between them.
    Matrices(Vec<WeightRef>),
    /// Vectors as f32, one after another.
    Vectors(Vec<WeightRef>, Split),
    /// Zeros in the place of vectors, each of this number of elements.
    Zeros(usize, Split),
    /// How a calibration clips the inputs of a weight in a format: the step of numbers, the largest of
    /// them, and what each column is divided by.
    Clipping(WeightRef, ActivationFormat),
    /// Rates of decays, below zero, or logarithms that become such; then vectors.
    Rates(Vec<WeightRef>, bool),
    /// Numbers of the op.
    Numbers(Arc<[f32]>),
}

impl Pack {
    /// Vectors in one binding.
    pub fn joined(list: Vec<WeightRef>) -> Pack {
        let split = Split { all: list.len(), each: list.len().max(1) };
        Pack::Vectors(list, split)
    }
}

/// How things of one size are shared out over bindings: how many there are, and how many are in each
/// binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub all: usize,
    pub each: usize,
}

impl Split {
    /// As many in each binding as the limit allows.
    fn new(all: usize, bytes: usize, limit: u64) -> Result<Split, KernelError> {
        match usize::try_from(limit).unwrap_or(usize::MAX) / bytes.max(1) {
            0 => unsupported(format!("weights of {bytes} bytes, beyond the limit of a binding")),
            each => Ok(Split { all, each: each.min(all.max(1)) }),
        }
    }

    /// The first one of each part.
    pub fn parts(self) -> impl Iterator<Item = Range<usize>> {
        (0..self.all).step_by(self.each).map(move |at| at..self.all.min(at + self.each))
    }
}

/// How weights of one shape lie in bindings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layout {
    /// One weight: its format, all its rows, and how its products round activations.
    pub matrix: Matrix,
    /// How the rows of one weight, or several weights, are shared out.
    pub split: Split,
}

impl Layout {
    /// The parts of one weight.
    pub fn parts(self) -> impl Iterator<Item = Matrix> {
        let part = move |rows: Range<usize>| Matrix {
            rows: rows.len() as u32,
            first: rows.start as u32,
            ..self.matrix
        };
        self.split.parts().map(part)
    }

    /// The parts of several weights.
    pub fn stacks(self) -> impl Iterator<Item = Stack> {
        let stack = move |weights: Range<usize>| Stack {
            each: self.matrix,
            first: weights.start as u32,
            count: weights.len() as u32,
        };
        self.split.parts().map(stack)
    }

    /// All that is stored, if it is in one binding.
    ///
    /// # Errors
    /// It is in several.
    pub fn whole(self) -> Result<Matrix, KernelError> {
        let Split { all, each } = self.split;
        if each < all { unsupported("a part of a weight") } else { Ok(self.matrix) }
    }
}

/// Whether any of the experts' products has a bias.
pub(crate) fn has_bias(e: &Experts) -> bool {
    [&e.gate_bias, &e.up_bias, &e.down_bias].iter().any(|list| !list.is_empty())
}

/// How a matrix lies in bindings: its rows are shared out.
///
/// # Errors
/// No kernel reads its type or its activations, or a row of it is beyond the limit of a binding.
pub(crate) fn matrix(
    graph: &Subgraph,
    w: WeightRef,
    activations: ActivationFormat,
    limit: u64,
) -> Result<Layout, KernelError> {
    let WeightDecl { dtype, rows, cols, .. } = *graph.weight(w);
    let Some(format) = WeightFormat::of(dtype) else {
        return unsupported(format!("weights of {dtype}"));
    };
    let (eight_bits, cols) = (is_eight_bits(activations)?, cols as u32);
    let split = Split::new(rows, format.row_bytes(cols), limit)?;
    Ok(Layout { matrix: Matrix { format, rows: rows as u32, cols, first: 0, eight_bits }, split })
}

/// As [`matrix`], where whole weights are shared out.
pub(crate) fn matrices(
    graph: &Subgraph,
    list: &[WeightRef],
    activations: ActivationFormat,
    limit: u64,
) -> Result<Layout, KernelError> {
    let shape =
        |w: &WeightRef| (graph.weight(*w).dtype, graph.weight(*w).rows, graph.weight(*w).cols);
    if !list.windows(2).all(|pair| shape(&pair[0]) == shape(&pair[1])) {
        return unsupported("weights of different types or shapes side by side");
    }
    let Some(first) = list.first() else { return unsupported("no weights") };
    let Layout { matrix, .. } = matrix(graph, *first, activations, u64::MAX)?;
    let bytes = matrix.format.row_bytes(matrix.cols).saturating_mul(matrix.rows as usize);
    Ok(Layout { matrix, split: Split::new(list.len(), bytes, limit)? })
}

/// What a node needs of its weights, in the order in which operands number them.
pub(crate) fn packs(graph: &Subgraph, node: &Node, limit: u64) -> Result<Vec<Pack>, KernelError> {
    let vector = |w: &WeightRef| Pack::joined(vec![*w]);
    Ok(match &node.op {
        Op::Embed { table, .. } => {
            matrix(graph, *table, ActivationFormat::F32, limit)?;
            vec![Pack::Matrix(*table)]
        }
        Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Rescale(_)
        | Op::Attention(_)
        | Op::Router(_) => node.op.weights().iter().map(vector).collect(),
        Op::Linear { weight, bias, activations, .. } => {
            matrix(graph, *weight, *activations, limit)?;
            let bias = bias.iter().map(vector);
            std::iter::once(Pack::Matrix(*weight)).chain(bias).collect()
        }
        Op::Outliers { weight, activations } => {
            matrix(graph, *weight, ActivationFormat::F32, limit)?;
            vec![Pack::Matrix(*weight), Pack::Clipping(*weight, *activations)]
        }
        Op::HeadLinear(h) => {
            matrices(graph, &h.weights, ActivationFormat::F32, limit)?;
            vec![Pack::Matrices(h.weights.clone())]
        }
        Op::Rope(rope) => {
            let long = rope.long.iter().map(|(freqs, _)| freqs);
            let all = std::iter::once(&rope.freqs).chain(long);
            all.map(|freqs| Pack::Numbers(freqs.inv_freq.clone())).collect()
        }
        Op::ShortConv(_) => vec![Pack::joined(node.op.weights())],
        Op::Mamba2(m) => vec![Pack::Rates(node.op.weights(), m.a_log)],
        Op::DeltaRule(d) => vec![Pack::Rates(node.op.weights(), d.rates_are_logs)],
        Op::Experts(e) | Op::ExpertGroup(ExpertGroup { experts: e, .. }) => {
            let (mut all, mut biases) = (Vec::new(), Vec::new());
            for (list, bias) in
                [(&e.gate, &e.gate_bias), (&e.up, &e.up_bias), (&e.down, &e.down_bias)]
            {
                let Layout { matrix, split } = matrices(graph, list, e.activations, limit)?;
                all.push(Pack::Matrices(list.clone()));
                biases.push(match bias.is_empty() {
                    true => Pack::Zeros(matrix.rows as usize, split),
                    false => Pack::Vectors(bias.clone(), split),
                });
            }
            if has_bias(e) {
                all.extend(biases);
            }
            all
        }
        _ => Vec::new(),
    })
}
