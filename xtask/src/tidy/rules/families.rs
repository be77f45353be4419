//! Names: model families appear only in the model crate, concrete devices in one file.

use syn::visit::Visit;

use crate::tidy::source::Words;
use crate::tidy::{File, Tree, Violation};

/// Families in lower case. `phi` is part of many words, so it must match a whole word.
const FAMILIES: &[&str] = &[
    "llama", "qwen", "gemma", "mixtral", "olmoe", "smollm", "deepseek", "exaone", "mistral",
    "gpt_oss", "gpt-oss", "gptoss", "internlm",
];

/// Programs whose names contain a family's name.
const PROGRAMS: &[&str] = &["llama.cpp", "ollama"];

/// Places where families may be named. Presets for benchmarks are data in files of that name.
const FAMILY_PLACES: &[&str] = &["crates/troika-model/", "crates/conformance/", "xtask/"];

/// Crates of concrete devices.
const DEVICES: &[&str] = &["troika_cpu", "troika_gpu", "troika_npu", "troika_sim"];

/// Places where concrete devices may be named, besides their own crates.
const DEVICE_PLACES: &[&str] =
    &["crates/troika/src/devices/", "crates/troika-sim/", "crates/conformance/", "xtask/"];

/// Checks identifiers and strings outside tests.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (file, code) in tree.sources() {
        let mut words = Words::default();
        words.visit_file(code);
        for (word, line) in words.found {
            let message = match (family(file, &word), device(file, &word)) {
                (Some(name), _) => format!(
                    "names the model family `{name}` outside crates/troika-model; ask the model's \
                     description instead"
                ),
                (_, Some(name)) => {
                    format!("names the device `{name}` outside crates/troika/src/devices/")
                }
                _ => continue,
            };
            found.push(Violation::new("names", &file.path, line, message));
        }
    }
    found
}

fn family(file: &File, text: &str) -> Option<&'static str> {
    if file.path.ends_with("/presets.rs") || is_below(&file.path, FAMILY_PLACES) {
        return None;
    }
    let mut lower = text.to_lowercase();
    for program in PROGRAMS {
        lower = lower.replace(program, "");
    }
    let named = FAMILIES.iter().find(|name| lower.contains(**name)).copied();
    named.or_else(|| has_word(text, "phi").then_some("phi"))
}

/// Whether a text contains a word, possibly followed by a number.
fn has_word(text: &str, wanted: &str) -> bool {
    let mut words = vec![String::new()];
    let mut lower_before = false;
    for c in text.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && lower_before) {
            words.push(String::new());
        }
        lower_before = c.is_lowercase() || c.is_numeric();
        if let Some(last) = words.last_mut().filter(|_| c.is_alphanumeric()) {
            last.extend(c.to_lowercase());
        }
    }
    words.iter().any(|w| {
        w.strip_prefix(wanted).is_some_and(|rest| rest.chars().next().is_none_or(char::is_numeric))
    })
}

fn device(file: &File, text: &str) -> Option<&'static str> {
    let name = DEVICES.iter().find(|name| **name == text)?;
    let own = file.path.starts_with(&format!("crates/{}/", name.replace('_', "-")));
    (!own && !is_below(&file.path, DEVICE_PLACES)).then_some(*name)
}

fn is_below(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| path.starts_with(place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::places;

    #[test]
    fn families_are_found_in_code_and_strings() {
        let text = "const K: u8 = match kind {\n    \"qwen3\" => 1,\n    Kind::Llama => 2,\n    is_phi3 => 3,\n\
                    \"gpt-oss\" => 4,\n    \"phi-4\" => 5,\n};\n// like Llama\n/// As in Gemma.\n\
                    /// m\nfn sophisticated() { \"graphics of llama.cpp\" }\n\
                    #[test]\nfn t() { \"qwen\" }\n";
        let found = places(
            check,
            &[
                ("crates/troika-engine/src/a.rs", text),
                ("crates/troika-model/src/families/a.rs", text),
                ("crates/troika-cli/src/bench/presets.rs", text),
                ("crates/troika-engine/tests/a.rs", text),
            ],
        );
        let lines = [2, 3, 4, 5, 6].map(|l| format!("crates/troika-engine/src/a.rs:{l}"));
        assert_eq!(found, lines);
    }

    #[test]
    fn devices_are_named_in_one_module() {
        let text = "use troika_cpu::Cpu;\n";
        let found = places(
            check,
            &[
                ("crates/troika/src/devices/mod.rs", text),
                ("crates/troika/src/open.rs", text),
                ("crates/troika-cpu/src/main.rs", text),
                ("crates/troika-engine/tests/t.rs", text),
            ],
        );
        assert_eq!(found, ["crates/troika/src/open.rs:1"]);
    }
}
