//! Memory for measured runs, filled with values like a model's.

use std::sync::Arc;

use troika_device::{
    Bindings, Buffer, CopyRows, Device, DeviceError, ForwardBatch, PageTable, SeqRows, SpaceId,
    View, Work,
};
use troika_graph::{DType, Op, StateKind, Subgraph, ValueId};
use troika_model::lower::Lowered;

/// The rows of a run, and the cached positions before them.
#[derive(Clone, Copy)]
pub(super) struct RowsAt {
    pub rows: usize,
    pub cached: usize,
}

/// Positions per page of the model's caches on a device.
pub(super) fn page_len(device: &dyn Device, lowered: &Lowered) -> usize {
    let position = lowered.states.iter().map(|s| s.row_bytes()).max();
    troika_plan::page_len(position.unwrap_or(0), device.caps().max_binding_bytes.into_iter())
}

/// The bindings of a graph with room for some rows, and the copies that fill them where the host
/// cannot write.
pub(super) fn bindings(
    device: &Arc<dyn Device>,
    graph: &Subgraph,
    room: usize,
    cached: usize,
    page_len: usize,
) -> Result<(Bindings, Vec<Work>), DeviceError> {
    let mut b = Bindings::default();
    let mut copies = Vec::new();
    let bytes = |id: &ValueId| graph.value(*id).row_bytes();
    let memory =
        |bytes: usize| device.allocate(bytes.max(1)).map_err(DeviceError::memory("a profile"));
    for id in &graph.inputs {
        let row = bytes(id);
        let buffer = memory(room * row)?;
        let to = View::dense(&buffer, 0, (room, row))?;
        let host = match buffer.space() {
            SpaceId::HOST => buffer,
            _ => Buffer::zeroed((room * row).max(1)).map_err(DeviceError::memory("a profile"))?,
        };
        fill(&host, graph, *id, cached)?;
        if host.id() != to.buffer().id() {
            let from = View::dense(&host, 0, (room, row))?;
            copies.push(Work::Copy(CopyRows::whole(from, to.clone())));
        }
        b.inputs.push(to);
    }
    for id in &graph.states {
        let positions = graph.value(*id).shape.max_rows();
        // Pages that the runs use, in the order of the page table.
        let used =
            (cached + room).next_multiple_of(page_len).min(positions.next_multiple_of(page_len));
        b.states.push(View::whole(&memory(used.max(positions) * bytes(id))?));
    }
    for id in &graph.outputs {
        let row = bytes(id);
        b.outputs.push(View::dense(&memory(room * row)?, 0, (room, row))?);
    }
    Ok((b, copies))
}

/// Fills a value: valid positions, tokens and experts, or small floats.
fn fill(buffer: &Buffer, graph: &Subgraph, id: ValueId, cached: usize) -> Result<(), DeviceError> {
    let mut write = buffer.write()?;
    let value = graph.value(id);
    if value.dtype == DType::F32 {
        for (i, x) in write.as_mut_slice::<f32>().iter_mut().enumerate() {
            *x = ((i * 37) % 101) as f32 / 50.0 - 1.0;
        }
        return Ok(());
    }
    if value.dtype != DType::I32 {
        return Ok(());
    }
    let reader = graph.nodes.iter().find(|n| n.inputs.contains(&id)).map(|n| &n.op);
    let most = match reader {
        Some(Op::Embed { table, .. }) => graph.weight(*table).rows,
        Some(Op::Experts(e)) => e.gate.len(),
        _ => usize::MAX,
    };
    for (i, x) in write.as_mut_slice::<i32>().iter_mut().enumerate() {
        let spread = i.wrapping_mul(2_654_435_761) >> 7;
        *x = if most == usize::MAX { cached + i } else { spread % most.max(1) } as i32;
    }
    Ok(())
}

/// One sequence of some rows behind some cached positions.
pub(super) fn forward(lowered: &Lowered, at: RowsAt, page_len: usize) -> Arc<ForwardBatch> {
    let RowsAt { rows, cached } = at;
    let pages = 0..(cached + rows).div_ceil(page_len) as u32;
    let table = |kind: &StateKind| PageTable::new(*kind, page_len, pages.clone().collect());
    let tables = lowered.page_groups.iter().map(table).collect();
    let known_len = cached + rows;
    let seq = SeqRows { seq: 0, rows: 0..rows, pos: cached, known_len, tables };
    Arc::new(ForwardBatch { seqs: vec![seq] })
}
