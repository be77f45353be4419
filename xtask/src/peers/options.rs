//! Flags of `cargo xtask peers`.

use std::path::PathBuf;

/// Time Troika and its peers on the same GGUF files, in turns, and print the ratios: llama.cpp and,
/// with --ik, ik_llama.cpp
///
/// llama.cpp is built from the source package of llama-cpp-python (needs Python, a C++ compiler and
/// some minutes); the models have random weights of known shapes, `tiny-moe` those of the built-in
/// model.
#[derive(clap::Args)]
pub struct Options {
    /// Keeps llama.cpp and the models, both made on first use [default: target/peers]
    pub dir: Option<PathBuf>,
    /// Folder with llama-bench and llama-quantize, instead of building them
    #[arg(long, value_name = "DIR")]
    pub llama: Option<PathBuf>,
    /// Folder with the llama-bench of ik_llama.cpp (built as its authors build it), which is measured too: once as it is, once with
    /// weights repacked at load (-rtr 1); it has no depths (-d)
    #[arg(long, value_name = "DIR")]
    pub ik: Option<PathBuf>,
    /// A GGUF file to measure instead of the shapes; may be repeated
    #[arg(long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Troika's device, such as gpu or gpu:NAME. llama.cpp is then built with its Vulkan backend (needs
    /// glslc, SPIR-V's and Vulkan's headers), and has all layers on its first adapter, or that of
    /// GGML_VK_VISIBLE_DEVICES
    #[arg(long, value_name = "DEVICE", conflicts_with = "ik")]
    pub device: Option<String>,
    /// Shapes, as in `cargo xtask model synthetic --help`, or tiny-moe
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "qwen3-0.6b,qwen3-moe-1b"
    )]
    pub shapes: Vec<String>,
    /// Types, as llama-quantize calls them
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "BF16,Q8_0,Q4_0,Q4_K_M"
    )]
    pub types: Vec<String>,
    /// Prompt lengths
    #[arg(short, value_name = "LIST", default_value = "512", value_parser = numbers)]
    pub prompts: String,
    /// Tokens to decode
    #[arg(short = 'n', value_name = "LIST", default_value = "64", value_parser = numbers)]
    pub tokens: String,
    /// Tokens in the context before
    #[arg(short, value_name = "LIST", default_value = "0", value_parser = numbers)]
    pub depths: String,
    /// Numbers of sequences that are decoded at once, besides; peers are asked by their
    /// llama-batched-bench, whose column stays empty where there is none. That of ik_llama.cpp gives
    /// all sequences the same token: do not compare MoE models by it, since their rows then share experts
    #[arg(long, value_name = "LIST", value_parser = counts)]
    pub sequences: Option<String>,
    /// Threads [default: one per core]
    #[arg(short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    /// Repetitions of a turn
    #[arg(short, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: u32,
    /// Turns of each
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Keeps what each turn said in this folder, and takes it from there when it is run again with the
    /// same settings: a long comparison goes on where it stopped. Another build of an engine needs
    /// another folder
    #[arg(long, value_name = "DIR")]
    pub results: Option<PathBuf>,
    /// Troika's instruction set, such as avx2, to compare with peers that were built for it
    #[arg(long, value_name = "NAME")]
    pub isa: Option<String>,
    /// Threads that compute something else meanwhile
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub beside: usize,
}

impl Options {
    /// Threads of all engines.
    pub fn threads(&self) -> u32 {
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        self.threads.unwrap_or_else(cores)
    }

    /// Flags of Troika's device: the one that was named, or the CPU with the number of threads.
    pub fn device_flags(&self) -> Vec<String> {
        let isa = self.isa.iter().flat_map(|isa| ["--isa".into(), isa.clone()]);
        match &self.device {
            Some(device) => vec!["--device".into(), device.clone()],
            None => self.threads_flags().into_iter().chain(isa).collect(),
        }
    }

    /// The flags that say how many threads an engine has.
    pub fn threads_flags(&self) -> [String; 2] {
        ["-t".into(), self.threads().to_string()]
    }
}

fn numbers(value: &str) -> Result<String, String> {
    match value.split(',').all(|n| n.parse::<usize>().is_ok()) {
        true => Ok(value.to_string()),
        false => Err("not a list of numbers".to_string()),
    }
}

fn counts(value: &str) -> Result<String, String> {
    match value.split(',').all(|n| n.parse::<usize>().is_ok_and(|n| n > 0)) {
        true => Ok(value.to_string()),
        false => Err("not a list of numbers from 1 on".to_string()),
    }
}
