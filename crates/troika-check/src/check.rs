//! Checks a device's kernels against the CPU's, on seeded values of odd sizes.

use std::sync::Arc;

use troika_device::{Buffer, CopyRows, Device, DeviceError, RealClock, View, Weights, Work};

use crate::bench::Bench;
use crate::build::DeviceCase;
use crate::kernel::Kernel;
use crate::random::Random;
use crate::values::Values;

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

/// A device, and the CPU that it is compared with.
pub struct Check<'a> {
    /// The device.
    pub device: &'a dyn Device,
    /// The CPU.
    pub reference: Arc<dyn Device>,
}

impl Check<'_> {
    /// Compares all kernels. `progress` hears how many of how many are done, and says whether to go
    /// on.
    ///
    /// # Errors
    /// As for [`Check::kernel`].
    pub fn all(
        &self,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Vec<CheckedKernel>, DeviceError> {
        let (mut all, mut checked) = (Kernel::all(), Vec::new());
        all.retain(|kernel| *kernel != Kernel::TopK || self.device.caps().top_k > 0);
        for kernel in &all {
            checked.push(self.kernel(*kernel)?);
            if !progress(checked.len(), all.len()) {
                break;
            }
        }
        Ok(checked)
    }

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
        if kernel == Kernel::TopK && !self.picks_top_k()? {
            worst = f32::INFINITY;
        }
        let most = kernel.most();
        let fault = (worst > most).then(|| {
            format!("it computes something else: {worst:.0e} off, where {most:.0e} is allowed")
        });
        Ok(CheckedKernel { name, error: Some(worst), fault })
    }

    /// Whether the device picks the numbers and columns of rows that it should.
    fn picks_top_k(&self) -> Result<bool, DeviceError> {
        let most = self.device.caps().top_k;
        let mut holds = true;
        for (rows, cols, kept) in [(1, 77, 1), (3, 2500, most / 2), (2, 70_001, most)] {
            let mut random = Random(cols as u64);
            // Rough, so that some are equal.
            let mut rough = || (random.float() * 64.0).round();
            let values: Vec<f32> = (0..rows * cols).map(|_| rough()).collect();
            let kept = kept.clamp(1, cols / 2);
            let mut expected = Vec::new();
            for row in values.chunks(cols) {
                let mut order: Vec<usize> = (0..cols).collect();
                order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
                expected.extend(order[..kept].iter().map(|col| row[*col].to_bits()));
                expected.extend(order[..kept].iter().map(|col| *col as u32));
            }
            holds &= self.picked(&values, cols, kept)? == expected;
        }
        Ok(holds)
    }

    /// The bits of the numbers that the device picks of each row, and after those of a row their
    /// columns.
    fn picked(&self, values: &[f32], cols: usize, kept: usize) -> Result<Vec<u32>, DeviceError> {
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
        let pick = CopyRows { from: own, to: to.clone(), top_k: Some(kept) };
        let mut bench = Bench::open(self.device, 0, Arc::new(RealClock::new()))?;
        bench.run_all([upload, pick].map(Work::Copy))?;
        Ok(to.read()?.as_slice::<u32>().unwrap_or_default().to_vec())
    }

    /// The largest difference in a case, or why the device does not run it.
    fn case(&self, case: &DeviceCase) -> Result<Result<f32, String>, DeviceError> {
        if let Some(why) = self.device.examine(&case.graph).into_iter().flatten().next() {
            return Ok(Err(why));
        }
        let load = |device| Weights::compiled(device, &case.graph, &*case.weights);
        let own = match load(self.device) {
            Err(e @ DeviceError::Unsupported { .. }) => return Ok(Err(e.to_string())),
            own => own?,
        };
        let reference = load(&*self.reference)?;
        let mut worst = 0_f32;
        for rows in case.rows() {
            let start = Values::new(&case.graph, rows, case.seed);
            let expected = case.run(&*self.reference, &reference, &start)?;
            let got = case.run(self.device, &own, &start)?;
            worst = worst.max(got.difference(&expected, &case.graph));
        }
        Ok(Ok(worst))
    }
}
