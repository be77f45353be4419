//! Operations that compute nothing: they move elements, or give them another shape.

use super::call::{Call, Kernel, Known, Made, axis, made};
use super::data::{Data, Kind, Typed};
use super::region::{Region, meet};

/// The same elements by another shape.
fn reshaped(x: &Known, shape: Vec<usize>) -> Result<Made, String> {
    let typed = Typed::new(x.typed.kind, shape)?;
    if typed.len() != x.typed.len() {
        return Err(format!("{} does not become {typed}", x.typed));
    }
    made(typed, &[x], |mut args| Ok(args.swap_remove(0)))
}

/// The same value.
pub fn identity(call: &Call) -> Result<Made, String> {
    let x = call.need("x")?;
    reshaped(x, x.typed.shape.clone())
}

/// Another shape, with a size that may be open.
pub fn reshape(call: &Call) -> Result<Made, String> {
    let x = call.need("x")?;
    let from = &x.typed.shape;
    let wanted = call.ints("shape")?.unwrap_or_default();
    // A zero is the size of the input's axis, counted from the last one.
    let kept = |i: usize| (i + from.len()).checked_sub(wanted.len()).map_or(1, |i| from[i]);
    let size = |(i, d): (usize, &i32)| match *d {
        0 => Ok(kept(i)),
        -1 => Ok(1),
        d => usize::try_from(d).map_err(|_| format!("there is no size {d}")),
    };
    let sizes: Result<Vec<_>, String> = wanted.iter().enumerate().map(size).collect();
    let mut shape = sizes?;
    let open: Vec<usize> = (0..shape.len()).filter(|i| wanted[*i] == -1).collect();
    if let [open] = open[..] {
        let others = Typed::new(x.typed.kind, shape.clone())?.len();
        shape[open] = x.typed.len().checked_div(others).unwrap_or(0);
    }
    reshaped(x, shape)
}

/// More axes of one place.
pub fn expand_dims(call: &Call) -> Result<Made, String> {
    let x = call.need("x")?;
    let rank = x.typed.shape.len() + call.ints("axes")?.map_or(0, |axes| axes.len());
    let mut axes = call.axes("axes", rank)?;
    axes.sort_unstable();
    let mut shape = x.typed.shape.clone();
    axes.into_iter().for_each(|axis| shape.insert(axis, 1));
    reshaped(x, shape)
}

/// Fewer axes of one place.
pub fn squeeze(call: &Call) -> Result<Made, String> {
    let x = call.need("x")?;
    let sizes = &x.typed.shape;
    let named = call.axes("axes", sizes.len())?;
    let all = call.given("axes").is_none();
    let gone = |i: usize| named.contains(&i) && (sizes[i] == 1 || !all);
    if let Some(axis) = (0..sizes.len()).find(|i| gone(*i) && sizes[*i] != 1) {
        return Err(format!("axis {axis} has {} places, not one", sizes[axis]));
    }
    reshaped(x, (0..sizes.len()).filter(|i| !gone(*i)).map(|i| sizes[i]).collect())
}

/// Axes in another order.
pub fn transpose(call: &Call) -> Result<Made, String> {
    let x = call.need("x")?;
    let rank = x.typed.shape.len();
    let perm = call.axes("perm", rank)?;
    if perm.len() != rank {
        return Err(format!("`perm` has {} axes of {rank}", perm.len()));
    }
    let region = Region::all(&x.typed.shape).of_axes(&perm);
    let typed = Typed::new(x.typed.kind, region.shape.clone())?;
    made(typed, &[x], move |args| Ok(region.copy(&args[0])))
}

/// Elements of another type.
pub fn cast(call: &Call) -> Result<Made, String> {
    let (x, name) = (call.need("x")?, call.text("dtype", "")?);
    let kind = Kind::find(|row| row.name == name && row.bits >= 8 && row.kind != Kind::Text);
    let kind = kind.ok_or(format!("there is no type `{name}` to cast to"))?;
    let typed = Typed { kind, shape: x.typed.shape.clone() };
    made(typed, &[x], move |args| match &args[0] {
        Data::I32(values) => Ok(Data::from_ints(kind, values.to_vec())),
        other => Ok(Data::from_floats(kind, other.floats())),
    })
}

/// Values one after another along an axis.
pub fn concat(call: &Call) -> Result<Made, String> {
    let values = call.inputs.get("values").map_or(&[][..], |v| v);
    let [first, others @ ..] = values else { return Err("there are no values".into()) };
    if call.flag("interleave")? {
        return Err("interleaving is not known".into());
    }
    let axis = axis(call.int("axis", 0)?, first.typed.shape.len())?;
    let mut typed = first.typed.clone();
    for other in others {
        let mut like = other.typed.clone();
        let size = like.shape.get(axis).copied().unwrap_or(0);
        like.shape.get_mut(axis).into_iter().for_each(|d| *d = first.typed.shape[axis]);
        if like != first.typed {
            return Err(format!("{} and {} do not fit", first.typed, other.typed));
        }
        typed.shape[axis] += size;
    }
    let typed = Typed::new(typed.kind, typed.shape)?;
    let (mut regions, mut region) = (Vec::new(), Region::all(&typed.shape));
    for value in values {
        region.shape[axis] = value.typed.shape[axis];
        regions.push(region.clone());
        region.begin += region.steps[axis] * region.shape[axis] as isize;
    }
    let zeros = typed.clone();
    made(typed, &values.iter().collect::<Vec<_>>(), move |args| {
        let mut all = regions.iter().zip(&args);
        all.try_fold(Data::zeros(&zeros), |out, (region, value)| region.write(out, value))
    })
}

/// What a slice's constants say.
struct Slice {
    strides: Option<Vec<i32>>,
    from_first: Vec<bool>,
    to_last: Vec<bool>,
    /// Axes of which one place stays, and which are not in the result's shape.
    single: Vec<bool>,
}

impl Slice {
    fn parse(call: &Call, rank: usize) -> Result<Slice, String> {
        let mask = |name: &str| match call.ints(name)? {
            Some(mask) if mask.len() != rank => Err(format!("`{name}` is not one of {rank} axes")),
            Some(mask) => Ok(mask.iter().map(|m| *m != 0).collect()),
            None => Ok(vec![false; rank]),
        };
        let strides = call.ints("stride")?;
        if strides.as_ref().is_some_and(|s| s.len() != rank || s.contains(&0)) {
            return Err(format!("`stride` is not one of {rank} axes"));
        }
        let (from_first, to_last) = (mask("begin_mask")?, mask("end_mask")?);
        Ok(Slice { strides, from_first, to_last, single: mask("squeeze_mask")? })
    }

    /// The places that begins and ends stand for, by the rules of Python.
    fn region(&self, of: &[usize], begin: &Data, end: &Data) -> Result<Region, String> {
        let (begin, end) = (begin.ints()?, end.ints()?);
        if begin.len() != of.len() || end.len() != of.len() {
            return Err(format!("a slice has {} of {} axes", begin.len(), of.len()));
        }
        let mut region = Region::all(of);
        for (i, size) in of.iter().enumerate() {
            let size = *size as i64;
            let stride = self.strides.as_ref().map_or(1, |strides| i64::from(strides[i]));
            let (low, high) = if stride > 0 { (0, size) } else { (-1, size - 1) };
            let place = |v: i32| {
                let v = i64::from(v);
                if v < 0 { (v + size).max(low) } else { v.min(high) }
            };
            let (first, last) = if stride > 0 { (low, high) } else { (high, low) };
            let first = if self.from_first[i] { first } else { place(begin[i]) };
            let last = if self.to_last[i] { last } else { place(end[i]) };
            let count = (last - first + stride - stride.signum()) / stride;
            region.shape[i] = if self.single[i] { 1 } else { count.max(0) as usize };
            if self.single[i] && !(0..size).contains(&first) {
                return Err(format!("there is no place {} of {size}", begin[i]));
            }
            region.begin += region.steps[i] * first as isize;
            region.steps[i] *= stride as isize;
        }
        Ok(region)
    }

    /// The shape of what a region holds.
    fn shape(&self, region: &Region) -> Vec<usize> {
        let stays = region.shape.iter().zip(&self.single).filter(|(_, single)| !**single);
        stays.map(|(size, _)| *size).collect()
    }
}

/// A slice of a tensor.
pub fn slice_by_index(call: &Call) -> Result<Made, String> {
    let (x, begin, end) = (call.need("x")?, call.need("begin")?, call.need("end")?);
    let of = x.typed.shape.clone();
    let slice = Slice::parse(call, of.len())?;
    // Where the places depend on a run, its result has to have the declared shape.
    let shape = match (&begin.value, &end.value) {
        (Some(begin), Some(end)) => slice.shape(&slice.region(&of, begin, end)?),
        _ => call.declared.shape.clone(),
    };
    let typed = Typed::new(x.typed.kind, shape.clone())?;
    made(typed, &[x, begin, end], move |args| {
        let region = slice.region(&of, &args[1], &args[2])?;
        match slice.shape(&region) == shape {
            true => Ok(region.copy(&args[0])),
            false => Err(format!("the slice has shape {:?}", slice.shape(&region))),
        }
    })
}

/// So many places of each axis, from a beginning on.
pub fn slice_by_size(call: &Call) -> Result<Made, String> {
    let (x, begin) = (call.need("x")?, call.need("begin")?);
    let (of, size) = (x.typed.shape.clone(), call.ints("size")?.ok_or("`size` is not known")?);
    let shape = size.iter().map(|n| usize::try_from(*n).map_err(|_| "a size is below zero"));
    let shape: Vec<usize> = shape.collect::<Result<_, _>>()?;
    let typed = Typed::new(x.typed.kind, shape.clone())?;
    made(typed, &[x, begin], move |args| {
        let mut region = Region::all(&of);
        let begin = args[1].ints()?;
        if begin.len() != of.len() || shape.len() != of.len() {
            return Err(format!("a slice has {} of {} axes", begin.len(), of.len()));
        }
        for (i, from) in begin.iter().enumerate() {
            if *from < 0 || *from as usize + shape[i] > of[i] {
                return Err(format!("{} places from {from} are not in {}", shape[i], of[i]));
            }
            region.begin += region.steps[i] * *from as isize;
        }
        region.shape.clone_from(&shape);
        Ok(region.copy(&args[0]))
    })
}

/// A tensor with another slice; in place where nobody else holds it.
pub fn slice_update(call: &Call) -> Result<Made, String> {
    let (x, update) = (call.need("x")?, call.need("update")?);
    let of = x.typed.shape.clone();
    let slice = Slice::parse(call, of.len())?;
    let shape = update.typed.shape.clone();
    if update.typed.kind != x.typed.kind || shape.is_empty() {
        return Err(format!("{} does not update {}", update.typed, x.typed));
    }
    let args = [x, update, call.need("begin")?, call.need("end")?];
    let write: Kernel = Box::new(move |mut args| {
        let region = slice.region(&of, &args[2], &args[3])?;
        if slice.shape(&region) != shape {
            return Err(format!("{:?} is updated by {shape:?}", slice.shape(&region)));
        }
        let x = args.swap_remove(0);
        // The last argument took its place.
        region.write(x.held(), &args[1])
    });
    made(x.typed.clone(), &args, write)
}

/// Rows by their indices.
pub fn gather(call: &Call) -> Result<Made, String> {
    let (x, indices) = (call.need("x")?, call.need("indices")?);
    if call.int("batch_dims", 0)? != 0 {
        return Err("`batch_dims` above zero are not known".into());
    }
    let shape = &x.typed.shape;
    let axis = axis(call.int("axis", 0)?, shape.len())?;
    let (outer, size) = (shape[..axis].iter().product(), shape[axis]);
    let inner: usize = shape[axis + 1..].iter().product();
    let shape = [&shape[..axis], &indices.typed.shape, &shape[axis + 1..]].concat();
    let typed = Typed::new(x.typed.kind, shape)?;
    let (kind, len) = (typed.kind, typed.len());
    made(typed, &[x, indices], move |args| {
        let indices = args[1].ints()?;
        let place = |i: &i32| usize::try_from(*i).ok().filter(|i| *i < size);
        if let Some(i) = indices.iter().find(|i| place(i).is_none()) {
            return Err(format!("there is no index {i} of {size}"));
        }
        let each = |outer| indices.iter().map(move |i| (outer * size + *i as usize) * inner);
        let begins = (0..outer).flat_map(each);
        if let Data::I32(values) = &args[0] {
            let rows = begins.flat_map(|at| values[at..at + inner].iter().copied());
            return Ok(Data::from_ints(kind, rows.collect()));
        }
        // Only the rows that are wanted leave the file.
        let mut out = vec![0.0; len];
        let rows = out.chunks_mut(inner.max(1));
        rows.zip(begins).for_each(|(row, at)| args[0].read(at, row));
        Ok(Data::from_floats(kind, out))
    })
}

/// Elements of one tensor or the other.
pub fn select(call: &Call) -> Result<Made, String> {
    let (cond, a, b) = (call.need("cond")?, call.need("a")?, call.need("b")?);
    if cond.typed.kind != Kind::Bool || a.typed.kind != b.typed.kind {
        return Err(format!("{} does not choose {} or {}", cond.typed, a.typed, b.typed));
    }
    let shape = meet(&meet(&a.typed.shape, &b.typed.shape)?, &cond.typed.shape)?;
    let regions = [cond, a, b].map(|k| Region::broadcast(&k.typed.shape, &shape));
    let typed = Typed::new(a.typed.kind, shape)?;
    let kind = typed.kind;
    made(typed, &[cond, a, b], move |args| {
        let [cond, a, b] = [0, 1, 2].map(|i| regions[i].copy(&args[i]));
        let cond = cond.ints()?;
        if let (Data::I32(a), Data::I32(b)) = (&a, &b) {
            let chosen = cond.iter().zip(a.iter().zip(b.iter()));
            let chosen = chosen.map(|(c, (a, b))| if *c != 0 { *a } else { *b });
            return Ok(Data::from_ints(kind, chosen.collect()));
        }
        let chosen = cond.iter().zip(a.floats().into_iter().zip(b.floats()));
        let chosen = chosen.map(|(c, (a, b))| if *c != 0 { a } else { b });
        Ok(Data::from_floats(kind, chosen.collect()))
    })
}
