//! The limits of a processor: refusals before compiling, and checks of submissions.

use troika_device::{CopyRows, DeviceError, Rect, Run, SpaceId, View};
use troika_graph::{Dim, Node, Op, Subgraph, Value, WeightRef};

use crate::loaded::Loaded;
use crate::resident::Resident;
use crate::soc::{Processor, ProcessorKind};

/// A processor's limits as a device.
pub(crate) struct Limits {
    pub device: String,
    pub processor: Processor,
    /// The only memory space for bindings of runs.
    pub space: SpaceId,
}

impl Limits {
    /// For each op of a verified graph, why it is refused, if it is.
    pub fn examine(&self, graph: &Subgraph, resident: &Resident) -> Vec<Option<String>> {
        let mut sums = WeightSums::default();
        let why = |node: &Node| {
            self.refuses(&node.op)
                .or_else(|| self.too_large(graph, node))
                .or_else(|| self.too_much(graph, node, resident, &mut sums))
        };
        graph.nodes.iter().map(why).collect()
    }

    fn refuses(&self, op: &Op) -> Option<String> {
        let (name, kind) = (op.name(), self.processor.kind.name());
        let refused = self.processor.refused.contains(&name);
        refused.then(|| format!("this virtual {kind} does not run {name}"))
    }

    /// Each value of an op may become a binding if a graph is cut there. States are bound in slabs
    /// of whole pages, whose length is known only when a run is bound.
    fn too_large(&self, graph: &Subgraph, node: &Node) -> Option<String> {
        let most = self.processor.max_binding_bytes?;
        let mut values = node.inputs.iter().chain(&node.outputs).map(|id| graph.value(*id));
        values.find_map(|v| {
            let bytes = v.row_bytes().saturating_mul(self.most_rows(v)) as u64;
            let name = &v.name;
            (bytes > most).then(|| {
                format!("value {name} can have {bytes} bytes, it binds {most} (max_binding_bytes)")
            })
        })
    }

    /// The most rows of a value; for symbols, the largest bucket.
    fn most_rows(&self, value: &Value) -> usize {
        match (value.shape.0.first(), self.processor.row_buckets.last()) {
            (Some(Dim::Rows(_)), Some(largest)) => *largest,
            _ => value.shape.max_rows(),
        }
    }

    fn too_much(
        &self,
        graph: &Subgraph,
        node: &Node,
        resident: &Resident,
        sums: &mut WeightSums,
    ) -> Option<String> {
        let mut more = sums.clone();
        for w in node.op.weights() {
            if more.seen.contains(&w) {
                continue;
            }
            more.seen.push(w);
            let decl = graph.weight(w);
            more.graph = more.graph.saturating_add(decl.bytes());
            if !resident.has(decl) {
                more.new = more.new.saturating_add(decl.bytes());
            }
        }
        if let Some(most) = self.processor.max_graph_bytes.filter(|most| more.graph > *most) {
            let bytes = more.graph;
            return Some(format!(
                "with it, the graph has {bytes} bytes of weights, of at most {most} \
                 (max_graph_bytes)"
            ));
        }
        let all = more.new.saturating_add(resident.bytes());
        if let Some(most) = self.processor.max_resident_bytes.filter(|most| all > *most) {
            return Some(format!(
                "with it, {all} bytes of weights are resident, of at most {most} \
                 (max_resident_bytes)"
            ));
        }
        *sums = more;
        None
    }

    fn misfit<T>(&self, task: &str, why: String) -> Result<T, DeviceError> {
        let why = format!("{why} on device {}", self.device);
        Err(DeviceError::Submission { task: task.into(), why })
    }

    /// Checks that a run fits its executable: rows, spaces, room and the processor's limits.
    /// Returns where the valid rows of inputs and outputs are, and the bytes of states.
    pub fn check_run(&self, loaded: &Loaded, run: &Run) -> Result<Bound, DeviceError> {
        let (g, b) = (&loaded.graph, &*run.bindings);
        let need = (g.inputs.len(), g.states.len(), g.outputs.len());
        let got = (b.inputs.len(), b.states.len(), b.outputs.len());
        if need != got {
            let why = format!("binds {got:?} inputs, states and outputs, but needs {need:?}");
            return self.misfit(&g.name, why);
        }
        if let Some(bucket) = loaded.code.bucket.filter(|bucket| run.rows > *bucket) {
            let why = format!("{} rows do not fit the {bucket} it was compiled for", run.rows);
            return self.misfit(&g.name, why);
        }
        let state = |(i, (id, view)): (usize, (&_, &View))| {
            self.check_state(g, g.value(*id), view, page_len(loaded, i, run))
        };
        let value = |(id, view): (&_, &View)| self.check_value(loaded, g.value(*id), view, run);
        let inputs = g.inputs.iter().zip(&b.inputs).map(value).collect::<Result<_, _>>()?;
        let states = g.states.iter().zip(&b.states).enumerate().map(state);
        let states = states.collect::<Result<_, _>>()?;
        let outputs = g.outputs.iter().zip(&b.outputs).map(value).collect::<Result<_, _>>()?;
        Ok(Bound { inputs, states, outputs })
    }

    fn check_space(&self, g: &Subgraph, value: &Value, view: &View) -> Result<(), DeviceError> {
        if view.buffer().space() == self.space {
            return Ok(());
        }
        let own = if self.space == SpaceId::HOST { "the host's" } else { "the device's own" };
        self.misfit(&g.name, format!("value {} is bound to other memory than {own}", value.name))
    }

    fn check_bytes(&self, g: &Subgraph, value: &Value, bytes: usize) -> Result<(), DeviceError> {
        match self.processor.max_binding_bytes {
            Some(most) if bytes as u64 > most => {
                let name = &value.name;
                let why = format!("value {name} binds {bytes} bytes, of at most {most}");
                self.misfit(&g.name, why)
            }
            _ => Ok(()),
        }
    }

    /// Checks that one page of a state fits, since states are bound in slabs of whole pages.
    fn check_state(
        &self,
        g: &Subgraph,
        value: &Value,
        view: &View,
        page_len: usize,
    ) -> Result<Rect, DeviceError> {
        self.check_space(g, value, view)?;
        if !view.rect().is_dense() {
            let why = format!("the rows of cache {} lie apart in its view", value.name);
            return self.misfit(&g.name, why);
        }
        let page = value.row_bytes().saturating_mul(page_len);
        self.check_bytes(g, value, page.min(view.rect().span().len()))?;
        Ok(*view.rect())
    }

    fn check_value(
        &self,
        loaded: &Loaded,
        value: &Value,
        view: &View,
        run: &Run,
    ) -> Result<Rect, DeviceError> {
        let g = &loaded.graph;
        self.check_space(g, value, view)?;
        let most = value.shape.max_rows();
        if run.rows > most {
            let why = format!("{} rows do not fit value {} of {most}", run.rows, value.name);
            return self.misfit(&g.name, why);
        }
        let (r, row) = (view.rect(), value.row_bytes());
        // Padding needs room too.
        let rows = loaded.code.bucket.unwrap_or(run.rows);
        let apart = !r.is_dense() && rows > 1;
        if apart && !self.processor.strided_rows {
            let why = format!("the rows of value {} lie apart, but have to be dense", value.name);
            return self.misfit(&g.name, why);
        }
        let (at, multiple) = (r.offset(), self.processor.offset_alignment);
        if !at.is_multiple_of(multiple) {
            let name = &value.name;
            let why =
                format!("value {name} begins at byte {at}, which is no multiple of {multiple}");
            return self.misfit(&g.name, why);
        }
        let Some((all, valid)) = r.first_rows(rows, row).zip(r.first_rows(run.rows, row)) else {
            let (name, has, of) = (&value.name, r.rows(), r.row_bytes());
            let why =
                format!("value {name} has {rows} rows of {row} bytes, its view {has} of {of}");
            return self.misfit(&g.name, why);
        };
        self.check_bytes(g, value, all.span().len())?;
        Ok(valid)
    }

    /// Checks a copy between the host's and the device's own memory, or within either.
    pub fn check_copy(&self, copy: &CopyRows) -> Result<(), DeviceError> {
        let (from, to) = (copy.from.rect(), copy.to.rect());
        if (from.rows(), from.row_bytes()) != (to.rows(), to.row_bytes()) {
            let shape = |r: &Rect| format!("{} rows of {} bytes", r.rows(), r.row_bytes());
            return self.misfit("copy", format!("{} do not go to {}", shape(from), shape(to)));
        }
        let spaces = [copy.from.buffer().space(), copy.to.buffer().space()];
        if spaces.iter().any(|s| *s != SpaceId::HOST && *s != self.space) {
            return self.misfit("copy", "one side is in the memory of another device".into());
        }
        Ok(())
    }

    /// Checks that a host function is for a processor that runs host programs.
    pub fn check_host(&self, task: &str, views: [&[View]; 2]) -> Result<(), DeviceError> {
        if self.processor.kind != ProcessorKind::Cpu {
            let why = "a function of the host, which runs on CPU devices only, cannot run";
            return self.misfit(task, why.into());
        }
        if views.iter().copied().flatten().any(|v| v.buffer().space() != SpaceId::HOST) {
            return self.misfit(task, "a view is in the memory of a device".into());
        }
        Ok(())
    }
}

/// Positions per page of a state: the most of any sequence.
fn page_len(loaded: &Loaded, state: usize, run: &Run) -> usize {
    let groups = loaded.code.state_groups.iter().filter(|(at, _)| *at == state);
    let tables =
        groups.flat_map(|(_, group)| run.forward.seqs.iter().map(|s| s.tables.get(*group)));
    tables.flatten().map(|table| if table.fixed { 1 } else { table.page_len }).max().unwrap_or(0)
}

/// The places of a run's values, in its order.
pub(crate) struct Bound {
    pub inputs: Vec<Rect>,
    pub states: Vec<Rect>,
    pub outputs: Vec<Rect>,
}

#[derive(Clone, Default)]
struct WeightSums {
    seen: Vec<WeightRef>,
    /// Bytes of the graph's weights so far.
    graph: u64,
    /// The part of them not resident yet.
    new: u64,
}
