//! Troika as a library: open a model, make a session, generate.
