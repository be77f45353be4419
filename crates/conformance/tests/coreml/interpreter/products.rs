//! Products of matrices. Each sum has its order, whatever the number of threads.

use std::num::NonZero;
use std::ops::Range;
use std::thread;

use super::call::{Call, Known, Made, made};
use super::data::{Data, Typed};
use super::region::{Region, meet};

/// Rows times the matrices of a tensor.
struct Product {
    /// For each matrix, the rows that it multiplies: their places among the input's rows and among
    /// the result's.
    rows: Vec<Vec<[usize; 2]>>,
    /// The length of an input's row.
    k: usize,
    /// The length of a result's row.
    n: usize,
    /// Whether a matrix has `n` rows, not `k`.
    transposed: bool,
}

/// Some columns of a matrix's part of the result.
struct Columns {
    matrix: usize,
    range: Range<usize>,
    /// Row by row.
    values: Vec<f32>,
}

/// Products of fewer numbers take one thread.
const FEW: usize = 1 << 17;

impl Product {
    fn run(&self, x: &[f32], matrices: &Data) -> Vec<f32> {
        let columns = self.rows.len() * self.n;
        let rows: usize = self.rows.iter().map(Vec::len).sum();
        let most = thread::available_parallelism().map_or(1, NonZero::get);
        let threads = if rows * self.k * self.n < FEW { 1 } else { most };
        let share = columns.div_ceil(threads).next_multiple_of(4).max(4);
        let part = |first: usize| self.share(x, matrices, first..(first + share).min(columns));
        let mut done = Vec::new();
        thread::scope(|scope| {
            let spawn = |first| scope.spawn(move || part(first));
            let others: Vec<_> = (share..columns).step_by(share).map(spawn).collect();
            done.extend(part(0));
            // A thread that panicked leaves no columns, and its panic goes on at the scope's end.
            done.extend(others.into_iter().filter_map(|t| t.join().ok()).flatten());
        });
        let mut out = vec![0.0; rows * self.n];
        for Columns { matrix, range, values } in done {
            for ([_, to], row) in self.rows[matrix].iter().zip(values.chunks(range.len().max(1))) {
                out[to * self.n..][range.clone()].copy_from_slice(row);
            }
        }
        out
    }

    /// Columns among those of all matrices.
    fn share(&self, x: &[f32], matrices: &Data, all: Range<usize>) -> Vec<Columns> {
        let (mut next, mut done) = (all.start, Vec::new());
        while next < all.end {
            let (matrix, first) = (next / self.n, next % self.n);
            let range = first..self.n.min(first + all.end - next);
            next += range.len();
            let values = match self.transposed {
                true => self.by_columns(x, matrices, matrix, &range),
                false => self.by_rows(x, matrices, matrix, &range),
            };
            done.push(Columns { matrix, range, values });
        }
        done
    }

    /// Each column is a row of the matrix.
    fn by_columns(&self, x: &[f32], of: &Data, matrix: usize, range: &Range<usize>) -> Vec<f32> {
        let (k, width, rows) = (self.k, range.len(), &self.rows[matrix]);
        let mut out = vec![0.0; width * rows.len()];
        let mut four = vec![0.0; 4 * k];
        for first in range.clone().step_by(4) {
            let count = (range.end - first).min(4);
            of.read((matrix * self.n + first) * k, &mut four[..count * k]);
            for ([from, _], out) in rows.iter().zip(out.chunks_mut(width)) {
                let sums = dots(&x[from * k..][..k], &four);
                out[first - range.start..][..count].copy_from_slice(&sums[..count]);
            }
        }
        out
    }

    /// Each row of the matrix goes to all columns.
    fn by_rows(&self, x: &[f32], of: &Data, matrix: usize, range: &Range<usize>) -> Vec<f32> {
        let (width, rows) = (range.len(), &self.rows[matrix]);
        let mut out = vec![0.0; width * rows.len()];
        let mut row = vec![0.0; width];
        for k in 0..self.k {
            of.read((matrix * self.k + k) * self.n + range.start, &mut row);
            for ([from, _], out) in rows.iter().zip(out.chunks_mut(width)) {
                let factor = x[from * self.k + k];
                out.iter_mut().zip(&row).for_each(|(o, v)| *o += factor * v);
            }
        }
        out
    }
}

/// A row times each of four rows. The lanes are vectors only as written: a loop over the four is not
/// unrolled, and is ten times as slow.
fn dots(x: &[f32], four: &[f32]) -> [f32; 4] {
    let rows = [0, 1, 2, 3].map(|i| &four[i * x.len()..][..x.len()]);
    let (chunks, rest) = x.as_chunks::<8>();
    let [a, b, c, d] = rows.map(|row| row.as_chunks::<8>().0);
    let [mut of_a, mut of_b, mut of_c, mut of_d] = [[0.0_f32; 8]; 4];
    for ((((x, a), b), c), d) in chunks.iter().zip(a).zip(b).zip(c).zip(d) {
        (0..8).for_each(|i| of_a[i] += x[i] * a[i]);
        (0..8).for_each(|i| of_b[i] += x[i] * b[i]);
        (0..8).for_each(|i| of_c[i] += x[i] * c[i]);
        (0..8).for_each(|i| of_d[i] += x[i] * d[i]);
    }
    let (lanes, done) = ([of_a, of_b, of_c, of_d], x.len() - rest.len());
    [0, 1, 2, 3].map(|i| {
        let rest = rest.iter().zip(&rows[i][done..]).map(|(x, w)| x * w);
        lanes[i].iter().sum::<f32>() + rest.sum::<f32>()
    })
}

fn one_kind(a: &Known, b: &Known) -> Result<(), String> {
    match a.typed.kind == b.typed.kind {
        true => Ok(()),
        false => Err(format!("{} and {} do not multiply", a.typed, b.typed)),
    }
}

/// A bias of so many numbers.
fn bias(call: &Call, n: usize) -> Result<Option<&Known>, String> {
    let Some(bias) = call.given("bias") else { return Ok(None) };
    match bias.typed.shape == [n] && bias.typed.kind == call.declared.kind {
        true => Ok(Some(bias)),
        false => Err(format!("the bias is {}, not {n} numbers", bias.typed)),
    }
}

/// Adds a bias, if there is one, to each row.
fn add_bias(out: &mut [f32], bias: Option<&Data>) {
    let Some(bias) = bias.map(Data::floats).filter(|bias| !bias.is_empty()) else { return };
    let rows = out.chunks_mut(bias.len());
    rows.for_each(|row| row.iter_mut().zip(&bias).for_each(|(o, b)| *o += b));
}

/// Rows times the rows of weights.
pub fn linear(call: &Call) -> Result<Made, String> {
    let (x, weight) = (call.floats("x")?, call.floats("weight")?);
    one_kind(x, weight)?;
    let (Some((k, outer)), [n, of]) = (x.typed.shape.split_last(), &weight.typed.shape[..]) else {
        return Err(format!("{} and {} do not multiply", x.typed, weight.typed));
    };
    if k != of {
        return Err(format!("rows of {k} meet weights of {of}"));
    }
    let rows = (0..outer.iter().product()).map(|row| [row, row]).collect();
    let product = Product { rows: vec![rows], k: *k, n: *n, transposed: true };
    let typed = Typed::new(x.typed.kind, [outer, &[*n]].concat())?;
    let (kind, bias) = (typed.kind, bias(call, *n)?);
    let args: Vec<&Known> = [x, weight].into_iter().chain(bias).collect();
    made(typed, &args, move |args| {
        let mut out = product.run(&args[0].floats(), &args[1]);
        add_bias(&mut out, args.get(2));
        Ok(Data::from_floats(kind, out))
    })
}

/// Channels times the rows of weights, at each place.
pub fn conv(call: &Call) -> Result<Made, String> {
    let (x, weight) = (call.floats("x")?, call.floats("weight")?);
    one_kind(x, weight)?;
    let ([batch, k, places @ ..], [n, of, kernel @ ..]) =
        (&x.typed.shape[..], &weight.typed.shape[..])
    else {
        return Err(format!("{} and {} do not multiply", x.typed, weight.typed));
    };
    let ones =
        |name: &str| Ok::<_, String>(call.ints(name)?.is_none_or(|v| v.iter().all(|v| *v == 1)));
    let pad = call.text("pad_type", "valid")?;
    let simple = pad == "valid" && ones("strides")? && ones("dilations")? && ones("groups")?;
    let places_fit = (1..=3).contains(&places.len()) && kernel.len() == places.len();
    if !simple || !places_fit || kernel.iter().any(|d| *d != 1) || k != of {
        let (x, weight) = (&x.typed, &weight.typed);
        return Err(format!("{x} with {weight}, `{pad}`: only kernels of one place are known"));
    }
    let typed = Typed::new(x.typed.kind, [&[*batch, *n], places].concat())?;
    let places: usize = places.iter().product();
    let rows = (0..batch * places).map(|row| [row, row]).collect();
    let product = Product { rows: vec![rows], k: *k, n: *n, transposed: true };
    let channels_last = Region::all(&[*batch, *k, places]).of_axes(&[0, 2, 1]);
    let channels_first = Region::all(&[*batch, places, *n]).of_axes(&[0, 2, 1]);
    let (kind, bias) = (typed.kind, bias(call, *n)?);
    let args: Vec<&Known> = [x, weight].into_iter().chain(bias).collect();
    made(typed, &args, move |args| {
        let x = channels_last.copy_of(&args[0].floats());
        let mut out = product.run(&x, &args[1]);
        add_bias(&mut out, args.get(2));
        Ok(Data::from_floats(kind, channels_first.copy_of(&out)))
    })
}

/// Matrices times matrices.
pub fn matmul(call: &Call) -> Result<Made, String> {
    let (x, y) = (call.floats("x")?, call.floats("y")?);
    one_kind(x, y)?;
    let (flip, transposed) = (call.flag("transpose_x")?, call.flag("transpose_y")?);
    let (rank, ([x_outer @ .., a, b], [y_outer @ .., c, d])) =
        (x.typed.shape.len(), (&x.typed.shape[..], &y.typed.shape[..]))
    else {
        return Err(format!("{} and {} are not matrices", x.typed, y.typed));
    };
    let (m, k) = if flip { (*b, *a) } else { (*a, *b) };
    let (n, of) = if transposed { (*c, *d) } else { (*d, *c) };
    if k != of {
        return Err(format!("rows of {k} meet columns of {of}"));
    }
    let outer = meet(x_outer, y_outer)?;
    let [of_x, of_y] = [x_outer, y_outer].map(|from| Region::broadcast(from, &outer).places());
    let mut rows = vec![Vec::new(); y_outer.iter().product()];
    for (to, (from, matrix)) in of_x.into_iter().zip(of_y).enumerate() {
        rows[matrix].extend((0..m).map(|row| [from * m + row, to * m + row]));
    }
    let product = Product { rows, k, n, transposed };
    let mut axes: Vec<usize> = (0..rank).collect();
    axes[rank - 2..].reverse();
    let flip = flip.then(|| Region::all(&x.typed.shape).of_axes(&axes));
    let typed = Typed::new(x.typed.kind, [&outer[..], &[m, n]].concat())?;
    let kind = typed.kind;
    made(typed, &[x, y], move |args| {
        let x = args[0].floats();
        let x = flip.as_ref().map_or_else(|| x.clone(), |flip| flip.copy_of(&x));
        Ok(Data::from_floats(kind, product.run(&x, &args[1])))
    })
}
