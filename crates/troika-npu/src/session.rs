//! A compiled model and its runs.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use half::{bf16, f16};
use ort::session::{Session, SessionInputValue};
use ort::value::{DynValue, PrimitiveTensorElementType, TensorRef};
use troika_check::{Random, floats};
use troika_device::{AccessError, ReadRows, Run, SpaceId, View, WriteRows, lock, trim_heap};
use troika_graph::DType;

use crate::cache::PackageFolder;
use crate::emit::{Emitted, HIDDEN, MASK, Port};
use crate::mil::CoreMlFunction;
use crate::onnx::OnnxFiles;
use crate::profile::SessionRecord;
use crate::release::release_mapped;
use crate::rotation::Rotation;
use crate::runtime::one_line;

/// The most rows of a run where a session takes any number: its memory for values grows with them,
/// in each layer's session. A layer's feed-forward of 4864 columns took 54 MiB for 512 rows at once,
/// 28 for 128, 24 for 64 and 22 for 32, of which 21 are weights and libraries; 512 rows took 228, 246,
/// 248 and 248 ms (OpenVINO, one of two shared cores).
const PIECE: usize = 32;
/// The most bytes of a result of such a run: of a head, its memory would be twice as large as this.
const RESULT: usize = 8 << 20;

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
    /// How many of them a run of the session takes.
    each: usize,
    /// Memory for inputs. Rows behind the valid ones stay as they are.
    staged: Mutex<Vec<Vec<u32>>>,
    pub session: SharedSession,
}

/// A session that models for several numbers of rows may share: weights are in memory once.
pub(crate) type SharedSession = Arc<Mutex<OpenSession>>;

/// A session with what is recorded of it.
pub(crate) struct OpenSession {
    pub session: AnySession,
    pub record: SessionRecord,
}

/// What runs a model.
pub(crate) enum AnySession {
    /// A session of ONNX Runtime, with the files that it was made from.
    Onnx(Box<Session>, Arc<OnnxFiles>),
    /// A function of a package, which lies in this folder.
    CoreMl { function: Box<dyn CoreMlFunction>, _package: Arc<PackageFolder> },
}

/// A result of a run.
enum Computed {
    Onnx(DynValue),
    Bytes(Vec<u8>),
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        if let AnySession::Onnx(session, _) = &mut self.session {
            self.record.end(session);
        }
    }
}

/// Why a run did not take place.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// Memory that is in use or not the host's.
    #[error(transparent)]
    Busy(#[from] AccessError),
    /// Bindings that do not fit.
    #[error("{0}")]
    Misfit(String),
    /// What the provider says.
    #[error("{0}")]
    Failed(String),
}

impl CompiledModel {
    /// A model in a session of it.
    pub fn new<F>(session: SharedSession, model: &Emitted<F>) -> CompiledModel {
        let (inputs, outputs, rows) = (model.inputs.clone(), model.outputs.clone(), model.rows);
        let staged = |port: &Port| vec![0; (port.rows * port.row_bytes()).div_ceil(4)];
        let staged = Mutex::new(inputs.iter().map(staged).collect());
        let (of, rotations, bound) = (model.of.clone(), model.rotations.clone(), model.bound);
        let result = outputs.iter().map(Port::row_bytes).fold(1, usize::max);
        let most = if model.any_rows { PIECE.min(RESULT / result) } else { rows };
        let each = rows.min(most).max(1);
        CompiledModel { inputs, outputs, of, rotations, bound, rows, each, staged, session }
    }

    /// A model in a session of ONNX Runtime of its own.
    pub fn onnx(session: Session, record: SessionRecord, model: &Emitted) -> CompiledModel {
        let session = AnySession::Onnx(Box::new(session), model.files.clone());
        CompiledModel::new(Arc::new(Mutex::new(OpenSession { session, record })), model)
    }

    /// Gives back what its compiler has left: the pages of files that it has mapped, and free memory.
    pub fn release(&self) {
        let open = lock(&self.session);
        if let AnySession::Onnx(session, files) = &open.session {
            release_mapped(session, files.folder());
        }
        trim_heap();
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
        let in_place: Vec<_> = read.iter().map(in_place).collect();
        let whole = run.rows / self.each * self.each;
        let fill = |ports: &[Port], memory: &mut [Vec<u32>]| {
            let bound = ports.iter().zip(memory.iter_mut()).zip(read.iter().zip(&in_place));
            for ((port, memory), (rows, in_place)) in bound {
                let first = if in_place.is_some() { whole } else { 0 };
                let to = bytemuck::cast_slice_mut(memory).chunks_exact_mut(port.row_bytes());
                for (i, to) in to.enumerate().take(run.rows).skip(first) {
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
        self.run_on(run.rows, &in_place, fill, |output, port, first, from| {
            let rows = &mut write[output];
            for (i, from) in (first..run.rows).zip(from.chunks_exact(port.row_bytes())) {
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
    /// and passes each output's bytes on, perhaps in parts: with the number of their first row. Only
    /// the first `valid` rows say something. Of inputs that are `in_place`, only those rows are
    /// written that share a run with others.
    pub fn run_on(
        &self,
        valid: usize,
        in_place: &[Option<&[u8]>],
        fill: impl FnOnce(&[Port], &mut [Vec<u32>]) -> Result<(), RunError>,
        mut take: impl FnMut(usize, &Port, usize, &[u8]) -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let mut inputs = lock(&self.staged);
        let OpenSession { session, record, .. } = &mut *lock(&self.session);
        let start = record.begin();
        fill(&self.inputs, &mut inputs)?;
        record.work("marshal", start);
        for rows in self.parts(valid) {
            let is_full = rows.end <= valid;
            let mut all: Vec<&[u8]> = inputs.iter().map(|m| bytemuck::cast_slice(m)).collect();
            for (i, bytes) in in_place.iter().enumerate() {
                let is_used = is_full && self.inputs[i].rows == self.rows;
                all[i] = bytes.filter(|_| is_used).unwrap_or(all[i]);
            }
            let results = self.compute(session, &all, rows.clone(), record)?;
            let start = record.begin();
            for (i, (port, from)) in self.outputs.iter().zip(&results).enumerate() {
                take(i, port, rows.start, bytes_of(port, from).map_err(failed)?)?;
            }
            record.work("unmarshal", start);
        }
        Ok(())
    }

    /// The rows of each run of the session, as far as they say something.
    fn parts(&self, valid: usize) -> impl Iterator<Item = Range<usize>> {
        let (rows, each) = (self.rows, self.each);
        (0..valid.min(rows)).step_by(each).map(move |from| from..(from + each).min(rows))
    }

    /// Runs the session on some rows of the inputs' bytes.
    fn compute(
        &self,
        session: &mut AnySession,
        memory: &[&[u8]],
        rows: Range<usize>,
        record: &mut SessionRecord,
    ) -> Result<Vec<Computed>, RunError> {
        let session = match session {
            AnySession::Onnx(session, _) => session,
            AnySession::CoreMl { function, .. } => {
                return self.predict(&mut **function, memory, record);
            }
        };
        let values = self.inputs.iter().zip(memory);
        let values = values
            .map(|(port, memory)| Ok((Cow::from(&port.name), self.input(port, memory, &rows)?)))
            .collect::<ort::Result<Vec<(Cow<'_, str>, SessionInputValue<'_>)>>>()
            .map_err(failed)?;
        let start = record.begin();
        let mut results = session.run(values).map_err(failed)?;
        record.ran(start);
        let missing = |port: &Port| RunError::Failed(format!("it gives no {}", port.name));
        let outputs = self.outputs.iter();
        let taken = |port: &Port| results.remove(&port.name).ok_or_else(|| missing(port));
        outputs.map(taken).map(|value| value.map(Computed::Onnx)).collect()
    }

    /// Runs a package's function on the inputs' bytes.
    fn predict(
        &self,
        function: &mut dyn CoreMlFunction,
        memory: &[&[u8]],
        record: &mut SessionRecord,
    ) -> Result<Vec<Computed>, RunError> {
        let bytes = |port: &Port| port.rows * port.row_bytes();
        let inputs = self.inputs.iter().zip(memory);
        let inputs: Vec<(&str, &[u8])> =
            inputs.map(|(port, memory)| (&*port.name, &memory[..bytes(port)])).collect();
        let mut results: Vec<Vec<u8>> = self.outputs.iter().map(|p| vec![0; bytes(p)]).collect();
        let outputs = self.outputs.iter().zip(&mut results);
        let mut outputs: Vec<(&str, &mut [u8])> =
            outputs.map(|(port, memory)| (&*port.name, &mut **memory)).collect();
        let start = record.begin();
        let ran = function.predict(&inputs, None, &mut outputs);
        record.ran(start);
        ran.map_err(|why| RunError::Failed(one_line(&why)))?;
        Ok(results.into_iter().map(Computed::Bytes).collect())
    }

    /// The results of a run on seeded inputs, as floats: to compare them with another compilation of
    /// the same model.
    ///
    /// # Errors
    /// What the provider says.
    pub fn probed(&self) -> Result<Vec<f32>, String> {
        let mut inputs = lock(&self.staged);
        let OpenSession { session, record, .. } = &mut *lock(&self.session);
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
        // Further rows go the same way.
        let all: Vec<&[u8]> = inputs.iter().map(|m| bytemuck::cast_slice(m)).collect();
        let results = self.compute(session, &all, 0..self.each, record);
        // Fresh memory: only what is used of it takes room.
        inputs.iter_mut().for_each(|memory| *memory = vec![0; memory.len()]);
        let mut all = Vec::new();
        for (port, value) in self.outputs.iter().zip(&results.map_err(|e| e.to_string())?) {
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

    /// Some rows of an input, or all of one that has others.
    fn input<'a>(
        &self,
        port: &Port,
        bytes: &'a [u8],
        rows: &Range<usize>,
    ) -> ort::Result<SessionInputValue<'a>> {
        let rows = if port.rows == self.rows { rows.clone() } else { 0..port.rows };
        let bytes = &bytes[rows.start * port.row_bytes()..rows.end * port.row_bytes()];
        fn tensor<'a, T: PrimitiveTensorElementType + bytemuck::Pod + std::fmt::Debug>(
            port: &Port,
            bytes: &'a [u8],
        ) -> ort::Result<SessionInputValue<'a>> {
            let values = bytemuck::cast_slice::<u8, T>(bytes);
            let rows = bytes.len() / port.row_bytes().max(1);
            Ok(TensorRef::from_array_view(([rows, port.cols], values))?.into())
        }
        match port.dtype {
            DType::I32 => tensor::<i32>(port, bytes),
            DType::F16 => tensor::<f16>(port, bytes),
            DType::BF16 => tensor::<bf16>(port, bytes),
            _ => tensor::<f32>(port, bytes),
        }
    }
}

/// The bytes of an input that a session can read where they are.
fn in_place<'a>(rows: &'a ReadRows<'_>) -> Option<&'a [u8]> {
    rows.as_slice().filter(|bytes: &&[u8]| bytes.as_ptr().addr().is_multiple_of(align_of::<f32>()))
}

/// The bytes of a result.
fn bytes_of<'a>(port: &Port, result: &'a Computed) -> ort::Result<&'a [u8]> {
    let result = match result {
        Computed::Onnx(value) => value,
        Computed::Bytes(bytes) => return Ok(bytes),
    };
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
