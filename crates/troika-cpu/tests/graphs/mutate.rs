//! Random changes of a subgraph's JSON.

use serde_json::{Value, json};
use troika_graph::Subgraph;

use crate::random::Random;

/// A subgraph with one to three changes; `None` if the result cannot be parsed.
pub fn mutate(graph: &Subgraph, r: &mut Random) -> Option<Subgraph> {
    let mut tree = serde_json::to_value(graph).unwrap();
    for _ in 0..1 + r.below(3) {
        let mut places = Vec::new();
        paths(&tree, &mut String::new(), &mut places);
        let place = &places[r.below(places.len())];
        change(tree.pointer_mut(place).unwrap(), r);
    }
    let changed: Subgraph = serde_json::from_value(tree).ok()?;
    (changed != *graph).then_some(changed)
}

/// The paths of all parts.
fn paths(tree: &Value, at: &mut String, found: &mut Vec<String>) {
    found.push(at.clone());
    let len = at.len();
    let mut visit = |key: &str, part: &Value| {
        at.push('/');
        at.push_str(key);
        paths(part, at, found);
        at.truncate(len);
    };
    match tree {
        Value::Array(all) => {
            all.iter().enumerate().for_each(|(i, part)| visit(&i.to_string(), part));
        }
        Value::Object(all) => all.iter().for_each(|(key, part)| visit(key, part)),
        _ => {}
    }
}

const TYPES: [&str; 8] = ["F32", "F16", "BF16", "I32", "Q8_0", "Q4_0", "Q4_K", "Q4_G64"];
const DIMS: [&str; 3] = ["Rows", "Fixed", "KvLen"];
const ACTS: [&str; 4] = ["f32", "int8", "int7", "bf16"];

fn change(part: &mut Value, r: &mut Random) {
    match part {
        Value::Number(n) if n.is_u64() => {
            let n = n.as_u64().unwrap();
            let all = [
                0,
                1,
                2,
                n.wrapping_add(1),
                n.wrapping_sub(1),
                n.wrapping_mul(2),
                n / 2,
                1 << 31,
                1 << 40,
                u64::MAX / 2,
                u64::MAX,
            ];
            *part = json!(all[r.below(all.len())]);
        }
        Value::Number(_) => *part = json!([0.0, -1.0, 1e30, 1e-40][r.below(4)]),
        Value::String(s) if TYPES.contains(&s.as_str()) || ACTS.contains(&s.as_str()) => {
            let all = [&TYPES[..], &ACTS[..]].concat();
            *s = all[r.below(all.len())].to_string();
        }
        Value::Array(all) if !all.is_empty() => {
            let (i, j) = (r.below(all.len()), r.below(all.len()));
            match r.below(4) {
                0 => drop(all.remove(i)),
                1 => all.insert(j, all[i].clone()),
                2 => all.swap(i, j),
                _ => all[i] = all[j].clone(),
            }
        }
        Value::Array(all) => all.push(json!(r.below(3))),
        Value::Object(all) if all.len() == 1 && DIMS.iter().any(|d| all.contains_key(*d)) => {
            let n = all.values().next().cloned().unwrap();
            let mut dim = serde_json::Map::new();
            dim.insert(DIMS[r.below(DIMS.len())].to_string(), n);
            *all = dim;
        }
        Value::Null => *part = json!(r.below(5)),
        _ => {}
    }
}
