//! The solver shares experts out where that is faster by the prices of a virtual SoC, and only there.

#![allow(clippy::unwrap_used)]

use troika::sim::Soc;
use troika_lab::{LabError, Shape, SimulateOptions, Simulation, SocStrategy};
use troika_model::lower::SegmentKind;
use troika_plan::{Dispatch, ExpertGroupPlan, ExpertPolicy, Phase, Plan, Split};

const PROMPT: usize = 256;

/// A CPU, and an NPU of `npu_gops` billion operations a second.
fn soc(npu_gops: f64, more: &str) -> Soc {
    let text = format!(
        "name = \"two\"\nnumerics = \"off\"\n[memory]\nbandwidth_gb_s = 60\n\
         [[processor]]\nname = \"cpu\"\nkind = \"cpu\"\npeak_gops = 100\nbandwidth_gb_s = 40\nlaunch_us = 1\n\
         hand_over = {{ blocking_us = 20, predicted_us = 5 }}\n\
         [[processor]]\nname = \"npu\"\nkind = \"npu\"\npeak_gops = {npu_gops}\n\
         bandwidth_gb_s = 40\nlaunch_us = 20\nstatic_shapes = true\nrow_buckets = [64, 256]\n\
         only = [\"expert_group\"]\nhand_over = {{ blocking_us = 20, predicted_us = 5 }}\n{more}"
    );
    Soc::parse("two.toml", &text).unwrap()
}

fn shape() -> Shape {
    let config = "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 4, \"hidden_size\": 256, \
        \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \
        \"intermediate_size\": 512, \"vocab_size\": 1000, \"max_position_embeddings\": 1024, \
        \"num_experts\": 16, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 256, \
        \"decoder_sparse_step\": 1, \"norm_topk_prob\": true}";
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.json");
    std::fs::write(&file, config).unwrap();
    Shape::find(&format!("{}:Q4_0", file.display()), troika_lab::WEIGHTS).unwrap()
}

/// A plan, or that of a strategy, and what a prompt takes by it in virtual time.
fn run(soc: Soc, strategy: SocStrategy, plan: Option<Plan>) -> Result<(Plan, u64), LabError> {
    let simulation = Simulation::open(&SimulateOptions {
        plan,
        generate: 2,
        ..SimulateOptions::new(soc, shape(), strategy, PROMPT)
    })?;
    let plan = simulation.plan()?;
    let ttft_ns = simulation.run(&mut |_, _| ())?.ttft_ns;
    let predicted = plan.predicted.as_ref().unwrap().ttft_us * 1e3;
    assert_eq!(predicted.round() as u64, ttft_ns, "{}", plan.to_json());
    Ok((plan, ttft_ns))
}

fn groups(plan: &Plan) -> usize {
    let splits = plan.prefill.rules.iter().filter_map(|rule| rule.experts());
    splits.map(|split| split.groups.len()).sum()
}

#[test]
fn a_fast_npu_gets_groups_and_a_slow_one_none() {
    let solved = |gops| run(soc(gops, ""), SocStrategy::Solved, None).unwrap();
    let (alone, alone_ns) = run(soc(1.0, ""), SocStrategy::CpuOnly, None).unwrap();
    assert_eq!(groups(&alone), 0);
    let (slow, slow_ns) = solved(5.0);
    assert_eq!((groups(&slow), slow_ns <= alone_ns), (0, true));
    let (fast, fast_ns) = solved(2000.0);
    assert!(groups(&fast) > 0, "{}", fast.to_json());
    assert!(fast_ns * 10 < alone_ns * 9, "{fast_ns} of {alone_ns}");
    // A little faster is not worth it: what groups take depends on the text, too.
    let (even, even_ns) = solved(30.0);
    let worth = even_ns * 100 <= alone_ns * 93;
    assert_eq!(groups(&even) > 0, worth, "{even_ns} of {alone_ns}");
}

#[test]
fn a_graph_that_is_too_large_is_not_made() {
    // An expert has 110 kB in four bits: three fit into a graph.
    let limited = soc(2000.0, "max_graph_bytes = 400000\n");
    let (plan, _) = run(limited, SocStrategy::Solved, None).unwrap();
    let splits = plan.prefill.rules.iter().filter_map(|rule| rule.experts());
    let sizes: Vec<usize> = splits.flat_map(|s| &s.groups).map(|g| g.experts.len()).collect();
    assert!(!sizes.is_empty() && sizes.iter().all(|n| *n <= 3), "{sizes:?}");
}

#[test]
fn policies_are_named_one_by_one() {
    for strategy in SocStrategy::all() {
        let SocStrategy::Experts(policy, dispatch) = strategy else { continue };
        assert_eq!(SocStrategy::parse(strategy.name()), Ok(strategy));
        let (plan, _) = run(soc(2000.0, ""), strategy, None).unwrap();
        let splits: Vec<_> = plan.prefill.rules.iter().filter_map(|r| r.experts()).collect();
        assert_eq!(splits.len(), 4, "{}: a layer shares none", strategy.name());
        for split in splits {
            assert_eq!(split.dispatch, dispatch);
            // Where rows gather over chunks, each expert has a buffer of its own.
            let alone = !matches!(policy, ExpertPolicy::Groups | ExpertPolicy::All)
                || dispatch == Dispatch::LayerMajor;
            assert_eq!(split.groups.iter().all(|g| g.experts.len() == 1), alone);
        }
    }
}

/// The same groups, half full for each chunk, or full for two of the four chunks in flight. The CPU has
/// more to do than the NPU, so it must not wait for a layer's last experts.
#[test]
fn rows_that_gather_are_routed_while_other_experts_run() {
    let ns = |dispatch| {
        let strategy = SocStrategy::Experts(ExpertPolicy::All, dispatch);
        let (mut plan, _) = run(soc(2000.0, ""), strategy, None).unwrap();
        (plan.prefill.chunk, plan.prefill.chunks_in_flight) = (PROMPT / 4, 4);
        plan.prefill.lengths.clear();
        let group = |expert| ExpertGroupPlan::new("npu", vec![expert], 32);
        for rule in &mut plan.prefill.rules {
            let Some(Split::Experts(split)) = &mut rule.split else { continue };
            split.groups = (0..16).map(group).collect();
        }
        run(soc(2000.0, ""), strategy, Some(plan)).unwrap().1
    };
    let [each, gathered] = [Dispatch::PerChunk, Dispatch::LayerMajor].map(ns);
    assert!(gathered < each, "{gathered} and {each}");
}

#[test]
fn attention_is_on_the_npu_where_it_takes_it_and_is_faster_with_it() {
    let text = include_str!("../../../socs/npu-attention.toml");
    let attends = |from: &str, to: &str| {
        let soc = Soc::parse("npu.toml", &text.replace(from, to)).unwrap();
        let strategy = SocStrategy::Experts(ExpertPolicy::Groups, Dispatch::PerChunk);
        let plan = run(soc, strategy, None).unwrap().0;
        plan.rule(Phase::Prefill, SegmentKind::Attention, Some(0)).unwrap().device == "npu"
    };
    assert!(attends("", ""));
    assert!(!attends("peak_gops = 6170.0", "peak_gops = 6.0"));
    assert!(!attends("[\"embed\", ", "[\"embed\", \"attention\", "));
}

#[test]
fn a_model_without_experts_has_none_to_share_out() {
    let strategy = SocStrategy::Experts(ExpertPolicy::All, Dispatch::PerChunk);
    let dense = Shape::find("llama-3-8b", troika_lab::WEIGHTS).unwrap();
    let options = SimulateOptions::new(soc(2000.0, ""), dense, strategy, PROMPT);
    let why = Simulation::open(&options).err().unwrap().to_string();
    assert!(why.contains("strategy experts shares experts out, and"), "{why}");
    let text = include_str!("../../../socs/sd8gen3-fp16.toml");
    let products = text.replace(", \"expert_group\"]", "]");
    let why =
        run(Soc::parse("phone.toml", &products).unwrap(), strategy, None).unwrap_err().to_string();
    assert!(why.contains("on npu, which takes none; let it take expert_group"), "{why}");
    // The phone as it is takes them.
    let (plan, _) = run(Soc::parse("phone.toml", text).unwrap(), strategy, None).unwrap();
    assert!(groups(&plan) > 0);
}
