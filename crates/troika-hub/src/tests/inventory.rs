//! What is listed of a cache.

use super::*;
use crate::{WeightFormat, cached as complete, inventory};

#[test]
fn models_are_listed_by_what_one_types() {
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    assert_eq!(inventory(&dir.join("none")).expect("nothing").models, []);
    cached(dir, "models--o--s", &[("config.json", "{}"), ("model.safetensors", "weights")]);
    let gguf = [("m-Q8_0.gguf", "88"), ("m-Q4_K_M.gguf", "4"), ("plain.gguf", "p")];
    cached(dir, "models--o--g", &gguf);
    std::fs::write(dir.join("models--o--g/refs/v1"), SHA).expect("ref");
    let want = ["o/g:Q4_K_M", "o/g:Q8_0", "o/g:plain.gguf", "o/s"];
    assert_eq!(names(dir), want);
    let all = inventory(dir).expect("a listing");
    for model in &all.models {
        assert_eq!(complete(&model.name, &options(dir)).expect("a name"), Some(model.path.clone()));
    }
    assert_eq!(all.models[1].format, WeightFormat::Gguf(Some("Q8_0".to_string())));
    assert_eq!((all.models[3].bytes, all.bytes), (9, 13));
    // Without a name for the commit it is the commit that is typed.
    std::fs::remove_file(dir.join("models--o--s/refs/main")).expect("ref");
    assert_eq!(names(dir)[3], format!("o/s@{SHA}"));
}

#[cfg(unix)]
#[test]
fn blobs_that_revisions_share_count_once() {
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    let files = [("config.json", "{}"), ("model.safetensors", "weights")];
    let first = cached(dir, "models--o--n", &files);
    let second = first.with_file_name("fedcba");
    std::fs::create_dir(&second).expect("folder");
    link(Path::new("../../blobs/b1"), &second.join("model.safetensors"));
    std::fs::write(second.join("config.json"), "{ }").expect("file");
    let all = inventory(dir).expect("a listing");
    assert_eq!(names(dir), ["o/n", "o/n@fedcba"]);
    assert_eq!(all.models.iter().map(|m| m.bytes).collect::<Vec<_>>(), [9, 10]);
    assert_eq!(all.bytes, 12);
}

#[cfg(unix)]
#[test]
fn what_is_damaged_is_listed_with_the_reason() {
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    let files = [("config.json", "{}"), ("model.safetensors", "weights")];
    // A link that leads nowhere, a model without an owner, a folder without any, and no config.
    cached(dir, "models--o--lost", &files);
    std::fs::remove_file(dir.join("models--o--lost/blobs/b1")).expect("blob");
    cached(dir, "models--gpt2", &files);
    std::fs::create_dir(dir.join("models--o--empty")).expect("folder");
    cached(dir, "models--o--bare", &[("model.safetensors", "weights")]);
    cached(dir, "models--..--..", &files);
    // Loops, files, and other kinds of repositories.
    link(Path::new("."), &dir.join("models--o--loop"));
    link(Path::new("nowhere"), &dir.join("models--o--nowhere"));
    std::fs::write(dir.join("models--o--file"), "").expect("file");
    cached(dir, "datasets--o--n", &files);
    let all = inventory(dir).expect("a listing");
    assert_eq!(all.models, []);
    let said: Vec<String> = all
        .unusable
        .iter()
        .map(|u| format!("{}: {}", u.path.file_name().expect("name").display(), u.why))
        .collect();
    assert_eq!(
        said,
        [
            "models--..--..: its name is not owner/name",
            "models--gpt2: its name is not owner/name",
            "models--o--bare: config.json is missing",
            "models--o--empty: it has no snapshot",
            "models--o--loop: it has no snapshot",
            "models--o--lost: it has no complete weights that can be used",
        ]
    );
    assert_eq!(all.unusable[2].bytes, 7 + SHA.len() as u64);
    let file = dir.join("models--o--file");
    assert!(inventory(&file).expect_err("a file").to_string().contains("cannot read"));
}
