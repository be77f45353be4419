//! Figures of experts that devices share.

use serde_json::{Value, json};
use troika::engine::GroupStats;
use troika::program::ExpertCounts;

use crate::stats::{ms, percent};

/// Sums over all layers.
fn sum(stats: &GroupStats, of: fn(&ExpertCounts) -> u64) -> u64 {
    stats.layers.values().flat_map(|layer| &layer.experts).map(of).sum()
}

/// The figures for people: nothing where no experts were shared.
pub fn text(stats: &GroupStats) -> String {
    if stats.layers.is_empty() {
        return String::new();
    }
    let rows = sum(stats, |e| e.rows);
    let (of_groups, padding) = stats.group_rows();
    let runs =
        |of: fn(&troika::program::LayerCounts) -> u64| stats.layers.values().map(of).sum::<u64>();
    format!(
        "{:>12}: {:.1} % of rows in {} runs of groups, {:.1} % of whose rows are padding; {:.1} % \
         overflowed, {:.1} % left out, others in {} runs\n\
         {:>12}  route {:.1} ms, pack {:.1} ms, experts {:.1} ms, combine {:.1} ms\n",
        "groups",
        percent(sum(stats, |e| e.grouped), rows),
        runs(|l| l.group_runs),
        percent(padding, of_groups),
        percent(sum(stats, |e| e.overflow), rows),
        percent(sum(stats, |e| e.dropped), rows),
        runs(|l| l.rest_runs),
        "",
        ms(stats.route),
        ms(stats.pack),
        ms(stats.experts),
        ms(stats.combine),
    )
}

/// The figures in a form for programs, with the figures of each expert.
pub fn json(stats: &GroupStats) -> Value {
    let layer = |(layer, counts): (&usize, &troika::program::LayerCounts)| {
        let all = |of: fn(&ExpertCounts) -> u64| counts.experts.iter().map(of).collect::<Vec<_>>();
        json!({
            "layer": layer,
            "group_runs": counts.group_runs,
            "other_runs": counts.rest_runs,
            "rows": all(|e| e.rows),
            "grouped": all(|e| e.grouped),
            "overflow": all(|e| e.overflow),
            "dropped": all(|e| e.dropped),
            "padding": all(|e| e.padding),
        })
    };
    json!({
        "layers": stats.layers.iter().map(layer).collect::<Vec<_>>(),
        "route_ms": ms(stats.route),
        "pack_ms": ms(stats.pack),
        "experts_ms": ms(stats.experts),
        "combine_ms": ms(stats.combine),
    })
}
