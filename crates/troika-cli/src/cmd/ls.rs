//! `troika ls`: models in the Hub's cache.

use std::time::UNIX_EPOCH;

use serde_json::{Value, json};
use troika::Source;
use troika_hub::{HubError, HubModel, HubOptions, Inventory, WeightFormat, inventory};

use crate::error::CliError;
use crate::output::{self, age, bytes, file_name, printable};
use crate::stats::counted;
use crate::table::TextTable;

/// The name of the model that needs no file, for people and for servers.
const BUILT_IN: &str = "built-in";

/// Lists the models.
pub fn run(json: bool) -> Result<(), CliError> {
    let options = HubOptions::from_env();
    let found = inventory(options.cache_dir.as_deref().ok_or(HubError::NoCache)?)?;
    if json { output::json(&as_json(&found)) } else { output::write(&as_text(&found)) }
}

fn format(format: &WeightFormat) -> String {
    match format {
        WeightFormat::Safetensors => "safetensors".to_string(),
        WeightFormat::Gguf(None) => "GGUF".to_string(),
        WeightFormat::Gguf(Some(quantization)) => format!("GGUF {quantization}"),
    }
}

fn row(model: &HubModel) -> [String; 4] {
    let name = printable(&model.name).into_owned();
    [name, bytes(model.bytes), format(&model.format), age(model.used)]
}

fn as_text(found: &Inventory) -> String {
    let mut table = TextTable::new(["model", "size", "weights", "last used"]);
    found.models.iter().for_each(|model| table.add(row(model)));
    let built_in = bytes(Source::built_in_bytes());
    table.add([BUILT_IN.into(), built_in, "GGUF Q8_0".into(), "part of troika".into()]);
    let place = found.place.display().to_string();
    let models = match found.models.len() {
        0 => "no models".to_string(),
        n => counted(n, "model"),
    };
    let size = bytes(found.bytes);
    let mut text = format!("{table}{}: {models}, {size}\n", printable(&place));
    for other in &found.unusable {
        let (name, size) = (file_name(&other.path), bytes(other.bytes));
        text.push_str(&format!("not usable: {}, {size}: {}\n", printable(&name), other.why));
    }
    text
}

fn as_json(found: &Inventory) -> Value {
    let model = |model: &HubModel| {
        let (kind, quantization) = match &model.format {
            WeightFormat::Gguf(quantization) => ("gguf", quantization.clone()),
            WeightFormat::Safetensors => ("safetensors", None),
        };
        let used = model.used.duration_since(UNIX_EPOCH).unwrap_or_default();
        json!({
            "name": model.name, "bytes": model.bytes, "format": kind, "quantization": quantization,
            "used": used.as_secs(), "path": model.path.display().to_string(),
        })
    };
    let models: Vec<Value> = found.models.iter().map(model).collect();
    let unusable = found.unusable.iter().map(|other| {
        json!({"path": other.path.display().to_string(), "why": other.why, "bytes": other.bytes})
    });
    let unusable: Vec<Value> = unusable.collect();
    let built_in = json!({"name": BUILT_IN, "bytes": Source::built_in_bytes()});
    json!({
        "folder": found.place.display().to_string(), "bytes": found.bytes, "models": models,
        "unusable": unusable, "built_in": built_in,
    })
}
