//! What ops need of their weights, in which form, and how it is split over bindings.

use std::sync::Arc;

use troika_graph::{Experts, Node, Op, Subgraph, WeightRef};

use crate::kernels::{KernelError, WeightFormat, unsupported};

/// What a node needs of its weights.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Pack {
    /// A matrix, split by rows where it is beyond the limit of a binding.
    Matrix(WeightRef),
    /// A vector as f32.
    Vector(WeightRef),
    /// Matrices of one shape, one after another, split between them.
    Matrices(Vec<WeightRef>),
    /// Vectors as f32, one after another, split as the matrices that they belong to.
    Vectors(Vec<WeightRef>, Split),
    /// Zeros in the place of vectors of so many elements.
    Zeros(usize, Split),
    /// Numbers of the op.
    Numbers(Arc<[f32]>),
}

/// How things of one size are shared out over bindings: so many in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub all: usize,
    pub each: usize,
}

impl Split {
    /// As many in each binding as the limit allows; `None` if not even one fits.
    pub fn new(all: usize, bytes: usize, limit: u64) -> Option<Split> {
        let each = usize::try_from(limit).unwrap_or(usize::MAX) / bytes.max(1);
        (each > 0).then(|| Split { all, each: each.min(all.max(1)) })
    }

    /// The parts, as (first, count).
    pub fn parts(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.all).step_by(self.each.max(1)).map(move |at| (at, self.each.min(self.all - at)))
    }
}

/// Whether any of the experts' products has a bias.
pub(crate) fn has_bias(e: &Experts) -> bool {
    [&e.gate_bias, &e.up_bias, &e.down_bias].iter().any(|list| !list.is_empty())
}

/// The format of a matrix, how its rows are shared out, and its columns.
///
/// # Errors
/// No kernel reads its type, or a row of it is beyond the limit of a binding.
pub(crate) fn matrix(
    graph: &Subgraph,
    w: WeightRef,
    limit: u64,
) -> Result<(WeightFormat, Split, u32), KernelError> {
    let decl = graph.weight(w);
    let Some(format) = WeightFormat::of(decl.dtype) else {
        return unsupported(format!("weights of {}", decl.dtype));
    };
    let cols = decl.cols as u32;
    match Split::new(decl.rows, format.row_bytes(cols), limit) {
        Some(split) => Ok((format, split, cols)),
        None => {
            unsupported(format!("weight rows of {cols} columns, beyond the limit of a binding"))
        }
    }
}

/// As [`matrix`], where the rows are those of whole weights.
pub(crate) fn matrices(
    graph: &Subgraph,
    list: &[WeightRef],
    limit: u64,
) -> Result<(WeightFormat, Split, u32), KernelError> {
    let Some(first) = list.first() else { return unsupported("no weights") };
    let decl = graph.weight(*first);
    let is_alike = |w: &WeightRef| {
        let other = graph.weight(*w);
        (other.dtype, other.rows, other.cols) == (decl.dtype, decl.rows, decl.cols)
    };
    if !list.iter().all(is_alike) {
        return unsupported("weights of different types or shapes side by side");
    }
    let Some(format) = WeightFormat::of(decl.dtype) else {
        return unsupported(format!("weights of {}", decl.dtype));
    };
    let cols = decl.cols as u32;
    let bytes = format.row_bytes(cols).saturating_mul(decl.rows);
    match Split::new(list.len(), bytes, limit) {
        Some(split) => Ok((format, split, cols)),
        None => unsupported(format!("weights of {bytes} bytes, beyond the limit of a binding")),
    }
}

/// What a node needs of its weights, in the order of [`Operand::Weight`].
pub(crate) fn packs(graph: &Subgraph, node: &Node, limit: u64) -> Result<Vec<Pack>, KernelError> {
    let vectors = |list: &Vec<WeightRef>, of: &[WeightRef], split: Split| {
        let len = of.first().map_or(0, |w| graph.weight(*w).rows);
        if list.is_empty() { Pack::Zeros(len, split) } else { Pack::Vectors(list.clone(), split) }
    };
    Ok(match &node.op {
        Op::Embed { table, .. } => {
            matrix(graph, *table, limit)?;
            vec![Pack::Matrix(*table)]
        }
        Op::RmsNorm { weight, .. } => weight.iter().map(|w| Pack::Vector(*w)).collect(),
        Op::LayerNorm { weight, bias, .. } => {
            std::iter::once(weight).chain(bias).map(|w| Pack::Vector(*w)).collect()
        }
        Op::Linear { weight, bias, .. } => {
            matrix(graph, *weight, limit)?;
            let bias = bias.iter().map(|w| Pack::Vector(*w));
            std::iter::once(Pack::Matrix(*weight)).chain(bias).collect()
        }
        Op::HeadLinear(h) => {
            matrices(graph, &h.weights, limit)?;
            vec![Pack::Matrices(h.weights.clone())]
        }
        Op::Rope(rope) => {
            let long = rope.long.iter().map(|(freqs, _)| freqs);
            let all = std::iter::once(&rope.freqs).chain(long);
            all.map(|freqs| Pack::Numbers(freqs.inv_freq.clone())).collect()
        }
        Op::Attention(a) => a.sinks.iter().map(|w| Pack::Vector(*w)).collect(),
        Op::Experts(e) | Op::ExpertGroup(troika_graph::ExpertGroup { experts: e, .. }) => {
            let (_, gates, _) = matrices(graph, &e.gate, limit)?;
            matrices(graph, &e.up, limit)?;
            let (_, downs, _) = matrices(graph, &e.down, limit)?;
            let mut all: Vec<Pack> =
                [&e.gate, &e.up, &e.down].map(|list| Pack::Matrices(list.clone())).into();
            if has_bias(e) {
                all.push(vectors(&e.gate_bias, &e.gate, gates));
                all.push(vectors(&e.up_bias, &e.up, gates));
                all.push(vectors(&e.down_bias, &e.down, downs));
            }
            all
        }
        _ => Vec::new(),
    })
}
