//! The Hub: the token, and whether it answers.

use super::finding::Finding;
use super::machine::HostMachine;

/// Whether there is a token.
pub fn token(machine: &HostMachine) -> Vec<Finding> {
    const TOPIC: &str = "Hub";
    if machine.hub.offline {
        let says = "HF_HUB_OFFLINE is set: models are not fetched";
        return vec![Finding::improvable(TOPIC, says).mended_by("unset HF_HUB_OFFLINE")];
    }
    vec![match machine.hub.token {
        Some(_) => Finding::fine(TOPIC, "there is a token"),
        None => Finding::missing(TOPIC, "no token: models that ask for a login cannot be fetched")
            .mended_by("export HF_TOKEN=hf_..."),
    }]
}

/// Whether it answers. It is asked only if the user wants that.
pub fn online(machine: &HostMachine) -> Vec<Finding> {
    const TOPIC: &str = "Hub";
    if !machine.online {
        return Vec::new();
    }
    vec![match troika_hub::reach(&machine.hub) {
        Ok(says) => Finding::fine(TOPIC, says),
        Err(why) => Finding::missing(TOPIC, why),
    }]
}
