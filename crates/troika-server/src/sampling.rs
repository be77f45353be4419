//! Sampling as clients ask for it.

use std::collections::BTreeMap;

use serde_json::Value;
use troika::Model;
use troika::engine::sample::{Chain, SampleParams, Step};

use crate::fields::Fields;
use crate::ids;
use crate::problem::Problem;

/// A bias of OpenAI's that forbids a token.
const NEVER: f32 = -100.0;

/// Reads the sampling of a request, with OpenAI's and llama.cpp's names. What is absent is the
/// model's recommendation.
///
/// # Errors
/// A value of another type, or out of range.
pub fn params(fields: &Fields<'_>, model: &Model) -> Result<SampleParams, Problem> {
    let base = model.defaults().params();
    let float = |name: &str, or: f32| Ok::<f32, Problem>(fields.get(name)?.unwrap_or(or));
    // vLLM and Hugging Face say "repetition_penalty".
    let repeat_penalty = float("repetition_penalty", base.repeat_penalty)?;
    let top_k: Option<i64> = fields.get("top_k")?;
    let last: Option<i64> = fields.get("repeat_last_n")?;
    let params = SampleParams {
        temperature: float("temperature", base.temperature)?,
        top_p: float("top_p", base.top_p)?,
        min_p: float("min_p", base.min_p)?,
        // As in llama.cpp, 0 and less keep all.
        top_k: top_k.map_or(base.top_k, |k| usize::try_from(k).unwrap_or(0)),
        repeat_penalty: float("repeat_penalty", repeat_penalty)?,
        repeat_last_n: last
            .map_or(base.repeat_last_n, |n| usize::try_from(n).unwrap_or(usize::MAX)),
        presence_penalty: float("presence_penalty", base.presence_penalty)?,
        frequency_penalty: float("frequency_penalty", base.frequency_penalty)?,
        logit_bias: biases(fields, model)?,
        chain: chain(fields, base.chain)?,
        seed: seed(fields.get("seed")?),
    };
    params.check().map_err(|e| Problem::field(e.name, e.to_string()))?;
    Ok(params)
}

/// The order of samplers and those that are off by default, with llama.cpp's names.
fn chain(fields: &Fields<'_>, mut chain: Chain) -> Result<Chain, Problem> {
    for (name, number) in chain.numbers_mut() {
        *number = fields.get(name)?.unwrap_or(*number);
    }
    if fields.value("dry_sequence_breakers").is_some() {
        chain.dry_sequence_breakers = fields.texts("dry_sequence_breakers")?;
    }
    let names: Option<Vec<String>> = match fields.value("samplers") {
        Some(Value::String(letters)) => Some(letters.chars().map(String::from).collect()),
        _ => fields.get("samplers")?,
    };
    if let Some(names) = names {
        let order = Step::order(names.iter().map(String::as_str));
        let wrong = |why| Problem::field("samplers", format!("samplers {why}"));
        chain.samplers = order.map_err(wrong)?;
    }
    Ok(chain)
}

/// A given seed; without one, or with a negative one, another one each time.
pub fn seed(given: Option<i64>) -> u64 {
    given.and_then(|seed| u64::try_from(seed).ok()).unwrap_or_else(ids::random)
}

/// Biases by token id, as an object or as llama.cpp's list of pairs.
fn biases(fields: &Fields<'_>, model: &Model) -> Result<BTreeMap<u32, f32>, Problem> {
    let wrong = || {
        let form = "has to give a number for token ids, as {\"15043\": -1.5}";
        Problem::field("logit_bias", format!("logit_bias {form}"))
    };
    let pairs: Vec<(Option<u32>, &Value)> = match fields.value("logit_bias") {
        None => Vec::new(),
        Some(Value::Object(map)) => map.iter().map(|(id, bias)| (id.parse().ok(), bias)).collect(),
        Some(Value::Array(list)) => {
            let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
            let pair = |p: &'_ Value| p.as_array().is_some_and(|p| p.len() == 2);
            if !list.iter().all(pair) {
                return Err(wrong());
            }
            list.iter().map(|p| (id(&p[0]), &p[1])).collect()
        }
        Some(_) => return Err(wrong()),
    };
    let vocab = model.spec().vocab;
    let mut biases = BTreeMap::new();
    for (id, bias) in pairs {
        let id = id.ok_or_else(wrong)?;
        if id as usize >= vocab {
            let why = format!("logit_bias names token {id}, but the model has {vocab}");
            return Err(Problem::field("logit_bias", why));
        }
        let bias = match bias {
            Value::Bool(false) => NEVER,
            bias => bias.as_f64().ok_or_else(wrong)? as f32,
        };
        biases.insert(id, if bias <= NEVER { f32::NEG_INFINITY } else { bias });
    }
    Ok(biases)
}
