//! A compiled model and its runs.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};
use ort::session::{Session, SessionInputValue};
use ort::value::{DynValue, PrimitiveTensorElementType, TensorRef};
use troika_check::{Random, floats, snr_db};
use troika_device::{AccessError, ReadRows, Run, SpaceId, View, WriteRows};
use troika_graph::DType;

use crate::emit::{Emitted, HIDDEN, MASK, Port};
use crate::profile::SessionRecord;
use crate::rotation::Rotation;
use crate::runtime::one_line;

/// A model that is ready to run.
pub(crate) struct CompiledModel {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// For each of the first inputs, the graph's input that it is.
    of: Vec<usize>,
    /// The inputs that follow, in pairs.
    rotations: Vec<Rotation>,
    /// Inputs of the graph.
    bound: usize,
    /// The number of rows of all inputs and outputs.
    rows: usize,
    session: Mutex<Staged>,
}

/// A session with memory for its inputs.
struct Staged {
    session: Session,
    /// Rows behind the valid ones stay as they are.
    inputs: Vec<Vec<u32>>,
    record: SessionRecord,
}

impl Drop for Staged {
    fn drop(&mut self) {
        self.record.end(&mut self.session);
    }
}

/// Why a run did not take place.
pub(crate) enum RunError {
    /// Memory that is in use or not the host's.
    Busy(AccessError),
    /// Bindings that do not fit.
    Misfit(String),
    /// What the provider says.
    Failed(String),
}

impl From<AccessError> for RunError {
    fn from(e: AccessError) -> RunError {
        RunError::Busy(e)
    }
}

impl CompiledModel {
    pub fn new(session: Session, model: &Emitted, record: SessionRecord) -> CompiledModel {
        let (inputs, outputs, rows) = (model.inputs.clone(), model.outputs.clone(), model.rows);
        let staged = |port: &Port| vec![0; (port.rows * port.row_bytes()).div_ceil(4)];
        let staged = Staged { session, inputs: inputs.iter().map(staged).collect(), record };
        let (of, rotations, bound) = (model.of.clone(), model.rotations.clone(), model.bound);
        CompiledModel { inputs, outputs, of, rotations, bound, rows, session: Mutex::new(staged) }
    }

    /// Runs it on the rows of a submission.
    pub fn run(&self, run: &Run) -> Result<(), RunError> {
        let bindings = &run.bindings;
        let got = (bindings.inputs.len(), bindings.states.len(), bindings.outputs.len());
        let need = (self.bound, 0, self.outputs.len());
        if got != need {
            let why = format!("binds {got:?} inputs, states and outputs, but needs {need:?}");
            return Err(RunError::Misfit(why));
        }
        if run.rows > self.rows {
            let why = format!("{} rows do not fit the {} it was compiled for", run.rows, self.rows);
            return Err(RunError::Misfit(why));
        }
        let valid = |port: &Port, view: &View| self.valid_rows(port, view, run.rows);
        let of = self.of.iter().map(|i| &bindings.inputs[*i]);
        let inputs: Vec<View> =
            self.inputs.iter().zip(of).map(|(p, v)| valid(p, v)).collect::<Result<_, _>>()?;
        let outputs: Vec<View> = (self.outputs.iter().zip(&bindings.outputs))
            .map(|(p, v)| valid(p, v))
            .collect::<Result<_, _>>()?;
        let read = inputs.iter().map(View::read).collect::<Result<Vec<ReadRows<'_>>, _>>()?;
        let mut write =
            outputs.iter().map(View::write).collect::<Result<Vec<WriteRows<'_>>, _>>()?;
        let fill = |ports: &[Port], memory: &mut [Vec<u32>]| {
            for (port, (memory, rows)) in ports.iter().zip(memory.iter_mut().zip(&read)) {
                let to = bytemuck::cast_slice_mut(memory).chunks_exact_mut(port.row_bytes());
                for (i, to) in to.take(run.rows).enumerate() {
                    let from = rows.row::<u8>(i).unwrap_or_default();
                    let len = from.len().min(to.len());
                    to[..len].copy_from_slice(&from[..len]);
                }
            }
            let pairs = memory[read.len()..].as_chunks_mut().0;
            for (rotation, [cos, sin]) in self.rotations.iter().zip(pairs) {
                let positions = valid(&self.positions(), &bindings.inputs[rotation.positions])?;
                let positions = positions.read()?;
                let rows = (0..run.rows).map(|i| positions.row(i).map_or(0, |row: &[i32]| row[0]));
                let [cos, sin] = [cos, sin].map(|m| bytemuck::cast_slice_mut(m));
                rotation.fill(rows, &run.forward, cos, sin);
            }
            Ok(())
        };
        self.run_on(fill, |i, port, from| {
            let rows = &mut write[i];
            for (i, from) in from.chunks_exact(port.row_bytes()).take(run.rows).enumerate() {
                rows.row_mut::<u8>(i).into_iter().for_each(|to| to.copy_from_slice(from));
            }
            Ok(())
        })
    }

    /// The input with positions.
    fn positions(&self) -> Port {
        Port { name: "positions".into(), dtype: DType::I32, rows: self.rows, cols: 1 }
    }

    /// Runs it on inputs that the caller writes in rows of bytes, in the order of [`Emitted::inputs`],
    /// and passes each output's bytes on.
    pub fn run_on(
        &self,
        fill: impl FnOnce(&[Port], &mut [Vec<u32>]) -> Result<(), RunError>,
        mut take: impl FnMut(usize, &Port, &[u8]) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let mut staged = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let Staged { session, inputs, record } = &mut *staged;
        let start = record.begin();
        fill(&self.inputs, inputs)?;
        record.work("marshal", start);
        let results = self.compute(session, inputs, record)?;
        let start = record.begin();
        for (i, (port, from)) in self.outputs.iter().zip(&results).enumerate() {
            take(i, port, bytes_of(port, from).map_err(failed)?)?;
        }
        record.work("unmarshal", start);
        Ok(())
    }

    /// Runs the session on the staged inputs.
    fn compute(
        &self,
        session: &mut Session,
        memory: &[Vec<u32>],
        record: &mut SessionRecord,
    ) -> Result<Vec<DynValue>, RunError> {
        let values = self.inputs.iter().zip(memory);
        let values = values
            .map(|(port, memory)| Ok((Cow::from(&port.name), self.input(port, memory)?)))
            .collect::<ort::Result<Vec<(Cow<'_, str>, SessionInputValue<'_>)>>>()
            .map_err(failed)?;
        let start = record.begin();
        let mut results = session.run(values).map_err(failed)?;
        record.ran(start);
        let missing = |port: &Port| RunError::Failed(format!("it gives no {}", port.name));
        let outputs = self.outputs.iter();
        outputs.map(|port| results.remove(&port.name).ok_or_else(|| missing(port))).collect()
    }

    /// The signal-to-noise ratio of the results, in decibels, measured against the results of
    /// another compilation of the same model, on inputs from a fixed seed.
    ///
    /// # Errors
    /// What one of them says.
    pub fn snr_db(&self, reference: &CompiledModel) -> Result<f64, String> {
        Ok(snr_db(&self.probed()?, &reference.probed()?))
    }

    /// The results of seeded inputs, as floats.
    fn probed(&self) -> Result<Vec<f32>, String> {
        let mut staged = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let Staged { session, inputs, record } = &mut *staged;
        let mut random = Random(0);
        for (port, memory) in self.inputs.iter().zip(inputs.iter_mut()) {
            match port.dtype {
                // As it will be: some positions are hidden.
                _ if port.name == MASK => memory.iter_mut().for_each(|v| {
                    let hidden = random.float() < 0.0;
                    *v = if hidden { HIDDEN.to_bits() } else { 0 };
                }),
                // Ids and positions: small numbers are valid.
                DType::I32 => (0..).zip(memory.iter_mut()).for_each(|(i, v)| *v = i % 2),
                dtype => {
                    let bytes = bytemuck::cast_slice_mut::<u32, u8>(memory);
                    bytes.copy_from_slice(&random.bytes(dtype, bytes.len()));
                }
            }
        }
        let results = self.compute(session, inputs, record);
        // Fresh memory: only what is used of it takes room.
        inputs.iter_mut().for_each(|memory| *memory = vec![0; memory.len()]);
        let results = results.map_err(|e| match e {
            RunError::Busy(e) => e.to_string(),
            RunError::Misfit(why) | RunError::Failed(why) => why,
        })?;
        let mut all = Vec::new();
        for (port, value) in self.outputs.iter().zip(&results) {
            let bytes = bytes_of(port, value).map_err(|e| one_line(&e.to_string()))?;
            all.extend(floats(bytes, port.dtype));
        }
        Ok(all)
    }

    /// The valid rows of a value's view, which has room for all rows of the compiled shape.
    fn valid_rows(&self, port: &Port, view: &View, rows: usize) -> Result<View, RunError> {
        let (r, row) = (view.rect(), port.row_bytes());
        if view.buffer().space() != SpaceId::HOST {
            let why = format!("{} is bound to memory of another device", port.name);
            return Err(RunError::Misfit(why));
        }
        let fits = match r.is_dense() {
            true => self.rows * row <= r.span().len(),
            false => r.row_bytes() == row && self.rows <= r.rows(),
        };
        let valid = match r.is_dense() {
            true => View::dense(view.buffer(), r.offset(), (rows, row)),
            false => view.rows(0..rows.min(r.rows())),
        };
        valid.ok().filter(|_| fits).ok_or_else(|| {
            let (name, all, has, of) = (&port.name, self.rows, r.rows(), r.row_bytes());
            RunError::Misfit(format!(
                "{name} has {all} rows of {row} bytes, its view {has} of {of}"
            ))
        })
    }

    fn input<'a>(&self, port: &Port, memory: &'a [u32]) -> ort::Result<SessionInputValue<'a>> {
        let bytes = bytemuck::cast_slice(memory);
        let bytes = &bytes[..port.rows * port.row_bytes()];
        fn tensor<'a, T: PrimitiveTensorElementType + bytemuck::Pod + std::fmt::Debug>(
            port: &Port,
            bytes: &'a [u8],
        ) -> ort::Result<SessionInputValue<'a>> {
            let values = bytemuck::cast_slice::<u8, T>(bytes);
            Ok(TensorRef::from_array_view(([port.rows, port.cols], values))?.into())
        }
        match port.dtype {
            DType::I32 => tensor::<i32>(port, bytes),
            DType::F16 => tensor::<f16>(port, bytes),
            DType::BF16 => tensor::<bf16>(port, bytes),
            _ => tensor::<f32>(port, bytes),
        }
    }
}

/// The bytes of a result.
fn bytes_of<'a>(port: &Port, result: &'a DynValue) -> ort::Result<&'a [u8]> {
    Ok(match port.dtype {
        DType::I32 => bytemuck::cast_slice(result.try_extract_tensor::<i32>()?.1),
        DType::F16 => bytemuck::cast_slice(result.try_extract_tensor::<f16>()?.1),
        DType::BF16 => bytemuck::cast_slice(result.try_extract_tensor::<bf16>()?.1),
        _ => bytemuck::cast_slice(result.try_extract_tensor::<f32>()?.1),
    })
}

fn failed(e: ort::Error) -> RunError {
    RunError::Failed(one_line(&e.to_string()))
}
