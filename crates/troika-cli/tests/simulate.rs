//! `troika simulate` and `troika reproduce` as a user types them.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn troika(args: &[&str]) -> Output {
    let mut c = Command::new(env!("CARGO_BIN_EXE_troika"));
    c.args(args).stdin(Stdio::null()).output().unwrap()
}

fn json(args: &[&str]) -> Value {
    let out = troika(args);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn simulated(strategy: &str, prompt: &str) -> Value {
    let args = ["simulate", "--model", "llama-3-8b", "-p", prompt, "-n", "3", "--json"];
    json(&[&args[..], &["--strategy", strategy]].concat())
}

/// A GPU that the model leaves alone draws all frames.
#[test]
fn frames_are_drawn_on_an_idle_gpu() {
    let at = ["simulate", "-m", "llama-3.2-3b", "--strategy", "cpu-only", "-p", "64", "--json"];
    let f = json(&[&at[..], &["-n", "3", "--co-run", "60:6"]].concat());
    for rate in f["frames_per_s"].as_array().unwrap() {
        let rate = rate.as_f64().unwrap();
        assert!((50.0..70.0).contains(&rate), "{f}");
    }
    let alone = json(&[&at[..], &["-n", "3"]].concat());
    assert!(f["energy_j"].as_f64().unwrap() > alone["energy_j"].as_f64().unwrap());
    // Where nothing is decoded there is no rate beside it.
    let f = json(&[&at[..], &["-n", "1", "--co-run", "60:6"]].concat());
    assert!(f["frames_per_s"][0].is_f64() && f["frames_per_s"][1].is_null(), "{f}");
}

/// Some models have layers that are unlike the others: without rotary positions, for instance.
#[test]
fn layers_that_are_unlike_others_are_placed_by_themselves() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let config = root.join("tests/golden/smollm3/config.json");
    for strategy in ["hetero-tensor", "activation-centric", "solved"] {
        let at = ["simulate", "-m", config.to_str().unwrap(), "-p", "40", "-n", "3", "--json"];
        let f = json(&[&at[..], &["--strategy", strategy]].concat());
        assert!(f["ttft_ms"].as_f64().unwrap() > 0.0, "{strategy}: {f}");
    }
}

#[test]
fn every_strategy_gives_all_figures_and_the_same_ones_again() {
    let names = [
        "hetero-tensor",
        "hetero-layer",
        "activation-centric",
        "padding",
        "npu-pipe",
        "online-prepare",
        "gpu-only",
        "npu-only",
        "cpu-only",
    ];
    for name in names {
        let f = simulated(name, "140");
        for field in [
            "ttft_ms",
            "tpot_ms",
            "prefill_tok_per_s",
            "decode_tok_per_s",
            "energy_j",
            "peak_bytes",
        ] {
            assert!(f[field].as_f64().unwrap() > 0.0, "{name}: {field}");
        }
        let rate = 140e3 / f["ttft_ms"].as_f64().unwrap();
        assert!((f["prefill_tok_per_s"].as_f64().unwrap() - rate).abs() < 1e-6);
        assert_eq!(f, simulated(name, "140"), "{name}");
    }
}

#[test]
fn strategies_are_in_the_order_that_the_paper_shows() {
    let ttft = |name, prompt| simulated(name, prompt)["ttft_ms"].as_f64().unwrap();
    for prompt in ["525", "300"] {
        let tensor = ttft("hetero-tensor", prompt);
        let pipe = ttft("npu-pipe", prompt);
        assert!(tensor < pipe && pipe < ttft("padding", prompt), "{prompt}");
        assert!(pipe < ttft("online-prepare", prompt) && pipe < ttft("gpu-only", prompt));
    }
    // Padding costs the same for all lengths up to the next standard one but for what the GPU
    // does, and more behind it.
    let (a, b, c) = (ttft("padding", "257"), ttft("padding", "512"), ttft("padding", "513"));
    assert!(a > 0.9 * b && c > 1.5 * b, "{a} {b} {c}");
    let tpot = |name| simulated(name, "256")["tpot_ms"].as_f64().unwrap();
    assert!(tpot("hetero-tensor") < tpot("gpu-only"));
}

/// What the solver finds is at least as good as what people know, in the simulation, not only by its
/// own prediction.
#[test]
fn solved_plans_are_as_fast_as_the_best_strategy() {
    let run = |soc: &str, model: &str, prompt: &str, strategy: &str| -> [f64; 3] {
        let args = ["simulate", "--soc", soc, "-m", model, "-p", prompt, "-n", "3", "--json"];
        let f = json(&[&args[..], &["--strategy", strategy]].concat());
        ["ttft_ms", "tpot_ms", "peak_bytes"].map(|name| f[name].as_f64().unwrap())
    };
    for (soc, model, prompt) in [
        ("sd8gen3-fp16", "llama-3-8b", "64"),
        ("sd8gen3-fp16", "llama-3-8b", "256"),
        ("sd8gen3-fp16", "internlm2-1.8b", "525"),
        ("sd8elite-fp16", "llama-3.2-3b", "300"),
        ("sd8elite-fp16", "qwen1.5-1.8b", "140"),
    ] {
        let names = ["hetero-tensor", "hetero-layer", "activation-centric", "npu-pipe", "gpu-only"];
        let all = names.map(|name| run(soc, model, prompt, name));
        let best = |at: usize| all.iter().map(|f| f[at]).fold(f64::INFINITY, f64::min);
        let [ttft, tpot, peak] = run(soc, model, prompt, "solved");
        assert!(ttft <= best(0) * 1.02, "{soc} {model} {prompt}: {ttft}, not {}", best(0));
        assert!(tpot <= best(1) * 1.02, "{soc} {model} {prompt}: {tpot}, not {}", best(1));
        // Ways for other lengths take no memory of their own.
        assert!(peak <= all[0][2] * 1.5, "{soc} {model} {prompt}: {peak}, {}", all[0][2]);
    }
    // A prompt does not take longer than one that has a token more.
    let ttft = |prompt| run("sd8gen3-fp16", "qwen3-0.6b", prompt, "solved")[0];
    for (prompt, longer) in [("128", "129"), ("256", "257"), ("512", "513")] {
        assert!(ttft(prompt) <= ttft(longer) * 1.01, "{prompt} tokens");
    }
}

/// No target says so: other lengths and models are in the order of the paper's figures 13 to 15, and
/// curves rise. One row more than a standard length is left out: an NPU computes a single row as a
/// decoded one, which takes it longer than two.
#[test]
fn other_lengths_and_models_are_in_order() {
    let run = |model: &str, prompt: usize, strategy: &str| -> [f64; 2] {
        let prompt = prompt.to_string();
        let args = ["simulate", "-m", model, "-p", &prompt, "-n", "2", "--json"];
        let f = json(&[&args[..], &["--strategy", strategy]].concat());
        ["ttft_ms", "tpot_ms"].map(|name| f[name].as_f64().unwrap())
    };
    for model in ["llama-3-8b", "llama-2-7b", "llama-3.2-3b", "internlm2-1.8b", "qwen1.5-1.8b"] {
        let mut before = [0.0; 2];
        for prompt in [64, 100, 128, 200, 256, 258, 272, 300, 400, 512, 525, 700, 1024, 1500, 2048]
        {
            let tensor = run(model, prompt, "hetero-tensor");
            for other in ["hetero-layer", "padding", "npu-pipe", "gpu-only"] {
                let time = run(model, prompt, other)[0];
                assert!(time >= tensor[0] * 0.9999, "{model}, {prompt} tokens: {other} is faster");
            }
            // More tokens never take less; what a token takes grows with what is cached.
            assert!(
                tensor[0] > before[0] * 0.999,
                "{model}: {prompt} tokens are faster than fewer"
            );
            assert!(tensor[1] > before[1] * 0.999, "{model}: decoding after {prompt} tokens");
            before = tensor;
        }
    }
}

#[test]
fn a_game_beside_gets_its_frames_where_the_gpu_is_left_free() {
    let with_game = |strategy| {
        let args = ["simulate", "-m", "llama-3-8b", "-n", "4", "--json", "--co-run", "60:6"];
        json(&[&args[..], &["--strategy", strategy]].concat())
    };
    let frames = |f: &Value| f["frames_per_s"][0].as_f64().unwrap();
    let (layer, gpu) = (with_game("hetero-layer"), with_game("gpu-only"));
    assert!(frames(&gpu) < 10.0 && frames(&layer) > 40.0 && frames(&layer) <= 60.5);
    let alone = simulated("hetero-layer", "256")["ttft_ms"].as_f64().unwrap();
    assert!(layer["ttft_ms"].as_f64().unwrap() > alone, "frames take the GPU's time");
    assert!(simulated("gpu-only", "256")["frames_per_s"].is_null());
}
