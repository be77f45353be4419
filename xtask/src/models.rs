//! `cargo xtask model`: models for measuring and testing, written by `xtask/models.py`.

use std::ffi::OsStr;
use std::path::Path;

use crate::command::{self, Result};

/// What the script needs, in the versions that it is tested with.
const PACKAGES: &[&str] = &["gguf==0.19.0", "numpy==2.4.6", "safetensors==0.8.0"];

/// The folder in `models` of the model that is compiled into the command.
pub const BUILT_IN: &str = "tiny-moe";

/// Runs the script with these arguments. `root` is the workspace.
pub fn run(root: &Path, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<()> {
    command::script(root, "models.py", "models", PACKAGES, args)
}

/// Writes the built-in model as GGUF, with matrices of a type.
pub fn export(root: &Path, out: &Path, kind: &str) -> Result<()> {
    let folder = root.join("models").join(BUILT_IN);
    let args = ["export".as_ref(), folder.as_os_str(), out.as_os_str(), "--type".as_ref()];
    run(root, args.into_iter().chain([kind.as_ref()]))
}

/// Writes the file that is compiled into the command.
pub fn built_in(root: &Path) -> Result<()> {
    let path = root.join("models").join(BUILT_IN).join(format!("{BUILT_IN}-Q8_0.gguf"));
    export(root, &path, "q8_0")?;
    println!("{}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_writes_what_it_always_wrote() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gguf");
        export(&root, &path, "q8_0").unwrap();
        let compiled_in = root.join("models/tiny-moe/tiny-moe-Q8_0.gguf");
        let same = std::fs::read(&path).unwrap() == std::fs::read(compiled_in).unwrap();
        assert!(same, "run `cargo xtask built-in` after a change of the model or the script");
        // Random weights are the same everywhere, so that figures are of the same model.
        let out = path.to_str().unwrap();
        run(&root, ["synthetic", "qwen3-moe-tiny", out, "--zipf", "1"]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let sum = bytes.iter().fold(0u64, |sum, b| sum.wrapping_mul(31).wrapping_add((*b).into()));
        assert_eq!((bytes.len(), sum), (8_238_720, 18_073_591_231_484_914_293));
        for wrong in [["synthetic", "gpt-9", out], ["export", "no-such-folder", out]] {
            assert!(run(&root, wrong).is_err(), "{wrong:?}");
        }
    }
}
