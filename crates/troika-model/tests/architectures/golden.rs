//! Key facts of every golden config, and all weights of all test models are found.

use serde_json::json;
use troika_graph::{Activation, Score};
use troika_model::families::{DescribedModel, from_config, from_gguf};
use troika_model::spec::{
    AltUp, Checkpoint, Key, ModelSpec, Norm, QkNorm, WeightRequirement, WeightRole,
    weight_requirements,
};
use troika_weights::{FileSource, open};

use crate::{attn, data, dense, golden, model, moe, rms, ropes, spec, windows, with};

fn shape(s: &ModelSpec) -> (usize, usize, usize, usize, usize, usize) {
    let a = attn(s, 0);
    (s.vocab, s.hidden, s.layers.len(), a.heads, a.kv_heads, a.k_dim)
}

#[test]
fn llama() {
    let s = spec(&golden("llama-2"));
    assert_eq!(shape(&s), (320, 32, 3, 4, 4, 8));
    assert_eq!((s.family.as_str(), s.tied, s.context, s.embed_scale), ("llama", false, 256, 1.0));
    let l = &s.layers[0];
    assert_eq!((l.attn_pre, l.ffn_pre), (Some(rms(1e-5, 0.0)), Some(rms(1e-5, 0.0))));
    assert_eq!((l.attn_post, l.ffn_post, l.parallel), (None, None, false));
    let a = attn(&s, 0);
    assert_eq!((a.qkv_bias, a.o_bias, a.scale), (false, false, 8f32.powf(-0.5)));
    let m = dense(&s, 0);
    assert_eq!((m.inter, m.act, m.gated, m.bias), (176, Activation::Silu, true, false));
    let s = spec(&golden("llama-3.2"));
    assert_eq!((shape(&s), s.tied), ((509, 96, 2, 8, 4, 32), true));
}

#[test]
fn mistral_and_mixtral() {
    let s = spec(&golden("mistral"));
    assert_eq!((shape(&s), windows(&s)), ((257, 64, 3, 4, 1, 16), vec![Some(8); 3]));
    let s = spec(&golden("mixtral"));
    assert_eq!((shape(&s), windows(&s)), ((509, 64, 3, 4, 2, 16), vec![None; 3]));
    let m = moe(&s, 0);
    assert_eq!((m.experts, m.top_k, m.inter, m.score), (4, 2, 160, Score::Softmax));
    assert_eq!((m.normalize, m.scale, m.shared, m.router_bias), (true, 1.0, None, false));
}

#[test]
fn qwen() {
    let s = spec(&golden("qwen1.5"));
    assert_eq!((shape(&s), s.tied), ((320, 48, 2, 6, 1, 8), false));
    assert!(attn(&s, 0).qkv_bias && !attn(&s, 0).o_bias);
    assert!(spec(&golden("qwen2.5")).tied);
    let s = spec(&golden("qwen3"));
    assert_eq!(shape(&s), (257, 80, 3, 6, 1, 32));
    let norm = QkNorm { norm: rms(1e-6, 0.0), per_head: true, after_rope: false };
    assert_eq!((attn(&s, 0).qk_norm, attn(&s, 0).qkv_bias), (Some(norm), false));
    let s = spec(&golden("qwen3-moe"));
    let m = moe(&s, 2);
    assert_eq!((m.experts, m.top_k, m.inter, m.normalize), (8, 3, 56, true));
    assert_eq!(attn(&s, 0).qk_norm, Some(norm));
    let s = spec(&golden("qwen2-moe"));
    let m = moe(&s, 0);
    assert_eq!((m.experts, m.top_k, m.inter, m.normalize), (6, 2, 48, false));
    let shared = m.shared.unwrap();
    assert_eq!((shared.inter, shared.gated, windows(&s)), (80, true, vec![None; 3]));
}

#[test]
fn olmoe_norms_whole_projections() {
    let s = spec(&golden("olmoe"));
    let norm = QkNorm { norm: rms(1e-5, 0.0), per_head: false, after_rope: false };
    assert_eq!((attn(&s, 0).qk_norm, attn(&s, 0).clip_qkv), (Some(norm), None));
    let m = moe(&s, 0);
    assert_eq!((m.experts, m.top_k, m.inter, m.normalize), (8, 3, 176, false));
}

#[test]
fn phi() {
    let s = spec(&golden("phi-2"));
    let norm = Norm::Layer { eps: 1e-5, bias: true };
    let l = &s.layers[0];
    assert_eq!((l.parallel, l.attn_pre, l.ffn_pre, s.final_norm), (true, Some(norm), None, norm));
    assert!(l.attention().unwrap().qkv_bias && l.attention().unwrap().o_bias && s.head_bias);
    let m = dense(&s, 0);
    assert_eq!((m.act, m.gated, m.bias), (Activation::GeluTanh, false, true));
    let s = spec(&golden("phi-3"));
    assert_eq!((shape(&s), windows(&s)), ((257, 32, 2, 4, 2, 8), vec![None; 2]));
    let s = spec(&golden("phimoe"));
    assert_eq!((s.layers[0].attn_pre, s.layers[0].ffn_pre), (Some(norm), Some(norm)));
    assert!(attn(&s, 0).qkv_bias && attn(&s, 0).o_bias && s.head_bias);
    let m = moe(&s, 0);
    assert_eq!((m.experts, m.top_k, m.score), (6, 2, Score::SparseMixer { eps: 0.01 }));
}

#[test]
fn gemma() {
    let s = spec(&golden("gemma"));
    assert_eq!((shape(&s), s.tied), ((509, 96, 2, 6, 1, 32), true));
    assert_eq!((s.embed_scale, s.final_norm), (96f32.sqrt(), rms(1e-6, 1.0)));
    assert_eq!(dense(&s, 0).act, Activation::GeluTanh);
    let s = spec(&golden("gemma-2"));
    let n = Some(rms(1e-6, 1.0));
    let l = &s.layers[0];
    assert_eq!((l.attn_pre, l.attn_post, l.ffn_pre, l.ffn_post), (n, n, n, n));
    assert_eq!((l.attention().unwrap().softcap, s.logit_softcap), (Some(50.0), Some(30.0)));
    assert_eq!(l.attention().unwrap().scale, 24f32.powf(-0.5));
    assert_eq!(windows(&s), [Some(8), None, Some(8), None]);
    let s = spec(&golden("gemma-3"));
    assert_eq!(windows(&s), [Some(8), Some(8), Some(8), Some(8), Some(8), None]);
    let a = attn(&s, 0);
    assert_eq!(a.qk_norm, Some(QkNorm { norm: rms(1e-6, 1.0), per_head: true, after_rope: false }));
    assert_eq!((a.softcap, s.logit_softcap, a.scale), (None, None, 32f32.powf(-0.5)));
    // Multimodal configs have it as their text part.
    let text = golden("gemma-3");
    let outer = json!({"model_type": "gemma3", "text_config": text, "vision_config": {}});
    assert_eq!(spec(&outer), s);
}

#[test]
fn layers_without_rope() {
    let s = spec(&golden("exaone-4"));
    assert_eq!(windows(&s), [Some(8), Some(8), Some(8), None]);
    assert_eq!(ropes(&s), [true, true, true, false]);
    let (l, n) = (&s.layers[0], Some(rms(1e-5, 0.0)));
    assert_eq!((l.attn_pre, l.attn_post, l.ffn_pre, l.ffn_post), (None, n, None, n));
    let s = spec(&golden("smollm3"));
    assert_eq!((ropes(&s), windows(&s)), (vec![true, true, true, false], vec![None; 4]));
    assert!(s.tied);
}

#[test]
fn deepseek() {
    let s = spec(&golden("deepseek-v2"));
    assert_eq!(shape(&s), (320, 96, 3, 8, 8, 24));
    let a = attn(&s, 0);
    let l = a.latent.unwrap();
    assert_eq!((l.q_rank, l.kv_rank, l.nope, l.rope, a.v_dim), (None, 32, 16, 8, 16));
    let rope = a.rope.as_ref().unwrap();
    assert_eq!((rope.rotary_dim, rope.style), (8, troika_graph::RopeStyle::Interleaved));
    assert_eq!(dense(&s, 0).inter, 176);
    let m = moe(&s, 1);
    assert_eq!((m.experts, m.top_k, m.inter, m.normalize, m.groups), (8, 2, 48, false, None));
    assert_eq!(m.shared.map(|s| (s.inter, s.gated)), Some((48, false)));
}

#[test]
fn gpt_oss() {
    let s = spec(&golden("gpt-oss"));
    assert_eq!(windows(&s), [Some(8), None, Some(8), None]);
    let a = attn(&s, 0);
    assert!(a.sinks && a.qkv_bias && a.o_bias);
    let m = moe(&s, 0);
    assert_eq!((m.experts, m.top_k, m.score), (4, 2, Score::TopKSoftmax));
    assert_eq!(m.act, Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 });
    assert!(m.bias && m.router_bias && !m.normalize);
}

/// Every weight has a candidate in the files, and the first existing one fits exactly.
fn all_found(model: &DescribedModel, files: &dyn Checkpoint) -> Result<usize, String> {
    let needs: Vec<WeightRequirement> = weight_requirements(&model.spec).collect();
    for need in &needs {
        let candidates = model.names.candidates(&model.spec, need.key);
        let found = candidates.iter().find_map(|r| Some((r, files.tensor(&r.tensor)?)));
        let Some((recipe, tensor)) = found else {
            return Err(format!("{} is in none of {candidates:?}", need.key));
        };
        let (mut rows, cols) = tensor.matrix();
        for name in &recipe.below {
            rows += files.tensor(name).ok_or_else(|| format!("{name} is missing"))?.matrix().0;
        }
        if recipe.result(rows, cols) != Some((need.rows, need.cols)) {
            return Err(format!("{need:?} does not fit {recipe:?} of {:?}", tensor.shape));
        }
    }
    Ok(needs.len())
}

#[test]
fn all_weights_of_all_test_models_are_found() {
    let mut checked = 0;
    for kind in ["golden", "golden-2026", "gguf"] {
        for entry in std::fs::read_dir(data(kind)).unwrap() {
            let path = entry.unwrap().path();
            let is_model = path.is_dir() || path.extension().is_some_and(|e| e == "gguf");
            if !is_model {
                continue;
            }
            let opened = open(&path).unwrap();
            let model = match &opened.source {
                FileSource::HuggingFace { config, .. } => from_config(config),
                FileSource::Gguf { meta, .. } => from_gguf(meta, opened.files.as_ref()),
            };
            let model = model.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let found = all_found(&model, opened.files.as_ref());
            found.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            checked += 1;
        }
    }
    assert!(checked >= 65, "only {checked} models");
}

/// As it is published: the text's part of a config, with tables that have rows for pictures and sounds
/// behind those of tokens, and without what the library's defaults say.
#[test]
fn gemma_3n() {
    let s = spec(&golden("../golden-2026/gemma-3n"));
    let altup = AltUp { streams: 4, active: 1, scaled: true, rank: 8, norm: rms(1e-6, 0.0) };
    assert_eq!((s.altup, s.logit_softcap, s.vocab), (Some(altup), Some(30.0), 257));
    let expected = [Some(1.644_853_6), Some(0.0), None, Some(-0.524_400_5), None];
    for (i, z) in expected.into_iter().enumerate() {
        let found = dense(&s, i).above;
        let near = found.zip(z).is_some_and(|(a, b): (f32, f32)| (a - b).abs() < 1e-6);
        assert!(near || found == z, "layer {i}: {found:?}");
    }
    assert_eq!((0..5).map(|i| dense(&s, i).inter).collect::<Vec<_>>(), [96, 96, 64, 96, 96]);
    let from: Vec<_> = s.layers.iter().map(|l| l.attention().unwrap().kv_from).collect();
    assert_eq!(from, [None, None, None, Some(2), Some(1)]);
    let text = json!({"model_type": "gemma3n_text", "num_hidden_layers": 35,
        "intermediate_size": vec![16_384; 35], "rope_scaling": null});
    let outer = json!({"model_type": "gemma3n", "text_config": text, "vision_config": {},
        "audio_config": {}});
    let m = model(&outer);
    let s = &m.spec;
    assert_eq!((s.vocab, s.hidden, s.per_layer_input().unwrap().width), (262_144, 2048, 256));
    assert_eq!(s.layers.iter().filter(|l| l.attention().unwrap().has_kv()).count(), 20);
    let kept = |i| dense(s, i).above;
    assert_eq!([kept(0), kept(9), kept(10)], [Some(1.644_853_6), Some(1.644_853_6), None]);
    assert_eq!([3, 4].map(|i| windows(s)[i]), [Some(512), None]);
    let table = &m.names.candidates(s, Key::model(WeightRole::Embed))[0];
    assert_eq!((table.rows.len(), &table.rows[0]), (1, &(0..262_144)));
}

/// The details of published Gemma 4 configs: wider heads and fewer of keys where a layer sees all,
/// values that are keys, late layers without keys of their own and with wider feed-forwards.
#[test]
fn layers_of_gemma_4_differ() {
    let kinds = ["sliding", "sliding", "full", "sliding", "sliding", "full"];
    let kinds = kinds.map(|kind| format!("{kind}_attention"));
    let config = json!({
        "model_type": "gemma4_text", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "global_head_dim": 32, "num_global_key_value_heads": 1, "attention_k_eq_v": true,
        "layer_types": kinds, "sliding_window": 8, "num_kv_shared_layers": 2,
        "use_double_wide_mlp": true, "hidden_size_per_layer_input": 0,
        "use_bidirectional_attention": "vision"
    });
    let m = spec(&config);
    let layer = |i: usize| (attn(&m, i), m.layers[i].dense().unwrap().inter);
    let of = |i| (layer(i).0.k_dim, layer(i).0.kv_heads, layer(i).0.v_is_k, layer(i).0.window);
    assert_eq!([of(1), of(4)], [(16, 2, false, Some(8)); 2]);
    assert_eq!([of(2), of(5)], [(32, 1, true, None); 2]);
    assert_eq!([3, 4, 5].map(|i| layer(i).0.kv_from), [None, Some(3), Some(2)]);
    assert_eq!([3, 4].map(|i| layer(i).1), [96, 192]);
    assert!(m.layers.iter().all(|l| l.per_layer.is_none()));
    // One of the kind must come before.
    let shared = with(config.clone(), json!({"num_kv_shared_layers": 4}));
    assert!(from_config(&shared).err().unwrap().to_string().contains("layer 2 finds no layer"));
    let said = |changes| {
        let experts = with(config.clone(), json!({"enable_moe_block": true}));
        from_config(&with(experts, changes)).err().unwrap().to_string()
    };
    assert_eq!(said(json!({})), "the config has no num_experts");
    let experts = |k| json!({"num_experts": 4, "top_k_experts": k});
    assert_eq!(said(experts(2)), "the config has no moe_intermediate_size");
    let problem = "the config's top_k_experts is 5, which is not between 1 and the 4 experts";
    assert_eq!(said(with(experts(5), json!({"moe_intermediate_size": 32}))), problem);
}

#[test]
fn gemma_4_has_experts_beside_its_feed_forward() {
    let s = spec(&golden("../golden-2026/gemma-4-moe"));
    let m = moe(&s, 2);
    assert_eq!((m.experts, m.top_k, m.inter, m.normalize), (6, 2, 32, true));
    assert_eq!(
        (m.score, m.act, m.norms),
        (Score::Softmax, Activation::GeluTanh, Some(rms(1e-6, 0.0)))
    );
    assert_eq!(m.shared.map(|s| (s.inter, s.gated)), Some((96, false)));
    let of = |i: usize| s.layers[i].attention().map(|a| (a.k_dim, a.kv_heads, a.v_is_k));
    assert_eq!([of(1), of(2)], [Some((16, 2, false)), Some((32, 1, true))]);
}

/// Files of checkpoints have weights of norms less one, GGUF files have them whole.
#[test]
fn nemotron() {
    let model = from_config(&golden("../golden-2026/nemotron")).unwrap();
    let s = &model.spec;
    let norm = Some(Norm::Layer { eps: 1e-5, bias: true });
    let l = &s.layers[0];
    assert_eq!((l.attn_pre, l.ffn_pre, Some(s.final_norm), s.tied), (norm, norm, norm, false));
    let m = dense(s, 0);
    assert_eq!((m.inter, m.act, m.gated, m.bias), (112, Activation::ReluSquared, false, false));
    assert_eq!(l.attention().unwrap().rope.as_ref().unwrap().rotary_dim, 8);
    for need in weight_requirements(s) {
        let is_norm = [WeightRole::AttnPre, WeightRole::FfnPre, WeightRole::FinalNorm];
        let all = model.names.candidates(s, need.key);
        assert!(all.iter().all(|r| r.plus_one == is_norm.contains(&need.key.role)), "{need:?}");
    }
    let config = golden("../golden-2026/nemotron");
    let said = |changes| from_config(&with(config.clone(), changes)).err().unwrap().to_string();
    let problem = "the config's norm_eps is -1, which is not more than 0";
    assert_eq!(said(json!({"norm_eps": -1.0})), problem);
    let rope = json!({"partial_rotary_factor": 1.5});
    let problem = "the config's partial_rotary_factor is 1.5, which is not in (0, 1]";
    assert_eq!(said(json!({"rope_parameters": rope})), problem);
}
