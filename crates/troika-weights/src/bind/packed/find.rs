//! Finds the tensors of packed layers, and says what is wrong with them before anything is made.

use half::f16;
use troika_device::WeightBytes;
use troika_graph::DType;
use troika_model::spec::{Checkpoint, Packing, RawTensor, Recipe, ScaleBlock, WeightRequirement};

use super::codes::{self, Codes, Grid, Number, Order, ScaleKind, Steps, ZeroCodes, Zeros};
use super::weight::{PackedWeight, Parts, Rounding};
use crate::error::{self, WeightError};

/// A packed linear layer found in a checkpoint.
pub(crate) struct FoundPacked {
    pub weight: PackedWeight,
    pub dtype: DType,
    /// The name of the tensor with its codes.
    pub tensor: String,
}

type Result<T, E = WeightError> = std::result::Result<T, E>;

/// The layer for a recipe, if the checkpoint has it in packed form.
pub(crate) fn find(
    packing: Packing,
    recipe: &Recipe,
    need: &WeightRequirement,
    files: &dyn Checkpoint,
) -> Result<Option<FoundPacked>> {
    let (base, ends): (_, &[&str]) = match packing {
        Packing::Mxfp4 => (Some(recipe.tensor.as_str()), &["_blocks"]),
        Packing::Fp8(_) | Packing::Mlx => (recipe.tensor.strip_suffix("weight"), &["weight"]),
        Packing::CompressedTensors(_) => {
            (recipe.tensor.strip_suffix("weight"), &["weight_packed", "weight"])
        }
        _ => (recipe.tensor.strip_suffix("weight"), &["qweight"]),
    };
    let Some(base) = base else { return Ok(None) };
    let main = ends.iter().find_map(|end| Part::of(files, format!("{base}{end}")));
    let Some(main) = main else { return Ok(None) };
    let layer = Layer { files, base, main, recipe, need };
    let parts = match packing {
        Packing::Gptq { less_one } => layer.along_inputs(Order::Inputs, less_one)?,
        Packing::Awq => layer.along_inputs(Order::Awq, false)?,
        Packing::AwqGemv { group } => layer.awq_gemv(group)?,
        Packing::CompressedTensors(_) if layer.main.tensor.dtype == "I32" => {
            layer.pack_quantized()?
        }
        Packing::CompressedTensors(block) => layer.bytes(&["F8_E4M3", "I8"], block)?,
        Packing::Fp8(block) => layer.bytes(&["F8_E4M3"], block)?,
        Packing::Mxfp4 => layer.mxfp4()?,
        Packing::Mlx => layer.mlx()?,
    };
    layer.finish(parts).map(Some)
}

/// A tensor of a layer.
struct Part {
    name: String,
    tensor: RawTensor,
}

impl Part {
    fn of(files: &dyn Checkpoint, name: String) -> Option<Part> {
        files.raw(&name).map(|tensor| Part { name, tensor })
    }

    /// The size of a dimension, counted from the last one.
    fn size(&self, from_last: usize) -> usize {
        self.tensor.shape.iter().rev().nth(from_last).copied().unwrap_or(0)
    }
}

struct Layer<'a> {
    files: &'a dyn Checkpoint,
    /// What the names of its tensors begin with.
    base: &'a str,
    /// The tensor with its codes.
    main: Part,
    recipe: &'a Recipe,
    need: &'a WeightRequirement,
}

impl Layer<'_> {
    fn unsupported(&self, why: String) -> WeightError {
        WeightError::Unsupported { file: self.files.origin(&self.main.name), why }
    }

    /// A tensor does not fit others or the config.
    fn misfit(&self, part: &Part, need: String) -> WeightError {
        error::misfit(self.files, &part.name, format!("{:?}", part.tensor.shape), need)
    }

    fn part(&self, end: &str) -> Option<Part> {
        Part::of(self.files, format!("{}{end}", self.base))
    }

    fn needed(&self, end: &str) -> Result<Part> {
        let missing = || {
            let tensor = format!("{}{end}, which {} needs", self.base, self.main.name);
            error::missing(self.files.origin(&self.main.name), &tensor)
        };
        self.part(end).ok_or_else(missing)
    }

    /// Checks a tensor's type and shape.
    fn check(&self, part: &Part, kinds: &[&str], shape: &[usize]) -> Result<()> {
        if !kinds.contains(&part.tensor.dtype.as_str()) {
            return Err(error::wrong_type(self.files, &part.name, &part.tensor.dtype));
        }
        match part.tensor.shape == shape {
            true => Ok(()),
            false => Err(self.misfit(part, format!("{shape:?}"))),
        }
    }

    /// Numbers of outputs and groups.
    fn grid(&self, part: Part, shape: &[usize], steps: Steps) -> Result<Grid> {
        self.check(&part, &["F32", "F16", "BF16", "F8_E8M0", "U8"], shape)?;
        let kind = match part.tensor.dtype.as_str() {
            "F32" => ScaleKind::F32,
            "F16" => ScaleKind::F16,
            "BF16" => ScaleKind::BF16,
            _ => ScaleKind::E8M0,
        };
        Ok(Grid { kind, bytes: part.tensor.bytes, steps })
    }

    /// Checks the type of the codes, and says how they lie.
    fn codes(&self, kind: &str, bits: usize, order: Order) -> Result<Codes> {
        self.check(&self.main, &[kind], &self.main.tensor.shape)?;
        let before = self.main.tensor.shape.iter().rev().skip(2);
        let before = before.fold(1usize, |n, d| n.saturating_mul(*d));
        let (rows, cols) = (before.saturating_mul(self.main.size(1)), self.main.size(0));
        let pack = if matches!(kind, "I32" | "U32") { 32 / bits } else { 1 };
        let (n, k) = match order {
            Order::Rows => (rows, cols.saturating_mul(pack)),
            Order::Inputs => (cols, rows.saturating_mul(pack)),
            Order::Awq => (cols.saturating_mul(pack), rows),
        };
        Ok(Codes { bytes: self.main.tensor.bytes.clone(), bits, order, n, k })
    }

    /// Inputs of a group; groups are whole where inputs are in order.
    fn group(&self, k: usize, groups: usize, index: &Option<WeightBytes>) -> Result<usize> {
        let group = k.div_ceil(groups.max(1));
        if group == 0 || groups == 0 || (index.is_none() && group * groups != k) {
            return Err(self.misfit(&self.main, format!("{groups} whole groups of inputs")));
        }
        Ok(group)
    }

    /// The group of each input, if groups are not runs of adjacent inputs.
    fn index(&self, end: &str, k: usize, groups: usize) -> Result<Option<WeightBytes>> {
        let Some(part) = self.part(end) else { return Ok(None) };
        self.check(&part, &["I32"], &part.tensor.shape)?;
        let words = part.tensor.bytes.as_chunks::<4>().0;
        // All zeros or all minus one: it was not filled in.
        if [[0; 4], [255; 4]].iter().any(|empty| words.iter().all(|w| w == empty)) {
            return Ok(None);
        }
        self.check(&part, &["I32"], &[k])?;
        let group = k.checked_div(groups).unwrap_or(0).max(1);
        let all = || words.iter().map(|w| u32::from_le_bytes(*w));
        if let Some(g) = all().find(|g| *g as usize >= groups) {
            let (name, g) = (&part.name, g as i32);
            let why = format!("{name} names group {g}; there are {groups} groups");
            return Err(self.unsupported(why));
        }
        let ordered = all().enumerate().all(|(i, g)| g as usize == i / group);
        Ok((!ordered).then_some(part.tensor.bytes))
    }

    /// GPTQ and AWQ `gemm`: inputs in the outer dimension.
    fn along_inputs(&self, order: Order, less_one: bool) -> Result<Parts> {
        let (scales, zeros) = (self.needed("scales")?, self.needed("qzeros")?);
        let (groups, n, awq) = (scales.size(1), scales.size(0), order == Order::Awq);
        let bits = zeros.size(0).saturating_mul(32).checked_div(n).unwrap_or(0);
        if bits != 4 && (bits != 8 || awq) {
            return Err(self.misfit(&zeros, format!("4 or 8 bits for each of {n} outputs")));
        }
        self.check(&zeros, &["I32"], &[groups, n * bits / 32])?;
        let codes = self.codes("I32", bits, order)?;
        let steps = Steps { share: 1, row: 1, group: n };
        let scales = self.grid(scales, &[groups, codes.n], steps)?;
        let index = self.index("g_idx", codes.k, groups)?;
        let group = self.group(codes.k, groups, &index)?;
        let steps = if awq { Steps { share: 8, row: 8, group: n } } else { steps };
        let zeros = ZeroCodes { bytes: zeros.tensor.bytes, bits, steps, awq, less_one };
        let zeros = Zeros::Codes(zeros);
        Ok(Parts { codes, number: Number::Unsigned, scales, zeros, group, index })
    }

    fn awq_gemv(&self, group: usize) -> Result<Parts> {
        let (scales, zeros) = (self.needed("scales")?, self.needed("qzeros")?);
        let codes = self.codes("I32", 4, Order::Rows)?;
        // Rows are longer than their groups.
        let width = zeros.size(0).saturating_mul(8);
        if !codes.k.is_multiple_of(group) || codes.k / group > width {
            return Err(self.misfit(&self.main, format!("at most {width} groups of {group}")));
        }
        self.check(&zeros, &["I32"], &[codes.n, width / 8])?;
        let steps = Steps { share: 1, row: width, group: 1 };
        let scales = self.grid(scales, &[codes.n, width], steps)?;
        let bytes = zeros.tensor.bytes;
        let zeros = ZeroCodes { bytes, bits: 4, steps, awq: false, less_one: false };
        let zeros = Zeros::Codes(zeros);
        Ok(Parts { codes, number: Number::Unsigned, scales, zeros, group, index: None })
    }

    fn pack_quantized(&self) -> Result<Parts> {
        let (shape, scales) = (self.needed("weight_shape")?, self.needed("weight_scale")?);
        self.check(&shape, &["I64", "I32"], &[2])?;
        let words = if shape.tensor.dtype == "I64" { 2 } else { 1 };
        let k = codes::word(&shape.tensor.bytes, words) as usize;
        let codes = self.codes("I32", self.bits_for(k)?, Order::Rows)?;
        let (n, bits, groups) = (codes.n, codes.bits, scales.size(0));
        let steps = Steps { share: 1, row: groups, group: 1 };
        let scales = self.grid(scales, &[n, groups], steps)?;
        let zeros = match self.part("weight_zero_point") {
            None => Zeros::Fixed(1 << (bits - 1)),
            Some(zeros) => {
                let share = 32 / bits;
                self.check(&zeros, &["I32"], &[n.div_ceil(share), groups])?;
                let steps = Steps { share, row: groups * share, group: share };
                let bytes = zeros.tensor.bytes;
                Zeros::Codes(ZeroCodes { bytes, bits, steps, awq: false, less_one: false })
            }
        };
        let index = self.index("weight_g_idx", k, groups)?;
        let group = self.group(k, groups, &index)?;
        Ok(Parts { codes, number: Number::Unsigned, scales, zeros, group, index })
    }

    /// The bits of codes in int32s along `k` inputs.
    fn bits_for(&self, k: usize) -> Result<usize> {
        let words = self.main.size(0);
        let bits = [4, 8].into_iter().find(|bits| words.checked_mul(32 / bits) == Some(k));
        bits.ok_or_else(|| self.misfit(&self.main, format!("4 or 8 bits for each of {k} inputs")))
    }

    /// Codes of a byte, with one scale, a scale per output, per group, or per block.
    fn bytes(&self, kinds: &[&str], block: ScaleBlock) -> Result<Parts> {
        self.check(&self.main, kinds, &self.main.tensor.shape)?;
        let scales =
            self.part("weight_scale_inv").map_or_else(|| self.needed("weight_scale"), Ok)?;
        if let Some(Part { name, .. }) = self.part("weight_zero_point") {
            return Err(self.unsupported(format!("{name}: zero points of bytes are not read")));
        }
        let kind = self.main.tensor.dtype.as_str();
        let number = if kind == "I8" { Number::Signed } else { Number::E4M3 };
        let codes = self.codes(kind, 8, Order::Rows)?;
        let (n, k) = (codes.n, codes.k);
        let blocks = [n.div_ceil(block.rows), k.div_ceil(block.cols)];
        let shape = scales.tensor.shape.clone();
        let (steps, group) = match shape.as_slice() {
            [] | [1] | [1, 1] => (Steps { share: n.max(1), row: 0, group: 0 }, k),
            [rows] | [rows, 1] if *rows == n => (Steps { share: 1, row: 1, group: 0 }, k),
            [rows, cols] if [*rows, *cols] == blocks => {
                (Steps { share: block.rows, row: *cols, group: 1 }, block.cols)
            }
            [rows, groups] if *rows == n => {
                (Steps { share: 1, row: *groups, group: 1 }, self.group(k, *groups, &None)?)
            }
            _ => return Err(self.misfit(&scales, format!("[1], [{n}, 1] or {blocks:?}"))),
        };
        let scales = self.grid(scales, &shape, steps)?;
        Ok(Parts { codes, number, scales, zeros: Zeros::Fixed(0), group, index: None })
    }

    fn mxfp4(&self) -> Result<Parts> {
        let (scales, shape) = (self.needed("_scales")?, &self.main.tensor.shape);
        let [experts, rows, groups, 16] = shape[..] else {
            return Err(self.misfit(&self.main, "[experts, outputs, groups, 16]".into()));
        };
        let codes = self.codes("U8", 4, Order::Rows)?;
        let codes = Codes { n: experts * rows, k: groups * 32, ..codes };
        self.check(&scales, &["U8"], &shape[..3])?;
        let steps = Steps { share: 1, row: groups, group: 1 };
        let scales = self.grid(scales, &shape[..3], steps)?;
        let zeros = Zeros::Fixed(0);
        Ok(Parts { codes, number: Number::E2M1, scales, zeros, group: 32, index: None })
    }

    fn mlx(&self) -> Result<Parts> {
        let (scales, biases) = (self.needed("scales")?, self.needed("biases")?);
        let codes = self.codes("U32", self.bits_for(self.need.cols)?, Order::Rows)?;
        let groups = scales.size(0);
        let before = self.main.tensor.shape.len().saturating_sub(1);
        let shape = [&self.main.tensor.shape[..before], &[groups]].concat();
        let steps = Steps { share: 1, row: groups, group: 1 };
        let scales = self.grid(scales, &shape, steps)?;
        let zeros = Zeros::Biases(self.grid(biases, &shape, steps)?);
        let group = self.group(codes.k, groups, &None)?;
        Ok(Parts { codes, number: Number::Unsigned, scales, zeros, group, index: None })
    }

    /// Checks the numbers of the layer, and says what it becomes.
    fn finish(self, parts: Parts) -> Result<FoundPacked> {
        let (n, k, recipe) = (parts.codes.n, parts.codes.k, self.recipe);
        let (number, groups) = (parts.number, k.div_ceil(parts.group.max(1)));
        if number != Number::E2M1
            && (recipe.cols.is_some() || (recipe.transpose && number != Number::E4M3))
        {
            let why = format!("a weight cut out of the columns of {} is not read", self.main.name);
            return Err(self.unsupported(why));
        }
        // Experts in MXFP4 are not transposed, as those in floats are.
        let turned = self.untransposed();
        let recipe = if number == Number::E2M1 { &turned } else { recipe };
        if recipe.result(n, k) != Some((self.need.rows, self.need.cols)) {
            let need = format!("packed values of [{}, {}]", self.need.rows, self.need.cols);
            return Err(self.misfit(&self.main, need));
        }
        let mut taken = recipe.rows.clone();
        if taken.is_empty() {
            taken.push(0..n);
        }
        let (transpose, rounding) = (recipe.transpose, Rounding::None);
        let values = n.saturating_mul(k);
        let mut weight = PackedWeight { parts, taken, transpose, rounding, values };
        weight.narrow();
        let lost = self.lost_in_scales(&weight, groups)?;
        let same = exact(&weight, groups).filter(|_| lost < 1e-3);
        let dtype = match same {
            Some(dtype) => dtype,
            None if number == Number::E4M3 || !self.need.cols.is_multiple_of(32) => DType::BF16,
            None => DType::Q8_0,
        };
        weight.rounding = match same {
            None => Rounding::Values(dtype),
            Some(_) if lost > 0.0 => Rounding::Scales(lost),
            Some(_) => Rounding::None,
        };
        Ok(FoundPacked { weight, dtype, tensor: self.main.name })
    }

    /// The rows of a matrix whose transpose the recipe is for: those of an expert, or every other.
    fn untransposed(&self) -> Recipe {
        let outputs = self.main.size(2);
        let rows = self.recipe.rows.first();
        let expert = rows.map_or(0, |r| r.start.checked_div(r.len()).unwrap_or(0));
        let first = expert.saturating_mul(outputs);
        let rows = match self.recipe.cols {
            None => std::iter::once(first..first.saturating_add(outputs)).collect(),
            Some(c) => (0..c.len)
                .map(|i| first.saturating_add(c.start + i * c.step))
                .map(|n| n..n.saturating_add(1))
                .collect(),
        };
        Recipe { rows, ..Recipe::whole(&self.main.name) }
    }

    /// Refuses scales that are not usable. Returns the largest part that rounding to f16 takes from
    /// one.
    fn lost_in_scales(&self, weight: &PackedWeight, groups: usize) -> Result<f32> {
        let (mut lost, mut seen) = (0f32, None);
        let Parts { number, scales, zeros, .. } = &weight.parts;
        for n in weight.taken.iter().flat_map(|r| r.clone()) {
            // Blocks and whole matrices share their scales.
            let shared = n / scales.steps.share;
            if seen.replace(shared) == Some(shared) {
                continue;
            }
            for g in 0..groups {
                let scale = scales.at(n, g);
                let bias = match zeros {
                    Zeros::Biases(biases) => biases.at(n, g),
                    _ => 0.0,
                };
                if !scale.is_finite() || scale == 0.0 || !bias.is_finite() {
                    let (bad, name) =
                        (if bias.is_finite() { scale } else { bias }, &self.main.name);
                    return Err(self.unsupported(format!(
                        "a scale of {name} is {bad} (output {n}, group {g}), of which no weight \
                         can be made; download it again"
                    )));
                }
                let error = |x: f32| (f16::from_f32(x).to_f32() - x).abs() / x.abs().max(1e-30);
                if *number != Number::E2M1 {
                    lost = lost.max(error(scale)).max(error(bias));
                }
            }
        }
        Ok(lost)
    }
}

/// The type of blocks that holds the same values, if there is one.
fn exact(weight: &PackedWeight, groups: usize) -> Option<DType> {
    let Parts { codes, number, zeros, group, index, .. } = &weight.parts;
    if index.is_some() || weight.transpose {
        return None;
    }
    let lengths = [DType::Q4_G128, DType::Q4_G64, DType::Q4_G32];
    let four = lengths.into_iter().find(|d| group.is_multiple_of(d.block_len()))?;
    let centered = || {
        let mut outputs = weight.taken.iter().flat_map(|r| r.clone());
        outputs.all(|n| (0..groups).all(|g| zeros.at(n, g) == 128))
    };
    match (number, codes.bits, zeros) {
        (Number::E2M1, ..) => Some(DType::MXFP4),
        (Number::Unsigned, 4, Zeros::Biases(_)) => Some(DType::Q4_1),
        (Number::Unsigned, 4, _) => Some(four),
        (Number::Signed, ..) => Some(DType::Q8_0),
        (Number::Unsigned, 8, _) if centered() => Some(DType::Q8_0),
        _ => None,
    }
}
