//! What tests do where the software adapter is not installed. Tests of several crates include this
//! file.

/// A part of the name of the adapter that tests take: the software adapter's, or what
/// `TROIKA_TEST_GPU` says, such as `NVIDIA`.
#[allow(clippy::disallowed_methods, reason = "of a crate that reads its environment in one place")]
#[allow(dead_code, reason = "some tests need no adapter")]
pub fn adapter() -> String {
    std::env::var("TROIKA_TEST_GPU").unwrap_or_else(|_| "llvmpipe".into())
}

/// Says in a line that a test was not run. `TROIKA_NEEDS_GPU`, which `.ci/run` sets, makes that a
/// failure.
#[track_caller]
#[allow(clippy::disallowed_methods, reason = "of a crate that reads its environment in one place")]
pub fn not_run(why: &str) {
    let why = format!("{why}: the package mesa-vulkan-drivers has gpu:llvmpipe");
    assert!(std::env::var_os("TROIKA_NEEDS_GPU").is_none(), "{why}");
    println!("not run: {why}");
}
