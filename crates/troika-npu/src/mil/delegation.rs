//! Which unit is expected to run an operation: the rules that Yetter's reports show (section 2,
//! "Double-check the ANE delegation"), and what Apple's documents say of types.

use std::collections::BTreeMap;

use serde::Serialize;

use super::proto::{DataType, Function};

/// Rows of a weight from which a product is a head: none of the paper's feed-forwards has as many.
const HEAD_ROWS: u64 = 32_000;

/// Operations of one kind with their unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Delegation {
    /// The operation.
    pub op: String,
    /// How many there are.
    pub count: usize,
    /// `ane` or `cpu`.
    pub unit: &'static str,
    /// Why.
    pub why: &'static str,
    /// The units on which Core ML itself says that it would run all operations of this name, `ane`,
    /// `gpu` or `cpu`, and how many on each; nothing where it has not been asked.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub in_fact_on: BTreeMap<&'static str, usize>,
}

/// The expected units of a function's operations, by kind.
pub(super) fn delegation(function: &Function) -> Vec<Delegation> {
    let blocks = function.block_specializations.values();
    let mut counts: BTreeMap<(String, &str, &str), usize> = BTreeMap::new();
    for op in blocks.flat_map(|block| &block.operations) {
        // Values that are known beforehand.
        if op.kind == "const" || op.kind.starts_with("constexpr") {
            continue;
        }
        let tensor = op.outputs.first().and_then(|o| o.value_type.as_ref()?.tensor_type.as_ref());
        let element = tensor.map_or(0, |t| t.data_type);
        let last =
            tensor.and_then(|t| t.dimensions.last()?.constant.as_ref()).map_or(0, |d| d.size);
        let (unit, why) = match &*op.kind {
            "gather" => ("cpu", "looks rows up: the paper's embedding runs there"),
            "linear" if last >= HEAD_ROWS => ("cpu", "a head: too many columns for the ANE"),
            _ if element == DataType::I32 as i32 => ("cpu", "whole numbers"),
            "cast" => ("cpu", "converts between the host's floats and halves"),
            _ if element == DataType::F32 as i32 => ("cpu", "the host's floats"),
            "read_state" | "write_state" => ("ane", "state"),
            _ => ("ane", "halves of fixed shape"),
        };
        *counts.entry((op.kind.clone(), unit, why)).or_default() += 1;
    }
    let one = |((op, unit, why), count)| {
        let in_fact_on = BTreeMap::new();
        Delegation { op, count, unit, why, in_fact_on }
    };
    counts.into_iter().map(one).collect()
}
