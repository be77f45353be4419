//! The table.

use super::compare::{Compared, Pair, Test};

/// The middle one of some values; 0 for none.
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

fn name((prompt, generate, depth): Test) -> String {
    let base = if prompt > 0 { format!("pp{prompt}") } else { format!("tg{generate}") };
    if depth == 0 { base } else { format!("{base} @ d{depth}") }
}

/// All measurements in Markdown: medians, their ratio, and shares of the limits.
pub fn markdown(machine: &str, threads: usize, all: &[Compared]) -> String {
    let mut text =
        format!("{machine}, {threads} threads. Medians; llama.cpp's turns in between.\n");
    let limits = best_limits(all);
    if !limits.is_empty() {
        let each: Vec<String> = limits.iter().map(|(n, v)| format!("{n} {v:.1}")).collect();
        text.push_str(&format!("Limits (GB/s, GFLOP/s, GOP/s): {}.\n", each.join(", ")));
    }
    text.push_str(
        "\n| file | MiB | test | troika t/s | llama.cpp t/s | ratio | troika, of limit | llama.cpp | samples |\n\
         | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for c in all {
        let file = c.file.file_stem().unwrap_or_default().to_string_lossy();
        c.pairs.iter().for_each(|p| text.push_str(&row(&file, p, &limits)));
    }
    text
}

fn row(file: &str, p: &Pair, limits: &[(String, f64)]) -> String {
    let (ours, theirs) = (median(&p.troika.samples), median(&p.llama.samples));
    let ratio = if theirs > 0.0 { ours / theirs } else { 0.0 };
    let of = |rate: f64| {
        let limit = limits.iter().find(|l| l.0 == p.troika.limit)?.1;
        Some(p.troika.per_token? * rate / limit)
    };
    let percent =
        |share: Option<f64>| share.map_or(String::new(), |s| format!("{:.0} %", 100.0 * s));
    format!(
        "| {file} | {:.0} | {} | {ours:.2} | {theirs:.2} | {ratio:.2} | {} {} | {} | {} + {} |\n",
        p.troika.size as f64 / (1 << 20) as f64,
        name(p.troika.test),
        percent(of(ours)),
        p.troika.limit,
        percent(of(theirs)),
        p.troika.samples.len(),
        p.llama.samples.len(),
    )
}

/// The highest of each limit over all files: they are the machine's, not the file's.
fn best_limits(all: &[Compared]) -> Vec<(String, f64)> {
    let mut best: Vec<(String, f64)> = Vec::new();
    for (name, value) in all.iter().flat_map(|c| &c.pairs).flat_map(|p| &p.troika.limits) {
        match best.iter_mut().find(|b| b.0 == *name) {
            Some(b) => b.1 = b.1.max(*value),
            None => best.push((name.clone(), *value)),
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::compare::Line;

    fn line(samples: &[f64], limit: Option<f64>) -> Line {
        let limits = limit.map(|l| ("int8".to_string(), l)).into_iter().collect();
        let per_token = limit.map(|_| 2.0);
        let limit = if limit.is_some() { "int8".to_string() } else { String::new() };
        Line {
            test: (512, 0, 64),
            samples: samples.to_vec(),
            size: 1 << 20,
            limit,
            per_token,
            limits,
        }
    }

    #[test]
    fn medians_ratios_and_shares_are_shown() {
        let pair =
            Pair { troika: line(&[9.0, 30.0, 10.0], Some(40.0)), llama: line(&[4.0, 6.0], None) };
        let other = Pair { troika: line(&[8.0], Some(50.0)), ..pair.clone() };
        let all = [
            Compared { file: "x/a-q8_0.gguf".into(), pairs: vec![pair] },
            Compared { file: "b.gguf".into(), pairs: vec![other] },
        ];
        let text = markdown("a CPU", 2, &all);
        let row = "| a-q8_0 | 1 | pp512 @ d64 | 10.00 | 5.00 | 2.00 | 40 % int8 | 20 % | 3 + 2 |";
        assert!(text.contains("a CPU, 2 threads") && text.contains("int8 50.0."), "{text}");
        assert!(text.contains(row), "{text}");
        assert!(text.lines().last().unwrap().contains("| 8.00 | 5.00 | 1.60 |"), "{text}");
    }

    #[test]
    fn the_middle_of_an_even_number_is_between_two() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
