//! Prices of runs by a SoC's file, without running them: pure functions for planning.

use troika_device::{ForwardBatch, SeqRows};
use troika_graph::Subgraph;

use crate::board::Board;
use crate::cost::{Rates, RunCost};
use crate::device::compile_ns;
use crate::soc::{Processor, Soc};
use crate::worker::run_need;

/// The prices of a processor.
#[derive(Clone, Debug)]
pub struct Prices {
    rates: Rates,
    processor: Processor,
}

/// The price of a run on an idle machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// Nanoseconds.
    pub ns: u64,
    /// Bytes read and written meanwhile.
    pub bytes: u64,
    /// Whether it mostly waits for memory or weights.
    pub streams: bool,
}

impl From<RunCost> for Price {
    fn from(RunCost { ns, bytes, streams }: RunCost) -> Price {
        Price { ns, bytes, streams }
    }
}

/// The rows of a run to be priced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PricedRows {
    /// Rows needed.
    pub rows: usize,
    /// Rows computed, padding included.
    pub room: usize,
    /// Positions of the sequence before the first row.
    pub cached: usize,
}

impl Prices {
    /// The prices of a processor of a SoC.
    pub fn new(soc: &Soc, processor: &Processor) -> Prices {
        Prices { rates: Rates::new(soc, processor), processor: processor.clone() }
    }

    /// The price of a run of a graph with symbolic rows.
    pub fn run(&self, graph: &Subgraph, r: PricedRows) -> Price {
        let rows = 0..r.rows;
        let (pos, known_len, tables) = (r.cached, r.cached + r.rows, Vec::new());
        let seqs = vec![SeqRows { seq: 0, rows, pos, known_len, tables }];
        let (room, tile) = (r.room.max(r.rows), self.processor.tile);
        run_need(&self.rates, tile, (graph, room, &ForwardBatch { seqs })).into()
    }

    /// The price of a copy.
    pub fn copy(&self, bytes: u64) -> Price {
        self.rates.copy(bytes).into()
    }

    /// The time to compile a graph.
    pub fn compile_ns(&self, graph: &Subgraph) -> u64 {
        compile_ns(&self.processor, graph)
    }
}

impl Soc {
    /// The slowdowns of runs on different processors while all run.
    pub fn slowdowns(&self, prices: &[Price]) -> Vec<f64> {
        let cost = |p: &Price| RunCost { ns: p.ns, bytes: p.bytes, streams: p.streams };
        let needs: Vec<RunCost> = prices.iter().map(cost).collect();
        Board::slowdowns(self, &needs)
    }
}
