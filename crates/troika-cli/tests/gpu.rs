//! GPUs in the command, by Mesa's software adapter where it is installed.

#![allow(clippy::panic, clippy::print_stdout, clippy::unwrap_used)]
#![cfg(feature = "gpu")]

mod common;
#[path = "../../troika-gpu/tests/common/needed.rs"]
mod needed;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

use common::{ends, fails, holds, json, said, started, stdout};

const HI: [&str; 7] = ["run", "-p", "Hello", "-n", "8", "--temp", "0"];
const GPU: [&str; 2] = ["--device", "gpu:llvmpipe"];

/// The folder that keeps what is found of the adapter, for all tests.
fn cache() -> &'static Path {
    static MADE: OnceLock<TempDir> = OnceLock::new();
    MADE.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

fn command(cache: &Path, args: &[&str]) -> Command {
    let mut command = common::command(args);
    command.env("TROIKA_CACHE_DIR", cache);
    command
}

fn troika(args: &[&str]) -> Output {
    command(cache(), args).output().unwrap()
}

/// The only line of an error has the words.
fn refused(output: &Output, words: &[&str]) {
    assert!(!output.status.success());
    let told = said(output);
    // A layer of the driver may complain about the desktop that it does not find.
    let lines: Vec<&str> = told.lines().filter(|l| !l.contains("XDG_RUNTIME_DIR")).collect();
    let [line] = lines[..] else { panic!("{told}") };
    holds(line, words);
}

/// Whether the software adapter is here.
fn is_here() -> bool {
    let here = troika(&["devices", "--device", "gpu:llvmpipe"]).status.success();
    if !here {
        needed::not_run("there is no gpu:llvmpipe");
    }
    here
}

#[test]
fn the_built_in_model_says_the_same_as_on_the_cpu() {
    if !is_here() {
        return;
    }
    let on = |device: &[&str]| stdout(&troika(&[&HI[..], device].concat()));
    let cpu = on(&[]);
    assert_eq!(on(&GPU), cpu);
    for strategy in ["split-columns", "split-rows", "alternate", "prefill-decode=gpu:cpu"] {
        let both = on(&["--device", "gpu:llvmpipe,cpu", "--strategy", strategy]);
        assert_eq!(both, cpu, "{strategy}");
    }
}

#[test]
fn wrong_adapters_and_budgets_are_one_line() {
    refused(&troika(&[&HI[..], &["--device", "gpu:77"]].concat()), &["no GPU adapter"]);
    let mut command = command(cache(), &[&HI[..], &["--device", "gpu"]].concat());
    command.env("VK_ICD_FILENAMES", "/nonexistent").env("VK_DRIVER_FILES", "/nonexistent");
    refused(&command.output().unwrap(), &["no GPU adapter was found"]);
    if !is_here() {
        return;
    }
    let alone = [&HI[..], &GPU, &["--device-memory", "gpu=0"]].concat();
    refused(&troika(&alone), &[]);
    // What does not fit stays on the CPU, if that is there.
    let cpu = stdout(&troika(&HI));
    for memory in ["gpu=0", "gpu=1", "gpu=2"] {
        let device = ["--device", "gpu:llvmpipe,cpu", "--device-memory", memory];
        assert_eq!(stdout(&troika(&[&HI[..], &device].concat())), cpu, "{memory}");
    }
}

#[test]
fn what_is_found_of_an_adapter_is_kept() {
    if !is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let run = || command(dir.path(), &[&HI[..], &GPU].concat()).output().unwrap();
    let first = stdout(&run());
    let kept = || {
        let folder = std::fs::read_dir(dir.path().join("devices")).unwrap();
        folder.map(|file| file.unwrap().path()).collect::<Vec<_>>()
    };
    // The kernels that were compared, and those that the driver compiled.
    assert_eq!(kept().len(), 2);
    let listed = stdout(&command(dir.path(), &["cache", "ls"]).output().unwrap());
    assert_eq!(listed.matches("kernels of a GPU").count(), 2, "{listed}");
    kept().iter().for_each(|file| std::fs::write(file, "damage").unwrap());
    let again = run();
    let told = said(&again);
    assert_eq!(told.matches("is made anew").count(), 2, "{told}");
    assert_eq!(stdout(&again), first);
    let last = run();
    assert!(!said(&last).contains("warning"));
    assert_eq!(stdout(&last), first);
}

#[test]
fn a_folder_that_takes_nothing_is_a_note() {
    if !is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let output = command(&file, &[&HI[..], &GPU].concat()).output().unwrap();
    let told = said(&output);
    assert_eq!(told.matches("nothing is kept of a GPU").count(), 1, "{told}");
    assert_eq!(stdout(&output), stdout(&troika(&HI)));
}

#[test]
fn two_processes_share_an_adapter() {
    if !is_here() {
        return;
    }
    let expected = stdout(&troika(&HI));
    let both = [(); 2].map(|()| started(&mut command(cache(), &[&HI[..], &GPU].concat())));
    for child in both {
        assert_eq!(stdout(&child.wait_with_output().unwrap()), expected);
    }
}

#[test]
fn shares_are_of_what_the_device_was_measured_to_do() {
    if !is_here() {
        return;
    }
    let bench = ["bench", "-p", "16", "-n", "4", "-r", "1", "-o", "json"];
    let rows = json(&troika(&[&bench[..], &GPU].concat()));
    let [prompt, token] = &rows.as_array().unwrap()[..] else { panic!("{rows}") };
    for (row, limit, unit) in
        [(prompt, "f32_fma_gpu", "gop_per_s"), (token, "read_bandwidth", "gb_per_s")]
    {
        assert_eq!(row["limit"], limit, "{row}");
        let of = row["limits"][limit].as_f64().unwrap();
        let share = row[unit].as_f64().unwrap() / of;
        assert!(of > 0.0 && share > 0.0, "{row}");
        assert!((share - row["share_of_limit"].as_f64().unwrap()).abs() < 1e-9, "{row}");
        // The CPU's limits are not among them.
        assert_eq!(row["limits"].as_object().unwrap().len(), 2, "{row}");
    }
}

/// The lines of a command that say what computes.
fn placed(output: &Output) -> Vec<String> {
    let told = said(output);
    told.lines().filter(|line| line.starts_with("note: tiny-moe")).map(String::from).collect()
}

/// Software is the CPU, so that it is neither chosen nor told of; `-ngl` says that no GPU computes.
#[test]
fn a_software_adapter_is_not_chosen() {
    let none = |command: &mut Command| {
        let none = command.env("VK_ICD_FILENAMES", "/nonexistent");
        none.env("VK_DRIVER_FILES", "/nonexistent").output().unwrap()
    };
    let expected = stdout(&troika(&HI));
    for args in [&[][..], &["--device", "auto"], &["--device", "cpu"], &["-ngl", "0"]] {
        let args = [&HI[..], args].concat();
        for output in [troika(&args), none(&mut command(cache(), &args))] {
            assert!(placed(&output).is_empty(), "{:?}", placed(&output));
            assert_eq!(stdout(&output), expected);
        }
    }
    let output = none(&mut command(cache(), &[&HI[..], &["-ngl", "99"]].concat()));
    let [line] = &placed(&output)[..] else { panic!("{output:?}") };
    assert!(line.contains("the CPU computes: there is no GPU that can be used"), "{line}");
    assert_eq!(stdout(&output), expected);
    for (wrong, says) in [
        (&["--device", "auto,cpu"][..], "auto stands alone"),
        (&["-ngl", "2", "--strategy", "alternate"], "--strategy"),
        (&["-ngl", "2", "--device", "cpu"], "--device"),
    ] {
        fails(&troika(&[&HI[..], wrong].concat()), &[says]);
    }
}

/// Budgets that are none, tiny, or more than there is: the CPU computes with a line, or it works.
#[test]
fn odd_budgets_are_told_or_work() {
    let refused_by = |args: &[&str]| ends(&troika(&[&HI[..], args].concat()), 2, &[]);
    assert!(refused_by(&["--kv-size", "0"]).contains("'0' for '--kv-size"));
    let beyond = format!("gpu={}", u64::MAX);
    assert!(refused_by(&["--device-memory", &beyond]).contains("a number of MiB"));
    let expected = stdout(&troika(&HI));
    for kv in ["1", "1099511627776"] {
        assert_eq!(stdout(&troika(&[&HI[..], &["--kv-size", kv]].concat())), expected, "{kv}");
    }
    for memory in ["gpu=0", "gpu=1", "gpu=1099511627776"] {
        let limit = ["--device-memory", memory];
        // The model is too small for a GPU: its limit is none of the CPU's.
        assert_eq!(stdout(&troika(&[&HI[..], &limit].concat())), expected, "{memory}");
        if !is_here() {
            continue;
        }
        for mib in ["1", "4096", "18446744073709551615"] {
            let mut command = command(cache(), &[&HI[..], &["-ngl", "99"], &limit].concat());
            let output = command.env("TROIKA_SOFTWARE_GPU", mib).output().unwrap();
            let [line] = &placed(&output)[..] else { panic!("{output:?}") };
            let fits = mib != "1" && memory.ends_with("776");
            let says =
                if fits { "4 of 4 layers on llvmpipe" } else { "the CPU computes: llvmpipe" };
            assert!(line.contains(says), "{memory} of {mib}: {line}");
            assert_eq!(stdout(&output), expected, "{memory} of {mib}");
        }
    }
}

#[test]
fn layers_are_on_a_card_as_far_as_its_memory_takes_them() {
    if !is_here() {
        return;
    }
    let on_card = |args: &[&str], mib: &str| {
        let mut command = command(cache(), args);
        command.env("TROIKA_SOFTWARE_GPU", mib).output().unwrap()
    };
    let expected = stdout(&troika(&HI));
    for (layers, mib, says) in [
        ("99", "4096", "4 of 4 layers on llvmpipe"),
        ("all", "4096", "4 of 4 layers on llvmpipe"),
        ("4", "4096", "4 of 4 layers on llvmpipe"),
        ("2", "4096", "2 of 4 layers on llvmpipe"),
        ("99", "0", "the CPU computes: llvmpipe"),
    ] {
        let output = on_card(&[&HI[..], &["-ngl", layers]].concat(), mib);
        let [line] = &placed(&output)[..] else { panic!("{output:?}") };
        assert!(line.contains(says), "-ngl {layers}: {line}");
        assert_eq!(line.contains("on the CPU"), ["2", "4"].contains(&layers), "{line}");
        assert_eq!(stdout(&output), expected, "-ngl {layers} with {mib} MiB");
    }
    // Without a flag the model is too small to open a driver for.
    assert!(placed(&on_card(&HI, "4096")).is_empty());
    // What was chosen is a plan like others.
    let dir = tempfile::tempdir().unwrap();
    let plan = dir.path().join("plan.json").display().to_string();
    stdout(&on_card(&["plan", "-ngl", "2", "-o", &plan], "4096"));
    let text = std::fs::read_to_string(&plan).unwrap();
    assert!(text.contains("layers=cpu:2+gpu:2+cpu:0"), "{text}");
    assert_eq!(stdout(&on_card(&[&HI[..], &["--plan", &plan]].concat(), "4096")), expected);
    for args in
        [&["bench", "-p", "8", "-n", "2", "-r", "1"][..], &["bench", "--overhead", "-n", "2"]]
    {
        stdout(&on_card(&[args, &["-ngl", "99"]].concat(), "4096"));
    }
}
