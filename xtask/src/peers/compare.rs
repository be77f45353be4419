//! Runs all engines and reads their output.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::line::{Line, read};
use super::options::Options;
use super::{Peer, batched};
use crate::command::{Result, text};

/// All engines' samples of a test.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    pub troika: Line,
    /// For each peer; `None` if it lacks the test.
    pub peers: Vec<Option<Line>>,
}

/// The measurements with a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    pub file: PathBuf,
    pub tests: Vec<Compared>,
}

/// Runs all engines on a file, in turns.
pub fn compare(troika: &Path, peers: &[Peer], file: &Path, o: &Options) -> Result<Measured> {
    let (mut ours, mut theirs) = (Vec::new(), vec![Vec::new(); peers.len()]);
    for round in 1..=o.rounds {
        eprintln!("{}: round {round} of {}", file.display(), o.rounds);
        let mut own = Command::new(troika);
        own.arg("bench").args(o.device_flags());
        ours.push(read(&run(&mut own, file, o, true)?)?);
        for (peer, theirs) in peers.iter().zip(&mut theirs) {
            if peer.depths || at_no_depth(o) {
                let mut ran = peer_command(&peer.bench, o);
                ran.args(peer.args).args(o.threads_flags());
                // A peer that lacks a type of weights lacks a column of its row.
                match run(&mut ran, file, o, peer.depths) {
                    Ok(said) => theirs.push(read(&said)?),
                    Err(e) => eprintln!("{}: {e}", peer.name),
                }
            }
        }
        let Some(sequences) = &o.sequences else { continue };
        ours.push(batched::troika(troika, file, sequences, o)?);
        for (peer, theirs) in peers.iter().zip(&mut theirs) {
            if let Some(bench) = &peer.batched {
                let mut command = peer_command(bench, o);
                command.args(peer.batched_args);
                theirs.push(batched::peer(command, file, sequences, o)?);
            }
        }
    }
    Ok(Measured {
        file: file.to_path_buf(),
        tests: together(merge(ours), theirs.into_iter().map(merge).collect()),
    })
}

/// A peer's program. llama.cpp takes a software adapter only if it is named.
fn peer_command(program: &Path, o: &Options) -> Command {
    const ADAPTER: &str = "GGML_VK_VISIBLE_DEVICES";
    let mut command = Command::new(program);
    if o.device.is_some() && std::env::var_os(ADAPTER).is_none() {
        command.env(ADAPTER, "0");
    }
    command
}

/// Our lines with each peer's line of the same test. Leaves out tests that no peer has.
fn together(ours: Vec<Line>, theirs: Vec<Vec<Line>>) -> Vec<Compared> {
    let compared = |troika: Line| {
        let same = |lines: &Vec<Line>| lines.iter().find(|l| l.test == troika.test).cloned();
        let peers: Vec<Option<Line>> = theirs.iter().map(same).collect();
        peers.iter().any(Option::is_some).then_some(Compared { troika, peers })
    };
    ours.into_iter().filter_map(compared).collect()
}

/// Whether any test has an empty context.
fn at_no_depth(o: &Options) -> bool {
    o.depths.split(',').any(|d| d.parse() == Ok(0))
}

fn run(command: &mut Command, file: &Path, o: &Options, depths: bool) -> Result<String> {
    command.arg("-m").arg(file).args(["-p", &o.prompts, "-n", &o.tokens, "-o", "json"]);
    if depths {
        command.args(["-d", &o.depths]);
    }
    command.args(["-r", &o.repetitions.to_string()]);
    text(command, "the benchmark")
}

/// Joins the samples of several turns.
fn merge(turns: Vec<Vec<Line>>) -> Vec<Line> {
    let mut all: Vec<Line> = Vec::new();
    for line in turns.into_iter().flatten() {
        let Some(known) = all.iter_mut().find(|l| l.test == line.test) else {
            all.push(line);
            continue;
        };
        known.samples.extend(line.samples);
        join_limits(&mut known.limits, line.limits);
    }
    all
}

/// Adds measurements to limits of the same name.
pub fn join_limits(known: &mut Vec<(String, Vec<f64>)>, others: Vec<(String, Vec<f64>)>) {
    for (name, values) in others {
        match known.iter_mut().find(|l| l.0 == name) {
            Some(limit) => limit.1.extend(values),
            None => known.push((name, values)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::line::Test;

    const TROIKA: &str = r#"[
        {"n_prompt": 512, "n_gen": 0, "n_depth": 0, "model_size": 100, "samples_ts": [10.0, 12.5],
         "avg_ts": 10, "share_of_limit": 0.5, "limit": "int8", "limits": {"int8": 100.0, "read_bandwidth": 20}},
        {"n_prompt": 0, "n_gen": 64, "n_depth": 0, "model_size": 100, "samples_ts": [5],
         "share_of_limit": null, "limit": "read_bandwidth", "limits": {}}
    ]"#;

    fn test(prompt: u64, generate: u64, depth: u64) -> Test {
        Test { prompt, generate, depth, sequences: 1 }
    }

    #[test]
    fn both_benchmarks_are_read() {
        let lines = read(TROIKA).unwrap();
        assert_eq!(lines[0].test, test(512, 0, 0));
        assert_eq!(lines[0].samples, [10.0, 12.5]);
        assert_eq!(lines[0].per_token, Some(5.0));
        assert_eq!(lines[0].limits[0], ("int8".to_string(), vec![100.0]));
        assert_eq!((lines[1].test, lines[1].per_token), (test(0, 64, 0), None));
        let llama = r#"[{"build_commit": "x", "n_prompt": 0, "n_gen": 8, "n_depth": 64,
            "model_size": 5, "model_n_params": 7, "avg_ts": 3.0, "samples_ts": [2.0, 4.0]}]"#;
        let lines = read(llama).unwrap();
        assert_eq!((lines[0].test, lines[0].size), (test(0, 8, 64), 5));
        assert!(lines[0].limit.is_empty() && lines[0].limits.is_empty());
    }

    #[test]
    fn peers_stand_beside_the_same_test() {
        let ours = read(TROIKA).unwrap();
        let llama = vec![Line { samples: vec![3.0], ..ours[0].clone() }];
        let deep = vec![Line { test: test(512, 0, 64), ..ours[0].clone() }];
        let all = together(ours.clone(), vec![llama.clone(), deep]);
        let want = Compared { troika: ours[0].clone(), peers: vec![Some(llama[0].clone()), None] };
        assert_eq!(all, [want]);
    }

    #[test]
    fn who_measures_at_no_depth_is_asked_for_none() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: Options,
        }
        let options = |d: &str| {
            let line = ["peers", "f", "--llama", "x", "-d", d, "-p", "8", "-n", "1"];
            <Line as clap::Parser>::parse_from(line).options
        };
        assert!(at_no_depth(&options("0")) && at_no_depth(&options("512,0")));
        assert!(!at_no_depth(&options("512,64")));
        let mut echo = Command::new("echo");
        let said = run(&mut echo, Path::new("f"), &options("0,9"), false).unwrap();
        assert!(said.contains("-p 8 -n 1") && !said.contains("-d"), "{said}");
        let mut echo = Command::new("echo");
        assert!(run(&mut echo, Path::new("f"), &options("0,9"), true).unwrap().contains("-d 0,9"));
    }

    #[test]
    fn what_is_no_benchmark_is_refused() {
        for text in ["", "{}", "[{}]", r#"[{"n_prompt": 1, "n_gen": 0, "model_size": 1}]"#] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn turns_are_joined_by_test() {
        let mut second = read(TROIKA).unwrap();
        second[0].limits[0].1 = vec![120.0];
        let all = merge(vec![read(TROIKA).unwrap(), second]);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].samples, [10.0, 12.5, 10.0, 12.5]);
        assert_eq!(all[0].limits[0].1, [100.0, 120.0]);
    }
}
