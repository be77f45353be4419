//! Whether attention belongs on the device of experts' groups, by prices.

use troika_model::lower::ModelPart;
use troika_plan::{Plan, PlanError, Refusal};

use crate::forms::Forms;
use crate::request::PredictRequest;
use crate::score::Predictor;

/// Whether the prompt is faster by the second of two plans, which has attention on the device of
/// experts' groups. It is not where the device refuses a part of attention, or a plan has no price.
///
/// # Errors
/// A plan that does not fit model and devices.
pub fn attention_pays(
    request: &PredictRequest<'_>,
    refusals: &[Refusal],
    [here, there]: [&Plan; 2],
) -> Result<bool, PlanError> {
    let of_attention = |r: &&Refusal| r.segment.traits().part == ModelPart::Mixer;
    if there.refused(refusals).iter().any(of_attention) {
        return Ok(false);
    }
    let names: Vec<&str> = request.devices.iter().map(|d| d.name.as_str()).collect();
    let forms = Forms::new(request.lowered, request.devices, request.cost);
    let time = |plan: &Plan| {
        let mut plan = plan.clone();
        plan.avoid(refusals, &names)?;
        forms.choose(&mut plan);
        Predictor::new(request).plan(&plan)
    };
    match (time(here), time(there)) {
        (Ok(here), Ok(there)) => Ok(there.ttft_us < here.ttft_us),
        (Err(PlanError::Unpriced(_)), _) | (_, Err(PlanError::Unpriced(_))) => Ok(false),
        (Err(e), _) | (_, Err(e)) => Err(e),
    }
}
