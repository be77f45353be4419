//! Single products, bandwidth, hand-overs, code and the solver's choices: HeteroInfer's sections 3
//! and 4.

use troika::plan::SyncMode;

use super::lab::{Case, Lab};
use super::outcome::{Item, Outcome, mean};
use super::presets::B8;
use crate::{LabError, ProductShape, Result};

/// Rows and columns of the weights, rows of the activations; GPU and NPU.
const TABLE_3: [([usize; 3], f64, f64); 6] = [
    ([4096, 4096, 1], 511.0, 693.0),
    ([28_672, 4096, 1], 1903.0, 3886.0),
    ([4096, 14_336, 1], 1467.0, 6506.0),
    ([4096, 4096, 128], 7306.0, 912.0),
    ([4096, 4096, 256], 10_841.0, 1884.0),
    ([4096, 14_336, 256], 35_231.0, 23_445.0),
];

/// The GPU's times include the waiting call; the NPU's framework times the run alone.
fn product_us(lab: &Lab, processor: &str, shape: [usize; 3]) -> Result<f64> {
    let time = lab.product(processor, shape, shape[2] == 1)?;
    Ok(if processor == "gpu" { time.latency_us } else { time.run_us })
}

pub fn table_3(lab: &mut Lab, processor: &str) -> Result<Outcome> {
    let mut items = Vec::new();
    for (shape, gpu, npu) in TABLE_3 {
        let printed = if processor == "gpu" { gpu } else { npu };
        let [outs, terms, rows] = shape;
        let what = format!("[{outs},{terms}] x [{terms},{rows}]");
        items.push(Item::new(what, printed, product_us(lab, processor, shape)?));
    }
    Ok(Outcome::numbers(items, |all| {
        let errors: Vec<f64> = all.iter().map(|i| i.error().abs()).collect();
        mean(&errors) <= 0.10 && errors.iter().all(|e| *e <= 0.20)
    }))
}

pub fn order(lab: &mut Lab) -> Result<Outcome> {
    let mut items = Vec::new();
    for rows in [64, 128, 256, 512] {
        let us = |exchanged| {
            let (outs, terms, decoding) = (14_336, 4096, false);
            let shape = ProductShape { outs, terms, rows, decoding, exchanged };
            Ok::<_, LabError>(shape.measure(&lab.gen3, "npu", SyncMode::Blocking)?.run_us)
        };
        items.push(Item::new(format!("K = {rows}"), 6.0, us(false)? / us(true)?));
    }
    let near = |i: &Item| (4.5..=7.5).contains(&i.ours);
    // The paper does not print which K it means: the nearest one counts.
    items.sort_by(|a, b| a.error().abs().total_cmp(&b.error().abs()));
    items.truncate(1);
    Ok(Outcome::numbers(items, |all| all.iter().any(near)))
}

pub fn stages(lab: &mut Lab) -> Result<Outcome> {
    let mut steps = Vec::new();
    let mut before = None;
    for rows in 1..=96 {
        let time = lab.product("npu", [4096, 4096, rows], false)?.run_us;
        // Times also grow with the activations' bytes; a step is larger than that.
        if before.is_some_and(|b: f64| time > b * 1.01) {
            steps.push(rows);
        }
        before = Some(time);
    }
    let ours = steps.iter().map(|s| s.to_string()).collect::<Vec<_>>().join(", ");
    Ok(Outcome::words("steps at 33, 65", format!("steps at {ours}"), steps == [33, 65]))
}

pub fn bandwidth(lab: &mut Lab) -> Result<Outcome> {
    let shape = [28_672, 4096, 1];
    let alone = lab.product("gpu", shape, true)?;
    let gpu = alone.weight_bytes / alone.run_us * 1e-3;
    // Three quarters of the columns on the GPU and a quarter on the NPU, each as fast as possible:
    // the memory limits the sum.
    let part = |p, outs| lab.product(p, [outs, 4096, 1], true);
    let (a, b) = (part("gpu", 21_504)?, part("npu", 7168)?);
    let wanted = (a.weight_bytes / a.run_us + b.weight_bytes / b.run_us) * 1e-3;
    let both = wanted.min(lab.gen3.bandwidth_gb_s.unwrap_or(wanted));
    let items = vec![
        Item::new("GPU alone", 43.3, gpu),
        Item::new("GPU and NPU, 75/25", 59.5, both),
        Item::new("most that is reached", 61.9, lab.gen3.bandwidth_gb_s.unwrap_or(0.0)),
    ];
    Ok(Outcome::each(items, 0.05))
}

pub fn hand_over(lab: &mut Lab) -> Result<Outcome> {
    let shape = ProductShape { outs: 4096, terms: 4096, rows: 1, decoding: true, exchanged: false };
    let cost = |sync| -> Result<f64> {
        let time = shape.measure(&lab.gen3, "gpu", sync)?;
        Ok(time.latency_us - time.run_us)
    };
    let (slow, fast) = (cost(SyncMode::Blocking)?, cost(SyncMode::Predicted)?);
    let items = vec![Item::new("slow", 400.0, slow)];
    let pass = |all: &[Item]| all.iter().all(|i| i.error().abs() <= 0.1) && fast < 100.0;
    Ok(Outcome::numbers(items, pass).noted(format!("fast: {fast:.0} us, submission included")))
}

pub fn preparation(lab: &mut Lab) -> Result<Outcome> {
    let mut items = Vec::new();
    for (prompt, printed) in [(135, 408.4), (1000, 2050.0)] {
        let figures = lab.run(Case::prefill(B8, "online-prepare", prompt))?;
        let ms = figures.prepare_ns as f64 * 1e-6;
        items.push(Item::new(format!("{prompt} tokens"), printed, ms));
    }
    Ok(Outcome::each(items, 0.05))
}

/// Outs, terms, rows; strategy; the GPU's share if the table has one.
type Choice = ([usize; 3], &'static str, Option<f64>);

const CHOICES: [Choice; 9] = [
    ([4096, 4096, 1], "weight-centric", Some(0.5)),
    ([28_672, 4096, 1], "weight-centric", Some(0.75)),
    ([4096, 14_336, 1], "gpu-only", None),
    ([4096, 4096, 128], "npu-only", None),
    ([4096, 4096, 224], "npu-only", None),
    ([4096, 4096, 256], "npu-only", None),
    ([4096, 4096, 264], "activation-centric", None),
    ([4096, 14_336, 256], "weight-centric", Some(0.4)),
    ([4096, 14_336, 320], "hybrid", Some(0.4)),
];

pub fn choices(lab: &mut Lab) -> Result<Outcome> {
    let (mut same, mut must, mut shares) = (0, 0, true);
    let (mut printed, mut ours) = (Vec::new(), Vec::new());
    for ([outs, terms, rows], strategy, share) in CHOICES {
        let shape = ProductShape { outs, terms, rows, decoding: rows == 1, exchanged: false };
        let choice = shape.place(&lab.gen3)?;
        let name = |s: &str, share: Option<f64>| match share {
            Some(share) => format!("{s} {share:.2}"),
            None => s.to_string(),
        };
        let found = choice.strategy == strategy;
        same += usize::from(found);
        let needed = matches!(strategy, "gpu-only" | "hybrid" | "activation-centric");
        must += usize::from(found && needed);
        let near = |s: f64| (choice.gpu_share - s).abs() <= 0.08 + 1e-9;
        shares &= !found || share.is_none_or(near);
        printed.push(name(strategy, share));
        ours.push(name(choice.strategy, share.map(|_| choice.gpu_share)));
    }
    let pass = same >= 8 && must == 3 && shares;
    Ok(Outcome::words(printed.join("; "), ours.join("; "), pass)
        .noted(format!("{same} of 9 strategies are the same")))
}

pub fn ranges(lab: &mut Lab) -> Result<Outcome> {
    let mut items = Vec::new();
    for ([outs, terms], rows, gpu, npu) in [
        ([4096, 4096], 193, 9.0, 1.2),
        ([4096, 4096], 255, 11.0, 1.9),
        ([4096, 4096], 257, 11.0, 1.9),
        ([4096, 14_336], 257, 35.0, 23.0),
        ([4096, 14_336], 384, 50.0, 32.0),
    ] {
        for (processor, printed) in [("gpu", gpu), ("npu", npu)] {
            // In activation-centric rows, the NPU computes the standard 256 of 257 rows.
            let shortened = processor == "npu" && rows == 257 && terms == 4096;
            let shape = [outs, terms, if shortened { 256 } else { rows }];
            let ms = product_us(lab, processor, shape)? * 1e-3;
            items.push(Item::new(format!("{processor} [{outs},{terms}] x {rows}"), printed, ms));
        }
    }
    Ok(Outcome::each(items, 0.15))
}
