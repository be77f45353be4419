//! Configs with one field changed are described, such that the parts fit, or refused.

use proptest::prelude::*;
use serde_json::{Value, json};
use troika_model::families::from_config;
use troika_model::spec::{Ffn, ModelSpec, Norm, weight_requirements};

use crate::{data, golden};

fn values() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-5i64..70_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (1e-40f64..1e40).prop_map(Value::from),
        Just(json!(1e-40)),
        Just(json!(1e30)),
        "[a-z_]{0,12}".prop_map(Value::from),
        proptest::collection::vec((0i64..9).prop_map(Value::from), 0..5).prop_map(Value::from),
        Just(json!({"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0})),
    ]
}

proptest! {
    #[test]
    fn changed_configs_are_described_or_refused(
        which in 0usize..20,
        field in 0usize..120,
        value in values(),
    ) {
        let names = std::fs::read_dir(data("golden")).unwrap();
        let mut names: Vec<_> = names.map(|e| e.unwrap().file_name()).collect();
        names.sort();
        let mut config = golden(names[which % names.len()].to_str().unwrap());
        // Also the fields of the rope.
        let mut map = config.as_object_mut().unwrap();
        if field >= 60 && map.get("rope_parameters").is_some_and(|r| r.get("rope_theta").is_some()) {
            map = map.get_mut("rope_parameters").unwrap().as_object_mut().unwrap();
            map.extend(extra_rope_fields());
        }
        let key = map.keys().nth(field % map.len()).unwrap().clone();
        map.insert(key, value);
        if let Ok(model) = from_config(&config) {
            holds_together(&model.spec);
        }
    }
}

fn extra_rope_fields() -> serde_json::Map<String, Value> {
    let fields = json!({"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 64});
    fields.as_object().unwrap().clone()
}

/// What later stages rely on without another check.
pub fn holds_together(spec: &ModelSpec) {
    assert!(spec.vocab > 0 && spec.hidden > 0 && spec.context > 0 && !spec.layers.is_empty());
    let fine = |x: f32| x.is_finite() && x > 0.0;
    assert!(fine(spec.embed_scale) && fine(spec.logit_scale));
    assert!(spec.logit_softcap.is_none_or(fine), "{:?}", spec.logit_softcap);
    for layer in &spec.layers {
        let norms = [layer.attn_pre, layer.attn_post, layer.ffn_pre, layer.ffn_post];
        for norm in norms.into_iter().flatten().chain([spec.final_norm]) {
            let (Norm::Rms { eps, .. } | Norm::Layer { eps, .. }) = norm;
            assert!(fine(eps), "{norm:?}");
        }
        match layer.ffn.as_ref().unwrap() {
            Ffn::Dense(m) => assert!(m.inter > 0),
            Ffn::Moe(m) => {
                assert!(m.inter > 0 && (1..=m.experts).contains(&m.top_k), "{m:?}");
                assert!(m.scale.is_finite() && m.shared.is_none_or(|s| s.inter > 0), "{m:?}");
                let fits = |(n, k): (usize, usize)| {
                    m.experts % n == 0 && k <= n && m.top_k <= k * (m.experts / n)
                };
                assert!(m.groups.is_none_or(fits), "{m:?}");
            }
        }
        let Some(a) = layer.attention() else { continue };
        assert!(a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0);
        assert!(a.k_dim > 0 && a.v_dim > 0 && a.window != Some(0) && fine(a.scale), "{a:?}");
        assert!(a.softcap.is_none_or(fine) && a.clip_qkv.is_none_or(fine), "{a:?}");
        if let Some(rope) = &a.rope {
            let long = rope.long.iter().map(|l| &l.0);
            for f in [&rope.freqs].into_iter().chain(long) {
                assert_eq!(f.inv_freq.len() * 2, rope.rotary_dim);
                assert!(f.factor.is_finite() && f.inv_freq.iter().all(|x| x.is_finite()), "{f:?}");
            }
            assert!(rope.rotary_dim <= a.k_dim, "{a:?}");
        }
    }
    for need in weight_requirements(spec).take(2000) {
        assert!(need.rows > 0 && need.cols > 0, "{need:?}");
    }
}

/// The property above only concerns described configs: most changes of one field give one, but
/// enough do not.
#[test]
fn some_changes_are_described_and_some_refused() {
    let mut counts = [0, 0];
    for value in [json!(3), json!(64), json!("x"), json!(0.5), json!(1e-300), json!(null)] {
        for key in golden("gpt-oss").as_object().unwrap().keys() {
            let mut config = golden("gpt-oss");
            config[key.as_str()] = value.clone();
            match from_config(&config) {
                Ok(model) => {
                    holds_together(&model.spec);
                    counts[0] += 1;
                }
                Err(_) => counts[1] += 1,
            }
        }
    }
    assert!(counts.into_iter().all(|n| n >= 30), "{counts:?}");
}
