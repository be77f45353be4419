//! QNN's own interface, loaded at run time: it profiles a compiled graph more deeply than ONNX
//! Runtime asks it to. It is used in the helper only, since nothing but its version tells whether
//! the declarations fit a library.

#[cfg(all(unix, target_pointer_width = "64"))]
mod abi;
#[cfg(all(unix, target_pointer_width = "64"))]
mod run;

#[cfg(all(unix, target_pointer_width = "64"))]
pub(crate) use run::profile;

/// Not known on this system.
///
/// # Errors
/// Always.
#[cfg(not(all(unix, target_pointer_width = "64")))]
pub(crate) fn profile(
    _: &std::path::Path,
    _: &[u8],
    _: crate::profiling::ProfilingLevel,
) -> Result<String, String> {
    Err("QNN's interface is not known on this system".into())
}
