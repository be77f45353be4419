//! Names, paths and the cache without a network.

use super::*;

fn offline(dir: &Path) -> HubOptions {
    HubOptions { offline: true, ..options(dir) }
}

#[test]
fn a_path_that_exists_is_itself() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().to_str().expect("a name in UTF-8");
    let (got, told) = run(path, &HubOptions::default());
    assert_eq!(got.expect("a path"), folder.path());
    assert!(told.is_empty());
}

#[test]
fn a_mistyped_path_is_not_looked_up() {
    let text = sentence("./nowhere/model.gguf", &HubOptions::default());
    assert!(text.starts_with("./nowhere/model.gguf: no such file or folder"), "{text}");
}

#[test]
fn a_complete_model_is_found() {
    let folder = tempfile::tempdir().expect("folder");
    let files = [("config.json", "{}"), ("tokenizer.json", "{}"), ("model.safetensors", "w")];
    let snapshot = cached(folder.path(), "models--o--n", &files);
    let options = offline(folder.path());
    assert_eq!(run("o/n", &options).0.expect("a model"), snapshot);
    assert_eq!(run(&format!("o/n@{SHA}"), &options).0.expect("a model"), snapshot);
    let text = sentence("o/n@v2", &options);
    assert!(text.contains("revision `v2` is not in the cache"), "{text}");
}

#[test]
fn quantizations_are_found_by_tag() {
    let folder = tempfile::tempdir().expect("folder");
    let files = [("m-Q8_0.gguf", "8"), ("Q2_K/m-Q2_K-00001-of-00002.gguf", "2")];
    let snapshot = cached(folder.path(), "models--o--n", &files);
    let options = offline(folder.path());
    assert_eq!(run("o/n:q8_0", &options).0.expect("a model"), snapshot.join("m-Q8_0.gguf"));
    assert_eq!(run("o/n:M-q8_0.gguf", &options).0.expect("a model"), snapshot.join("m-Q8_0.gguf"));
    let text = sentence("o/n:Q2_K", &options);
    assert!(text.contains("Q2_K/m-Q2_K-00002-of-00002.gguf is not in the cache at"), "{text}");
    let text = sentence("o/n:Q4_K_M", &options);
    assert!(text.contains("no GGUF file is tagged `Q4_K_M`") && text.contains("m-Q8_0"), "{text}");
}

/// The error for a model of which the cache has these files.
fn missing(files: &[(&str, &str)], spoil: impl FnOnce(&Path)) -> String {
    let folder = tempfile::tempdir().expect("folder");
    cached(folder.path(), "models--o--n", files);
    spoil(&folder.path().join("models--o--n"));
    sentence("o/n", &offline(folder.path()))
}

#[test]
fn what_is_missing_is_named() {
    let folder = tempfile::tempdir().expect("folder");
    let text = sentence("o/n", &offline(folder.path()));
    assert!(text.starts_with("o/n: the model is not in the cache at"), "{text}");
    assert!(text.contains("run once without HF_HUB_OFFLINE"), "{text}");
    let text = missing(&[("config.json", "{}"), ("tokenizer.json", "{}")], |_| ());
    assert!(text.contains("a file of weights is not in the cache"), "{text}");
    let index = r#"{"weight_map": {"a": "model-00001-of-00002.safetensors",
                    "b": "model-00002-of-00002.safetensors"}}"#;
    let files = [
        ("config.json", "{}"),
        ("model.safetensors.index.json", index),
        ("model-00001-of-00002.safetensors", "w"),
    ];
    let text = missing(&files, |_| ());
    assert!(text.contains("model-00002-of-00002.safetensors is not in the cache"), "{text}");
}

const MODEL: [(&str, &str); 2] = [("config.json", "{}"), ("model.safetensors", "w")];

#[cfg(unix)]
#[test]
fn a_link_without_its_blob_counts_as_missing() {
    let text = missing(&MODEL, |home| std::fs::remove_file(home.join("blobs/b1")).expect("blob"));
    assert!(text.contains("a file of weights is not in the cache"), "{text}");
}

#[test]
fn a_reference_does_not_lead_out_of_the_cache() {
    let text = missing(&MODEL, |home| {
        std::fs::write(home.join("refs/main"), "../../..").expect("ref");
    });
    assert!(text.contains("revision `main`"), "{text}");
}

#[test]
fn without_a_cache_folder_the_variable_is_named() {
    assert!(sentence("o/n", &HubOptions::default()).contains("HF_HUB_CACHE"));
}
