//! Operations by their names, and those that compute each element, or a group of elements.

use super::call::{Call, Known, Made, made};
use super::data::{Data, Kind, Typed};
use super::region::{Region, meet};
use super::{moves, products};

/// An operation: its name, its inputs (a question mark after those that may be missing), and what
/// makes it.
type Operator = (&'static str, &'static str, fn(&Call) -> Result<Made, String>);

static OPERATORS: [Operator; 23] = [
    ("cast", "x dtype", moves::cast),
    ("clip", "x alpha beta", clip),
    ("concat", "values axis interleave?", moves::concat),
    ("conv", "x weight bias? strides? pad_type? pad? dilations? groups?", products::conv),
    ("expand_dims", "x axes", moves::expand_dims),
    ("gather", "x indices axis? batch_dims? validate_indices?", moves::gather),
    ("gelu", "x mode?", gelu),
    ("identity", "x", moves::identity),
    ("layer_norm", "x axes? gamma? beta? epsilon?", layer_norm),
    ("linear", "x weight bias?", products::linear),
    ("matmul", "x y transpose_x? transpose_y?", products::matmul),
    ("reduce_max", "x axes? keep_dims?", |call| reduce(call, most)),
    ("reduce_mean", "x axes? keep_dims?", |call| reduce(call, mean)),
    ("reduce_sum", "x axes? keep_dims?", |call| reduce(call, sum)),
    ("reshape", "x shape", moves::reshape),
    ("rsqrt", "x epsilon?", rsqrt),
    ("select", "cond a b", moves::select),
    ("slice_by_index", SLICE, moves::slice_by_index),
    ("slice_by_size", "x begin size", moves::slice_by_size),
    ("slice_update", UPDATE, moves::slice_update),
    ("softmax", "x axis?", softmax),
    ("squeeze", "x axes?", moves::squeeze),
    ("transpose", "x perm", moves::transpose),
];

const SLICE: &str = "x begin end stride? begin_mask? end_mask? squeeze_mask?";
const UPDATE: &str = "x update begin end stride? begin_mask? end_mask? squeeze_mask?";

type OfOne = (&'static str, fn(f32) -> f32);

/// Operations with one input.
static OF_ONE: [OfOne; 8] = [
    ("abs", f32::abs),
    ("exp", f32::exp),
    ("relu", |x| if x < 0.0 { 0.0 } else { x }),
    ("sigmoid", |x| 1.0 / (1.0 + (-x).exp())),
    ("silu", |x| x / (1.0 + (-x).exp())),
    ("softplus", |x| (-x.abs()).exp().ln_1p() + x.max(0.0)),
    ("sqrt", f32::sqrt),
    ("tanh", f32::tanh),
];

/// What two floats and, if it may have them, what two whole numbers become.
type OfTwo = (&'static str, fn(f32, f32) -> f32, Option<fn(i32, i32) -> i32>);

/// Operations with two inputs that meet in one shape.
static OF_TWO: [OfTwo; 8] = [
    ("add", |a, b| a + b, Some(i32::wrapping_add)),
    ("sub", |a, b| a - b, Some(i32::wrapping_sub)),
    ("mul", |a, b| a * b, Some(i32::wrapping_mul)),
    ("real_div", |a, b| a / b, None),
    ("maximum", |a, b| if a > b { a } else { b }, Some(Ord::max)),
    ("minimum", |a, b| if a < b { a } else { b }, Some(Ord::min)),
    ("pow", f32::powf, None),
    (GREATER_EQUAL, |a, b| f32::from(a >= b), Some(|a, b| i32::from(a >= b))),
];

const GREATER_EQUAL: &str = "greater_equal";

/// What a program's operation becomes.
pub fn make(name: &str, call: &Call) -> Result<Made, String> {
    if let Some((_, inputs, make)) = OPERATORS.iter().find(|(of, ..)| *of == name) {
        check_inputs(call, inputs)?;
        return make(call);
    }
    if let Some((_, compute)) = OF_ONE.iter().find(|(of, _)| *of == name) {
        check_inputs(call, "x")?;
        return each(call, compute);
    }
    let of_two = OF_TWO.iter().find(|(of, ..)| *of == name);
    let of_two = of_two.ok_or("there is no such operation")?;
    check_inputs(call, "x y")?;
    two(call, of_two)
}

/// Nothing may be missing, and nothing more may be there.
pub fn check_inputs(call: &Call, inputs: &str) -> Result<(), String> {
    let known = |name: &str| inputs.split(' ').any(|i| i.trim_end_matches('?') == name);
    if let Some(name) = call.inputs.keys().find(|name| !known(name)) {
        return Err(format!("it has no input `{name}`"));
    }
    if let Some((name, _)) = call.inputs.iter().find(|(n, v)| v.len() != 1 && *n != "values") {
        return Err(format!("input `{name}` is not one value"));
    }
    let missing = |name: &&str| !name.ends_with('?') && !call.inputs.contains_key(*name);
    match inputs.split(' ').find(missing) {
        Some(name) => Err(format!("its input `{name}` is missing")),
        None => Ok(()),
    }
}

/// A function of each element.
fn each(call: &Call, compute: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Result<Made, String> {
    let x = call.floats("x")?;
    let kind = x.typed.kind;
    made(x.typed.clone(), &[x], move |args| {
        let mut values = args[0].floats();
        values.iter_mut().for_each(|v| *v = compute(*v));
        Ok(Data::from_floats(kind, values))
    })
}

fn rsqrt(call: &Call) -> Result<Made, String> {
    let epsilon = call.float("epsilon", 1e-12)?;
    each(call, move |x| 1.0 / (x + epsilon).sqrt())
}

fn clip(call: &Call) -> Result<Made, String> {
    let (low, high) = (call.float("alpha", 0.0)?, call.float("beta", 0.0)?);
    match low < high {
        true => each(call, move |x| if x < low { low } else { x.min(high) }),
        false => Err(format!("`alpha` ({low}) is not below `beta` ({high})")),
    }
}

fn gelu(call: &Call) -> Result<Made, String> {
    match &*call.text("mode", "EXACT")? {
        "EXACT" => each(call, |x| {
            let x = f64::from(x);
            (0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
        }),
        "TANH_APPROXIMATION" => each(call, |x| {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }),
        mode => Err(format!("mode `{mode}` is not known")),
    }
}

/// The error function, by a series whose terms all have one sign.
fn erf(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 6.0 {
        return x.clamp(-1.0, 1.0);
    }
    let terms = (0..).scan(x, |term, i| {
        let this = *term;
        *term *= 2.0 * x * x / f64::from(2 * i + 3);
        Some(this)
    });
    let sum: f64 = terms.take(140).take_while(|term| term.abs() > 1e-18).sum();
    sum * std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp()
}

fn two(call: &Call, of: &'static OfTwo) -> Result<Made, String> {
    let (x, y) = (call.need("x")?, call.need("y")?);
    let (name, floats, ints) = *of;
    let kind = x.typed.kind;
    let is_known = kind.is_float() || ints.is_some() && !matches!(kind, Kind::Bool | Kind::Text);
    if kind != y.typed.kind || !is_known {
        return Err(format!("it is not one of {} and {}", x.typed, y.typed));
    }
    let shape = meet(&x.typed.shape, &y.typed.shape)?;
    let regions = [x, y].map(|known| {
        let from = &known.typed.shape;
        (*from != shape).then(|| Region::broadcast(from, &shape))
    });
    let result = if name == GREATER_EQUAL { Kind::Bool } else { kind };
    let typed = Typed::new(result, shape)?;
    made(typed, &[x, y], move |args| {
        let arg = |i: usize| match &regions[i] {
            Some(region) => region.copy(&args[i]),
            None => args[i].clone(),
        };
        let (x, y) = (arg(0), arg(1));
        if let (Data::I32(x), Data::I32(y), Some(ints)) = (&x, &y, ints) {
            let results = x.iter().zip(y.iter()).map(|(x, y)| ints(*x, *y));
            return Ok(Data::from_ints(result, results.collect()));
        }
        let (mut x, y) = (x.floats(), y.floats());
        x.iter_mut().zip(y).for_each(|(x, y)| *x = floats(*x, y));
        Ok(Data::from_floats(result, x))
    })
}

/// Groups of elements that differ along some axes only.
struct Groups {
    /// Where each group begins.
    begins: Vec<usize>,
    /// How far from there its elements are.
    members: Vec<usize>,
}

impl Groups {
    fn along(x: &Known, axes: &[usize]) -> Groups {
        let all = Region::all(&x.typed.shape);
        let others: Vec<usize> = (0..all.shape.len()).filter(|a| !axes.contains(a)).collect();
        let [begins, members] = [&others[..], axes].map(|axes| all.of_axes(axes).places());
        Groups { begins, members }
    }

    /// Gives each group to a function, which may change it, and takes what the function says.
    fn each<T>(&self, x: &mut [f32], mut call: impl FnMut(&mut [f32]) -> T) -> Vec<T> {
        let mut group = vec![0.0; self.members.len()];
        let one = |begin: &usize| {
            group.iter_mut().zip(&self.members).for_each(|(v, m)| *v = x[begin + m]);
            let said = call(&mut group);
            group.iter().zip(&self.members).for_each(|(v, m)| x[begin + m] = *v);
            said
        };
        self.begins.iter().map(one).collect()
    }
}

fn sum(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v)).sum()
}

fn mean(values: &[f32]) -> f64 {
    sum(values) / values.len() as f64
}

fn most(values: &[f32]) -> f64 {
    f64::from(values.iter().copied().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b }))
}

fn reduce(call: &Call, compute: fn(&[f32]) -> f64) -> Result<Made, String> {
    let x = call.floats("x")?;
    let mut axes = call.axes("axes", x.typed.shape.len())?;
    axes.sort_unstable();
    let groups = Groups::along(x, &axes);
    let keep = call.flag("keep_dims")?;
    let mut typed = x.typed.clone();
    for axis in axes.iter().rev() {
        typed.shape[*axis] = 1;
        if !keep {
            typed.shape.remove(*axis);
        }
    }
    let kind = typed.kind;
    made(typed, &[x], move |args| {
        let results = groups.each(&mut args[0].floats(), |group| compute(group) as f32);
        Ok(Data::from_floats(kind, results))
    })
}

fn softmax(call: &Call) -> Result<Made, String> {
    let x = call.floats("x")?;
    let axis = super::call::axis(call.int("axis", -1)?, x.typed.shape.len())?;
    let (groups, kind) = (Groups::along(x, &[axis]), x.typed.kind);
    made(x.typed.clone(), &[x], move |args| {
        let mut x = args[0].floats();
        groups.each(&mut x, |group| {
            let most = most(group) as f32;
            group.iter_mut().for_each(|v| *v = (*v - most).exp());
            let scale = (1.0 / sum(group)) as f32;
            group.iter_mut().for_each(|v| *v *= scale);
        });
        Ok(Data::from_floats(kind, x))
    })
}

fn layer_norm(call: &Call) -> Result<Made, String> {
    let x = call.floats("x")?;
    let mut axes = call.axes("axes", x.typed.shape.len())?;
    axes.sort_unstable();
    let shape: Vec<usize> = axes.iter().map(|a| x.typed.shape[*a]).collect();
    let wanted = Typed::new(x.typed.kind, shape)?;
    let given = ["gamma", "beta"].map(|name| call.given(name));
    if let Some(other) = given.iter().flatten().find(|known| known.typed != wanted) {
        return Err(format!("{} is not {wanted}", other.typed));
    }
    let has = given.map(|known| known.is_some());
    let args: Vec<&Known> = [x].into_iter().chain(given.into_iter().flatten()).collect();
    let (groups, kind) = (Groups::along(x, &axes), x.typed.kind);
    let epsilon = f64::from(call.float("epsilon", 1e-5)?);
    made(x.typed.clone(), &args, move |args| {
        let mut x = args[0].floats();
        let mut others = args[1..].iter().map(Data::floats);
        let [gamma, beta] = has.map(|has| has.then(|| others.next()).flatten());
        groups.each(&mut x, |group| {
            let mean = mean(group);
            let squares = group.iter().map(|v| (f64::from(*v) - mean).powi(2));
            let scale = 1.0 / (squares.sum::<f64>() / group.len() as f64 + epsilon).sqrt();
            for (i, v) in group.iter_mut().enumerate() {
                let gamma = gamma.as_ref().map_or(1.0, |gamma| f64::from(gamma[i]));
                let beta = beta.as_ref().map_or(0.0, |beta| f64::from(beta[i]));
                *v = ((f64::from(*v) - mean) * scale * gamma + beta) as f32;
            }
        });
        Ok(Data::from_floats(kind, x))
    })
}
