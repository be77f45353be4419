//! Simulations, each run once.

use std::collections::HashMap;

use troika::DeviceOptions;
use troika::plan::SyncMode;
use troika::sim::{CoRun, Soc};

use crate::{
    Figures, LabError, ProductShape, ProductTime, Result, Shape, SimulateOptions, Simulation,
    SocStrategy, WEIGHTS,
};

/// A SoC, original or modified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phone {
    /// Snapdragon 8 Gen 3.
    Gen3,
    /// Snapdragon 8 Elite.
    Elite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    pub phone: Phone,
    pub model: &'static str,
    pub strategy: &'static str,
    pub prompt: usize,
    pub generate: usize,
    /// With waits that sleep until woken.
    pub blocking: bool,
    /// Whether products may have their operands exchanged.
    pub exchange: bool,
    /// Whether a game draws 60 frames per second of 6 ms each meanwhile (assumption D6).
    pub game: bool,
}

impl Case {
    /// A prompt on the 8 Gen 3.
    pub fn prefill(model: &'static str, strategy: &'static str, prompt: usize) -> Case {
        Case {
            phone: Phone::Gen3,
            model,
            strategy,
            prompt,
            generate: 1,
            blocking: false,
            exchange: true,
            game: false,
        }
    }

    /// The same with some decoded tokens.
    pub fn decode(model: &'static str, strategy: &'static str, prompt: usize) -> Case {
        Case { generate: 5, ..Case::prefill(model, strategy, prompt) }
    }
}

pub fn temporary_folder() -> Result<tempfile::TempDir> {
    let why = "a folder for temporary files cannot be made";
    let told = |e| LabError::Impossible(format!("{why}: {e}; set TMPDIR to one with room"));
    tempfile::tempdir().map_err(told)
}

const GAME: CoRun = CoRun { period_ns: 16_666_667, frame_ns: 6_000_000 };

pub struct Lab {
    /// The devices of measurements.
    pub devices: DeviceOptions,
    /// The phone of most experiments.
    pub gen3: Soc,
    elite: Soc,
    done: HashMap<Case, Figures>,
}

impl Lab {
    pub fn new() -> Result<Lab> {
        Ok(Lab {
            devices: super::two_cpus::devices(),
            gen3: Soc::find("sd8gen3-fp16")?,
            elite: Soc::find("sd8elite-fp16")?,
            done: HashMap::new(),
        })
    }

    pub fn soc(&self, phone: Phone) -> Soc {
        match phone {
            Phone::Gen3 => self.gen3.clone(),
            Phone::Elite => self.elite.clone(),
        }
    }

    pub fn run(&mut self, case: Case) -> Result<Figures> {
        if let Some(known) = self.done.get(&case) {
            return Ok(known.clone());
        }
        let (soc, shape) = (self.soc(case.phone), Shape::find(case.model, WEIGHTS)?);
        let strategy = SocStrategy::parse(case.strategy).map_err(LabError::Impossible)?;
        let options = SimulateOptions {
            generate: case.generate,
            sync: if case.blocking { SyncMode::Blocking } else { SyncMode::Predicted },
            exchange: case.exchange,
            co_run: case.game.then_some(GAME),
            ..SimulateOptions::new(soc, shape, strategy, case.prompt)
        };
        let figures = Simulation::open(&options)?.run(&mut |_, _| ())?;
        self.done.insert(case, figures.clone());
        Ok(figures)
    }

    /// The time to the first token of a case, in milliseconds.
    pub fn ttft(&mut self, case: Case) -> Result<f64> {
        Ok(self.run(case)?.ttft_ms())
    }

    /// The time per decoded token, in milliseconds.
    pub fn tpot(&mut self, case: Case) -> Result<f64> {
        Ok(self.run(case)?.tpot_ms().unwrap_or(f64::NAN))
    }

    /// A single product on the 8 Gen 3; of fewer rows than results, with operands exchanged.
    pub fn product(
        &self,
        processor: &str,
        [outs, terms, rows]: [usize; 3],
        decoding: bool,
    ) -> Result<ProductTime> {
        let shape = ProductShape { outs, terms, rows, decoding, exchanged: rows < outs };
        shape.measure(&self.gen3, processor, SyncMode::Blocking)
    }
}
