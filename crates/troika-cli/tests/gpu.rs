//! GPUs in the command, by Mesa's software adapter where it is installed.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]
#![cfg(feature = "gpu")]

use std::process::{Command, Output};

const HI: [&str; 7] = ["run", "-p", "Hello", "-n", "8", "--temp", "0"];

fn troika(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_troika")).args(args).output().unwrap()
}

fn answer(output: &Output) -> String {
    let (said, told) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}");
    String::from_utf8(said.clone()).unwrap()
}

/// The only line of an error.
fn refused(output: &Output) -> String {
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    // A layer of the driver may complain about the desktop that it does not find.
    let lines: Vec<&str> = told.lines().filter(|l| !l.contains("XDG_RUNTIME_DIR")).collect();
    let [line] = lines[..] else { panic!("{told}") };
    line.to_string()
}

/// Whether the software adapter is here.
fn is_here() -> bool {
    let here = troika(&["devices", "--device", "gpu:llvmpipe"]).status.success();
    if !here {
        println!("not run: there is no gpu:llvmpipe; the package mesa-vulkan-drivers has it");
    }
    here
}

#[test]
fn the_built_in_model_says_the_same_as_on_the_cpu() {
    if !is_here() {
        return;
    }
    let on = |device: &[&str]| answer(&troika(&[&HI[..], device].concat()));
    let cpu = on(&[]);
    assert_eq!(on(&["--device", "gpu:llvmpipe"]), cpu);
    for strategy in ["split-columns", "split-rows", "alternate", "prefill-decode=gpu:cpu"] {
        let both = on(&["--device", "gpu:llvmpipe,cpu", "--strategy", strategy]);
        assert_eq!(both, cpu, "{strategy}");
    }
}

#[test]
fn wrong_adapters_and_budgets_are_one_line() {
    let none = refused(&troika(&[&HI[..], &["--device", "gpu:77"]].concat()));
    assert!(none.contains("no GPU adapter"), "{none}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_troika"));
    command.args(HI).args(["--device", "gpu"]);
    command.env("VK_ICD_FILENAMES", "/nonexistent").env("VK_DRIVER_FILES", "/nonexistent");
    let none = refused(&command.output().unwrap());
    assert!(none.contains("no GPU adapter was found"), "{none}");
    if !is_here() {
        return;
    }
    let device = ["--device", "gpu:llvmpipe", "--device-memory", "gpu=0"];
    refused(&troika(&[&HI[..], &device].concat()));
}
