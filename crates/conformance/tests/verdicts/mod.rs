//! What a device takes of each family, as `docs/models.md` says it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::setup::root;
use troika::device::Device;
use troika::engine::examine;
use troika::graph::DType;
use troika::model::families::{from_config, supported};
use troika::model::lower::WeightShape;
use troika::model::spec::weight_requirements;
use troika::plan::{PlanDevice, PlanRequest, make};

/// A config of each family: of a checkpoint, or alone.
fn configs() -> BTreeMap<String, PathBuf> {
    let mut all = BTreeMap::new();
    for folder in ["tests/golden", "tests/golden-2026", "tests/configs"] {
        for entry in std::fs::read_dir(root(folder)).unwrap() {
            let path = entry.unwrap().path();
            let path = if path.is_dir() { path.join("config.json") } else { path };
            let config = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let spec = from_config(&config).unwrap().spec;
            // Kimi-K2 is read as DeepSeek-V3.
            let own = path.file_stem().unwrap().to_str().unwrap();
            let name = if supported().contains(&own) { own } else { &*spec.family };
            all.entry(name.to_string()).or_insert(path);
        }
    }
    all
}

/// The ops of a config's model that a device does not take.
fn refused(config: &Path, device: &Arc<dyn Device>) -> Vec<String> {
    let config = serde_json::from_slice(&std::fs::read(config).unwrap()).unwrap();
    let spec = from_config(&config).unwrap().spec;
    let shape = |need: troika::model::spec::WeightRequirement| {
        let shape = WeightShape { rows: need.rows, cols: need.cols, dtype: DType::F32 };
        (need.key.to_string(), shape)
    };
    let shapes: BTreeMap<String, WeightShape> = weight_requirements(&spec).map(shape).collect();
    let shape = |key: troika::model::spec::Key| shapes.get(&key.to_string()).copied();
    let plan = make(&spec, &[PlanDevice::of(device)], &PlanRequest::default()).unwrap();
    let refusals = examine(&spec, &shape, &plan, std::slice::from_ref(device)).unwrap();
    let mut ops: Vec<String> = refusals.into_iter().map(|r| r.op).collect();
    ops.sort();
    ops.dedup();
    ops
}

/// Compares column `column` of the table of families with what the device says. `Err`: the table's
/// lines as they should be.
pub fn check(device: &Arc<dyn Device>, column: &str) -> Result<(), String> {
    let (configs, text) = (configs(), std::fs::read_to_string(root("docs/models.md")).unwrap());
    let mut lines = text.lines().skip_while(|line| !line.starts_with("| architecture |"));
    let cells = |line: &str| line.split('|').map(|c| c.trim().to_string()).collect::<Vec<_>>();
    let at = cells(lines.next().unwrap()).iter().position(|name| name == column).unwrap();
    let (mut named, mut wrong) = (Vec::new(), String::new());
    for line in lines.skip(1).take_while(|line| line.starts_with('|')) {
        let row = cells(line);
        let names = row[2].split('`').skip(1).step_by(2);
        let mut ops: Vec<String> = Vec::new();
        for name in names {
            let config = configs.get(name).ok_or_else(|| format!("no config of {name}"))?;
            ops.extend(refused(config, device));
            named.push(name.to_string());
        }
        ops.sort();
        ops.dedup();
        let is = if ops.is_empty() { "all".into() } else { format!("not {}", ops.join(", ")) };
        if row[at] != is {
            wrong.push_str(&format!("{}: {is}\n", row[2]));
        }
    }
    let missing: Vec<_> =
        supported().into_iter().filter(|f| !named.iter().any(|n| n == f)).collect();
    wrong.push_str(&missing.iter().map(|f| format!("{f} has no row\n")).collect::<String>());
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}
