//! Core ML's programs: what a package's files hold, and what runs them.

#[cfg(target_vendor = "apple")]
mod apple;
mod blob;
mod delegation;
mod graph;
mod kept;
mod package;
pub mod proto;
mod runtime;
mod types;
mod verbs;
mod writer;

#[cfg(target_vendor = "apple")]
pub use apple::AppleCoreMl;
pub use delegation::Delegation;
pub use kept::PackageWeights;
pub(crate) use package::MOST_GROUP_BYTES;
pub(crate) use package::PackageFiles;
pub use package::{
    Package, PackageError, PackageModel, PackageOptions, PackagePart, PackageStretch, PackageValue,
    write_package,
};
pub use runtime::{CoreMlFunction, CoreMlRuntime, CoreMlState};
pub(crate) use writer::MilWriter;
