//! How the best placement of a scope is sought: where to begin, what to try, and how good a placement is.

use troika_model::lower::{ModelPart, SegmentKind};
use troika_plan::{Goal, Phase, PlanDevice, PlanError};

use super::choice::{Choice, Placed, Scope, Sought, for_decode, one_row};
use super::options::{KindRequest, Placement};
use super::search::Search;
use crate::cost::PricedRun;

impl Search<'_> {
    /// The seeds: one device, and columns shared in several ways.
    pub(super) fn seeds(&mut self, scope: Scope, current: &Placed) -> Vec<Placed> {
        let names: Vec<String> = self.request.devices.iter().map(|f| f.name.clone()).collect();
        let all = |p: &dyn Fn(SegmentKind) -> Placement| -> Placed {
            self.kinds.iter().map(|k| (*k, p(*k))).collect()
        };
        let mut seeds = vec![current.clone()];
        seeds.extend(names.iter().map(|n| all(&|_| Placement::whole(n))));
        for (i, a) in names.iter().enumerate() {
            for b in &names[i + 1..] {
                for share in [16, 24, 32, 40, 48] {
                    let owner = if share >= 32 { a } else { b };
                    let split = |k: SegmentKind| match k.traits().by_columns {
                        true => Placement::columns(a, b, share),
                        false => Placement::whole(owner),
                    };
                    seeds.push(all(&split));
                    let states = |k: SegmentKind| match k.traits().keeps_state {
                        true => Placement::whole(owner),
                        false => split(k),
                    };
                    seeds.push(all(&states));
                    let ffn = |k: SegmentKind| match k.traits().part {
                        ModelPart::Mixer => Placement::whole(owner),
                        _ => split(k),
                    };
                    seeds.push(all(&ffn));
                }
            }
        }
        if scope.phase == Phase::Decode {
            seeds = seeds.iter().map(for_decode).collect();
        }
        seeds
    }

    pub(super) fn options(&mut self, kind: SegmentKind, sought: &Sought<'_>) -> Vec<Placement> {
        let Sought { scope, choice, done, asked, .. } = *sought;
        let segment = self.request.lowered.segments.iter().find(|s| s.kind == kind);
        let (rows, cached) = (scope.rows[1], scope.cached);
        let whole_ns = |(device, PlanDevice { caps, .. }): (usize, &PlanDevice)| {
            let Some(segment) = segment else { return f64::INFINITY };
            let shape = caps.row_buckets.iter().copied().find(|n| *n >= rows);
            let room = shape.filter(|_| caps.static_shapes).unwrap_or(rows);
            let run = PricedRun { device, kind, graph: &segment.graph, rows, room, cached };
            self.request.cost.formed_ns(&run, &caps.forms)
        };
        let whole_ns: Vec<f64> = self.request.devices.iter().enumerate().map(whole_ns).collect();
        let wanted = KindRequest {
            kind,
            rows,
            prefill: scope.phase == Phase::Prefill,
            devices: self.request.devices,
            whole_ns: &whole_ns,
        };
        let mut options = wanted.options();
        // Other lengths reuse the results found for those that were asked for.
        if asked && self.request.cost.knows_stages() {
            options.extend(self.staged(kind, scope));
        }
        // Placements of other scopes, so that weights are held only once.
        for which in done {
            for (_, p) in choice.get(*which).iter().filter(|(k, _)| *k == kind) {
                let p = if scope.phase == Phase::Decode { one_row(p) } else { p.clone() };
                if !options.contains(&p) {
                    options.push(p);
                }
            }
        }
        options
    }

    /// The goal's score in a scope. It is infinite if too many copies of weights would be held, or
    /// if a split leaves a device without work. Both are checked only for a score below `least`.
    pub(super) fn score(
        &mut self,
        sought: &Sought<'_>,
        placed: &Placed,
        least: f64,
    ) -> Result<f64, PlanError> {
        let Sought { scope, which, choice, done, .. } = *sought;
        // The rules of other scopes only affect memory.
        let full =
            Choice { prefill: vec![(self.base.chunk, placed.clone())], decode: placed.clone() };
        let Some(plan) = self.avoided_rules(&full, scope.phase) else { return Ok(f64::INFINITY) };
        let mut sum = 0.0;
        let [a, b] = scope.rows;
        let lengths: &[usize] = if a == b { &[a] } else { &[a, b] };
        let chunks = match scope.phase {
            Phase::Prefill => self.request.prompt.div_ceil(self.base.chunk),
            Phase::Decode => 1,
        };
        for rows in lengths {
            let spent = match scope.phase {
                Phase::Prefill => self.predictor.prompt(&plan, *rows),
                Phase::Decode => self.predictor.token(&plan, scope.cached),
            };
            let spent = match spent {
                Err(PlanError::Unpriced(_)) => return Ok(f64::INFINITY),
                spent => spent?,
            };
            let joules = spent
                .joules
                .map(|j| j + self.request.cost.idle_w().unwrap_or(0.0) * spent.ns * 1e-9);
            sum += match (self.request.goal, joules) {
                (Goal::Energy, Some(j)) => j,
                _ => spent.overlapped_ns(chunks),
            } / *rows as f64;
        }
        // The whole plan is checked only for an improvement.
        if sum < least {
            let mut all = choice.clone();
            all.set(which, placed.clone());
            let mut known: Vec<Option<usize>> = done.to_vec();
            known.push(which);
            if !self.fits(&all, &known)? {
                return Ok(f64::INFINITY);
            }
        }
        Ok(sum)
    }

    /// Whether the weights of the settled scopes fit, and their splits leave each device something.
    fn fits(&mut self, choice: &Choice, known: &[Option<usize>]) -> Result<bool, PlanError> {
        let any = known.first().map(|k| choice.get(*k).clone()).unwrap_or_default();
        let prefill: Vec<(usize, Placed)> = choice
            .prefill
            .iter()
            .enumerate()
            .map(|(i, (n, p))| (*n, if known.contains(&Some(i)) { p.clone() } else { any.clone() }))
            .collect();
        let decode = if known.contains(&None) { choice.decode.clone() } else { for_decode(&any) };
        let plan = self.plan(&Choice { prefill, decode }, "solve");
        let Ok(plan) = self.avoided(plan) else { return Ok(false) };
        let (by_device, total) = match self.predictor.placements.weight_bytes(&plan) {
            Err(PlanError::Unpriced(_)) => return Ok(false),
            bytes => bytes?,
        };
        Ok(self.overfull(&by_device).is_none() && total <= self.most_bytes)
    }
}
