//! The table of results.

use super::compare::{Compared, Measured, join_limits};
use super::line::{Line, Test};

/// The median; 0 of no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (n, mid) = (sorted.len(), sorted.len() / 2);
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => sorted[mid],
        _ => (sorted[mid - 1] + sorted[mid]) / 2.0,
    }
}

fn name(test: Test) -> String {
    let Test { prompt, generate, depth, sequences } = test;
    let mut name = if prompt > 0 { format!("pp{prompt}") } else { format!("tg{generate}") };
    if sequences > 1 {
        name.push_str(&format!(" x {sequences}"));
    }
    if depth > 0 {
        name.push_str(&format!(" @ d{depth}"));
    }
    name
}

/// All measurements in Markdown: medians, our ratio to the best peer, and shares of the limits.
/// Limits are also medians of their turns, since on a shared machine the best memory bandwidth is
/// not what was available while models ran.
pub fn markdown(machine: &str, threads: u32, peers: &[&str], all: &[Measured]) -> String {
    let mut text = format!("{machine}, {threads} threads. Medians; all took turns.\n");
    let mut limits = Vec::new();
    for line in all.iter().flat_map(|c| &c.tests) {
        join_limits(&mut limits, line.troika.limits.clone());
    }
    if !limits.is_empty() {
        let each: Vec<String> =
            limits.iter().map(|(n, v)| format!("{n} {:.1}", median(v))).collect();
        text.push_str(&format!("Limits (GB/s, GFLOP/s, GOP/s): {}.\n", each.join(", ")));
    }
    let rates: String = peers.iter().map(|p| format!(" {p} t/s |")).collect();
    let right = " ---: |".repeat(peers.len() + 5);
    text.push_str(&format!(
        "\n| file | MiB | test | troika t/s |{rates} to the best | troika, of limit | best peer | samples |\n\
         | --- | ---: | --- |{right}\n",
    ));
    for c in all {
        let file = c.file.file_stem().unwrap_or_default().to_string_lossy();
        c.tests.iter().for_each(|t| text.push_str(&row(&file, t)));
    }
    text
}

fn row(file: &str, c: &Compared) -> String {
    let ours = median(&c.troika.samples);
    let theirs: Vec<Option<f64>> =
        c.peers.iter().map(|p| p.as_ref().map(|l| median(&l.samples))).collect();
    let best = theirs.iter().flatten().copied().fold(0.0, f64::max);
    let ratio = if best > 0.0 { ours / best } else { 0.0 };
    let of = |rate: f64| {
        let (_, limit) = c.troika.limits.iter().find(|l| l.0 == c.troika.limit)?;
        Some(c.troika.per_token? * rate / median(limit))
    };
    let percent =
        |share: Option<f64>| share.map_or(String::new(), |s| format!("{:.0} %", 100.0 * s));
    let rates: String =
        theirs.iter().map(|t| t.map_or(" - |".into(), |t| format!(" {t:.2} |"))).collect();
    let of_peer = |p: &Option<Line>| p.as_ref().map_or(0, |l| l.samples.len());
    let counts = std::iter::once(c.troika.samples.len()).chain(c.peers.iter().map(of_peer));
    let counts: Vec<String> = counts.map(|n| n.to_string()).collect();
    format!(
        "| {file} | {:.0} | {} | {ours:.2} |{rates} {ratio:.2} | {} {} | {} | {} |\n",
        c.troika.size as f64 / (1 << 20) as f64,
        name(c.troika.test),
        percent(of(ours)),
        c.troika.limit,
        percent(of(best)),
        counts.join(" + "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::line::Line;

    fn line(samples: &[f64], limit: &[f64]) -> Line {
        let (limits, limit, per_token) = match limit {
            [] => (Vec::new(), String::new(), None),
            l => (vec![("int8".to_string(), l.to_vec())], "int8".to_string(), Some(2.0)),
        };
        Line {
            test: Test { prompt: 512, generate: 0, depth: 64, sequences: 1 },
            samples: samples.to_vec(),
            size: 1 << 20,
            limit,
            per_token,
            limits,
        }
    }

    #[test]
    fn medians_ratios_and_shares_are_shown() {
        let one = Compared {
            troika: line(&[9.0, 30.0, 10.0], &[70.0, 40.0, 30.0]),
            peers: vec![Some(line(&[2.0], &[])), Some(line(&[4.0, 6.0], &[]))],
        };
        let mut other = Compared { troika: line(&[8.0], &[50.0]), ..one.clone() };
        other.peers[0] = None;
        let all = [
            Measured { file: "x/a-q8_0.gguf".into(), tests: vec![one] },
            Measured { file: "b.gguf".into(), tests: vec![other] },
        ];
        let text = markdown("a CPU", 2, &["llama.cpp", "ik"], &all);
        let row = "| a-q8_0 | 1 | pp512 @ d64 | 10.00 | 2.00 | 5.00 | 2.00 | 50 % int8 | 25 % | 3 + 1 + 2 |";
        assert!(text.contains("a CPU, 2 threads") && text.contains("int8 45.0."), "{text}");
        assert!(text.contains("| troika t/s | llama.cpp t/s | ik t/s | to the best |"), "{text}");
        assert!(text.contains(row), "{text}");
        let last = text.lines().last().unwrap();
        assert!(
            last.contains("| 8.00 | - | 5.00 | 1.60 |") && last.ends_with("| 1 + 0 + 2 |"),
            "{text}"
        );
        let columns = |l: &str| l.matches('|').count();
        let table: Vec<&str> = text.lines().filter(|l| l.starts_with('|')).collect();
        assert!(table.iter().all(|l| columns(l) == columns(table[0])), "{text}");
    }

    #[test]
    fn tests_of_several_sequences_say_how_many() {
        let test = Test { prompt: 0, generate: 16, depth: 0, sequences: 4 };
        assert_eq!(name(test), "tg16 x 4");
        assert_eq!(name(Test { depth: 9, ..test }), "tg16 x 4 @ d9");
        assert_eq!(name(Test { sequences: 1, ..test }), "tg16");
    }

    #[test]
    fn the_middle_of_an_even_number_is_between_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
