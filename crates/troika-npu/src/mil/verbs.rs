//! Verbs as operations: what each makes, and its parameters.

use troika_graph::DType;

use super::types::Arg;
use crate::emit::verb::Verb;

/// The largest half.
pub(super) const MOST_HALF: f32 = 65_504.0;

/// The dimensions of what a verb makes of operands with these.
pub(super) fn dims(verb: Verb<'_>, x: &[usize], y: &[usize]) -> Vec<usize> {
    let last = |n: usize| [&x[..x.len() - 1], &[n]].concat();
    match verb {
        Verb::Add | Verb::Sub | Verb::Mul | Verb::Div | Verb::Pow | Verb::Maximum => {
            broadcast(x, y)
        }
        Verb::MatMul => {
            let (rows, cols) = (x.len() - 2, y.len() - 1);
            let lead = broadcast(&x[..rows], &y[..cols - 1]);
            [&lead[..], &[x[rows], y[cols]]].concat()
        }
        Verb::ReduceMax | Verb::ReduceMean => last(1),
        Verb::Gather => [y, &x[1..]].concat(),
        Verb::Reshape(shape) => {
            let fixed: i64 = shape.iter().filter(|d| **d >= 0).product();
            let left = x.iter().product::<usize>() / fixed.max(1) as usize;
            shape.iter().map(|d| if *d < 0 { left } else { *d as usize }).collect()
        }
        Verb::Transpose(perm) => perm.iter().map(|i| x[*i as usize]).collect(),
        Verb::Slice { axis, from, to, step } => {
            let mut dims = x.to_vec();
            dims[place(axis, x.len())] = to.saturating_sub(from).div_ceil(step.max(1));
            dims
        }
        Verb::Linear => last(y[0]),
        Verb::Convolution => vec![x[0], y[0], x[2], x[3]],
        _ => x.to_vec(),
    }
}

/// An axis, of which negative ones count from the last.
pub(super) fn place(axis: i64, rank: usize) -> usize {
    if axis < 0 { rank - axis.unsigned_abs() as usize } else { axis as usize }
}

/// The name of an operation, of its operands, and its other parameters.
type Operation = (&'static str, &'static [&'static str], Vec<(&'static str, Arg<'static>)>);

/// A verb's operation on an operand of these dimensions, which makes others.
pub(super) fn operation(verb: Verb<'_>, x: &[usize], made: &[usize]) -> Operation {
    const ONE: &[&str] = &["x"];
    const TWO: &[&str] = &["x", "y"];
    const WEIGHTS: &[&str] = &["x", "weight", "bias"];
    let ints = |list: &[usize]| Arg::Ints(list.iter().map(|n| *n as i64).collect());
    let pair = || Arg::Ints(vec![1, 1]);
    let reduced = || vec![("axes", Arg::Ints(vec![-1])), ("keep_dims", Arg::Bool(true))];
    let gelu = |mode| ("gelu", ONE, vec![("mode", Arg::Text(mode))]);
    let plain = |kind| (kind, ONE, Vec::new());
    let of_two = |kind| (kind, TWO, Vec::new());
    match verb {
        Verb::Add => of_two("add"),
        Verb::Sub => of_two("sub"),
        Verb::Mul => of_two("mul"),
        Verb::Div => of_two("real_div"),
        Verb::Pow => of_two("pow"),
        Verb::Maximum => of_two("maximum"),
        Verb::MatMul => {
            let turned = ["transpose_x", "transpose_y"].map(|name| (name, Arg::Bool(false)));
            ("matmul", TWO, turned.into())
        }
        Verb::Abs => plain("abs"),
        Verb::Exp => plain("exp"),
        Verb::Gelu => gelu("EXACT"),
        Verb::GeluTanh => gelu("TANH_APPROXIMATION"),
        Verb::Relu => plain("relu"),
        Verb::Sigmoid => plain("sigmoid"),
        Verb::Softplus => plain("softplus"),
        Verb::Sqrt => plain("sqrt"),
        Verb::Tanh => plain("tanh"),
        Verb::Rsqrt(epsilon) => ("rsqrt", ONE, vec![("epsilon", Arg::Half(epsilon))]),
        Verb::Clamp { low, high } => {
            let [low, high] = [low, high].map(|v| Arg::Half(v.clamp(-MOST_HALF, MOST_HALF)));
            ("clip", ONE, vec![("alpha", low), ("beta", high)])
        }
        Verb::ReduceMax => ("reduce_max", ONE, reduced()),
        Verb::ReduceMean => ("reduce_mean", ONE, reduced()),
        Verb::Softmax => ("softmax", ONE, vec![("axis", Arg::Int(-1))]),
        Verb::Gather => ("gather", &["x", "indices"], gather()),
        Verb::Reshape(_) => ("reshape", ONE, vec![("shape", ints(made))]),
        Verb::Transpose(perm) => ("transpose", ONE, vec![("perm", Arg::Ints(perm.to_vec()))]),
        Verb::Slice { axis, from, to, step } => {
            ("slice_by_index", ONE, slice(x, place(axis, x.len()), &[from, to, step]))
        }
        Verb::Cast(DType::I32) => ("cast", ONE, vec![("dtype", Arg::Text("int32"))]),
        Verb::Cast(_) => ("cast", ONE, vec![("dtype", Arg::Text("fp16"))]),
        Verb::Linear => ("linear", WEIGHTS, Vec::new()),
        Verb::Convolution => {
            let own = vec![("strides", pair()), ("pad_type", Arg::Text("valid"))];
            let pads = [("pad", ints(&[0; 4])), ("dilations", pair()), ("groups", Arg::Int(1))];
            ("conv", WEIGHTS, own.into_iter().chain(pads).collect())
        }
        // Written as a list of operands.
        Verb::Concat(_) => plain("identity"),
    }
}

fn gather() -> Vec<(&'static str, Arg<'static>)> {
    let numbers = [("axis", Arg::Int(0)), ("batch_dims", Arg::Int(0))];
    numbers.into_iter().chain([("validate_indices", Arg::Bool(false))]).collect()
}

/// The bounds of some of an axis and all of the others.
fn slice(x: &[usize], axis: usize, bounds: &[usize]) -> Vec<(&'static str, Arg<'static>)> {
    let at = |bound: usize, whole: &dyn Fn(usize) -> usize| {
        let of = |i| if i == axis { bound } else { whole(i) };
        Arg::Ints((0..x.len()).map(|i| of(i) as i64).collect())
    };
    let (begin, end) = (at(bounds[0], &|_| 0), at(bounds[1], &|i| x[i]));
    vec![("begin", begin), ("end", end), ("stride", at(bounds[2], &|_| 1))]
}

fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let dim = |list: &[usize], i: usize| (i + list.len()).checked_sub(rank).map_or(1, |i| list[i]);
    (0..rank).map(|i| dim(a, i).max(dim(b, i))).collect()
}
