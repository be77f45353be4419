//! Ctrl-C for commands that tests start.

use std::process::{Child, Command};

/// Has Ctrl-C end the commands that are started from now on, also where the tests are a background
/// job, in which it is ignored: a command inherits that, but it inherits no handler.
pub fn ends_commands() {
    // Fails where another test did so.
    let _ = ctrlc::set_handler(|| std::process::exit(130));
}

/// Presses Ctrl-C for a command.
pub fn press(child: &Child) {
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
}
