//! llama.cpp's tools: found, or built from source.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{self, Result, failed, text};

/// The source package of llama-cpp-python, which contains llama.cpp's source of the same week.
const VERSION: &str = "0.3.36";

/// Parts that are not built: tools not used here, and their libraries.
const SETTINGS: &[&str] = &[
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
];

/// The programs.
#[derive(Clone, Debug)]
pub struct Tools {
    /// `llama-bench`.
    pub bench: PathBuf,
    /// `llama-batched-bench`, if it is there.
    pub batched: Option<PathBuf>,
    quantize: PathBuf,
}

impl Tools {
    /// The programs in a folder.
    ///
    /// # Errors
    /// The folder has no `llama-bench`.
    pub fn in_folder(bin: &Path) -> Result<Tools> {
        let quantize = bin.join("llama-quantize");
        Ok(Tools { bench: bench(bin)?, batched: batched(bin), quantize })
    }

    /// Quantizes a GGUF file; `dtype` is `llama-quantize`'s name of the type.
    ///
    /// # Errors
    /// An error of the program.
    pub fn quantize(&self, from: &Path, to: &Path, dtype: &str) -> Result<()> {
        let mut command = Command::new(&self.quantize);
        text(command.arg(from).arg(to).arg(dtype), "llama-quantize").map(drop)
    }
}

/// The `llama-bench` of a folder.
///
/// # Errors
/// The folder has none.
pub fn bench(bin: &Path) -> Result<PathBuf> {
    let bench = bin.join("llama-bench");
    match bench.exists() {
        true => Ok(bench),
        false => Err(format!("there is no llama-bench in {}", bin.display())),
    }
}

/// The `llama-batched-bench` of a folder, if it has one.
pub fn batched(bin: &Path) -> Option<PathBuf> {
    Some(bin.join("llama-batched-bench")).filter(|path| path.exists())
}

/// Builds the tools in `dir`, unless they exist; with llama.cpp's Vulkan backend if `vulkan`.
///
/// # Errors
/// There is no Python, compiler or network; or for Vulkan no `glslc` or headers.
pub fn build(dir: &Path, vulkan: bool) -> Result<Tools> {
    let made = dir.join(if vulkan { "vulkan" } else { "build" });
    let bin = made.join("bin");
    if let Ok(tools) = Tools::in_folder(&bin) {
        return Ok(tools);
    }
    std::fs::create_dir_all(dir).map_err(|e| failed("create", dir, &e))?;
    let venv = dir.join("venv");
    let tool = |name: &str| Command::new(venv.join("bin").join(name));
    eprintln!("fetching llama.cpp {VERSION}");
    command::python(&venv, &["cmake", "ninja"])?;
    let source = format!("llama_cpp_python-{VERSION}");
    if !dir.join(&source).exists() {
        let package = format!("llama-cpp-python=={VERSION}");
        let mut fetch = tool("pip");
        fetch.args(["-q", "download", "--no-deps", "--no-binary", "llama-cpp-python", "-d"]);
        text(fetch.arg(dir).arg(package), "pip download")?;
        let archive = dir.join(format!("{source}.tar.gz"));
        text(Command::new("tar").arg("xf").arg(archive).arg("-C").arg(dir), "tar")?;
    }
    eprintln!("building llama.cpp, which takes some minutes");
    let mut configure = tool("cmake");
    configure.args(["-G", "Ninja", "-S"]).arg(dir.join(source).join("vendor/llama.cpp"));
    configure.arg("-B").arg(&made).args(SETTINGS);
    configure.args(vulkan.then_some("-DGGML_VULKAN=ON"));
    configure.arg(format!("-DCMAKE_MAKE_PROGRAM={}", venv.join("bin/ninja").display()));
    text(&mut configure, "cmake")?;
    let mut make = tool("cmake");
    make.arg("--build").arg(&made);
    let targets = ["llama-bench", "llama-batched-bench", "llama-quantize"];
    text(make.arg("--target").args(targets).arg("-j"), "cmake --build")?;
    Tools::in_folder(&bin)
}
