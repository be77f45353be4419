//! Experts shared out over devices, as a user types it.

#![allow(clippy::unwrap_used)]

mod common;

use serde_json::{Value, json};

use common::{fails, read_json, said, stdout, troika};

/// A text, and a calibration by it.
struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn new() -> Desk {
        let desk = Desk { folder: tempfile::tempdir().unwrap() };
        let text = "The sea was dark, and the night was long. In the city no one slept.\n";
        std::fs::write(desk.at("text.txt"), text.repeat(40)).unwrap();
        let args = ["calibrate", "-f", &desk.at("text.txt"), "-o", &desk.at("calibration.json")];
        stdout(&troika(&args));
        desk
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_string()
    }
}

#[test]
fn every_policy_writes_the_text_of_one_device() {
    let desk = Desk::new();
    let (text, calibration) = (desk.at("text.txt"), desk.at("calibration.json"));
    let run = ["run", "-f", &text, "-n", "12", "--temp", "0", "-q", "--dtype", "f32"];
    let run = [&run[..], &["--ubatch-size", "128"]].concat();
    let alone = stdout(&troika(&run));
    let counted = ["--calibration", &calibration];
    for (strategy, more) in [
        ("experts", &[][..]),
        ("experts=base", &counted),
        ("experts=t", &counted),
        ("experts=tg", &counted),
        ("experts", &counted),
        ("experts", &["--expert-dispatch", "layer-major"]),
        ("experts=tg", &["--expert-group-mib", "1"]),
    ] {
        let devices = ["--device", "a=cpu,b=cpu", "--strategy", strategy];
        let args = [&run[..], &devices, more].concat();
        assert_eq!(stdout(&troika(&args)), alone, "{strategy} {more:?}");
    }
}

/// Groups of any capacity, and experts that are divided by rows, by runs and by columns: a plan's
/// file names them, and the text stays the same.
#[test]
fn a_plans_file_divides_experts() {
    let desk = Desk::new();
    let (text, file) = (desk.at("text.txt"), desk.at("plan.json"));
    let run = ["run", "-f", &text, "-n", "12", "--temp", "0", "-q"];
    let typed = ["--dtype", "f32", "--ubatch-size", "128"];
    let alone = stdout(&troika(&[&run[..], &typed].concat()));
    let devices = ["--device", "a=cpu,b=cpu"];
    let make = ["plan", "--strategy", "experts=t", "-o", &file];
    stdout(&troika(&[&make[..], &typed, &devices].concat()));
    let plan = read_json(&file);
    let groups = |rule: &Value| rule["split"]["experts"]["groups"].as_array().cloned();
    let group = |device: &str, of: &Value, capacity: u64| json!({ "device": device, "experts": of["experts"], "capacity": capacity });
    let shares = json!([{ "device": "b", "share": 3 }, { "device": "a", "share": 2 }]);
    let by_rows = |g: &Value| vec![group("b", g, 48), group("a", g, 16)];
    let by_runs = |g: &Value| vec![group("b", g, 16); 4];
    let by_columns = |g: &Value| {
        let mut divided = group("b", g, 64);
        divided["parts"] = shares.clone();
        vec![divided]
    };
    let padded = |g: &Value| vec![group("b", g, 128)];
    type Divided<'a> = &'a dyn Fn(&Value) -> Vec<Value>;
    let ways: [(Divided<'_>, &str, &str, &str); 5] = [
        (&by_rows, "cpu", "per-chunk", "b 1 x 48, a 1 x 16"),
        (&by_rows, "cpu", "layer-major", "b 1 x 48, a 1 x 16"),
        (&by_runs, "cpu", "per-chunk", "b 1 x 16, b 1 x 16"),
        (&by_columns, "cpu", "per-chunk", "1 x 64 by columns (b 60.0 %, a 40.0 %)"),
        (&padded, "pad", "per-chunk", "overflow pad"),
    ];
    for (divided, overflow, dispatch, told) in ways {
        let mut plan = plan.clone();
        for rule in plan["prefill"]["rules"].as_array_mut().unwrap() {
            let Some(groups) = groups(rule) else { continue };
            let experts = &mut rule["split"]["experts"];
            experts["groups"] = groups.iter().flat_map(divided).collect();
            (experts["overflow"], experts["dispatch"]) = (overflow.into(), dispatch.into());
        }
        std::fs::write(&file, plan.to_string()).unwrap();
        let by_plan = [&devices[..], &["--plan", &file]].concat();
        assert_eq!(stdout(&troika(&[&run[..], &by_plan].concat())), alone, "{told}");
        let read: troika::plan::Plan = troika::plan::Plan::from_json(&plan.to_string()).unwrap();
        assert!(read.explain().contains(told), "{told}: {}", read.explain());
    }
}

#[test]
fn plans_say_which_experts_are_where() {
    let desk = Desk::new();
    let calibration = desk.at("calibration.json");
    let plan = ["plan", "--device", "a=cpu,b=cpu", "--strategy", "experts", "--explain"];
    let known = troika(&[&plan[..], &["--calibration", &calibration]].concat());
    assert!(stdout(&known).contains("experts per-chunk in groups: b 4 x 256"), "{known:?}");
    assert_eq!(said(&known), "");
    let note = said(&troika(&plan));
    assert!(note.contains("equally popular") && note.contains("--calibration FILE"), "{note}");
    // The length of prompts decides the length of chunks.
    let long = stdout(&troika(&[&plan[..], &["--for", "4096"]].concat()));
    assert!(long.contains("prefill in chunks of 1024"), "{long}");
}

#[test]
fn what_makes_no_sense_is_refused_with_the_flag() {
    let desk = Desk::new();
    let plan = ["plan", "--device", "a=cpu,b=cpu", "--strategy"];
    for (args, says) in [
        (&["experts=some"][..], "base, t, tg, all"),
        (&["experts", "--expert-dispatch", "sometimes"], "--expert-dispatch"),
        (&["experts", "--calibration", "/nowhere.json"], "/nowhere.json"),
        (&["experts", "--npu-format", "w8a8"], "needs --calibration"),
        (&["alternate", "--for", "512"], "--for has no effect without --profile"),
    ] {
        fails(&troika(&[&plan[..], args].concat()), &[says]);
    }
    let one = troika(&["plan", "--device", "a=cpu", "--strategy", "experts"]);
    fails(&one, &["two devices or more"]);
    let idle = troika(&["plan", "--expert-group-mib", "4"]);
    fails(&idle, &["only --strategy experts groups experts"]);
    // The calibration of another model.
    let foreign = ["--synthetic", "qwen3-moe-tiny", "--calibration", &desk.at("calibration.json")];
    let foreign = troika(&[&plan[..], &["experts"], &foreign].concat());
    fails(&foreign, &["calibrate this model"]);
}
