//! Flags of `cargo xtask peers`.

use std::path::PathBuf;

/// Time Troika and its peers on the same GGUF files, in turns, and print the ratios
///
/// A peer is a folder with the `llama-bench` of llama.cpp or ik_llama.cpp, built as its authors build
/// it. Files of random weights come from `cargo xtask model synthetic` and `llama-quantize`.
#[derive(clap::Args)]
pub struct Options {
    /// The GGUF files
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Folder with the programs of llama.cpp
    #[arg(long, value_name = "DIR", required_unless_present = "ik")]
    pub llama: Option<PathBuf>,
    /// Folder with the programs of ik_llama.cpp, which is measured as it is, and with weights repacked
    /// at load (-rtr 1); it has no depths (-d)
    #[arg(long, value_name = "DIR")]
    pub ik: Option<PathBuf>,
    /// The troika command, instead of building it
    #[arg(long, value_name = "FILE")]
    pub troika: Option<PathBuf>,
    /// Troika's device, such as gpu or gpu:NAME. llama.cpp has all layers on its first adapter then, or
    /// on that of GGML_VK_VISIBLE_DEVICES
    #[arg(long, value_name = "DEVICE", conflicts_with = "ik")]
    pub device: Option<String>,
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
    /// Troika's instruction set, such as avx2, to compare with peers that were built for it
    #[arg(long, value_name = "NAME")]
    pub isa: Option<String>,
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
    let listed = value.split(',').all(|n| n.parse::<usize>().is_ok());
    listed.then(|| value.to_string()).ok_or_else(|| "not a list of numbers".into())
}

fn counts(value: &str) -> Result<String, String> {
    let listed = value.split(',').all(|n| n.parse::<usize>().is_ok_and(|n| n > 0));
    listed.then(|| value.to_string()).ok_or_else(|| "not a list of numbers from 1 on".into())
}
