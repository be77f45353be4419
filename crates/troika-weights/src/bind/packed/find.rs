//! Finds the tensors of packed layers, and says what is wrong with them before anything is made.

use half::f16;
use troika_device::WeightBytes;
use troika_graph::DType;
use troika_model::spec::{Checkpoint, Packing, RawTensor, Recipe, ScaleBlock, WeightRequirement};

use super::codes::{self, Codes, Grid, Number, Order, ScaleKind, Zeros};
use super::{PackedWeight, Rounding};
use crate::error::WeightError;

/// A packed linear layer found in a checkpoint.
pub(crate) struct FoundPacked {
    pub weight: PackedWeight,
    pub dtype: DType,
    /// The name of the tensor with its codes.
    pub tensor: String,
}

type Res<T> = Result<T, WeightError>;

/// The layer for a recipe, if the checkpoint has it in packed form.
pub(crate) fn find(
    packing: Packing,
    recipe: &Recipe,
    need: &WeightRequirement,
    files: &dyn Checkpoint,
) -> Res<Option<FoundPacked>> {
    let base = match packing {
        Packing::Mxfp4 => Some(recipe.tensor.as_str()),
        _ => recipe.tensor.strip_suffix("weight"),
    };
    let Some(base) = base else { return Ok(None) };
    let main = match packing {
        Packing::Gptq { .. } | Packing::Awq | Packing::AwqGemv { .. } => "qweight",
        Packing::Fp8(_) | Packing::Mlx => "weight",
        Packing::Mxfp4 => "_blocks",
        Packing::CompressedTensors(_) => match files.raw(&format!("{base}weight_packed")) {
            Some(_) => "weight_packed",
            None => "weight",
        },
    };
    let name = format!("{base}{main}");
    let Some(tensor) = files.raw(&name) else { return Ok(None) };
    let layer = Layer { files, base, name, tensor, recipe, need };
    let parts = match packing {
        Packing::Gptq { less_one } => layer.gptq(less_one)?,
        Packing::Awq => layer.awq()?,
        Packing::AwqGemv { group } => layer.awq_gemv(group)?,
        Packing::Fp8(block) => layer.fp8(block)?,
        Packing::CompressedTensors(block) => match layer.tensor.kind.as_str() {
            "I32" => layer.pack_quantized()?,
            "I8" => layer.bytes(Number::Signed, block)?,
            _ => layer.fp8(block)?,
        },
        Packing::Mxfp4 => layer.mxfp4()?,
        Packing::Mlx => layer.mlx()?,
    };
    layer.finish(parts).map(Some)
}

/// What a format makes of its tensors.
struct Parts {
    codes: Codes,
    number: Number,
    scales: (String, Grid),
    zeros: Zeros,
    group: usize,
    index: Option<(String, RawTensor)>,
}

/// A layer that is looked at.
struct Layer<'a> {
    files: &'a dyn Checkpoint,
    /// What the names of its tensors begin with.
    base: &'a str,
    /// The name of the tensor with its codes.
    name: String,
    tensor: RawTensor,
    recipe: &'a Recipe,
    need: &'a WeightRequirement,
}

impl Layer<'_> {
    fn unsupported(&self, why: String) -> WeightError {
        WeightError::Unsupported { file: self.files.origin(&self.name), why }
    }

    /// The tensors do not fit each other or the config.
    fn misfit(&self, found: String, need: String) -> WeightError {
        let (file, tensor) = (self.files.origin(&self.name), self.name.clone());
        WeightError::Shape { file, tensor, found, need }
    }

    fn part(&self, end: &str) -> Option<(String, RawTensor)> {
        let name = format!("{}{end}", self.base);
        self.files.raw(&name).map(|tensor| (name, tensor))
    }

    fn needed(&self, end: &str) -> Res<(String, RawTensor)> {
        let missing = || WeightError::Missing {
            file: self.files.origin(&self.name),
            tensor: format!("{}{end}, which {} needs", self.base, self.name),
        };
        self.part(end).ok_or_else(missing)
    }

    /// Checks a tensor's type and shape.
    fn check(
        &self,
        (name, tensor): &(String, RawTensor),
        kinds: &[&str],
        shape: &[usize],
    ) -> Res<()> {
        if !kinds.contains(&tensor.kind.as_str()) {
            let (file, dtype) = (self.files.origin(name), tensor.kind.clone());
            return Err(WeightError::Type { file, tensor: name.clone(), dtype });
        }
        if tensor.shape != shape {
            let (file, tensor, found) =
                (self.files.origin(name), name.clone(), format!("{:?}", tensor.shape));
            return Err(WeightError::Shape { file, tensor, found, need: format!("{shape:?}") });
        }
        Ok(())
    }

    /// Numbers of outputs and groups, given their shape and how to step through it.
    fn grid(
        &self,
        part: (String, RawTensor),
        shape: &[usize],
        steps: Steps,
    ) -> Res<(String, Grid)> {
        self.check(&part, &["F32", "F16", "BF16", "F8_E8M0"], shape)?;
        let kind = match part.1.kind.as_str() {
            "F32" => ScaleKind::F32,
            "F16" => ScaleKind::F16,
            "BF16" => ScaleKind::BF16,
            _ => ScaleKind::E8M0,
        };
        let Steps { share, row_step, group_step } = steps;
        Ok((part.0, Grid { kind, bytes: part.1.bytes, share, row_step, group_step }))
    }

    /// The last two dimensions, and the product of those before them.
    fn dims(&self) -> Res<(usize, usize, usize)> {
        match self.tensor.shape.as_slice() {
            [before @ .., rows, cols] => Ok((before.iter().product(), *rows, *cols)),
            shape => Err(self.misfit(format!("{shape:?}"), "a matrix".into())),
        }
    }

    fn codes(&self, order: Order, bits: usize, n: usize, k: usize) -> Codes {
        Codes { bytes: self.tensor.bytes.clone(), bits, order, n, k }
    }

    /// Inputs of a group, if groups are whole.
    fn group(&self, k: usize, groups: usize) -> Res<usize> {
        let group = k.checked_div(groups).unwrap_or(0);
        if group == 0 || !k.is_multiple_of(group) || k / group != groups {
            return Err(
                self.misfit(format!("{k} inputs in {groups} groups"), "whole groups".into())
            );
        }
        Ok(group)
    }

    fn gptq(&self, less_one: bool) -> Res<Parts> {
        let (scales, zeros) = (self.needed("scales")?, self.needed("qzeros")?);
        let (_, words, n) = self.dims()?;
        let groups = scales.1.shape.first().copied().unwrap_or(0);
        let words_of_zeros = zeros.1.shape.last().copied().unwrap_or(0);
        let bits = words_of_zeros.saturating_mul(32).checked_div(n).unwrap_or(0);
        if ![4, 8].contains(&bits) {
            let found = format!("qzeros of {words_of_zeros} words for {n} outputs");
            return Err(self.misfit(found, "4 or 8 bits for each".into()));
        }
        let k = words.saturating_mul(32 / bits);
        self.check(&(self.name.clone(), self.tensor.clone()), &["I32"], &[words, n])?;
        self.check(&zeros, &["I32"], &[groups, n * bits / 32])?;
        let scales = self.grid(scales, &[groups, n], Steps::new(1, n))?;
        let mut index = self.part("g_idx");
        let group = match &index {
            Some((_, t)) if !in_order(t, k, groups) => k.div_ceil(groups.max(1)),
            _ => {
                index = None;
                self.group(k, groups)?
            }
        };
        let zeros = Zeros::Groups { bytes: zeros.1.bytes, bits, n, awq: false, less_one };
        let codes = self.codes(Order::Inputs, bits, n, k);
        Ok(Parts { codes, number: Number::Unsigned, scales, zeros, group, index })
    }

    fn awq(&self) -> Res<Parts> {
        let (scales, zeros) = (self.needed("scales")?, self.needed("qzeros")?);
        let (_, k, words) = self.dims()?;
        let (n, groups) = (words.saturating_mul(8), scales.1.shape.first().copied().unwrap_or(0));
        self.check(&(self.name.clone(), self.tensor.clone()), &["I32"], &[k, words])?;
        self.check(&zeros, &["I32"], &[groups, words])?;
        let scales = self.grid(scales, &[groups, n], Steps::new(1, n))?;
        let zeros = Zeros::Groups { bytes: zeros.1.bytes, bits: 4, n, awq: true, less_one: false };
        let (codes, group) = (self.codes(Order::Awq, 4, n, k), self.group(k, groups)?);
        Ok(Parts { codes, number: Number::Unsigned, scales, zeros, group, index: None })
    }

    fn awq_gemv(&self, group: usize) -> Res<Parts> {
        let (scales, zeros) = (self.needed("scales")?, self.needed("qzeros")?);
        let (_, n, words) = self.dims()?;
        let k = words.saturating_mul(8);
        // Rows are longer than their groups.
        let width = zeros.1.shape.last().copied().unwrap_or(0).saturating_mul(8);
        if !k.is_multiple_of(group) || k / group > width {
            let found = format!("{k} inputs in groups of {group}");
            return Err(self.misfit(found, format!("at most {width} whole groups")));
        }
        self.check(&(self.name.clone(), self.tensor.clone()), &["I32"], &[n, words])?;
        self.check(&zeros, &["I32"], &[n, width / 8])?;
        let scales = self.grid(scales, &[n, width], Steps::new(width, 1))?;
        let zeros = Zeros::Outputs { bytes: zeros.1.bytes, width };
        let codes = self.codes(Order::Rows, 4, n, k);
        Ok(Parts { codes, number: Number::Unsigned, scales, zeros, group, index: None })
    }

    fn pack_quantized(&self) -> Res<Parts> {
        let shape = self.needed("weight_shape")?;
        let (_, n, words) = self.dims()?;
        let size = |i: usize| match shape.1.kind.as_str() {
            "I64" => codes::word(&shape.1.bytes, 2 * i) as usize,
            _ => codes::word(&shape.1.bytes, i) as usize,
        };
        self.check(&shape, &["I64", "I32"], &[2])?;
        let k = size(1);
        let bits = [4, 8].into_iter().find(|bits| words.checked_mul(32 / bits) == Some(k));
        let (Some(bits), true) = (bits, size(0) == n) else {
            let found = format!("{:?} for a matrix of [{}, {k}]", self.tensor.shape, size(0));
            return Err(self.misfit(found, "4 or 8 bits for each value".into()));
        };
        let scales = self.needed("weight_scale")?;
        let groups = scales.1.shape.last().copied().unwrap_or(0);
        let scales = self.grid(scales, &[n, groups], Steps::new(groups, 1))?;
        let zeros = match self.part("weight_zero_point") {
            None => Zeros::Fixed(1 << (bits - 1)),
            Some(zeros) => {
                self.check(&zeros, &["I32"], &[n.div_ceil(32 / bits), groups])?;
                Zeros::Words { bytes: zeros.1.bytes, bits, groups }
            }
        };
        let index = self.part("weight_g_idx").filter(|(_, t)| !in_order(t, k, groups));
        let group = match index {
            Some(_) => k.div_ceil(groups.max(1)),
            None => self.group(k, groups)?,
        };
        let codes = self.codes(Order::Rows, bits, n, k);
        Ok(Parts { codes, number: Number::Unsigned, scales, zeros, group, index })
    }

    fn fp8(&self, block: ScaleBlock) -> Res<Parts> {
        if self.tensor.kind != "F8_E4M3" {
            let (file, dtype) = (self.files.origin(&self.name), self.tensor.kind.clone());
            return Err(WeightError::Type { file, tensor: self.name.clone(), dtype });
        }
        self.bytes(Number::E4M3, block)
    }

    /// Codes of a byte, with one scale, a scale per output, per group, or per block.
    fn bytes(&self, number: Number, block: ScaleBlock) -> Res<Parts> {
        let scales = match self.part("weight_scale_inv") {
            Some(scales) => scales,
            None => self.needed("weight_scale")?,
        };
        if let Some((name, _)) = self.part("weight_zero_point") {
            return Err(
                self.unsupported(format!("{name}: zero points of {} are not read", self.name))
            );
        }
        let (_, n, k) = self.dims()?;
        let shape = scales.1.shape.clone();
        let blocks = [n.div_ceil(block.rows), k.div_ceil(block.cols)];
        let (steps, group) = match shape.as_slice() {
            [] | [1] | [1, 1] => (Steps { share: n.max(1), row_step: 0, group_step: 0 }, k),
            [rows] | [rows, 1] if *rows == n => (Steps::new(1, 0), k),
            [rows, cols] if [*rows, *cols] == blocks => {
                (Steps { share: block.rows, ..Steps::new(*cols, 1) }, block.cols)
            }
            [rows, groups] if *rows == n => (Steps::new(*groups, 1), self.group(k, *groups)?),
            _ => {
                let file = self.files.origin(&scales.0);
                let need = format!("[1], [{n}, 1] or {blocks:?}");
                let found = format!("{shape:?}");
                return Err(WeightError::Shape { file, tensor: scales.0, found, need });
            }
        };
        let scales = self.grid(scales, &shape, steps)?;
        let codes = self.codes(Order::Rows, 8, n, k);
        Ok(Parts { codes, number, scales, zeros: Zeros::Fixed(0), group, index: None })
    }

    fn mxfp4(&self) -> Res<Parts> {
        let scales = self.needed("_scales")?;
        let [experts, rows, groups, 16] = self.tensor.shape[..] else {
            let found = format!("{:?}", self.tensor.shape);
            return Err(self.misfit(found, "[experts, outputs, groups, 16]".into()));
        };
        let shape = [experts, rows, groups, 16];
        self.check(&(self.name.clone(), self.tensor.clone()), &["U8"], &shape)?;
        self.check(&scales, &["U8"], &shape[..3])?;
        let (name, tensor) = scales;
        let bytes = tensor.bytes;
        let Steps { share, row_step, group_step } = Steps::new(groups, 1);
        let scales = (name, Grid { kind: ScaleKind::E8M0, bytes, share, row_step, group_step });
        let codes = self.codes(Order::Rows, 4, experts * rows, groups * 32);
        Ok(Parts {
            codes,
            number: Number::E2M1,
            scales,
            zeros: Zeros::Fixed(0),
            group: 32,
            index: None,
        })
    }

    fn mlx(&self) -> Res<Parts> {
        let (scales, biases) = (self.needed("scales")?, self.needed("biases")?);
        let (before, rows, words) = self.dims()?;
        let (n, k) = (before.saturating_mul(rows), self.need.cols);
        let bits = [4, 8].into_iter().find(|bits| words.checked_mul(32 / bits) == Some(k));
        let Some(bits) = bits else {
            let found = format!("{:?}", self.tensor.shape);
            return Err(self.misfit(found, format!("4 or 8 bits for each of {k} inputs")));
        };
        self.check(&(self.name.clone(), self.tensor.clone()), &["U32"], &self.tensor.shape)?;
        let groups = scales.1.shape.last().copied().unwrap_or(0);
        let shape = [&self.tensor.shape[..self.tensor.shape.len() - 1], &[groups]].concat();
        let scales = self.grid(scales, &shape, Steps::new(groups, 1))?;
        let zeros = Zeros::Biases(self.grid(biases, &shape, Steps::new(groups, 1))?.1);
        let (codes, group) = (self.codes(Order::Rows, bits, n, k), self.group(k, groups)?);
        Ok(Parts { codes, number: Number::Unsigned, scales, zeros, group, index: None })
    }

    /// Checks the numbers of the layer, and says what it becomes.
    fn finish(&self, parts: Parts) -> Res<FoundPacked> {
        let Parts { codes, number, scales: (name, scales), zeros, group, index } = parts;
        let (n, k) = (codes.n, codes.k);
        let (taken, transpose, result) = self.selected(number, n, k)?;
        if result != Some((self.need.rows, self.need.cols)) {
            let need = format!("packed values of [{}, {}]", self.need.rows, self.need.cols);
            return Err(self.misfit(format!("{:?} in groups of {group}", self.tensor.shape), need));
        }
        let groups = k.div_ceil(group.max(1));
        let index = index.map(|(name, t)| self.order(&name, t, k, groups)).transpose()?;
        let rounding = Rounding::None;
        let values = n.saturating_mul(k);
        let mut weight = PackedWeight {
            codes,
            number,
            scales,
            zeros,
            group,
            index,
            taken,
            transpose,
            rounding,
            values,
        };
        weight.narrow();
        let lost = self.scales_lose(&weight, &name, groups)?;
        let same = exact(&weight, groups).filter(|_| lost < 1e-3);
        let dtype = match same {
            Some(dtype) => dtype,
            None if number == Number::E4M3 || !k.is_multiple_of(32) || transpose => DType::BF16,
            None => DType::Q8_0,
        };
        weight.rounding = match same {
            None => Rounding::Values(dtype),
            Some(_) if lost > 0.0 => Rounding::Scales(lost),
            Some(_) => Rounding::None,
        };
        Ok(FoundPacked { weight, dtype, tensor: self.name.clone() })
    }

    /// The outputs that the recipe selects, whether it transposes them, and the shape of the result.
    #[allow(clippy::type_complexity)]
    fn selected(
        &self,
        number: Number,
        n: usize,
        k: usize,
    ) -> Res<(Vec<std::ops::Range<usize>>, bool, Option<(usize, usize)>)> {
        let recipe = self.recipe;
        if number == Number::E2M1 {
            // The recipe is for floats, which are transposed.
            let (outputs, rows) = (self.tensor.shape[1], recipe.rows.first());
            let expert = rows.map_or(0, |r| r.start.checked_div(r.len()).unwrap_or(0));
            let first = expert.saturating_mul(outputs);
            let all = vec![first..first.saturating_add(outputs)];
            let taken: Vec<_> = match recipe.cols {
                None => all,
                Some(c) => {
                    (0..c.len).map(|i| first + c.start + i * c.step).map(|n| n..n + 1).collect()
                }
            };
            let inside = taken.iter().all(|r| r.end <= n);
            let rows = taken.iter().map(|r| r.len()).sum();
            return Ok((taken, false, inside.then_some((rows, k))));
        }
        if recipe.cols.is_some() || (recipe.transpose && number != Number::E4M3) {
            let why = format!("a weight cut out of the columns of {} is not read", self.name);
            return Err(self.unsupported(why));
        }
        let mut taken = recipe.rows.clone();
        if taken.is_empty() {
            taken.push(0..n);
        }
        Ok((taken, recipe.transpose, recipe.result(n, k)))
    }

    /// The order of inputs, if it is one.
    fn order(&self, name: &str, tensor: RawTensor, k: usize, groups: usize) -> Res<WeightBytes> {
        self.check(&(name.to_string(), tensor.clone()), &["I32"], &[k])?;
        let beyond = (0..k).map(|i| codes::word(&tensor.bytes, i)).find(|g| *g as usize >= groups);
        match beyond {
            Some(g) => {
                let g = g as i32;
                Err(self.unsupported(format!("{name} names group {g}; there are {groups} groups")))
            }
            None => Ok(tensor.bytes),
        }
    }

    /// Refuses scales that are not usable. Returns the largest part that rounding to f16 takes from
    /// one, infinite where it is too large.
    fn scales_lose(&self, weight: &PackedWeight, name: &str, groups: usize) -> Res<f32> {
        let mut lost = 0f32;
        let mut seen = None;
        for n in weight.taken.iter().flat_map(|r| r.clone()) {
            // Blocks and whole matrices share their scales.
            if seen.replace(n / weight.scales.share) == Some(n / weight.scales.share) {
                continue;
            }
            for g in 0..groups {
                let scale = weight.scales.at(n, g);
                let bias = match &weight.zeros {
                    Zeros::Biases(biases) => biases.at(n, g),
                    _ => 0.0,
                };
                if !scale.is_finite() || scale == 0.0 || !bias.is_finite() {
                    let bad = if bias.is_finite() { scale } else { bias };
                    let why = format!(
                        "{name} holds {bad} for output {n}, group {g}, \
                                       which no weight can be made of; download it again"
                    );
                    return Err(self.unsupported(why));
                }
                if weight.number == Number::E2M1 {
                    continue;
                }
                for x in [scale, bias] {
                    let error = (f16::from_f32(x).to_f32() - x).abs() / x.abs();
                    lost = lost.max(if x == 0.0 { 0.0 } else { error });
                }
            }
        }
        Ok(lost)
    }
}

/// How to step through numbers of outputs and groups.
struct Steps {
    share: usize,
    row_step: usize,
    group_step: usize,
}

impl Steps {
    fn new(row_step: usize, group_step: usize) -> Steps {
        Steps { share: 1, row_step, group_step }
    }
}

/// The type of blocks that holds the same values, if there is one.
fn exact(weight: &PackedWeight, groups: usize) -> Option<DType> {
    if weight.index.is_some() || weight.transpose {
        return None;
    }
    let lengths = [DType::Q4_G128, DType::Q4_G64, DType::Q4_G32];
    let four = lengths.into_iter().find(|d| weight.group.is_multiple_of(d.block_len()))?;
    let centered = || {
        let mut outputs = weight.taken.iter().flat_map(|r| r.clone());
        outputs.all(|n| (0..groups).all(|g| weight.zeros.at(n, g) == 128))
    };
    match (weight.number, weight.codes.bits, &weight.zeros) {
        (Number::E2M1, ..) => Some(DType::MXFP4),
        (Number::Unsigned, 4, Zeros::Biases(_)) => Some(DType::Q4_1),
        (Number::Unsigned, 4, _) => Some(four),
        (Number::Signed, ..) => Some(DType::Q8_0),
        (Number::Unsigned, 8, _) if centered() => Some(DType::Q8_0),
        _ => None,
    }
}

/// Whether groups are runs of adjacent inputs, or the index was not filled in.
fn in_order(index: &RawTensor, k: usize, groups: usize) -> bool {
    let words = index.bytes.as_chunks::<4>().0;
    let group = k.checked_div(groups).unwrap_or(0).max(1);
    let in_place = |(i, w): (usize, &[u8; 4])| u32::from_le_bytes(*w) as usize == i / group;
    let empty = words.iter().all(|w| *w == [0; 4]) || words.iter().all(|w| *w == [255; 4]);
    let ordered = words.len() == k && words.iter().enumerate().all(in_place);
    index.kind == "I32" && (empty || ordered)
}
