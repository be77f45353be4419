//! Several sequences decoded at once, as `llama-batched-bench` measures them.

use std::path::Path;
use std::process::Command;

use super::line::{Line, Test, read};
use super::options::Options;
use crate::command::{Result, output, text};

/// llama.cpp gives each sequence a multiple of this many places in the cache.
const PLACES: u64 = 256;

/// Troika's lines for these numbers of sequences.
pub fn troika(command: &Path, file: &Path, sequences: &str, o: &Options) -> Result<Vec<Line>> {
    let mut bench = Command::new(command);
    bench.arg("bench").args(o.device_flags()).arg("-m").arg(file);
    bench.args(["-p", "0", "-n", &o.tokens, "-d", &o.depths, "--sequences", sequences]);
    bench.args(["-r", &o.repetitions.to_string(), "-o", "json"]);
    read(&text(&mut bench, "troika bench")?)
}

/// The lines of a peer's program for the same.
pub fn peer(mut command: Command, file: &Path, sequences: &str, o: &Options) -> Result<Vec<Line>> {
    let (depths, tokens, each) = (numbers(&o.depths), numbers(&o.tokens), numbers(sequences));
    let most = |list: &[u64]| list.iter().copied().max().unwrap_or(0);
    let places = most(&each) * (most(&depths).max(1) + most(&tokens)).next_multiple_of(PLACES);
    // Without a prompt, ik_llama.cpp's program writes before its batch.
    let prompts: Vec<String> = depths.iter().map(|d| d.max(&1).to_string()).collect();
    // It has no flag for repetitions.
    let all = vec![sequences; o.repetitions as usize].join(",");
    command.arg("-m").arg(file).args(["-c", &places.to_string(), "-npp", &prompts.join(",")]);
    command.args(["-ntg", &o.tokens, "-npl", &all, "-t", &o.threads().to_string()]);
    let out = output(&mut command)?;
    // llama.cpp's table is in the output, ik_llama.cpp's among the errors.
    let said = [out.stdout, out.stderr].map(|b| String::from_utf8_lossy(&b).into_owned());
    let lines: Vec<Line> = said.iter().flat_map(|s| s.lines()).filter_map(line).collect();
    let wanted = depths.len() * tokens.len() * each.len() * o.repetitions as usize;
    match out.status.success() && lines.len() == wanted {
        true => Ok(lines),
        false => Err(format!(
            "llama-batched-bench ({}) printed {} of {wanted} measurements",
            out.status,
            lines.len()
        )),
    }
}

fn numbers(list: &str) -> Vec<u64> {
    list.split(',').filter_map(|n| n.parse().ok()).collect()
}

/// Reads a row of the program's table: prompt, tokens, sequences, places, then times and rates.
fn line(row: &str) -> Option<Line> {
    let cells: Vec<&str> = row.trim().strip_prefix('|')?.split('|').map(str::trim).collect();
    let [prompt, generate, sequences, _, _, _, _, rate, ..] = cells[..] else { return None };
    let (prompt, rate): (u64, f64) = (prompt.parse().ok()?, rate.parse().ok()?);
    let depth = if prompt == 1 { 0 } else { prompt };
    let (generate, sequences) = (generate.parse().ok()?, sequences.parse().ok()?);
    let test = Test { prompt: 0, generate, depth, sequences };
    Some(Line { test, samples: vec![rate], ..Line::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn rows_of_the_table_are_read_and_nothing_else() {
        let row = "|     1 |     16 |    4 |     68 |    0.101 |    39.60 |    1.504 |    42.55 |    1.605 |    42.37 |";
        let read = line(row).unwrap();
        let test = Test { prompt: 0, generate: 16, depth: 0, sequences: 4 };
        assert_eq!((read.test, &read.samples[..]), (test, &[42.55][..]));
        assert_eq!(line(&row.replacen("  1 ", "512 ", 1)).unwrap().test.depth, 512);
        let head = "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |";
        for other in [head, "|-------|--------|------|", "", "| 1 | 16 | 4 |", "1 16 4 68 1 2 3 4"]
        {
            assert_eq!(line(other), None, "{other}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_missing_measurement_is_an_error() {
        let line = ["peers", "f", "--llama", "x", "-n", "16", "-t", "2", "-r", "2", "-d", "0,512"];
        let o = <Flags as clap::Parser>::parse_from(line).options;
        let run = |script: &str| {
            let mut sh = Command::new("sh");
            sh.args(["-c", script, "sh"]);
            peer(sh, Path::new("f"), "4,8", &o)
        };
        // A row for each of its prompts, tokens and sequences, as the program prints it.
        let table = "echo $@ >&2; for p in $(echo $6 | tr , ' '); do for n in $(echo ${10} | tr , ' '); \
             do echo \"| $p | $8 | $n | 9 | 1 | 2 | 3 | 4.5 | 5 | 6 |\"; done; done";
        let all = run(table).unwrap();
        assert_eq!(all.len(), 8);
        assert_eq!(all[7].test, Test { prompt: 0, generate: 16, depth: 512, sequences: 8 });
        assert!(run("echo '| 1 | 16 | 4 | 9 | 1 | 2 | 3 | 4.5 | 5 | 6 |'").is_err());
        assert!(run(&format!("{table}; exit 3")).unwrap_err().contains("8 of 8"));
        let places = run("echo $4 >&2; test $4 = 6144 && exit 5").unwrap_err();
        assert!(places.contains("exit status: 5"), "{places}");
    }
}
