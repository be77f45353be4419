//! What runs take by a SoC's file, without running them: pure functions, for whoever plans.

use troika_device::{ForwardBatch, SeqRows};
use troika_graph::Subgraph;

use crate::board::Board;
use crate::cost::{Rates, RunCost};
use crate::device::compile_ns;
use crate::soc::{Processor, Soc};
use crate::worker::run_need;

/// A processor's prices.
#[derive(Clone, Debug)]
pub struct Prices {
    rates: Rates,
    processor: Processor,
}

/// What a run takes on an idle machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// Nanoseconds.
    pub ns: u64,
    /// Bytes that are read and written meanwhile.
    pub bytes: u64,
    /// It waits for memory or weights more than it computes.
    pub streams: bool,
}

impl From<RunCost> for Price {
    fn from(RunCost { ns, bytes, streams }: RunCost) -> Price {
        Price { ns, bytes, streams }
    }
}

/// Rows of a run whose price is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PricedRows {
    /// Rows that are wanted.
    pub rows: usize,
    /// Rows that are computed, padding included.
    pub room: usize,
    /// Positions of the sequence before the first row.
    pub cached: usize,
}

impl Prices {
    /// Those of a processor of a SoC.
    pub fn new(soc: &Soc, processor: &Processor) -> Prices {
        Prices { rates: Rates::new(soc, processor), processor: processor.clone() }
    }

    /// A run of a graph whose rows are a symbol.
    pub fn run(&self, graph: &Subgraph, r: PricedRows) -> Price {
        let rows = 0..r.rows;
        let (pos, known_len, tables) = (r.cached, r.cached + r.rows, Vec::new());
        let seqs = vec![SeqRows { seq: 0, rows, pos, known_len, tables }];
        let (room, tile) = (r.room.max(r.rows), self.processor.tile);
        run_need(&self.rates, tile, (graph, room, &ForwardBatch { seqs })).into()
    }

    /// A copy of some bytes.
    pub fn copy(&self, bytes: u64) -> Price {
        self.rates.copy(bytes).into()
    }

    /// Making code of a graph.
    pub fn compile_ns(&self, graph: &Subgraph) -> u64 {
        compile_ns(&self.processor, graph)
    }
}

impl Soc {
    /// How many times slower runs are, each on another processor, while all are under way.
    pub fn slowdowns(&self, prices: &[Price]) -> Vec<f64> {
        let cost = |p: &Price| RunCost { ns: p.ns, bytes: p.bytes, streams: p.streams };
        let needs: Vec<RunCost> = prices.iter().map(cost).collect();
        Board::slowdowns(self, &needs)
    }
}
