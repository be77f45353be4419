//! Which types the matrices of a file have: llama-quantize's choices.

use troika_graph::DType::{self, *};
use troika_model::spec::{ModelSpec, WeightRequirement, WeightRole};

/// The types of a model's matrices, as llama-quantize chooses them for a kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightMix {
    name: &'static str,
    base: DType,
}

/// Files with names of their own. For others the name is that of the type.
const MIXES: [WeightMix; 12] = [
    WeightMix { name: "Q2_K_S", base: Q2_K },
    WeightMix { name: "Q3_K_S", base: Q3_K },
    WeightMix { name: "Q3_K_M", base: Q3_K },
    WeightMix { name: "Q3_K_L", base: Q3_K },
    WeightMix { name: "Q4_K_S", base: Q4_K },
    WeightMix { name: "Q4_K_M", base: Q4_K },
    WeightMix { name: "Q5_K_S", base: Q5_K },
    WeightMix { name: "Q5_K_M", base: Q5_K },
    WeightMix { name: "IQ2_M", base: IQ2_S },
    WeightMix { name: "IQ3_XS", base: IQ3_S },
    WeightMix { name: "IQ3_M", base: IQ3_S },
    WeightMix { name: "MXFP4_MOE", base: MXFP4 },
];

impl From<DType> for WeightMix {
    fn from(base: DType) -> WeightMix {
        WeightMix { name: base.name(), base }
    }
}

impl WeightMix {
    /// All of them: a type each, then the mixes with names of their own.
    pub fn all() -> impl Iterator<Item = WeightMix> {
        DType::WEIGHTS.iter().map(|d| WeightMix::from(*d)).chain(MIXES)
    }

    /// The one with a name, in letters of any case.
    pub fn find(name: &str) -> Option<WeightMix> {
        WeightMix::all().find(|mix| mix.name.eq_ignore_ascii_case(name))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The type of most matrices.
    pub fn base(self) -> DType {
        self.base
    }

    /// The type of a weight. Vectors and, beside quantized matrices, routers are bf16.
    pub(crate) fn type_of(self, need: &WeightRequirement, spec: &ModelSpec) -> DType {
        match need.key.role {
            _ if need.rows == 1 => BF16,
            _ if !self.base.is_quantized() => self.base,
            WeightRole::Router => BF16,
            WeightRole::Head => fitting(self.head(need.cols), need.cols),
            WeightRole::Embed if spec.tied => fitting(self.head(need.cols), need.cols),
            WeightRole::Embed => fitting(self.embedding(), need.cols),
            _ => fitting(Choice::new(self, need, spec).dtype(), need.cols),
        }
    }

    /// The type of a head, and of an embedding that is the head, too.
    fn head(self, cols: usize) -> DType {
        match self.base {
            _ if self.name == "MXFP4_MOE" => Q8_0,
            base if !cols.is_multiple_of(base.block_len()) => Q8_0,
            Q8_0 => Q8_0,
            IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS => Q5_K,
            _ => Q6_K,
        }
    }

    fn embedding(self) -> DType {
        match self.base {
            _ if self.name == "MXFP4_MOE" => Q8_0,
            IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS => Q2_K,
            IQ2_S | IQ3_XXS => IQ3_S,
            TQ1_0 | TQ2_0 | Q2_0 => Q4_K,
            base => base,
        }
    }
}

/// A type whose blocks divide rows of `cols`.
fn fitting(dtype: DType, cols: usize) -> DType {
    let fits = |d: &DType| cols.is_multiple_of(d.block_len());
    let less = match dtype {
        IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_XS => IQ4_NL,
        Q2_0 | Q2_K | Q3_K | TQ1_0 | TQ2_0 => Q4_0,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        _ => Q8_0,
    };
    [dtype, less].into_iter().find(fits).unwrap_or(F16)
}

/// What the choice of a layer's matrix depends on.
struct Choice {
    mix: WeightMix,
    role: WeightRole,
    layer: usize,
    /// Layers of the model.
    layers: usize,
    /// The most experts of a layer.
    experts: usize,
    /// Whether at least four query heads share a key head.
    shares: bool,
}

impl Choice {
    fn new(mix: WeightMix, need: &WeightRequirement, spec: &ModelSpec) -> Choice {
        use WeightRole as R;
        let experts = spec.layers.iter().filter_map(|l| Some(l.moe()?.experts));
        let attention = spec.layers.iter().find_map(|l| l.attention());
        let shares = attention.is_some_and(|a| a.heads >= 4 * a.kv_heads);
        // Where layers have experts, the rules for feed-forwards hold for these.
        let role = match need.key.role {
            R::SharedGate => R::Gate,
            R::SharedUp => R::Up,
            R::SharedDown => R::Down,
            role => role,
        };
        let (layer, layers) = (need.key.layer.unwrap_or(0), spec.layers.len());
        Choice { mix, role, layer, layers, experts: experts.max().unwrap_or(0), shares }
    }

    /// Whether the layer is one of the first eighth.
    fn is_early(&self) -> bool {
        self.layer < self.layers / 8
    }

    /// Whether the layer is among those that get more bits.
    fn gets_more_bits(&self) -> bool {
        let eighth = self.layers / 8;
        self.is_early() || self.layer >= 7 * self.layers / 8 || (self.layer - eighth) % 3 == 2
    }

    fn dtype(&self) -> DType {
        use WeightRole as R;
        let is_expert = matches!(self.role, R::ExpertGate | R::ExpertUp | R::ExpertDown);
        match self.mix.base {
            _ if self.mix.name == "MXFP4_MOE" && is_expert => MXFP4,
            _ if self.mix.name == "MXFP4_MOE" => Q8_0,
            IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S => self.of_two_bits(),
            _ => match self.role {
                R::V => self.value(),
                R::Q | R::K => self.query_or_key(),
                R::Down | R::ExpertDown => self.down(),
                R::O => self.output(),
                R::Gate | R::Up | R::ExpertGate | R::ExpertUp => self.gate_or_up(),
                _ => self.mix.base,
            },
        }
    }

    /// Files with one or two bits.
    fn of_two_bits(&self) -> DType {
        use WeightRole as R;
        let base = self.mix.base;
        let finer = if base == IQ2_S { IQ3_S } else { Q2_K };
        match self.role {
            R::V if self.shares || self.experts >= 4 => Q4_K,
            R::V => finer,
            R::K if self.experts == 8 => Q4_K,
            R::Down | R::ExpertDown if self.is_early() => finer,
            R::O if self.experts == 8 => Q5_K,
            R::O => match base {
                IQ1_S | IQ1_M => IQ2_XXS,
                IQ2_S => IQ3_S,
                _ => base,
            },
            _ => base,
        }
    }

    fn value(&self) -> DType {
        if self.experts == 8 {
            return Q8_0;
        }
        match self.mix.name {
            "Q2_K" if !self.shares => Q3_K,
            "Q2_K" | "Q2_K_S" | "IQ3_XXS" | "IQ3_XS" | "IQ3_S" if self.shares => Q4_K,
            "IQ3_XXS" => IQ3_XXS,
            "IQ3_M" => Q4_K,
            "Q3_K_M" if self.layer >= 2 => Q4_K,
            "Q3_K_M" | "Q3_K_L" => Q5_K,
            "IQ4_NL" | "IQ4_XS" if self.shares => Q5_K,
            "Q4_K_M" | "Q5_K_M" if self.gets_more_bits() => Q6_K,
            "Q4_K_S" if self.layer < 4 => Q5_K,
            _ => self.mix.base,
        }
    }

    fn query_or_key(&self) -> DType {
        match self.mix.name {
            _ if self.experts == 8 && self.role == WeightRole::K => Q8_0,
            "IQ3_XS" => IQ3_XXS,
            "IQ3_XXS" => IQ2_S,
            _ => self.mix.base,
        }
    }

    fn down(&self) -> DType {
        let of_eight = self.experts == 8 && self.gets_more_bits();
        match self.mix.name {
            "Q2_K" => Q3_K,
            "Q2_K_S" if self.is_early() => Q4_K,
            "Q3_K_M" if self.layer < self.layers / 16 => Q5_K,
            "Q3_K_M" => Q4_K,
            "IQ3_M" if self.is_early() || of_eight => Q4_K,
            "Q3_K_L" => Q5_K,
            "Q4_K_M" | "Q5_K_M" if self.gets_more_bits() => Q6_K,
            "Q4_K_S" | "IQ4_NL" | "IQ4_XS" if self.is_early() => Q5_K,
            _ => self.mix.base,
        }
    }

    fn output(&self) -> DType {
        const FINER_OF_EIGHT: [&str; 11] = [
            "Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ3_S",
            "IQ3_M", "IQ4_XS",
        ];
        match self.mix.name {
            _ if self.experts == 8 && FINER_OF_EIGHT.contains(&self.mix.name) => Q5_K,
            _ if self.experts == 8 => self.mix.base,
            "Q2_K" => Q3_K,
            "IQ3_XXS" => IQ3_S,
            "Q3_K_M" | "IQ3_M" => Q4_K,
            "Q3_K_L" => Q5_K,
            _ => self.mix.base,
        }
    }

    fn gate_or_up(&self) -> DType {
        let (eighth, last) = (self.layers / 8, 7 * self.layers / 8);
        match self.mix.name {
            "IQ3_XS" if (eighth..last).contains(&self.layer) => IQ3_XXS,
            _ => self.mix.base,
        }
    }
}
