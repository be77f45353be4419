//! Regions of tensors: some of their elements, in an order.

use std::sync::Arc;

use super::data::Data;

/// Elements of a tensor: as many as a shape has, at steps along each axis.
#[derive(Clone)]
pub struct Region {
    pub shape: Vec<usize>,
    pub steps: Vec<isize>,
    pub begin: isize,
}

impl Region {
    /// All of a tensor.
    pub fn all(shape: &[usize]) -> Region {
        let mut steps = vec![1; shape.len()];
        for i in (1..shape.len()).rev() {
            steps[i - 1] = steps[i] * shape[i] as isize;
        }
        Region { shape: shape.to_vec(), steps, begin: 0 }
    }

    /// Some axes of it, in their order, and the first place along others.
    pub fn of_axes(&self, axes: &[usize]) -> Region {
        let shape = axes.iter().map(|a| self.shape[*a]).collect();
        let steps = axes.iter().map(|a| self.steps[*a]).collect();
        Region { shape, steps, begin: self.begin }
    }

    /// A tensor as often as a shape has it.
    pub fn broadcast(from: &[usize], to: &[usize]) -> Region {
        let mut region = Region::all(from);
        let missing = to.len() - from.len();
        for (axis, size) in from.iter().enumerate() {
            if *size != to[missing + axis] {
                region.steps[axis] = 0;
            }
        }
        let steps = vec![0; missing].into_iter().chain(region.steps).collect();
        Region { shape: to.to_vec(), steps, begin: 0 }
    }

    /// The same with as few axes as can be, but at least one.
    fn merged(&self) -> Region {
        let mut merged = Region { shape: vec![1], steps: vec![1], begin: self.begin };
        for (size, step) in self.shape.iter().zip(&self.steps).filter(|(size, _)| **size != 1) {
            let last = merged.shape.len() - 1;
            if merged.shape[last] == 1 || merged.steps[last] == step * *size as isize {
                merged.shape[last] *= size;
                merged.steps[last] = *step;
            } else {
                merged.shape.push(*size);
                merged.steps.push(*step);
            }
        }
        merged
    }

    /// Calls with each row: its first place, its length, and its step.
    fn each_row(&self, mut call: impl FnMut(isize, usize, isize)) {
        let Region { mut shape, mut steps, begin } = self.merged();
        let (len, step) = (shape.pop().unwrap_or(1), steps.pop().unwrap_or(1));
        let rows: usize = if len == 0 { 0 } else { shape.iter().product() };
        let (mut index, mut at) = (vec![0; shape.len()], begin);
        for _ in 0..rows {
            call(at, len, step);
            for axis in (0..shape.len()).rev() {
                index[axis] += 1;
                at += steps[axis];
                if index[axis] < shape[axis] {
                    break;
                }
                at -= steps[axis] * shape[axis] as isize;
                index[axis] = 0;
            }
        }
    }

    /// The elements' places.
    pub fn places(&self) -> Vec<usize> {
        let mut places = Vec::new();
        self.each_row(|at, len, step| {
            places.extend((0..len as isize).map(|i| (at + i * step) as usize));
        });
        places
    }

    /// The elements of a slice.
    pub fn copy_of<T: Copy>(&self, from: &[T]) -> Vec<T> {
        let mut out = Vec::with_capacity(self.shape.iter().product());
        self.each_row(|at, len, step| match step {
            1 => out.extend_from_slice(&from[at as usize..][..len]),
            _ => out.extend((0..len as isize).map(|i| from[(at + i * step) as usize])),
        });
        out
    }

    /// The elements.
    pub fn copy(&self, from: &Data) -> Data {
        match from.clone().held() {
            Data::F16(values) => Data::F16(Arc::new(self.copy_of(&values))),
            Data::F32(values) => Data::F32(Arc::new(self.copy_of(&values))),
            Data::I32(values) => Data::I32(Arc::new(self.copy_of(&values))),
            other => other,
        }
    }

    fn set<T: Copy>(&self, to: &mut [T], from: &[T]) {
        let mut rest = from;
        self.each_row(|at, len, step| {
            let (row, others) = rest.split_at(len);
            rest = others;
            match step {
                1 => to[at as usize..][..len].copy_from_slice(row),
                _ => (0..).zip(row).for_each(|(i, v)| to[(at + i * step) as usize] = *v),
            }
        });
    }

    /// Writes as many elements as the region has; in place where nobody else holds the tensor.
    pub fn write(&self, to: Data, from: &Data) -> Result<Data, String> {
        match (to, from.clone().held()) {
            (Data::F16(mut to), Data::F16(from)) => {
                self.set(Arc::make_mut(&mut to).as_mut_slice(), &from);
                Ok(Data::F16(to))
            }
            (Data::F32(mut to), Data::F32(from)) => {
                self.set(Arc::make_mut(&mut to).as_mut_slice(), &from);
                Ok(Data::F32(to))
            }
            (Data::I32(mut to), Data::I32(from)) => {
                self.set(Arc::make_mut(&mut to).as_mut_slice(), &from);
                Ok(Data::I32(to))
            }
            _ => Err("elements of one type are expected".into()),
        }
    }
}

/// The shape as which two tensors meet.
pub fn meet(a: &[usize], b: &[usize]) -> Result<Vec<usize>, String> {
    let rank = a.len().max(b.len());
    let size = |of: &[usize], i: usize| (i + of.len()).checked_sub(rank).map_or(1, |i| of[i]);
    let one = |i| match (size(a, i), size(b, i)) {
        (a, b) if a == b || b == 1 => Ok(a),
        (1, b) => Ok(b),
        _ => Err(format!("shapes {a:?} and {b:?} do not fit")),
    };
    (0..rank).map(one).collect()
}
