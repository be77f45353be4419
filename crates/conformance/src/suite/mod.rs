//! The conformance suite for devices: ops and segments of models as data, run on any device and
//! compared with the CPU's kernels. What a device does not support is listed, and must be refused.

mod models;

use std::collections::BTreeSet;
use std::sync::Arc;

use troika_check::{CaseRunner, DeviceCase, Layout, MAX_ROWS, Ran, Values};
use troika_cpu::{CpuDevice, CpuOptions, Isa};
use troika_device::{Clock, Device, DeviceError, RealClock, Weights};
use troika_graph::{Node, Op, Subgraph, bind_static};

pub use models::model_cases;

/// Something that a device does not support.
#[derive(Clone, Copy, Debug)]
pub struct Exclusion {
    /// The name of an op or a case.
    pub what: &'static str,
    /// Why.
    pub why: &'static str,
}

/// The results of a suite.
#[derive(Clone, Debug, Default)]
pub struct SuiteReport {
    /// Number of compared runs.
    pub runs: usize,
    /// Cases that were refused as listed, with the device's reason.
    pub refused: Vec<(String, String)>,
    /// Largest difference from the scalar kernels, relative to a value's largest element.
    pub worst: f32,
    /// Descriptions of failures.
    pub failures: Vec<String>,
}

/// Runs all cases on a device, in real time and, if it has a virtual clock, in virtual time.
///
/// # Errors
/// A reference or queue does not start.
pub fn run_suite(
    device: &dyn Device,
    cases: &[DeviceCase],
    exclusions: &[Exclusion],
) -> Result<SuiteReport, DeviceError> {
    let mut report = SuiteReport::default();
    let clocks = [Some(Arc::new(RealClock::new()) as Arc<dyn Clock>), device.clock()];
    let mut used = BTreeSet::new();
    for clock in clocks.into_iter().flatten() {
        let mut suite = Suite {
            bench: CaseRunner::open(device, clock)?,
            references: References::open()?,
            exclusions,
            used: &mut used,
            report: &mut report,
        };
        let depth = device.caps().queue_depth.min(8);
        if let Err(e) = suite.bench.fill(depth) {
            suite.report.failures.push(format!("{depth} lists in flight: {e}"));
        }
        if let Err(e) = suite.bench.host_tasks() {
            suite.report.failures.push(format!("functions of the host: {e}"));
        }
        for case in cases {
            suite.check(case);
        }
    }
    for e in exclusions.iter().filter(|e| !used.contains(e.what)) {
        report.failures.push(format!("{} is excluded ({}), but no case has it", e.what, e.why));
    }
    Ok(report)
}

/// The CPU with its simplest and with its best kernels.
struct References {
    scalar: CpuDevice,
    best: CpuDevice,
}

impl References {
    fn open() -> Result<References, DeviceError> {
        let plain = Isa::available().into_iter().find(|i| i.name() == "scalar");
        let open = |isa| {
            let name = "reference".into();
            CpuDevice::new(CpuOptions { name, threads: 1, isa, ..CpuOptions::default() })
        };
        Ok(References { scalar: open(plain)?, best: open(None)? })
    }
}

struct Suite<'a> {
    bench: CaseRunner<'a>,
    references: References,
    exclusions: &'a [Exclusion],
    used: &'a mut BTreeSet<&'static str>,
    report: &'a mut SuiteReport,
}

impl Suite<'_> {
    fn fail(&mut self, case: &DeviceCase, what: impl std::fmt::Display) {
        self.report.failures.push(format!("{}: {what}", case.name));
    }

    fn check(&mut self, case: &DeviceCase) {
        let ops: Vec<&str> = case.graph.nodes.iter().map(|n| n.op.name()).collect();
        let excluded = self.exclusions.iter().map(|e| e.what);
        let hits: Vec<&'static str> =
            excluded.filter(|w| ops.contains(w) || *w == case.name).collect();
        self.used.extend(&hits);
        let named = hits.contains(&case.name.as_str());
        let why = self.bench.device.examine(&case.graph);
        let differs = |op: &str, why: &Option<String>| hits.contains(&op) != why.is_some();
        let wrong = ops.iter().zip(&why).find(|(op, why)| !named && differs(op, why));
        if let Some((op, why)) = wrong {
            let what = format!("examining says {why:?} of op {op}, exclusions are {hits:?}");
            return self.fail(case, what);
        }
        let first = why.iter().flatten().next().cloned();
        match (hits.is_empty(), first) {
            (true, _) => case.rows().into_iter().for_each(|rows| self.check_rows(case, rows)),
            (false, Some(why)) => self.check_refused(case, why),
            (false, None) => self.fail(case, "is excluded, but examining finds nothing to refuse"),
        }
    }

    /// The case's graph in the form that the device takes for some rows, and the rows to bind.
    fn shaped(&self, case: &DeviceCase, rows: usize) -> Option<(Subgraph, usize)> {
        let caps = self.bench.device.caps();
        if !caps.static_shapes {
            return Some((case.graph.clone(), rows));
        }
        // Rows of a group's experts lie where their capacity says.
        let is_group = |n: &Node| matches!(n.op, Op::ExpertGroup(_));
        if case.graph.nodes.iter().any(is_group) {
            return Some((bind_static(&case.graph, MAX_ROWS), MAX_ROWS));
        }
        let fits = caps.row_buckets.iter().copied().find(|b| *b >= rows);
        let bucket = if caps.row_buckets.is_empty() { Some(rows) } else { fits }?;
        Some((bind_static(&case.graph, bucket), bucket))
    }

    fn check_refused(&mut self, case: &DeviceCase, why: String) {
        let Some((graph, _)) = self.shaped(case, 1) else { return };
        match Weights::compiled(self.bench.device, &graph, &*case.weights) {
            Err(e @ DeviceError::Unsupported { .. }) => {
                let text = e.to_string();
                if !text.contains(self.bench.device.name()) || text.contains('\n') {
                    let what = format!("is refused without the device's name: {text}");
                    return self.fail(case, what);
                }
                self.report.refused.push((case.name.clone(), why));
            }
            Err(e) => self.fail(case, format!("is refused, but not as unsupported: {e}")),
            Ok(_) => self.fail(case, format!("is compiled, though examining says {why:?}")),
        }
    }

    fn check_rows(&mut self, case: &DeviceCase, rows: usize) {
        let Some((graph, bound)) = self.shaped(case, rows) else { return };
        let start = Values::new(&case.graph, rows, case.seed);
        let result =
            Weights::compiled(self.bench.device, &graph, &*case.weights).and_then(|loaded| {
                let got =
                    self.bench.run(&case.graph, &loaded, &start, Layout { bound, apart: false })?;
                Ok((got, loaded))
            });
        let (got, loaded) = match result {
            Ok(both) => both,
            Err(e) => return self.fail(case, format!("{rows} rows: {e}")),
        };
        if let Some(name) = got.spoilt {
            self.fail(case, format!("{rows} rows: padding of {name} was written"));
        }
        let plain = self.reference(&self.references.scalar, case, &start);
        match plain.map(|plain| got.values.difference(&plain, &case.graph)) {
            Ok(error) if error <= case.tolerance => {
                self.report.worst = self.report.worst.max(error);
            }
            Ok(error) => self.fail(case, format!("{rows} rows differ by {error:e}")),
            Err(e) => self.fail(case, format!("scalar kernels: {e}")),
        }
        if self.bench.device.caps().numerics == self.references.best.caps().numerics {
            match self.reference(&self.references.best, case, &start) {
                Ok(best) if best == got.values => {}
                Ok(_) => self.fail(case, format!("{rows} rows have other bits than the CPU's")),
                Err(e) => self.fail(case, format!("the CPU's kernels: {e}")),
            }
        }
        self.report.runs += 1;
        if rows > 1 {
            let apart = self.bench.run(&case.graph, &loaded, &start, Layout { bound, apart: true });
            self.check_apart(case, &got.values, apart);
        }
    }

    /// Checks that gaps between rows make no difference, or are refused.
    fn check_apart(&mut self, case: &DeviceCase, dense: &Values, apart: Result<Ran, DeviceError>) {
        match (self.bench.device.caps().strided_rows, apart) {
            (true, Ok(ran)) if ran.values == *dense && ran.spoilt.is_none() => {}
            (true, Ok(ran)) => {
                let what = ran.spoilt.unwrap_or_else(|| "the bits".into());
                self.fail(case, format!("rows that lie apart change {what}"));
            }
            (false, Err(DeviceError::Submission { .. })) => {}
            (false, Ok(_)) => self.fail(case, "takes rows that lie apart, though it says not"),
            (_, Err(e)) => self.fail(case, format!("rows that lie apart: {e}")),
        }
    }

    fn reference(
        &self,
        cpu: &CpuDevice,
        case: &DeviceCase,
        start: &Values,
    ) -> Result<Values, DeviceError> {
        case.run(cpu, &Weights::compiled(cpu, &case.graph, &*case.weights)?, start)
    }
}
