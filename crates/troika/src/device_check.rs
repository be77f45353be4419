//! Checks a device's kernels against the CPU's, on seeded values of odd sizes.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use troika_device::{
    Bindings, Buffer, CommandList, CopyRows, Device, DeviceError, ForwardBatch, PageTable,
    RealClock, Run, SeqRows, SpaceId, Submission, View, Weights, Work,
};
use troika_graph::{DType, ValueId};

use crate::check_cases::{Case, Kernel, Numbers, POSITIONS};

/// How a kernel of a device compares with the CPU's.
#[derive(Clone, Debug)]
pub struct CheckedKernel {
    /// The op, with the type of its weights.
    pub name: String,
    /// The largest difference, relative to the largest result; of several numbers of rows.
    pub error: Option<f32>,
    /// Why it is not used: the device refuses it, or computes something else.
    pub fault: Option<String>,
}

/// Numbers of rows: one, a few, and more than a tile.
const ROWS: [usize; 3] = [1, 5, 67];
const PAGE: usize = 16;

/// Compares each kernel of a device with those of a reference. `progress` hears how many of how many
/// are done.
///
/// # Errors
/// As for [`Check::kernel`].
pub(crate) fn check_all(
    check: &Check<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<CheckedKernel>, DeviceError> {
    let mut all = Kernel::all();
    all.retain(|kernel| *kernel != Kernel::Largest || check.device.caps().largest > 0);
    let mut checked = Vec::with_capacity(all.len());
    for kernel in &all {
        progress(checked.len(), all.len());
        checked.push(check.kernel(*kernel)?);
    }
    progress(checked.len(), all.len());
    Ok(checked)
}

/// A device, and the CPU that it is compared with.
pub(crate) struct Check<'a> {
    pub device: &'a dyn Device,
    pub reference: Arc<dyn Device>,
}

impl Check<'_> {
    /// Compares a kernel with the CPU's.
    ///
    /// # Errors
    /// Nothing is known of the kernel then: the CPU does not compute a case, or the device failed in
    /// a run, as when its driver loses it.
    pub fn kernel(&self, kernel: Kernel) -> Result<CheckedKernel, DeviceError> {
        let name = kernel.name();
        let mut worst = 0_f32;
        for case in kernel.cases()? {
            match self.case(&case)? {
                Ok(error) => worst = worst.max(error),
                Err(why) => return Ok(CheckedKernel { name, error: None, fault: Some(why) }),
            }
        }
        if kernel == Kernel::Largest {
            worst = self.largest()?;
        }
        let most = kernel.most();
        let fault = (worst > most).then(|| {
            format!("it computes something else: {worst:.0e} off, where {most:.0e} is allowed")
        });
        Ok(CheckedKernel { name, error: Some(worst), fault })
    }

    /// The largest difference of numbers and columns that the device picks of rows.
    fn largest(&self) -> Result<f32, DeviceError> {
        let most = self.device.caps().largest;
        let mut worst = 0_f32;
        for (rows, cols, kept) in [(1, 77, 1), (3, 2500, most / 2), (2, 70_001, most)] {
            let mut numbers = Numbers(cols as u64);
            // Rough, so that some are equal.
            let mut rough = || (numbers.float() * 64.0).round();
            let values: Vec<f32> = (0..rows * cols).map(|_| rough()).collect();
            let kept = kept.clamp(1, cols / 2);
            let mut expected = Vec::new();
            for row in values.chunks(cols) {
                let mut order: Vec<usize> = (0..cols).collect();
                order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
                expected.extend(order[..kept].iter().map(|col| row[*col]));
                expected.extend(order[..kept].iter().map(|col| *col as f32));
            }
            worst = worst.max(difference(&self.picked(&values, cols, kept)?, &expected));
        }
        Ok(worst)
    }

    /// The numbers that the device picks of each row, and after those of a row their columns.
    fn picked(&self, values: &[f32], cols: usize, kept: usize) -> Result<Vec<f32>, DeviceError> {
        let what = || DeviceError::memory("checking a device");
        let rows = values.len() / cols;
        let bytes = size_of_val(values);
        let (host, own) = (Buffer::zeroed(bytes), self.device.allocate(bytes));
        let (host, own) = (host.map_err(what())?, own.map_err(what())?);
        host.write()?.as_mut_slice::<f32>().copy_from_slice(values);
        let to = Buffer::zeroed(rows * kept * 8).map_err(what())?;
        let shape = (rows, cols * 4);
        let (from, own) = (View::dense(&host, 0, shape)?, View::dense(&own, 0, shape)?);
        let to = View::dense(&to, 0, (rows, kept * 8))?;
        let upload = CopyRows::whole(from, own.clone());
        let pick = CopyRows { from: own, to: to.clone(), largest: Some(kept) };
        finish(self.device, vec![Work::Copy(upload), Work::Copy(pick)])?;
        let read = to.read()?;
        let words = read.as_slice::<u32>().unwrap_or_default();
        let pairs = words.chunks_exact(2 * kept).flat_map(|row| {
            let (numbers, columns) = row.split_at(kept);
            let numbers = numbers.iter().map(|bits| f32::from_bits(*bits));
            numbers.chain(columns.iter().map(|col| *col as f32))
        });
        Ok(pairs.collect())
    }

    /// The largest difference in a case, or why the device does not run it.
    fn case(&self, case: &Case) -> Result<Result<f32, String>, DeviceError> {
        if let Some(why) = self.device.examine(&case.graph).into_iter().flatten().next() {
            return Ok(Err(why));
        }
        let load = |device| Weights::compiled(device, &case.graph, &case.weights);
        let own = match load(self.device) {
            Err(e @ DeviceError::Unsupported { .. }) => return Ok(Err(e.to_string())),
            own => own?,
        };
        let reference = load(&*self.reference)?;
        let mut worst = 0_f32;
        for rows in ROWS {
            let expected = case.run(&*self.reference, &reference, rows)?;
            let got = case.run(self.device, &own, rows)?;
            worst = worst.max(difference(&got, &expected));
        }
        Ok(Ok(worst))
    }
}

/// The largest difference, relative to the largest number that is expected.
fn difference(got: &[f32], expected: &[f32]) -> f32 {
    if got.len() != expected.len() {
        return f32::INFINITY;
    }
    let top = expected.iter().fold(f32::MIN_POSITIVE, |top, x| top.max(x.abs()));
    got.iter().zip(expected).fold(0_f32, |most, (a, b)| {
        let d = (a - b).abs() / top;
        if d.is_nan() { f32::INFINITY } else { most.max(d) }
    })
}

/// A value in the host's memory, and where the device has it.
struct Placed {
    host: View,
    own: View,
}

impl Placed {
    fn is_copied(&self) -> bool {
        self.host.buffer().id() != self.own.buffer().id()
    }

    fn upload(&self) -> Option<Work> {
        let (from, to) = (self.host.clone(), self.own.clone());
        self.is_copied().then_some(Work::Copy(CopyRows::whole(from, to)))
    }

    fn download(&self) -> Option<Work> {
        let (from, to) = (self.own.clone(), self.host.clone());
        self.is_copied().then_some(Work::Copy(CopyRows::whole(from, to)))
    }
}

impl Case {
    /// The outputs of a run on seeded inputs.
    fn run(
        &self,
        device: &dyn Device,
        weights: &Arc<Weights>,
        rows: usize,
    ) -> Result<Vec<f32>, DeviceError> {
        let g = &self.graph;
        let mut numbers = Numbers(rows as u64 * 977 + 13);
        let mut place = |ids: &[ValueId], count: usize| {
            let place = |id: &ValueId| self.place(device, *id, count, &mut numbers);
            ids.iter().map(place).collect::<Result<Vec<_>, _>>()
        };
        let (inputs, states) = (place(&g.inputs, rows)?, place(&g.states, POSITIONS)?);
        let outputs = place(&g.outputs, rows)?;
        let mut tasks: Vec<Work> =
            inputs.iter().chain(&states).filter_map(Placed::upload).collect();
        let own = |list: &[Placed]| list.iter().map(|p| p.own.clone()).collect();
        let bindings =
            Bindings { inputs: own(&inputs), states: own(&states), outputs: own(&outputs) };
        let pages = [3, 0, 6, 2, 5, 1, 7, 4].to_vec();
        let table = PageTable { page_len: PAGE, first: 0, pages };
        let seq =
            SeqRows { seq: 1, rows: 0..rows, pos: 40, known_len: 40 + rows, tables: vec![table] };
        let forward = Arc::new(ForwardBatch { seqs: vec![seq] });
        let (weights, bindings) = (weights.clone(), Arc::new(bindings));
        tasks.push(Work::Run(Run { weights, bindings, rows, forward }));
        tasks.extend(outputs.iter().filter_map(Placed::download));
        finish(device, tasks)?;
        let mut all = Vec::new();
        for placed in &outputs {
            let read = placed.host.read()?;
            all.extend_from_slice(read.as_slice::<f32>().unwrap_or_default());
        }
        Ok(all)
    }

    /// Memory for a value: floats are seeded, whole numbers count up.
    fn place(
        &self,
        device: &dyn Device,
        id: ValueId,
        count: usize,
        numbers: &mut Numbers,
    ) -> Result<Placed, DeviceError> {
        let value = self.graph.value(id);
        let bytes_each = value.dtype.block_bytes();
        let row = value.shape.row_len() * bytes_each;
        let what = || DeviceError::memory("checking a device");
        let host = Buffer::zeroed(count * row).map_err(what())?;
        let mut bytes = host.write()?;
        for (i, chunk) in bytes.chunks_mut(bytes_each).enumerate() {
            match value.dtype {
                DType::I32 => chunk.copy_from_slice(&((i % POSITIONS) as i32).to_le_bytes()),
                DType::F32 => chunk.copy_from_slice(&numbers.float().to_le_bytes()),
                _ => {}
            }
        }
        drop(bytes);
        let own = match device.caps().spaces.first() {
            None | Some(&SpaceId::HOST) => host.clone(),
            Some(_) => device.allocate(count * row).map_err(what())?,
        };
        let (host, own) =
            (View::dense(&host, 0, (count, row))?, View::dense(&own, 0, (count, row))?);
        Ok(Placed { host, own })
    }
}

/// Runs tasks one after another.
fn finish(device: &dyn Device, tasks: Vec<Work>) -> Result<(), DeviceError> {
    let tasks = tasks.into_iter().map(|work| Submission { tag: 0, work }).collect();
    let (done, completions) = sync_channel(1);
    let mut queue = device.queue(0, Arc::new(RealClock::new()), done)?;
    queue.submit(CommandList { tasks, ..CommandList::default() })?;
    let gone = |_| DeviceError::Gone(device.name().into());
    completions.recv().map_err(gone)?.outcome
}
