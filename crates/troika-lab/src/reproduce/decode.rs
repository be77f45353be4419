//! Decoding: HeteroInfer's sections 5.4 and 5.5.

use super::lab::{Case, Lab, Phone};
use super::outcome::{Item, Outcome};
use super::presets::{B1_8, B3, B7, B8};
use crate::Result;

const TENSOR: &str = "hetero-tensor";

pub fn rates(lab: &mut Lab) -> Result<Outcome> {
    let mut items = Vec::new();
    for (model, name, printed) in [(B8, "8B", 14.01), (B3, "3B", 29.9), (B1_8, "1.8B", 51.12)] {
        items.push(Item::new(name, printed, 1e3 / lab.tpot(Case::decode(model, TENSOR, 256))?));
    }
    Ok(Outcome::within(items, [0.12, 0.12, 0.20]))
}

pub fn tensor_over_layer(lab: &mut Lab) -> Result<Outcome> {
    let layer = lab.tpot(Case::decode(B8, "hetero-layer", 256))?;
    let ratio = layer / lab.tpot(Case::decode(B8, TENSOR, 256))?;
    let pass = |all: &[Item]| (all[0].ours - 1.22).abs() <= 0.06;
    Ok(Outcome::numbers(vec![Item::new("ratio", 1.22, ratio)], pass))
}

pub fn fast_sync(lab: &mut Lab) -> Result<Outcome> {
    let mut items = Vec::new();
    for (model, printed) in [(B8, 4.01), (B7, 2.2), (B3, 2.2), (B1_8, 2.2)] {
        let fast = Case::decode(model, TENSOR, 256);
        let ratio = lab.tpot(Case { blocking: true, ..fast })? / lab.tpot(fast)?;
        items.push(Item::new(model, printed, ratio));
    }
    let pass =
        |all: &[Item]| (3.2..=4.8).contains(&all[0].ours) && all[1..].iter().all(|i| i.ours >= 2.0);
    Ok(Outcome::numbers(items, pass))
}

pub fn elite(lab: &mut Lab) -> Result<Outcome> {
    let mut items = Vec::new();
    for model in [B8, B3, B1_8] {
        let case = Case::decode(model, TENSOR, 256);
        let ratio = lab.tpot(case)? / lab.tpot(Case { phone: Phone::Elite, ..case })?;
        items.push(Item::new(model, 1.0, ratio));
    }
    Ok(Outcome::numbers(items, |all| all.iter().all(|i| (0.97..=1.05).contains(&i.ours))))
}
