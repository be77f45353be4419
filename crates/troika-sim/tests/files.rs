//! Faults in SoC files: each gets a sentence with the place and the fault.

#![allow(clippy::expect_used, clippy::unwrap_used)]
#![allow(missing_docs)]

use std::path::Path;

use troika_graph::Op;
use troika_sim::{Soc, SocError, Tile};

const GOOD: &str = r#"
name = "s"
[[processor]]
name = "npu"
kind = "npu"
peak_gops = { f32 = 10, int8 = 200.5 }
bandwidth_gb_s = 4
launch_us = 0.5
static_shapes = true
row_buckets = [8, 32]
refuses = ["attention"]
"#;

fn refusal(text: &str) -> String {
    let e = Soc::parse("dir/s.toml", text).expect_err(text).to_string();
    assert!(!e.contains('\n') && e.starts_with("dir/s.toml"), "{e}");
    e
}

#[test]
fn a_file_is_read_with_its_defaults() {
    let soc = Soc::parse("s.toml", GOOD).unwrap();
    assert!(soc.numerics && soc.bandwidth_gb_s.is_none());
    let p = soc.processor(Some("npu")).unwrap();
    assert_eq!((p.peak_gops.f32, p.peak_gops.int8, p.peak_gops.bf16), (10.0, Some(200.5), None));
    assert_eq!((p.launch_ns, p.compile_ns, p.tile, p.queue_depth), (500, 0, Tile::ONE, 64));
    assert_eq!((&p.row_buckets[..], &p.refused[..]), (&[8, 32][..], &["attention"][..]));
    assert!(p.strided_rows && !p.own_memory && p.max_binding_bytes.is_none());
    let only = Soc::parse("s.toml", &GOOD.replace("refuses = [\"attention\"]", "only = [\"add\"]"));
    let only = only.unwrap();
    let others: Vec<&str> = Op::NAMES.iter().copied().filter(|op| *op != "add").collect();
    assert_eq!(only.processors[0].refused, others);
}

#[test]
fn whatever_is_wrong_is_named() {
    // A line of the good file, its replacement, and the expected refusal.
    let wrong = [
        ("name = \"s\"", "", ": name is missing"),
        ("name = \"s\"", "name = 3", ": name is 3; it must be the name"),
        (
            "name = \"s\"",
            "name = \"s\"\nnumerics = \"no\"",
            "numerics is \"no\"; it must be one of",
        ),
        ("name = \"s\"", "name = \"s\"\ncolour = 1", ": colour is not known here"),
        ("name = \"s\"", "name = \"s\"\nmemory = 3", "memory must be a table"),
        ("name = \"s\"", "name = \"s\"\nmemory = {}", ", memory: bandwidth_gb_s is missing"),
        ("name = \"npu\"", "", ", processor 1: name is missing"),
        ("name = \"npu\"", "name = \"a b\"", "names are made of letters"),
        ("name = \"npu\"", "name = \"\"", "names are made of letters"),
        ("kind = \"npu\"", "", ", processor npu: kind is missing"),
        ("kind = \"npu\"", "kind = \"tpu\"", "kind is \"tpu\""),
        ("bandwidth_gb_s = 4", "", ", processor npu: bandwidth_gb_s is missing"),
        ("bandwidth_gb_s = 4", "bandwidth_gb_s = 0", "bandwidth_gb_s is 0; it must be"),
        ("bandwidth_gb_s = 4", "bandwidth_gb_s = -4.0", "bandwidth_gb_s is -4; it must be"),
        ("bandwidth_gb_s = 4", "bandwidth_gb_s = nan", "bandwidth_gb_s is NaN; it must be"),
        ("bandwidth_gb_s = 4", "bandwidth_gb_s = inf", "bandwidth_gb_s is inf; it must be"),
        ("bandwidth_gb_s = 4", "bandwidth_gb_s = 1e300", "bandwidth_gb_s is 1"),
        ("bandwidth_gb_s = 4", "bandwidth_gb_s = \"4\"", "bandwidth_gb_s is \"4\""),
        ("launch_us = 0.5", "", "launch_us is missing"),
        ("launch_us = 0.5", "launch_us = -1", "launch_us is -1"),
        ("launch_us = 0.5", "launch_us = nan", "launch_us is NaN"),
        ("launch_us = 0.5", "launch_ms = 1\nlaunch_us = 1", "launch_ms is not known here"),
        ("f32 = 10, ", "", "peak_gops.f32 is missing"),
        ("f32 = 10, ", "f32 = 0, ", "peak_gops.f32 is 0"),
        ("int8 = 200.5", "int4 = 200.5", "peak_gops has no format int4"),
        ("[8, 32]", "[]", "row_buckets must be"),
        ("[8, 32]", "[32, 8]", "row_buckets must be"),
        ("[8, 32]", "[0, 8]", "row_buckets has 0"),
        ("[8, 32]", "[8, 99999999999]", "row_buckets must be"),
        ("[8, 32]", "8", "row_buckets must be a list"),
        ("static_shapes = true", "", "row_buckets is for processors with static_shapes"),
        ("static_shapes = true", "static_shapes = 1", "static_shapes is 1"),
        ("[\"attention\"]", "[\"atention\"]", "refuses has \"atention\", which is none of"),
        ("[\"attention\"]", "[\"attention\"]\nonly = []", "only and refuses"),
        ("refuses = [\"attention\"]", "only = []", "only leaves the processor no op"),
        ("launch_us = 0.5", "launch_us = 1\ntile = [0, 1]", "tile has 0"),
        ("launch_us = 0.5", "launch_us = 1\ntile = [1]", "tile must be [rows, columns]"),
        ("launch_us = 0.5", "launch_us = 1\nqueue_depth = 0", "queue_depth has 0"),
        ("launch_us = 0.5", "launch_us = 1\nqueue_depth = 1.5", "queue_depth has 1.5"),
        ("launch_us = 0.5", "launch_us = 1\nmax_binding_bytes = -1", "max_binding_bytes has -1"),
        ("launch_us = 0.5", "launch_us = 1\nsubmit_us = -1", "submit_us is -1"),
        ("launch_us = 0.5", "launch_us = 1\nhand_over = 3", "hand_over must be a table"),
        (
            "launch_us = 0.5",
            "launch_us = 1\nhand_over = { blocking_us = 3 }",
            ", processor npu, hand_over: predicted_us is missing",
        ),
        (
            "launch_us = 0.5",
            "launch_us = 1\nmeasured = [{ fixed_ns = 3 }]",
            ", processor npu, measured 1: ops is missing or empty",
        ),
        (
            "launch_us = 0.5",
            "launch_us = 1\nmeasured = [{ ops = [\"add\"] }]",
            "measured 1: rows must ascend, and one of the times must be more than 0",
        ),
        (
            "launch_us = 0.5",
            "launch_us = 1\nmeasured = [{ ops = [\"add\"], fixed_ns = 1, rows = [1, 2] }]",
            "measured 1: factors has 0 numbers, and rows has 2",
        ),
        (
            "launch_us = 0.5",
            "launch_us = 1\nproducts = { long_sum = 0 }",
            ", processor npu, products: long_sum has 0",
        ),
        (
            "launch_us = 0.5",
            "launch_us = 1\nproducts = { expand_gweights_s = -2 }",
            "expand_gweights_s is -2",
        ),
        (
            "launch_us = 0.5",
            "launch_us = 1\nproducts = { tile_rows = 2 }",
            "tile_rows is not known here",
        ),
        (
            "launch_us = 0.5",
            "launch_us = 1\npower = { idle_w = 2, busy_w = 1 }",
            "power.idle_w is more than busy_w",
        ),
        (
            "launch_us = 0.5",
            "launch_us = 1\npower = {}",
            ", processor npu, power: busy_w is missing",
        ),
        (
            "name = \"s\"",
            "name = \"s\"\nmemory = { bandwidth_gb_s = 9, pj_per_byte = 3 }",
            ", processor npu: power is missing",
        ),
        (
            "launch_us = 0.5",
            "launch_us = 1\npower = { busy_w = 1 }",
            ", processor npu: power is given, though the memory has no pj_per_byte",
        ),
        (
            "name = \"s\"",
            "name = \"s\"\nmemory = { bandwidth_gb_s = 9, rest_w = 3 }",
            ", memory: pj_per_byte is missing",
        ),
        ("launch_us = 0.5", "launch_us = { value = -2, from = \"H01\" }", "launch_us is -2"),
        ("launch_us = 0.5", "launch_us = { value = 2 }", "launch_us is a table"),
    ];
    for (line, instead, says) in wrong {
        assert!(GOOD.contains(line), "{line}");
        let e = refusal(&GOOD.replacen(line, instead, 1));
        assert!(e.contains(says), "{says}: {e}");
    }
    let all: Vec<String> = Op::NAMES.iter().map(|op| format!("\"{op}\"")).collect();
    let all = all.join(",");
    assert!(
        refusal(&GOOD.replace("\"attention\"", &all)).contains("refuses leaves the processor no")
    );
    assert!(refusal("name = \"s\"").contains("processor is missing"));
    assert!(refusal("name = \"s\"\nprocessor = 3").contains("processor must be"));
    assert!(refusal("name = \"s\"\nprocessor = []").contains("processor must be"));
    assert!(refusal("name = \"s\"\nprocessor = [3]").contains("processor 1: name is missing"));
    let twice = GOOD.to_string() + GOOD.split_once('\n').unwrap().1.split_once('\n').unwrap().1;
    assert!(refusal(&twice).contains("processor npu: name is that of another processor"));
    let e = refusal("name = \"s\"\n\n[[processor\n");
    assert!(e.contains(", line 3: "), "{e}");
}

#[test]
fn files_that_cannot_be_read_and_processors_that_are_not_there_are_told() {
    let e = Soc::read(Path::new("there/is/no.toml")).unwrap_err();
    assert!(matches!(e, SocError::Read { .. }) && e.to_string().contains("there/is/no.toml"));
    let soc = Soc::parse("s.toml", GOOD).unwrap();
    assert!(soc.processor(None).is_ok());
    let e = soc.processor(Some("gpu")).unwrap_err().to_string();
    assert!(e.contains("processors npu") && e.contains("\"gpu\""), "{e}");
}

/// The files of the repository.
#[test]
fn the_files_that_come_along_are_good() {
    let socs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../socs");
    let mut names = Vec::new();
    for dir in [socs.clone(), socs.join("odd")] {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "toml") {
                let soc = Soc::read(&path).unwrap();
                names.extend(soc.processors.into_iter().map(|p| p.name));
            }
        }
    }
    names.sort();
    let odd = ["dense-rows", "no-attention", "only-linear", "own-memory", "queue-depth-1"];
    let phones = ["cpu", "gpu", "npu"].repeat(Soc::names().count());
    let others = ["small-bindings", "static-shapes", "gpu", "npu", "double", "even", "cpu"];
    let mut all = [&odd[..], &others, &["cpu", "npu"], &phones].concat();
    all.sort_unstable();
    assert_eq!(names, all);
    for name in Soc::names() {
        assert_eq!(Soc::find(name).unwrap().processors.len(), 3);
    }
    let e = Soc::find("sd9").unwrap_err().to_string();
    assert_eq!(
        e,
        "there is no SoC \"sd9\"; name a file that ends in .toml, or one of sd8gen3-fp16, \
         sd8elite-fp16"
    );
}

#[test]
fn fields_that_there_are_are_named_once() {
    let text =
        "name = \"s\"\n[memory]\nbandwidth_gb_s = 9\npj_per_byte = 3\nrest_w = 1\nspeed = 2\n";
    let e = Soc::parse("s.toml", text).unwrap_err().to_string();
    assert!(e.contains("speed is not known here"), "{e}");
    assert!(e.ends_with("the fields are bandwidth_gb_s, pj_per_byte, rest_w"), "{e}");
}
