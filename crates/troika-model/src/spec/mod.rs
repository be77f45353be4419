//! The description of a model as plain data, without weights or architecture-specific code.

mod checkpoint;
mod gguf_meta;
mod int4;
mod model_spec;
mod recipe;
mod weight_requirement;
mod weight_role;

pub use checkpoint::{Checkpoint, StoredTensor};
pub use gguf_meta::{GgufMeta, GgufValue, Texts};
pub use int4::{Int4Config, Int4Layout};
pub use model_spec::{
    Attn, Ffn, Latent, Layer, Mlp, ModelSpec, Moe, Norm, QkNorm, RopeSpec, SharedExpert,
};
pub use recipe::{Cols, Recipe};
pub use weight_requirement::{WeightRequirement, weight_requirements};
pub use weight_role::{Key, WeightRole};
