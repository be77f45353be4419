//! 64-bit ARM without the hardware: builds what has code for an instruction set, and runs it under
//! QEMU's user-mode emulation, on three kinds of processors.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::command::{self, Result, output, text};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Also set in `.cargo/config.toml`.
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// The folder of the target's C library from Debian's cross compiler.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// QEMU's names of processors, and their distinguishing features.
const CPUS: [(&str, &str); 3] = [
    ("cortex-a72", "NEON alone"),
    ("neoverse-n1", "NEON with dotprod"),
    ("max", "NEON with dotprod and i8mm"),
];
/// Random cases per property test instead of 256, since emulation is about thirty times slower.
const CASES: &str = "5";

/// The crates whose tests run under emulation: the kernels, and the engine without its GPU device.
/// Chosen together each time, so that nothing is built twice. The command and the server have no
/// code for an instruction set.
const TESTED: &str =
    "--release -p troika-cpu -p conformance --no-default-features --features troika-cpu/emulate";

/// Builds and tests for [`TARGET`].
///
/// # Errors
/// A sentence: a missing tool and how to get it, or the step that failed.
pub fn run(root: &Path) -> Result<()> {
    require()?;
    let start = Instant::now();
    let build = format!("build {TESTED} --test kernels --test golden");
    cargo(root, "build of the tests", "max", &build)?;
    let test = |name: &str| format!("test {TESTED} --test {name}");
    for (cpu, kind) in CPUS {
        println!("\n{cpu}: {kind}");
        cargo(root, "kernel tests", cpu, &format!("{} -- --nocapture", test("kernels")))?;
    }
    // Kernels were tested on all processors; combining them is the same on all.
    let (cpu, kind) = CPUS[2];
    println!("\n{cpu}: {kind}");
    let golden = format!("{} -- --skip on_several_devices --skip of_2026", test("golden"));
    cargo(root, "models against the reference library", cpu, &golden)?;
    println!("aarch64: all passed in {:.0} s", start.elapsed().as_secs_f32());
    Ok(())
}

/// Checks that the tools are installed.
fn require() -> Result<()> {
    let debian = |tool: &str, packages: &str| {
        format!("{tool} is missing; on Debian and Ubuntu: apt-get install {packages}")
    };
    if !starts(LINKER) || !Path::new(LIBRARIES).is_dir() {
        return Err(debian(LINKER, "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"));
    }
    if !starts(EMULATOR) {
        return Err(debian(EMULATOR, "qemu-user"));
    }
    let args = ["--print", "target-libdir", "--target", TARGET];
    let folder = text(Command::new("rustc").args(args), "rustc")?;
    if !Path::new(folder.trim()).is_dir() {
        return Err(format!(
            "Rust's standard library for {TARGET} is missing; `rustup target add {TARGET}` installs it"
        ));
    }
    Ok(())
}

fn starts(tool: &str) -> bool {
    output(Command::new(tool).arg("--version")).is_ok_and(|out| out.status.success())
}

/// Runs cargo for the target; programs run on `cpu`.
fn cargo(root: &Path, what: &str, cpu: &str, args: &str) -> Result<()> {
    println!("\n== {what}");
    let start = Instant::now();
    let (verb, rest) = args.split_once(' ').unwrap_or((args, ""));
    let mut command = command::cargo(root, &[verb, "--target", TARGET]);
    command.args(rest.split_whitespace());
    command.env("PROPTEST_CASES", CASES);
    // Builds are faster without line tables, which nobody needs here.
    command.env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    command.env("CC_aarch64_unknown_linux_gnu", LINKER);
    command.env(
        "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
        format!("{EMULATOR} -cpu {cpu} -L {LIBRARIES}"),
    );
    command::run(&mut command, &format!("{what} for {TARGET} (processor {cpu})"))?;
    println!("{what}: {:.0} s", start.elapsed().as_secs_f32());
    Ok(())
}
