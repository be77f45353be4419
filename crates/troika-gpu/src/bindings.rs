//! What a run binds: checked against its graph, and located in memory.

use std::iter::zip;

use smallvec::SmallVec;
use troika_device::{Access, DeviceError, PagesView, Rect, Run, View};
use troika_graph::{Dim, Op};

use crate::code::{BoundValue, Code, RowRun, Shape};
use crate::gpu::Gpu;
use crate::kernels::FEW;
use crate::places::PlacedValue;
use crate::weights::LoadedGraph;

/// Sequences of at most the first run as those of this number of positions, and sequences beyond the
/// last as those of that number.
const LEAST_POSITIONS: usize = 256;
const MOST_POSITIONS: usize = 8192;

/// A run and the graph that it is of.
#[derive(Clone, Copy)]
pub(crate) struct GraphRun<'a> {
    pub gpu: &'a Gpu,
    pub of: &'a LoadedGraph,
    pub run: &'a Run,
}

impl<'a> GraphRun<'a> {
    pub fn code(&self) -> &'a Code {
        &self.of.code
    }

    pub fn misfit(&self, why: impl Into<String>) -> DeviceError {
        DeviceError::Submission { task: self.of.name.clone(), why: why.into() }
    }

    /// The values that are bound, and the memory that they are bound to.
    pub fn bound(&self) -> impl Iterator<Item = (&'a BoundValue, &'a View)> + use<'a> {
        let b = &self.run.bindings;
        zip(&self.code().bindings, b.inputs.iter().chain(&b.states).chain(&b.outputs))
    }

    fn value(&self, of: &BoundValue) -> &'a PlacedValue {
        &self.code().values[of.value]
    }

    /// Checks the counts of bindings and rows.
    pub fn check(&self) -> Result<(), DeviceError> {
        let (code, b, rows) = (self.code(), &self.run.bindings, self.run.rows);
        let g = &code.graph;
        let need = (g.inputs.len(), g.states.len(), g.outputs.len());
        let got = (b.inputs.len(), b.states.len(), b.outputs.len());
        if need != got {
            let why = format!("binds {got:?} inputs, states and outputs; needs {need:?}");
            return Err(self.misfit(why));
        }
        for value in code.bindings.iter().filter(|b| !b.is_state).map(|b| self.value(b)) {
            let fits = match value.rows {
                Dim::Rows(most) => rows <= most,
                Dim::Fixed(n) | Dim::KvLen(n) => rows == n,
            };
            if !fits {
                return Err(self.misfit(format!("{rows} rows do not fit value {}", value.name)));
            }
        }
        if code.uses_pages() || code.most_short.is_some() { self.check_batch() } else { Ok(()) }
    }

    /// Checks that each row is one of a sequence, whose pages are known.
    fn check_batch(&self) -> Result<(), DeviceError> {
        let (batch, rows) = (&self.run.forward, self.run.rows);
        let mut groups = self.code().bindings.iter().flat_map(|b| &b.groups);
        let has_tables = groups.all(|group| {
            let tables = batch.seqs.iter().map(|seq| seq.tables.get(*group));
            tables.into_iter().all(|t| t.is_some_and(|t| t.page_len.is_power_of_two()))
        });
        if !batch.is_whole() || !has_tables {
            return Err(self.misfit("sequences have gaps, or lack page tables"));
        }
        if batch.rows() != rows {
            return Err(self.misfit(format!("{rows} rows, but sequences have {}", batch.rows())));
        }
        self.check_positions()
    }

    /// Checks that each position that a row sees or writes has a row of the cache.
    fn check_positions(&self) -> Result<(), DeviceError> {
        for node in &self.code().graph.nodes {
            let Some((group, _)) = node.op.page_group() else { continue };
            let is_fixed = !matches!(node.op, Op::KvAppend(_) | Op::Attention(_));
            // A fixed state is read behind the position before.
            let own = Some(1 + usize::from(is_fixed));
            let window = if let Op::Attention(a) = &node.op { a.window } else { own };
            let used = |b: &BoundValue| node.states.iter().any(|id| id.0 as usize == b.value);
            for (bound, view) in self.bound().filter(|(bound, _)| used(bound)) {
                let value = self.value(bound);
                let has = view.rect().span().len() / value.row_bytes().max(1);
                for seq in &self.run.forward.seqs {
                    let Some(table) = seq.tables.get(group) else { continue };
                    let end = seq.pos.saturating_add(seq.rows.len());
                    let first = window.map_or(0, |w| (seq.pos + 1).saturating_sub(w));
                    let mut pages = first / table.page_len..end.div_ceil(table.page_len);
                    let each = if is_fixed { 1 } else { table.page_len };
                    let lies_beyond = |p: u32| (p as usize + 1).saturating_mul(each) > has;
                    let is_wrong = table.fixed != is_fixed
                        || table.checkpoint.is_some_and(|kept| lies_beyond(kept.page));
                    let lacks = pages.find(|page| {
                        let at = page.checked_sub(table.first);
                        let page = at.and_then(|at| table.pages.get(at));
                        is_wrong || page.is_none_or(|p| lies_beyond(*p))
                    });
                    if let Some(page) = lacks {
                        let pos = page.saturating_mul(table.page_len).max(first);
                        let why = format!("position {pos} has no row in cache {}", value.name);
                        return Err(self.misfit(why));
                    }
                }
            }
        }
        Ok(())
    }

    /// What dispatches depend on.
    ///
    /// # Errors
    /// Sequences whose pages are not alike.
    pub fn shape(&self) -> Result<Shape, DeviceError> {
        let (code, rows, seqs) = (self.code(), self.run.rows, &self.run.forward.seqs);
        let mut shape = Shape { rows, ..Shape::default() };
        if let Some(first) = seqs.first().filter(|_| code.uses_pages()) {
            shape.page_lens = first.tables.iter().map(|table| table.page_len).collect();
            if !seqs
                .iter()
                .all(|s| s.tables.iter().map(|t| t.page_len).eq(shape.page_lens.iter().copied()))
            {
                return Err(self.misfit("sequences have pages of different lengths"));
            }
        }
        for seq in seqs {
            let Some(most_short) = code.most_short else { break };
            let (count, is_long) = (seq.rows.len(), seq.known_len > most_short);
            match shape.runs.last_mut() {
                Some(last) if last.is_long == is_long => last.count += count,
                _ => shape.runs.push(RowRun { first: seq.rows.start, count, is_long }),
            }
        }
        if rows <= FEW as usize && code.graph.nodes.iter().any(|n| matches!(n.op, Op::Attention(_)))
        {
            let ends = seqs.iter().map(|s| s.pos.saturating_add(s.rows.len()));
            let longest = ends.max().unwrap_or(0).clamp(LEAST_POSITIONS, MOST_POSITIONS);
            // Rounded up so that it seldom changes.
            shape.longest = longest.next_power_of_two();
            shape.one_row_each = seqs.iter().all(|s| s.rows.len() <= 1);
        }
        Ok(shape)
    }

    /// The rectangles of all bindings, with as many rows as the run has.
    ///
    /// # Errors
    /// Memory of another device, too few rows, rows at odd places, or bindings that overlap.
    pub fn locate(&self) -> Result<Vec<Rect>, DeviceError> {
        let located = self.bound().map(|(bound, view)| {
            if view.buffer().space() != self.gpu.space {
                let name = &self.value(bound).name;
                let why = format!("value {name} is bound to memory that is not the device's");
                return Err(self.misfit(why));
            }
            match bound.is_state {
                true => self.locate_state(self.value(bound), view.rect()),
                false => self.locate_rows(self.value(bound), view.rect()),
            }
        });
        let rects = located.collect::<Result<Vec<_>, _>>()?;
        self.check_overlap(&rects)?;
        Ok(rects)
    }

    /// All whole rows of a cache.
    fn locate_state(&self, value: &PlacedValue, r: &Rect) -> Result<Rect, DeviceError> {
        let (name, row) = (&value.name, value.row_bytes().max(1));
        let aligned = self.gpu.limits.min_storage_buffer_offset_alignment as usize;
        if !r.is_dense() || !r.offset().is_multiple_of(aligned.max(1)) {
            let why = format!("the rows of cache {name} lie apart, or begin at an odd place");
            return Err(self.misfit(why));
        }
        let span = r.span();
        Ok(Rect::bytes(span.start..span.start + span.len() / row * row))
    }

    /// The rows of an input or an output.
    fn locate_rows(&self, value: &PlacedValue, r: &Rect) -> Result<Rect, DeviceError> {
        let (name, row, rows) = (&value.name, value.row_bytes(), value.rows_of(self.run.rows));
        let Some(rect) = r.first_rows(rows, row) else {
            let (has, bytes) = (r.rows(), r.row_bytes());
            let why =
                format!("value {name} has {rows} rows of {row} bytes, its view {has} of {bytes}");
            return Err(self.misfit(why));
        };
        let (at, stride) = (rect.offset(), rect.stride());
        if !at.is_multiple_of(4) || (rows > 1 && !stride.is_multiple_of(4)) {
            return Err(self.misfit(format!(
                "value {name} starts at byte {at} with rows {stride} bytes apart, which are no \
                 multiples of 4"
            )));
        }
        Ok(rect)
    }

    /// Checks that written bindings share no bytes with others.
    fn check_overlap(&self, rects: &[Rect]) -> Result<(), DeviceError> {
        let all: SmallVec<[(&BoundValue, &View); 12]> = self.bound().collect();
        for (j, (b, of_b)) in all.iter().enumerate() {
            for (i, (a, of_a)) in all[..j].iter().enumerate() {
                let is_shared = of_a.buffer().id() == of_b.buffer().id();
                if is_shared && (a.is_written || b.is_written) && rects[i].overlaps(&rects[j]) {
                    let [a, b] = [a, b].map(|bound| &self.value(bound).name);
                    return Err(self.misfit(format!("values {a} and {b} overlap in memory")));
                }
            }
        }
        Ok(())
    }

    /// What a run uses of a binding; of states only the rows in its sequences' pages.
    pub fn uses(&self, of: &BoundValue, rect: &Rect, wanted: &mut Vec<(Rect, Access)>) {
        let access = |is_written| if is_written { Access::Write } else { Access::Read };
        wanted.clear();
        if !of.is_state {
            return wanted.push((*rect, access(of.is_written)));
        }
        let (row, all) = (self.value(of).row_bytes(), rect.span());
        let byte = |r: usize| r.saturating_mul(row).saturating_add(all.start).min(all.end);
        for group in &of.groups {
            for pages in self.run.forward.seqs.iter().filter_map(|s| PagesView::new(s, *group)) {
                pages.runs(|rows, appended| {
                    let rows = Rect::bytes(byte(rows.start)..byte(rows.end));
                    wanted.push((rows, access(appended && of.is_written)));
                });
            }
        }
    }
}
