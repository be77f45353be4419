//! Placements of segments by rules, made as the engine makes them, each once. Segments whose graphs
//! are equal share a placement.

use std::collections::HashMap;
use std::sync::Arc;

use troika_graph::DType;
use troika_model::lower::{Lowered, Segment};
use troika_plan::{Phase, PlanDevice, PlanError, Rule};
use troika_program::{EdgeTypes, PlacedSegment, Placer, ProgramError};

/// Makes and caches placements.
pub(super) struct Placements<'a> {
    pub lowered: &'a Lowered,
    pub devices: &'a [PlanDevice],
    /// For each segment, the first one with an equal graph and as many cache heads.
    pub class: Vec<usize>,
    /// By class, what the rule says, and the types of the segment's values.
    known: HashMap<(usize, Rule, Vec<DType>), Arc<PlacedSegment>>,
}

impl<'a> Placements<'a> {
    pub fn new(lowered: &'a Lowered, devices: &'a [PlanDevice]) -> Placements<'a> {
        let mut class = Vec::with_capacity(lowered.segments.len());
        for (i, s) in lowered.segments.iter().enumerate() {
            let alike = |j: &usize| {
                let o = &lowered.segments[*j];
                (o.kind, o.inputs.len(), o.outputs.len())
                    == (s.kind, s.inputs.len(), s.outputs.len())
                    && o.graph.same_code(&s.graph)
            };
            let mut firsts: Vec<usize> = class.clone();
            firsts.sort_unstable();
            firsts.dedup();
            class.push(firsts.into_iter().find(alike).unwrap_or(i));
        }
        Placements { lowered, devices, class, known: HashMap::new() }
    }

    /// A segment's placement by a rule.
    ///
    /// # Errors
    /// A device that is not at hand, or a split that the graph does not allow;
    /// [`PlanError::Unpriced`] if static shapes do not add up to the split's lengths.
    pub fn of(
        &mut self,
        segment: usize,
        rule: &Rule,
        phase: Phase,
        types: &EdgeTypes,
    ) -> Result<Arc<PlacedSegment>, PlanError> {
        let edges: Vec<DType> = types.of(&self.lowered.segments[segment], phase).collect();
        let key = (self.class[segment], rule.placing(), edges);
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let placer = Placer { lowered: self.lowered, devices: self.devices, types };
        // The weights have the same names for the whole class, whichever of its segments is asked
        // for first.
        let graph = self.lowered.segments[self.class[segment]].graph.clone();
        let of_class = Segment { graph, ..self.lowered.segments[segment].clone() };
        let placed = Arc::new(placer.place(&of_class, rule, phase).map_err(|e| match e {
            ProgramError::NotTaken(why) => PlanError::Unpriced(why),
            e => PlanError::Parse(e.to_string()),
        })?);
        self.known.insert(key, placed.clone());
        Ok(placed)
    }
}
