//! The largest numbers of rows.

use super::Binding::Value;
use super::spec::{
    Dispatch, KernelError, KernelResult, KernelSpec, Loc, MAX_GROUPS, flag, unsupported, words,
};

static BLOCKS: KernelSpec = KernelSpec::new(
    "top_k_blocks",
    &[include_str!("wgsl/rank.wgsl"), include_str!("wgsl/top_k_blocks.wgsl")],
    &[Value, Value],
);

static LARGEST: KernelSpec = KernelSpec {
    name: "top_k",
    parts: &[include_str!("wgsl/rank.wgsl"), include_str!("wgsl/top_k.wgsl")],
    bindings: &[Value, Value],
    workgroup_bytes: 16 * 1024,
};

/// Numbers that a workgroup sorts at most, which is also the most blocks of a row.
const SORTED: u32 = 2048;
/// Threads of the workgroups that look through blocks.
const THREADS: u32 = 64;
/// The most numbers that can be chosen of a row.
pub const MOST_TOP_K: u32 = 64;
/// The most numbers of a row to choose from: what is left of the best blocks then fits one sort.
const MOST_COLS: u32 = SORTED * 1024;

/// A choice of the largest numbers of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopKShape {
    /// Rows.
    pub rows: u32,
    /// Numbers of a row.
    pub cols: u32,
    /// How many are chosen.
    pub kept: u32,
}

impl TopKShape {
    /// Blocks of a row. Its best numbers are in those blocks whose best numbers are the largest, as
    /// many as numbers are wanted.
    fn blocks(self) -> u32 {
        self.cols.min(SORTED)
    }

    /// Numbers of the best blocks of a row.
    fn gathered(self) -> u32 {
        self.kept * self.cols.div_ceil(self.blocks())
    }

    /// Words of a row of the working memory: results, the best of each block, the best of those, and
    /// the best of each workgroup's part.
    pub fn row_words(self) -> u32 {
        let parts = self.gathered().div_ceil(SORTED);
        2 * (self.kept + self.blocks() + self.kept + parts * self.kept)
    }

    fn sorted(self, x: Loc, sort: Sort) -> KernelResult {
        let Sort { gather, last, count, from, to } = sort;
        let [from, to] = [from, to].map(|offset| Loc { offset, stride: self.row_words() });
        let mut params = vec![self.rows, self.cols, self.blocks(), count, SORTED, self.kept];
        params.extend(words(&[x, from, to]));
        let overrides = vec![("GATHER", flag(gather)), ("LAST", flag(last))];
        let grid = [count.div_ceil(SORTED), self.rows.min(MAX_GROUPS), 1];
        Dispatch { spec: &LARGEST, overrides, params, grid }.checked()
    }
}

/// A sort of some numbers of each row.
#[derive(Clone, Copy)]
struct Sort {
    /// Whether they are those of the best blocks.
    gather: bool,
    /// Whether what is kept are the results.
    last: bool,
    /// How many they are.
    count: u32,
    /// The words of a working row where they, or the best blocks, begin, and where what is kept goes.
    from: u32,
    to: u32,
}

/// Chooses the `kept` largest numbers of each row, the largest first, and equal ones in the order of
/// their columns. What is no number counts as minus infinity. Its dispatches run one after another.
///
/// Bindings: x (f32); working memory of [`TopKShape::row_words`] words for each row. A row's
/// first `kept` words are its largest numbers then, and the next ones their columns.
///
/// # Errors
/// More than [`MOST_TOP_K`] numbers, or than a row has; more columns than 2^21.
pub fn top_k(shape: TopKShape, x: Loc) -> Result<Vec<Dispatch>, KernelError> {
    let TopKShape { rows, cols, kept } = shape;
    if kept == 0 || kept > MOST_TOP_K.min(cols) || cols > MOST_COLS {
        return unsupported(format!("the {kept} largest of {cols} numbers"));
    }
    let (blocks, gathered) = (shape.blocks(), shape.gathered());
    let best = 2 * kept;
    let of_blocks = best + 2 * blocks;
    let of_parts = of_blocks + 2 * kept;
    let params = vec![rows, cols, blocks, x.offset, x.stride, best, shape.row_words()];
    let grid = [blocks.div_ceil(THREADS), rows.min(MAX_GROUPS), 1];
    let first = Dispatch { spec: &BLOCKS, overrides: vec![], params, grid };
    let whole = Sort { gather: false, last: true, count: blocks, from: best, to: 0 };
    let of_all = Sort { last: false, to: of_blocks, ..whole };
    let of_best = Sort { gather: true, last: true, count: gathered, from: of_blocks, to: 0 };
    let in_parts = Sort { last: false, to: of_parts, ..of_best };
    let parts = gathered.div_ceil(SORTED) * kept;
    let sorts = if blocks == cols {
        vec![whole]
    } else if gathered <= SORTED {
        vec![of_all, of_best]
    } else {
        vec![of_all, in_parts, Sort { count: parts, from: of_parts, ..whole }]
    };
    let sorts = sorts.into_iter().map(|sort| shape.sorted(x, sort));
    std::iter::once(first.checked()).chain(sorts).collect()
}

/// Dispatches of every kernel of [`top_k`].
pub fn top_k_kernels() -> Vec<Dispatch> {
    // In one sort, in two, and in several parts.
    let of = |(cols, kept)| TopKShape { rows: 1, cols, kept };
    let shapes = [(SORTED, 1), (SORTED + 1, 1), (64 * SORTED, MOST_TOP_K)].map(of);
    let at = Loc { offset: 0, stride: 0 };
    shapes.into_iter().filter_map(|shape| top_k(shape, at).ok()).flatten().collect()
}
