//! What is removed, and what stays.

use super::*;
use crate::Removal;
use crate::lock;

fn remove(model: &str, dir: &Path) -> Result<u64, HubError> {
    let removal = Removal::plan(model, &options(dir))?;
    let (planned, freed) = (removal.bytes, removal.run()?);
    assert_eq!(freed, planned);
    Ok(freed)
}

/// All that is below a folder, in order.
fn tree(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(&at).expect("folder").flatten() {
            let below = entry.path().strip_prefix(folder).expect("below").display().to_string();
            all.push(below);
            if entry.file_type().expect("type").is_dir() {
                open.push(entry.path());
            }
        }
    }
    all.sort();
    all
}

const MODEL: [(&str, &str); 2] = [("config.json", "{}"), ("model.safetensors", "weights")];

#[test]
fn a_repository_goes_whole_and_others_stay() {
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    cached(dir, "models--o--n", &MODEL);
    cached(dir, "models--o--other", &MODEL);
    let before = tree(&dir.join("models--o--other"));
    let plan = Removal::plan("o/n", &options(dir)).expect("a plan");
    assert_eq!((&plan.names[..], plan.bytes), (&["o/n".to_string()][..], 9 + SHA.len() as u64));
    assert_eq!(names(dir), ["o/n", "o/other"]);
    plan.run().expect("removed");
    assert_eq!(tree(&dir.join("models--o--other")), before);
    assert_eq!(std::fs::read_dir(dir).expect("cache").count(), 1);
    let again = remove("o/n", dir).expect_err("gone").to_string();
    assert!(again.starts_with("o/n: the model is not in the cache at "), "{again}");
}

#[cfg(unix)]
#[test]
fn a_quantization_goes_with_the_blobs_of_its_own() {
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    let files = [("q/m-Q8_0.gguf", "88"), ("m-Q4_0.gguf", "4"), ("m-Q6_K.gguf", "666")];
    let snapshot = cached(dir, "models--o--n", &files);
    // Another revision has the same file for one of them.
    let other = snapshot.with_file_name("fedcba");
    std::fs::create_dir(&other).expect("folder");
    link(Path::new("../../blobs/b2"), &other.join("m-Q6_K.gguf"));
    assert_eq!(remove("o/n:q8_0", dir).expect("removed"), 2);
    let left = ["o/n:Q4_0", "o/n:Q6_K", "o/n:Q6_K@fedcba"];
    assert_eq!(names(dir), left);
    assert!(!snapshot.join("q").exists());
    assert_eq!(remove("o/n:m-Q6_K.gguf", dir).expect("removed"), 0);
    assert_eq!(names(dir), ["o/n:Q4_0", "o/n:Q6_K@fedcba"]);
    // The last file of a revision takes the revision with it, and the last revision all.
    assert_eq!(remove("o/n:Q4_0", dir).expect("removed"), 1);
    assert_eq!(tree(&dir.join("models--o--n/refs")), Vec::<String>::new());
    assert_eq!(names(dir), ["o/n:Q6_K@fedcba"]);
    remove("o/n:Q6_K@fedcba", dir).expect("removed");
    assert!(!dir.join("models--o--n").exists());
}

#[test]
fn a_revision_goes_with_its_names() {
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    let snapshot = cached(dir, "models--o--n", &MODEL);
    let other = snapshot.with_file_name("fedcba");
    std::fs::create_dir(&other).expect("folder");
    for (name, text) in MODEL {
        std::fs::write(other.join(name), text).expect("file");
    }
    std::fs::create_dir(dir.join("models--o--n/refs/pr")).expect("folder");
    for (name, commit) in [("pr/1", SHA), ("v2", "fedcba")] {
        std::fs::write(dir.join("models--o--n/refs").join(name), commit).expect("ref");
    }
    assert_eq!(names(dir), ["o/n", "o/n@v2"]);
    remove("o/n@pr/1", dir).expect("removed");
    assert_eq!(names(dir), ["o/n@v2"]);
    let left = tree(&dir.join("models--o--n"));
    assert!(
        !left.iter().any(|name| name.contains("main") || name.ends_with("blobs/b1")),
        "{left:?}"
    );
}

#[test]
fn names_that_stand_for_nothing_remove_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    cached(dir, "models--o--n", &[("m-Q8_0.gguf", "88"), ("m-Q4_0.gguf", "4")]);
    let before = tree(dir);
    for (name, says) in [
        ("o/x", "the model is not in the cache"),
        ("o/n@v9", "revision `v9` is not in the cache"),
        ("o/n:Q2_K", "no GGUF file is tagged `Q2_K`; there are: m-Q4_0.gguf, m-Q8_0.gguf"),
        ("o/n:Q", "fits more than one file"),
        ("o/n:../../x.gguf", "is neither a tag nor a .gguf file"),
        ("o/..", "is not a name on the Hub"),
        ("../n", "no such file or folder"),
        ("..", "no such file or folder"),
        ("", "no such file or folder"),
        ("o/n@../..", "is not a revision"),
        ("o/n@refs/../..", "is not a revision"),
    ] {
        let said = remove(name, dir).expect_err(name).to_string();
        assert!(said.contains(says), "{name}: {said}");
    }
    assert_eq!(tree(dir), before);
    let none = options(&dir.join("none"));
    let said = Removal::plan("o/n", &none).expect_err("none").to_string();
    assert!(said.contains("is not in the cache"), "{said}");
    assert!(matches!(Removal::plan("o/n", &HubOptions::default()), Err(HubError::NoCache)));
}

#[cfg(unix)]
#[test]
fn what_links_lead_to_outside_of_the_cache_stays() {
    let folder = tempfile::tempdir().expect("folder");
    let (dir, away) = (folder.path().join("cache"), folder.path().join("away"));
    let elsewhere = cached(&away, "models--o--n", &[("m-Q8_0.gguf", "88"), ("m-Q4_0.gguf", "4")]);
    let before = tree(&away);
    let fresh = || {
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).expect("folder");
    };
    // The repository is a link.
    fresh();
    link(&away.join("models--o--n"), &dir.join("models--o--n"));
    for name in ["o/n:Q8_0", "o/n@main", &format!("o/n@{SHA}")] {
        let said = remove(name, &dir).expect_err(name).to_string();
        assert!(said.contains("leads out of the cache"), "{said}");
    }
    assert_eq!(remove("o/n", &dir).expect("removed"), 0);
    assert_eq!((tree(&dir), tree(&away)), (Vec::new(), before.clone()));
    // A folder in it is one.
    for part in ["snapshots", "blobs", "refs"] {
        for name in ["o/n", "o/n:Q8_0", "o/n@main"] {
            fresh();
            cached(&dir, "models--o--n", &[("m-Q8_0.gguf", "88"), ("m-Q4_0.gguf", "4")]);
            let own = dir.join("models--o--n").join(part);
            std::fs::remove_dir_all(&own).expect("folder");
            link(&away.join("models--o--n").join(part), &own);
            // Whether it is refused or not.
            let _ = remove(name, &dir);
            assert_eq!(tree(&away), before, "{part} {name}");
        }
    }
    // A snapshot is one, or a file, or a blob.
    fresh();
    let home = dir.join("models--o--n");
    let snapshot = cached(&dir, "models--o--n", &[("a-Q8_0.gguf", "8"), ("b-Q4_0.gguf", "4")]);
    link(&elsewhere, &snapshot.with_file_name("fedcba"));
    let said = remove("o/n:Q8_0@fedcba", &dir).expect_err("a link").to_string();
    assert!(said.contains("leads out of the cache"), "{said}");
    remove("o/n@fedcba", &dir).expect("removed");
    link(&elsewhere.join("m-Q4_0.gguf"), &snapshot.join("c-Q6_K.gguf"));
    assert_eq!(remove("o/n:Q6_K", &dir).expect("removed"), 0);
    std::fs::remove_file(home.join("blobs/b0")).expect("blob");
    link(&away.join("models--o--n/blobs/b0"), &home.join("blobs/b0"));
    assert_eq!(remove("o/n:Q8_0", &dir).expect("removed"), 0);
    assert!(!home.join("blobs/b0").is_symlink());
    assert_eq!((names(&dir), tree(&away)), (vec!["o/n:Q4_0".to_string()], before));
}

#[test]
fn what_another_program_fetches_is_not_removed() {
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    cached(dir, "models--o--n", &[("m-Q8_0.gguf", "88"), ("m-Q4_0.gguf", "4")]);
    let lock = |etag| lock::take(dir, "models--o--n", etag).expect("a lock").expect("it is free");
    let held = lock("b0");
    for name in ["o/n", "o/n:Q8_0", "o/n@main"] {
        let said = remove(name, dir).expect_err(name).to_string();
        assert!(said.contains("another program is fetching it"), "{name}: {said}");
    }
    assert_eq!(names(dir), ["o/n:Q4_0", "o/n:Q8_0"]);
    // A file that nobody fetches can go meanwhile.
    remove("o/n:Q4_0", dir).expect("removed");
    drop(held);
    remove("o/n", dir).expect("removed");
    // A blob without a link may be one that is being fetched.
    cached(dir, "models--o--n", &[("m-Q8_0.gguf", "88"), ("m-Q4_0.gguf", "4")]);
    std::fs::write(dir.join("models--o--n/blobs/new"), "new").expect("blob");
    std::fs::write(dir.join("models--o--n/blobs/old"), "old").expect("blob");
    let held = lock("new");
    remove("o/n:Q8_0", dir).expect("removed");
    let blobs = tree(&dir.join("models--o--n/blobs"));
    let left = |name: &str| blobs.iter().any(|blob| blob == name);
    assert!(left("new") && !left("old") && left("b1"), "{blobs:?}");
    drop(held);
    remove("o/n", dir).expect("removed");
}

#[cfg(unix)]
#[test]
fn removals_that_were_stopped_are_finished_by_the_next_one() {
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    let parts = ["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"];
    let files = [(parts[0], "1"), (parts[1], "2"), ("m-Q4_0.gguf", "4")];
    let snapshot = cached(dir, "models--o--n", &files);
    let blobs = dir.join("models--o--n/blobs");
    // Stopped between two links, with blobs that nothing leads to any more.
    std::fs::remove_file(snapshot.join(parts[0])).expect("link");
    assert_eq!(names(dir), ["o/n:Q4_0"]);
    assert_eq!(remove("o/n:Q8_0", dir).expect("removed"), 2);
    assert_eq!(tree(&blobs).into_iter().filter(|b| !b.contains('.')).collect::<Vec<_>>(), ["b2"]);
    // A link whose blob is gone.
    std::fs::remove_file(blobs.join("b2")).expect("blob");
    assert_eq!(names(dir), Vec::<String>::new());
    cached(dir, "models--o--other", &files);
    std::fs::create_dir_all(dir.join(".removed-models--o--x-1/blobs")).expect("leftover");
    remove("o/n:Q4_0", dir).expect("removed");
    assert!(!dir.join("models--o--n").exists() && !dir.join(".removed-models--o--x-1").exists());
    assert_eq!(names(dir), ["o/other:Q4_0", "o/other:Q8_0"]);
}

#[test]
fn what_is_gone_already_is_no_fault() {
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    cached(dir, "models--o--n", &[("m-Q8_0.gguf", "88"), ("m-Q4_0.gguf", "4"), ("README.md", "r")]);
    let plan = |name| Removal::plan(name, &options(dir)).expect("a plan");
    let plans =
        [plan("o/n:Q8_0"), plan("o/n:Q8_0"), plan("o/n@main"), plan("o/n"), plan("o/n:Q4_0")];
    let freed: Vec<bool> = plans.iter().map(|plan| plan.run().expect("removed") > 0).collect();
    assert_eq!(freed, [true, false, true, false, false]);
}

/// Blobs that a link from a folder that cannot be read may use are not removed.
#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_read_stops_it() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("folder");
    let dir = folder.path();
    let files = [("m-Q8_0.gguf", "88"), ("m-Q4_0.gguf", "4")];
    let other = cached(dir, "models--o--n", &files).with_file_name("fedcba");
    std::fs::create_dir(&other).expect("folder");
    let mode = |bits| std::fs::set_permissions(&other, std::fs::Permissions::from_mode(bits));
    mode(0).expect("mode");
    // The superuser reads it all the same.
    if std::fs::read_dir(&other).is_err() {
        let said = remove("o/n:Q8_0", dir).expect_err("unreadable").to_string();
        assert!(said.contains("cannot read the model cache at"), "{said}");
    }
    mode(0o755).expect("mode");
    remove("o/n:Q8_0", dir).expect("removed");
}
