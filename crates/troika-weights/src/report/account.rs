//! Counts weights by memory and by purpose.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use troika_graph::DType;
use troika_model::spec::{Key, WeightRole};

use crate::bind::bound::Bound;
use crate::bind::source::ValueSource;
use crate::store::WeightStore;

/// The bytes of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryReport {
    /// Used straight from the memory-mapped file.
    pub mapped: u64,
    /// Copies, made where the file's layout or type is unsuitable.
    pub owned: u64,
    /// Packed forms by layout.
    pub packed: BTreeMap<String, u64>,
    /// The same by class and kind: `memory-mapped`, `copied`, or a layout.
    pub classes: BTreeMap<(&'static str, String), u64>,
}

/// Parameters and bytes of a class of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassBytes {
    /// `embedding`, `attention`, `feed-forward`, `experts`, `router`, `norms`, `head`.
    pub class: &'static str,
    /// Type in the store.
    pub dtype: DType,
    /// Parameters.
    pub parameters: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Whether a token uses only some of the weights of this kind.
pub(crate) fn is_expert(role: WeightRole) -> bool {
    use WeightRole::*;
    matches!(
        role,
        ExpertGate | ExpertUp | ExpertDown | ExpertGateBias | ExpertUpBias | ExpertDownBias
    )
}

pub(crate) fn class_of(role: WeightRole, rows: usize) -> &'static str {
    use WeightRole::*;
    match role {
        Embed | PerLayerEmbed => "embedding",
        Head | HeadBias => "head",
        Router | RouterBias => "router",
        ExpertGate | ExpertUp | ExpertDown | ExpertGateBias | ExpertUpBias | ExpertDownBias
        | SharedGate | SharedUp | SharedDown | SharedOutGate => "experts",
        Gate | Up | Down | GateBias | UpBias | DownBias | PerLayerIn | PerLayerGate
        | PerLayerUp => "feed-forward",
        Q | K | V | O | QDown | QUp | KvDown | KRope | KAbsorb | VUp => "attention",
        _ if rows == 1 => "norms",
        _ => "attention",
    }
}

impl WeightStore {
    /// Bytes of all experts. A token uses only some of them.
    pub fn expert_bytes(&self) -> u64 {
        self.bound.iter().filter(|b| is_expert(b.key.role)).map(Bound::bytes).sum()
    }

    /// Bytes by kind of memory. For weights used only in packed form, the file's bytes do not
    /// count, since their pages are released.
    pub fn report(&self) -> MemoryReport {
        let mut report = MemoryReport::default();
        let packed = self.forms.weights();
        self.forms.each(|id, bytes| {
            let form = id.form();
            *report.packed.entry(form.clone()).or_default() += bytes;
            if let Ok(b) = self.bound(&id.weight) {
                let class = class_of(b.key.role, b.shape.rows);
                *report.classes.entry((class, form)).or_default() += bytes;
            }
        });
        for b in &self.bound {
            let ValueSource::Ready { bytes, owned } = &b.source else { continue };
            let only_packed = !owned
                && !b.handed_out.load(Ordering::Relaxed)
                && packed.contains(&b.key.to_string());
            if only_packed {
                continue;
            }
            let bytes = bytes.len() as u64;
            *(if *owned { &mut report.owned } else { &mut report.mapped }) += bytes;
            let form = if *owned { "copied" } else { "memory-mapped" };
            let class = class_of(b.key.role, b.shape.rows);
            *report.classes.entry((class, form.to_string())).or_default() += bytes;
        }
        report
    }

    /// Bytes of all weights as they are used, each once.
    pub fn bytes(&self) -> u64 {
        self.classes().iter().map(|class| class.bytes).sum()
    }

    /// Parameters and bytes by class and type. A table that is both embedding and head counts once:
    /// as the head if that has its own type.
    pub fn classes(&self) -> Vec<ClassBytes> {
        let head = self.info(Key::model(WeightRole::Head)).map(|i| i.tensor);
        let mut sums: BTreeMap<(&'static str, &'static str), ClassBytes> = BTreeMap::new();
        for b in &self.bound {
            if b.key.role == WeightRole::Embed && head.as_ref() == Some(&b.tensor) {
                continue;
            }
            let (class, dtype) = (class_of(b.key.role, b.shape.rows), b.shape.dtype);
            let none = ClassBytes { class, dtype, parameters: 0, bytes: 0 };
            let entry = sums.entry((class, dtype.name())).or_insert(none);
            entry.parameters += b.values();
            entry.bytes += b.bytes();
        }
        sums.into_values().collect()
    }
}
