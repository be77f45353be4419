//! How a rule divides a segment: used both to run a plan and to price it.

use troika_device::{Caps, SpaceId};
use troika_graph::partition::{ColumnSplit, Partition};
use troika_graph::{Op, Subgraph};

use crate::plan::{Rule, Split};
use crate::ratio::Share;

/// Weight matrices are cut at multiples of this many rows: every packed form has panels of this
/// many rows, or of a divisor of it.
pub const TILE: usize = 16;

/// The memory space of values that only this device uses.
pub fn own_space(caps: &Caps) -> SpaceId {
    caps.spaces.first().copied().unwrap_or(SpaceId::HOST)
}

/// The numbers of rows that a graph is compiled for on a device: with static shapes, the plan's
/// buckets or else the device's own; otherwise the most at once. They keep values within the
/// device's binding limit. A value with too large a single row is ignored: the device must refuse
/// its ops.
pub fn compiled_rows(graph: &Subgraph, caps: &Caps, buckets: Option<&[usize]>) -> Vec<usize> {
    let limit = caps.max_binding_bytes.map_or(usize::MAX, |n| n as usize);
    let of_states = |i: usize| graph.states.iter().any(|s| s.0 as usize == i);
    let values = graph.values.iter().enumerate().filter(|(i, _)| !of_states(*i));
    let rows = values.map(|(_, v)| v.row_bytes());
    let widest = rows.filter(|bytes| *bytes <= limit).max().unwrap_or(0);
    let most = limit.checked_div(widest).unwrap_or(usize::MAX);
    let all = graph.max_rows().min(most);
    if !caps.static_shapes {
        return vec![all];
    }
    let buckets = buckets.unwrap_or(&caps.row_buckets);
    let fit: Vec<usize> = buckets.iter().copied().filter(|n| *n <= most).collect();
    if fit.is_empty() { vec![all] } else { fit }
}

/// Where [`Split::Stages`] cuts: the number of ops before each border between products and other
/// ops, or between products that depend on each other.
pub fn stage_borders(graph: &Subgraph) -> Vec<usize> {
    let nodes = &graph.nodes;
    let converts = |at: usize| matches!(nodes[at].op, Op::Convert);
    let rounds = |at: &usize| converts(*at) && !graph.inputs.contains(&nodes[*at].inputs[0]);
    let ops: Vec<usize> = (0..nodes.len()).filter(|at| !converts(*at)).collect();
    let border = |pair: &[usize]| {
        let (a, b) = (&nodes[pair[0]], &nodes[pair[1]]);
        let kinds = [a.op.is_product(), b.op.is_product()];
        let needs = b.inputs.iter().any(|v| a.outputs.contains(v));
        let rounded = (pair[0] + 1..pair[1]).take_while(rounds).count();
        (kinds[0] != kinds[1] || (kinds[0] && needs)).then_some(pair[0] + rounded)
    };
    ops.windows(2).filter_map(border).collect()
}

impl Rule {
    /// The rule's split, with the devices of its parts. `groups` are the key/value heads by which
    /// columns of queries, keys and values are divided.
    pub fn partition(&self, groups: Option<usize>) -> (Partition, Vec<String>) {
        let own = self.device.clone();
        let columns = |parts: &[Share]| ColumnSplit {
            shares: parts.iter().map(|p| p.share).collect(),
            tile: TILE,
            groups,
        };
        let devices = |parts: &[Share]| parts.iter().map(|p| p.device.clone()).collect::<Vec<_>>();
        match &self.split {
            // Stages are partitioned one by one, and experts row by row at run time.
            None | Some(Split::Residual { .. } | Split::Stages { .. } | Split::Experts(_)) => {
                (Partition::Whole { part: 0 }, vec![own])
            }
            Some(Split::Columns { parts }) => (Partition::Columns(columns(parts)), devices(parts)),
            Some(Split::Rows { lengths, rest }) => {
                let lengths = lengths.clone();
                (Partition::Rows { lengths, standard: 0, rest: 1 }, vec![own, rest.clone()])
            }
            Some(Split::Hybrid { lengths, parts }) => {
                let mut devices = devices(parts);
                let standard = devices.iter().position(|d| *d == own).unwrap_or(devices.len());
                if standard == devices.len() {
                    devices.push(own);
                }
                let (lengths, columns) = (lengths.clone(), columns(parts));
                (Partition::Hybrid { lengths, standard, columns }, devices)
            }
        }
    }
}
