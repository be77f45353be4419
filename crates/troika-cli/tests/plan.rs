//! Several devices, strategies and plan files, as a user types them.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::LazyLock;

use serde_json::Value;
use troika::plan::{Phase, Plan};
use troika::{DeviceOptions, OpenOptions, Source};

use common::{
    edit_json, fails, holds, json, json_lines, read_json, refusal, refused, said, stdout, troika,
};

const RUN: [&str; 8] = ["run", "-p", "It was a dark night", "-n", "12", "--temp", "0", "-q"];

/// Two devices, the first of them on one core.
fn two() -> [&'static str; 2] {
    static DEVICES: LazyLock<String> = LazyLock::new(|| match troika::usable_cores().first() {
        Some(core) => format!("a=cpu:{core},b=cpu"),
        None => "a=cpu,b=cpu".into(),
    });
    ["--device", &DEVICES]
}

#[test]
fn every_strategy_writes_the_same_text() {
    let alone = stdout(&troika(&RUN));
    assert!(alone.len() > 12, "{alone:?}");
    for strategy in [
        "one-device",
        "alternate",
        "split-columns",
        "split-columns=0.7",
        "split-rows=1",
        "split-hybrid",
        "prefill-decode",
    ] {
        let more = ["--strategy", strategy, "--ubatch-size", "2"];
        assert_eq!(stdout(&troika(&[&RUN[..], &two(), &more].concat())), alone, "{strategy}");
    }
}

#[test]
fn a_plan_is_written_edited_and_run_by() {
    let dir = tempfile::tempdir().unwrap();
    let file = &dir.path().join("plan.json").display().to_string();
    let make = [&["plan"][..], &two(), &["--strategy", "alternate"]].concat();
    let printed = stdout(&troika(&make));
    assert_eq!(stdout(&troika(&[&make[..], &["--out", file]].concat())), "");
    assert_eq!(std::fs::read_to_string(file).unwrap(), printed);
    let mut plan: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(plan["devices"], serde_json::json!(["a", "b"]));
    let table = stdout(&troika(&[&make[..], &["--explain"]].concat()));
    assert_eq!(table.matches("| prefill |").count(), 4, "{table}");

    let alone = stdout(&troika(&RUN));
    let by_plan = [&RUN[..], &two(), &["--plan", file]].concat();
    assert_eq!(stdout(&troika(&by_plan)), alone);
    // Edited: decode on one device. The trace shows where everything ran.
    let activations = plan["decode"]["rules"][0]["activations"].clone();
    plan["decode"]["rules"] = serde_json::json!([{"device": "b", "activations": activations}]);
    std::fs::write(file, plan.to_string()).unwrap();
    let trace = dir.path().join("trace.json");
    let traced = [&by_plan[..], &["--trace", trace.to_str().unwrap()]].concat();
    assert_eq!(stdout(&troika(&traced)), alone);
    let events = read_json(trace);
    let spans = events["traceEvents"].as_array().unwrap();
    let lane = |e: &Value| e["tid"].clone();
    let named: Vec<&Value> = spans.iter().filter(|e| e["name"] == "head").collect();
    assert_eq!(named.len(), 12);
    assert!(named[1..].iter().all(|e| lane(e) == lane(named[1])), "decoded on one device");
    let layers = |n: usize| -> Vec<Value> {
        let name = format!("layer {n} qkv");
        spans.iter().filter(|e| e["name"] == name.as_str()).map(lane).collect()
    };
    assert_ne!(layers(0)[0], layers(1)[0], "the prompt alternates");
    assert_eq!(layers(0)[1], layers(1)[1], "decoding does not");
}

/// A file in `socs`, as a device.
fn odd(name: &str, file: &str) -> String {
    format!("{name}=virtual:{}/../../socs/odd/{file}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn what_a_device_refuses_runs_elsewhere_and_is_said() {
    let alone = stdout(&troika(&RUN));
    let dir = tempfile::tempdir().unwrap();
    let file = &dir.path().join("plan.json").display().to_string();
    let (odd, cpu) = (odd("b", "no-attention.toml"), "a=cpu");
    let both = ["--device", cpu, "--device", &odd, "--strategy", "alternate"];
    let refuses = "device b does not take attention (";
    let out = troika(&[&RUN[..], &both].concat());
    assert_eq!(stdout(&out), alone);
    holds(&said(&out), &[refuses, "the plan has a compute them"]);
    // The plan says so too.
    let out = troika(&[&["plan"][..], &both, &["--explain"]].concat());
    assert!(stdout(&out).contains("by a instead of b"), "{}", stdout(&out));
    assert!(said(&out).contains(refuses));

    // A user's plan is not changed unless that is allowed.
    let cpus = ["--device", "a=cpu,b=cpu", "--strategy", "alternate"];
    stdout(&troika(&[&["plan"][..], &cpus, &["--out", file]].concat()));
    let by_plan = ["--device", cpu, "--device", &odd, "--plan", file];
    let why = "the plan has device b compute op attention of segment attention";
    fails(&troika(&[&RUN[..], &by_plan].concat()), &[why]);
    let out = troika(&[&RUN[..], &by_plan, &["--fallback"]].concat());
    assert_eq!(stdout(&out), alone);
    holds(&said(&out), &[refuses]);
    // Without a plan it is for devices that are lost.
    assert_eq!(stdout(&troika(&[&RUN[..], &["--fallback"]].concat())), alone);

    // No other device is available.
    let out = troika(&[&RUN[..], &["--device", &odd]].concat());
    fails(&out, &["no device takes attention of segment attention; b:"]);
}

#[test]
fn an_explained_plan_says_what_it_copies() {
    let explain = |devices: &str, more: &[&str]| {
        stdout(&troika(&[&["plan", "--explain", "--device", devices][..], more].concat()))
    };
    let shared = explain("a=cpu,b=cpu", &["--strategy", "alternate", "--ubatch-size", "32"]);
    for rows in ["a chunk of 32 tokens", "a decoded token"] {
        holds(&shared, &[&format!("| values | {rows} | | | no copies | |\n")]);
    }
    let own = format!("a=cpu,{}", odd("b", "own-memory.toml"));
    let text = explain(&own, &["--strategy", "alternate", "--ubatch-size", "32"]);
    assert!(!text.contains("no copies"), "{text}");
    for (of, pair) in [
        ("values | a chunk of 32 tokens", "host memory | memory of b"),
        ("values | a chunk of 32 tokens", "memory of b | host memory"),
        ("values | a decoded token", "host memory | memory of b"),
        ("values | a decoded token", "memory of b | host memory"),
    ] {
        assert_eq!(text.matches(&format!("| {of} | {pair} | ")).count(), 1, "{text}");
    }
    // Caches are handed over once; a decoded token needs its ids and logits.
    let text = explain(&own, &["--strategy", "prefill-decode", "--ubatch-size", "32"]);
    let lines = [
        "| values | a chunk of 32 tokens | | | no copies | |\n",
        "| caches | 32 cached tokens, once | host memory | memory of b | 8 | ",
        "| values | a decoded token | host memory | memory of b | 2 | 8 |\n",
        "| values | a decoded token | memory of b | host memory | 1 | 16384 |\n",
    ];
    holds(&text, &lines);
}

#[test]
fn plans_and_devices_that_make_no_sense_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let plan = stdout(&troika(&[&["plan"][..], &two(), &["--strategy", "alternate"]].concat()));
    let write = |name: &str, text: &str| {
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_string()
    };
    let good = write("good.json", &plan);
    let cases = [
        (write("empty.json", ""), "empty.json: it is not a plan"),
        (
            write("field.json", &plan.replace("page_len", "pagelen")),
            "there is no field \"pagelen\"",
        ),
        (write("other.json", &plan.replace("\"hidden\": ", "\"hidden\": 1")), "make it again"),
        (write("old.json", &plan.replace("\"version\": 2", "\"version\": 1")), "version 1"),
        (
            write("page.json", &plan.replace("\"page_len\": 32", "\"page_len\": 33")),
            "page.json: the page",
        ),
        (
            write("rule.json", &plan.replacen("\"device\": \"a\"", "\"device\": \"z\"", 1)),
            "rule.json: rule 1",
        ),
        (dir.path().join("none.json").to_str().unwrap().to_string(), "none.json"),
    ];
    for (file, expected) in &cases {
        let out = troika(&[&RUN[..], &two(), &["--plan", file]].concat());
        fails(&out, &[]);
        refusal(&out, &[expected]);
    }
    let more = ["--plan", &good];
    let out = troika(&[&RUN[..], &more].concat());
    assert_eq!(fails(&out, &["good.json: ", "device a", "--device"]), 1);
    for rival in [["-c", "99"], ["--strategy", "alternate"], ["--ubatch-size", "8"]] {
        let out = troika(&[&RUN[..], &two(), &more, &rival].concat());
        assert_eq!(fails(&out, &["cannot be used with"]), 2);
    }
    for (args, expected) in [
        (&["--device", "tpu"][..], "is no device"),
        (&["--device", "cpu:99999"], "is no device"),
        (&["--device", "a=cpu,a=cpu"], "two devices are named a; give each one"),
        (
            &["--isa", "foo"],
            "for '--isa <NAME>': this machine has no kernels of that name; it has ",
        ),
        (&["--device", "cpu", "-t", "2"], "cannot be used with"),
        (&["--device", "cpu", "--isa", "scalar"], "cannot be used with"),
        (&["--strategy", "alternate"], "needs two devices or more, there are 1"),
        (&["--strategy", "fastest"], "invalid value 'fastest'"),
        // Of the 256 tiles of the head, half of one is the least: for both devices alike.
        (
            &["--device", "a=cpu,b=cpu", "--strategy", "split-columns=0.001"],
            "leaves device a nothing to compute; its share of the columns must be from 0.002 to 0.998",
        ),
        (
            &["--device", "a=cpu,b=cpu", "--strategy", "split-columns=0.999"],
            "leaves device b nothing to compute; its share of the columns must be from 0.002 to 0.998",
        ),
    ] {
        assert_eq!(fails(&troika(&[&RUN[..], args].concat()), &[expected]), 2, "{args:?}");
    }
    let twice = troika(&["devices", "--device", "a=cpu", "--device", "a=cpu"]);
    assert_eq!(fails(&twice, &[]), 2);
}

/// No flag beside a plan can change its context.
#[test]
fn lengths_beyond_a_plans_context_name_the_plan() {
    let dir = tempfile::tempdir().unwrap();
    let file = &dir.path().join("small.json").display().to_string();
    stdout(&troika(&["plan", "-c", "12", "--out", file]));
    let text = "a text of more tokens than that, and some more of them";
    let out = troika(&["run", "--plan", file, "-p", text]);
    assert_eq!(fails(&out, &["the context is the plan's; troika plan -c"]), 1);
    assert!(!said(&out).contains("(-c)"), "{}", said(&out));
    let bench = ["bench", "--plan", file, "-r", "1", "-o", "json"];
    for lengths in [["-p", "10,13", "-n", "0"], ["-p", "4", "-n", "13"]] {
        let out = troika(&[&bench[..], &lengths].concat());
        let words = ["small.json: the plan's context is 12", "13 tokens are to be measured"];
        assert_eq!(fails(&out, &words), 2);
    }
    let out = troika(&[&bench[..], &["-p", "10,3000"]].concat());
    fails(&out, &["the plan's context is 12"]);
    assert!(!said(&out).contains("-c;"), "{}", said(&out));
    // As many as fit the context.
    let lengths = ["-p", "12", "-n", "12"];
    let table = json(&troika(&[&bench[..], &lengths].concat()));
    assert_eq!(table.as_array().unwrap().len(), 2);
}

#[test]
fn a_plan_states_the_rows_of_static_shapes() {
    let dir = tempfile::tempdir().unwrap();
    let file = &dir.path().join("plan.json").display().to_string();
    let devices = ["--device", &odd("b", "static-shapes.toml"), "--device", "a=cpu"];
    let make = [&["plan"][..], &devices, &["--strategy", "prefill-decode", "--out", file]].concat();
    stdout(&troika(&make));
    let by_plan = [&RUN[..], &devices, &["--plan", file]].concat();
    let own = stdout(&troika(&by_plan));
    assert!(own.len() > 12, "{own:?}");
    let plan = std::fs::read_to_string(file).unwrap();
    let edit = |phase: &str, rows: Value| {
        let mut plan: Value = serde_json::from_str(&plan).unwrap();
        plan[phase]["rules"][0]["row_buckets"] = rows;
        std::fs::write(file, plan.to_string()).unwrap();
    };
    edit("prefill", serde_json::json!([2, 6]));
    assert_eq!(stdout(&troika(&by_plan)), own);
    for (phase, rows, words) in [
        ("prefill", serde_json::json!([6, 2]), "rule 1 of prefill has row buckets [6, 2]; give"),
        ("prefill", serde_json::json!([-1]), "-1 where a whole number from 0 on"),
        ("prefill", serde_json::json!([65537]), "give some from 1 to 65536"),
        ("decode", serde_json::json!([1]), "rule 1 of decode has row buckets, but a takes any"),
    ] {
        edit(phase, rows);
        refused(&troika(&by_plan), 1, &[words]);
    }
}

#[test]
fn how_devices_wait_is_the_plans_to_say() {
    let dir = tempfile::tempdir().unwrap();
    let file = &dir.path().join("plan.json").display().to_string();
    let blocking = ["--strategy", "alternate", "--sync", "blocking"];
    let alone = stdout(&troika(&RUN));
    assert_eq!(stdout(&troika(&[&RUN[..], &two(), &blocking].concat())), alone);
    stdout(&troika(&[&["plan"][..], &two(), &blocking, &["--out", file]].concat()));
    assert_eq!(read_json(file)["sync"], "blocking");
    let bench = ["bench", "-p", "8", "-n", "0", "-r", "1", "-o", "jsonl"];
    let by_plan = ["--plan", file];
    for more in [&blocking[..], &by_plan] {
        let row = json(&troika(&[&bench[..], &two(), more].concat()));
        assert_eq!(row["sync"], "blocking", "{more:?}");
    }
    let both = [&RUN[..], &two(), &by_plan, &["--sync", "predicted"]].concat();
    assert_eq!(fails(&troika(&both), &["cannot be used with"]), 2);
    let never = troika(&[&RUN[..], &["--sync", "never"]].concat());
    assert_eq!(fails(&never, &["'never'", "blocking"]), 2);
}

/// A plan for a shape needs no weights: these would have 120 GB.
#[test]
fn shapes_are_planned_without_weights() {
    let plan = stdout(&troika(&["plan", "--synthetic", "qwen3-30b-a3b:F32"]));
    assert!(plan.contains("\"layers\": 48"), "{plan}");
}

/// Rules of a plan's file may have segments hand on values of 16 bits.
#[test]
fn values_of_16_bits_halve_what_is_copied() {
    let own = format!("a=cpu,{}", odd("b", "own-memory.toml"));
    let dir = tempfile::tempdir().unwrap();
    let file = &dir.path().join("plan.json").display().to_string();
    let planned = |more: &[&str], values: &str| {
        stdout(&troika(&[&["plan", "--out", file][..], more].concat()));
        edit_json(file.as_ref(), |plan| {
            for phase in ["prefill", "decode"] {
                let rules = plan[phase]["rules"].as_array_mut().unwrap();
                rules.iter_mut().for_each(|rule| rule["values"] = values.into());
            }
        });
        std::fs::read_to_string(file).unwrap()
    };
    let copied = |values: &str| -> u64 {
        let plan = planned(&["--device", &own, "--strategy", "alternate"], values);
        let devices = own.split(',').map(|d| d.parse().unwrap()).collect();
        let options = OpenOptions {
            plan: Plan::from_json(&plan).unwrap().into(),
            devices: DeviceOptions { devices, ..DeviceOptions::default() },
            ..OpenOptions::default()
        };
        let planned = troika::make_plan(Source::BuiltIn, &options).unwrap();
        let phases = planned.copies().unwrap();
        let prompt = phases.iter().find(|p| p.phase == Phase::Prefill).unwrap();
        // Positions, which b gets, stay whole numbers of 32 bits.
        prompt.values.iter().filter(|c| c.from.is_some()).map(|c| c.bytes).sum()
    };
    assert_eq!(copied("F32"), 2 * copied("BF16"));
    // If all devices use f32 activations, results do not depend on the division.
    let exact = ["--dtype", "f32"];
    planned(&exact, "BF16");
    let alone = stdout(&troika(&[&RUN[..], &["--plan", file]].concat()));
    for strategy in ["alternate", "split-columns", "split-hybrid"] {
        planned(&[&exact[..], &["--device", &own, "--strategy", strategy]].concat(), "BF16");
        let by_plan = ["--device", &own, "--plan", file];
        assert_eq!(stdout(&troika(&[&RUN[..], &by_plan].concat())), alone, "{strategy}");
    }
    for (dtype, words) in
        [("I32", "has values of type I32; use"), ("F9", "\"F9\" is not known here")]
    {
        planned(&[], dtype);
        refused(&troika(&[&RUN[..], &["--plan", file]].concat()), 1, &[words]);
    }
    planned(&[], "BF16");
    let bench = ["bench", "-p", "8", "-n", "0", "-r", "1", "-o", "jsonl", "--plan", file];
    assert_eq!(json(&troika(&bench))["value_type"], "bf16");
}

#[test]
fn bench_and_devices_take_devices_too() {
    let listed = json(&troika(&[&["devices", "--json"][..], &two()].concat()));
    let names: Vec<&Value> = listed.as_array().unwrap().iter().map(|d| &d["name"]).collect();
    assert_eq!(names, ["a", "b"]);
    let args = ["bench", "--synthetic", "qwen3-moe-tiny", "-p", "40", "-n", "2", "-r", "1"];
    let more = ["-o", "jsonl", "--ubatch-size", "8", "--strategy", "alternate"];
    let rows = json_lines(&troika(&[&args[..], &more, &two()].concat()));
    for row in &rows {
        assert_eq!((&row["backends"], &row["strategy"]), (&"a+b".into(), &more[5].into()));
        assert_eq!((&row["chunks_in_flight"], &row["sync"]), (&4.into(), &"predicted".into()));
    }
    assert_eq!(rows.len(), 2);
}

/// Rules by chunk length change where chunks run, but no results. A bucket that leaves nothing to
/// full chunks is refused.
#[test]
fn rules_by_length_write_the_same_text() {
    let alone = stdout(&troika(&RUN));
    let dir = tempfile::tempdir().unwrap();
    let file = &dir.path().join("plan.json").display().to_string();
    let make = |strategy: &str| {
        let more = ["--strategy", strategy, "--ubatch-size", "4"];
        json(&troika(&[&["plan"][..], &two(), &more].concat()))
    };
    let mut plan = make("one-device");
    plan["devices"] = serde_json::json!(["a", "b"]);
    let rules = |strategy: &str| make(strategy)["prefill"]["rules"].clone();
    plan["prefill"]["lengths"] = serde_json::json!([
        { "up_to": 1, "rules": rules("alternate") },
        { "up_to": 3, "rules": rules("split-rows=2") },
    ]);
    let run = [&RUN[..], &two(), &["--plan", file]].concat();
    for chunk in [4, 5] {
        plan["prefill"]["chunk"] = chunk.into();
        std::fs::write(file, plan.to_string()).unwrap();
        // The last chunk of a prompt is shorter than the others.
        assert_eq!(stdout(&troika(&run)), alone, "{chunk}");
    }
    // The cache is in one place, whatever the length.
    let mut torn = plan.clone();
    torn["prefill"]["lengths"][0]["rules"] = rules("split-columns=0.3");
    std::fs::write(file, torn.to_string()).unwrap();
    fails(&troika(&run), &["use a cache in one place"]);
    plan["prefill"]["lengths"][1]["up_to"] = 5.into();
    std::fs::write(file, plan.to_string()).unwrap();
    let nothing = "leaves nothing to the rules of chunks of 5";
    assert_eq!(fails(&troika(&run), &[nothing]), 1);
}
