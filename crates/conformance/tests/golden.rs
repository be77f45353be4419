//! Every architecture and file format against the reference library's outputs.

use std::path::Path;

use conformance::golden::{check, find};

fn all_hold(dir: &str, at_least: usize) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(dir);
    let cases = find(&dir).unwrap();
    assert!(cases.len() >= at_least, "{} cases in {}", cases.len(), dir.display());
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|case| match check(case) {
            Ok(r) if r.holds() => None,
            Ok(r) => Some(format!("{}: {r}", case.name)),
            Err(e) => Some(format!("{}: {e}", case.name)),
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn checkpoints_of_all_architectures() {
    all_hold("golden", 20);
}

#[test]
fn gguf_files() {
    all_hold("gguf", 18);
}

#[test]
fn features_beside_the_usual_ones() {
    all_hold("variants", 10);
}
