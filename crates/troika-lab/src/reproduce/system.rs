//! Energy, memory and a co-running game: HeteroInfer's sections 5.7 and 5.8, and claims of
//! llm.npu's paper about any engine.

use super::lab::{Case, Lab};
use super::outcome::{Item, Outcome};
use super::presets::{B8, UI};
use crate::Result;

const STRATEGIES: [&str; 3] = ["gpu-only", "hetero-layer", "hetero-tensor"];

fn case(strategy: &'static str) -> Case {
    Case { generate: 32, ..Case::prefill(B8, strategy, 256) }
}

fn energy(lab: &mut Lab, strategy: &'static str) -> Result<f64> {
    Ok(lab.run(case(strategy))?.energy_j().unwrap_or(f64::NAN))
}

/// Watts in prefill and in decode.
fn watts(lab: &mut Lab, strategy: &'static str) -> Result<[f64; 2]> {
    let f = lab.run(case(strategy))?;
    Ok([f.prefill_w(), f.decode_w()].map(|watts| watts.unwrap_or(f64::NAN)))
}

pub fn power(lab: &mut Lab) -> Result<Outcome> {
    let [prefill, _] = watts(lab, "hetero-layer")?;
    let ratio = energy(lab, "hetero-tensor")? / energy(lab, "hetero-layer")?;
    let items = vec![
        Item::new("hetero-layer, prefill, W", 2.23, prefill),
        Item::new("energy, tensor over layer", 0.872, ratio),
    ];
    let pass = |all: &[Item]| all[0].error().abs() <= 0.1 && (all[1].ours - 0.872).abs() <= 0.03;
    Ok(Outcome::numbers(items, pass))
}

pub fn against_gpu(lab: &mut Lab) -> Result<Outcome> {
    let less = 1.0 - energy(lab, "hetero-tensor")? / energy(lab, "gpu-only")?;
    let pass = |all: &[Item]| (0.45..=0.65).contains(&all[0].ours);
    Ok(Outcome::numbers(vec![Item::new("less", 0.55, less)], pass))
}

pub fn power_order(lab: &mut Lab) -> Result<Outcome> {
    let mut all = Vec::new();
    for strategy in STRATEGIES {
        all.push((strategy, watts(lab, strategy)?));
    }
    let lowest = |phase: usize| {
        let least = all.iter().min_by(|a, b| a.1[phase].total_cmp(&b.1[phase]));
        least.map_or("none", |s| s.0)
    };
    let ours = [lowest(0), lowest(1)];
    let each = all.iter().map(|(s, [p, d])| format!("{s}: {p:.2} and {d:.2} W"));
    let note = each.collect::<Vec<_>>().join("; ");
    let printed = ["hetero-layer", "hetero-tensor"];
    Ok(Outcome::words(printed.join(", "), ours.join(", "), ours == printed).noted(note))
}

pub fn game(lab: &mut Lab) -> Result<Outcome> {
    let mut items = Vec::new();
    let mut pass = true;
    let slower = |lab: &mut Lab, strategy: &'static str| -> Result<[f64; 4]> {
        let (alone, both) =
            (lab.run(case(strategy))?, lab.run(Case { game: true, ..case(strategy) })?);
        let decode = alone.tpot_ms().unwrap_or(f64::NAN) / both.tpot_ms().unwrap_or(f64::NAN);
        let [prefill_frames, decode_frames] = both.frame_rates;
        Ok([alone.ttft_ms() / both.ttft_ms(), decode, prefill_frames, decode_frames])
    };
    let layer = slower(lab, "hetero-layer")?;
    let tensor = slower(lab, "hetero-tensor")?;
    let gpu = slower(lab, "gpu-only")?;
    for (what, printed, ours, within) in [
        ("hetero-layer, prefill speed", 0.995, layer[0], 0.95..=1.0),
        ("hetero-tensor, prefill speed", 0.978, tensor[0], 0.95..=1.0),
        ("hetero-tensor, decode speed", 0.823, tensor[1], 0.75..=0.9),
        ("hetero-layer, prefill, frames", 60.0, layer[2], 57.0..=61.0),
        ("hetero-tensor, prefill, frames", 60.0, tensor[2], 57.0..=61.0),
        ("hetero-tensor, decode, frames", 60.0, tensor[3], 57.0..=61.0),
        ("GPU-only, prefill, frames", 0.0, gpu[2], 0.0..=10.0),
        ("GPU-only, decode, frames", 46.0, gpu[3], 35.0..=55.0),
    ] {
        pass &= within.contains(&ours);
        items.push(Item::new(what, printed, ours));
    }
    Ok(Outcome::numbers(items, |_| pass))
}

pub fn memory(lab: &mut Lab) -> Result<Outcome> {
    let of = |lab: &mut Lab, strategy| -> Result<f64> {
        Ok(lab.run(Case::prefill(B8, strategy, 512))?.peak_bytes as f64)
    };
    let ratio = of(lab, "hetero-tensor")? / of(lab, "gpu-only")?;
    let items = vec![Item::new("hetero-tensor over gpu-only", 1.32, ratio)];
    Ok(Outcome::numbers(items, |all| all[0].ours <= 1.32))
}

/// Tokens in and out, from llm.npu's section 2.1.
const SETS: [(&str, usize, usize); 3] =
    [("UI automation", 666, 4), ("summary", 1502, 8), ("questions", 536, 44)];

pub fn prefill_share(lab: &mut Lab) -> Result<Outcome> {
    let mut parts = Vec::new();
    let mut pass = true;
    for (strategy, least, most) in [("cpu-only", 0.883, 0.988), ("gpu-only", 0.542, 0.917)] {
        for (set, prompt, out) in SETS {
            let f = lab.run(Case::decode(UI, strategy, prompt))?;
            let decode = f.tpot_ms().unwrap_or(0.0) * (out - 1) as f64;
            let share = f.ttft_ms() / (f.ttft_ms() + decode);
            pass &= (least..=most).contains(&share);
            parts.push(format!("{strategy}, {set}: {:.1} %", share * 100.0));
        }
    }
    Ok(Outcome::words("88.3 to 98.8 %; 54.2 to 91.7 %", parts.join("; "), pass))
}
