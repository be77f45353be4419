//! Feeds sequences and waits until everything is computed, for a caller that has the engine to
//! itself.

use crate::engine::Engine;
use crate::error::EngineError;
use crate::input::{Event, LogitsSink, Next, SequenceInput, WantedLogits};

impl Engine {
    /// Appends tokens to sequences and passes on the wanted logits.
    ///
    /// # Errors
    /// Before any work: an empty input, a sequence fed twice, an unknown token, too long a
    /// sequence, or logits that no device computes. During work: a full cache or a failing device;
    /// the sequences concerned are then as before the call.
    pub fn run(
        &mut self,
        inputs: &[SequenceInput<'_>],
        sink: LogitsSink<'_>,
    ) -> Result<(), EngineError> {
        if let Some(device) = &self.silent
            && inputs.iter().any(|f| f.logits != WantedLogits::None)
        {
            return Err(EngineError::NoNumerics(device.clone()));
        }
        self.run_inputs(inputs, sink)
    }

    /// Like [`Engine::run`] without reading logits: for measurements, also of devices that model
    /// time only.
    ///
    /// # Errors
    /// Those of [`Engine::run`].
    pub fn run_unread(&mut self, inputs: &[SequenceInput<'_>]) -> Result<(), EngineError> {
        self.run_inputs(inputs, &mut |_, _, _| {})
    }

    fn run_inputs(
        &mut self,
        inputs: &[SequenceInput<'_>],
        sink: LogitsSink<'_>,
    ) -> Result<(), EngineError> {
        for (i, f) in inputs.iter().enumerate() {
            if inputs[..i].iter().any(|other| other.seq == f.seq) {
                return Err(EngineError::Twice(f.seq));
            }
            self.handle.check_feed(f.seq, f.tokens)?;
        }
        for f in inputs {
            self.handle.feed(&SequenceInput { logits: f.logits.whole(), ..*f })?;
        }
        let (mut open, mut failure) = (inputs.len(), None);
        while open > 0 {
            let mut take = |event: Event<'_>| {
                let input = inputs.iter().position(|f| f.seq == event.seq());
                let Some(input) = input else { return Next::Wait };
                match event {
                    Event::Logits { position, logits, last, .. } => {
                        sink(input, position, logits);
                        open -= usize::from(last);
                    }
                    // Whole rows are asked for.
                    Event::Begun { .. } | Event::TopK { .. } => {}
                    Event::Fed { .. } | Event::Cancelled { .. } => open -= 1,
                    Event::Failed { error, .. } => {
                        open -= 1;
                        failure.get_or_insert(error);
                    }
                }
                Next::Wait
            };
            if !self.step(&mut take)? {
                break;
            }
        }
        failure.map_or(Ok(()), Err)
    }
}
