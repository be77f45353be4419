//! Groups of experts move between prompts.

use troika_plan::{AdaptSettings, Phase};

use crate::adapt::{Adapting, GroupSource};
use crate::engine::Engine;

impl Engine {
    /// Has groups of experts come to their devices and leave them as rows choose, if the plan says
    /// so; without this call they stay where they are at first. Groups are loaded on a thread of
    /// their own, in which the rule's device computes their rows: nobody waits, where devices
    /// compute alike. Elsewhere prompts wait for them, since results depend on where rows run.
    pub fn adapt(&mut self, source: GroupSource, settings: AdaptSettings) {
        self.adapting = self.adapter.take().map(|all| Adapting::new(all, source, settings));
    }

    /// Moves groups, if no prompt is in flight in a slot.
    pub(crate) fn move_groups(&mut self, phase: Option<Phase>) {
        if phase != Some(Phase::Decode)
            && let Some(adapting) = &mut self.adapting
        {
            adapting.between_prompts(&self.model);
        }
    }

    /// Notes that a slot begins with rows of a prompt.
    pub(crate) fn use_groups(&mut self, phase: Option<Phase>) {
        if phase != Some(Phase::Decode)
            && let Some(adapting) = &mut self.adapting
        {
            adapting.before_prompt(&self.model);
        }
    }
}
