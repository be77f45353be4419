//! Settings from variables, without touching this process's own.

use std::path::{Path, PathBuf};

use crate::HubOptions;

fn options(vars: &[(&str, &str)]) -> HubOptions {
    HubOptions::from_lookup(&|name| {
        vars.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
    })
}

fn cache(vars: &[(&str, &str)]) -> Option<PathBuf> {
    options(vars).cache_dir
}

#[test]
fn the_cache_is_found_as_the_hub_tools_find_it() {
    let some = |path: &str| Some(PathBuf::from(path));
    let all = [("HF_HUB_CACHE", "/c"), ("HF_HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/u")];
    assert_eq!(cache(&all), some("/c"));
    assert_eq!(cache(&all[1..]), some("/h/hub"));
    assert_eq!(cache(&all[2..]), some("/x/huggingface/hub"));
    assert_eq!(cache(&all[3..]), some("/u/.cache/huggingface/hub"));
    assert_eq!(cache(&[("HF_HOME", "~/h"), ("HOME", "/u")]), some("/u/h/hub"));
    assert_eq!(cache(&[("HF_HUB_CACHE", ""), ("HOME", "/u")]), some("/u/.cache/huggingface/hub"));
    assert_eq!(cache(&[]), None);
}

#[test]
fn offline_is_a_switch() {
    for (value, want) in [
        ("1", true),
        ("true", true),
        ("YES", true),
        ("On", true),
        ("0", false),
        ("", false),
        ("false", false),
        ("no", false),
    ] {
        assert_eq!(options(&[("HF_HUB_OFFLINE", value)]).offline, want, "{value}");
    }
    assert!(!options(&[]).offline);
}

#[test]
fn the_token_comes_from_a_variable_or_a_file() {
    let folder = tempfile::tempdir().expect("folder");
    let home = folder.path().to_str().expect("a name in UTF-8");
    assert_eq!(options(&[("HF_HOME", home)]).token, None);
    std::fs::write(Path::new(home).join("token"), "  from-file\n").expect("token");
    assert_eq!(options(&[("HF_HOME", home)]).token.as_deref(), Some("from-file"));
    let both = options(&[("HF_HOME", home), ("HF_TOKEN", "from-variable ")]);
    assert_eq!(both.token.as_deref(), Some("from-variable"));
    assert!(!format!("{both:?}").contains("from-variable"));
}

#[test]
fn the_endpoint_loses_its_slash() {
    let got = options(&[("HF_ENDPOINT", "http://localhost:1/")]).endpoint;
    assert_eq!(got.as_deref(), Some("http://localhost:1"));
    assert_eq!(options(&[]).endpoint, None);
}
