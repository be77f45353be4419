//! Chat on a terminal. `script` makes the terminal; where it is not installed, nothing is tested.

#![allow(clippy::panic, clippy::unwrap_used)]
#![cfg(target_os = "linux")]

mod common;

use std::io::{BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::{holds, linked_model};

/// The command on a terminal of its own.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: Receiver<u8>,
    /// All that was shown.
    shown: String,
}

impl Terminal {
    fn open(args: &str, kind: &str) -> Option<Terminal> {
        let line = format!("'{}' {args}", env!("CARGO_BIN_EXE_troika"));
        let mut c = Command::new("script");
        c.args(["-q", "-e", "-c", &line, "/dev/null"]).env("TERM", kind);
        c.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = c.spawn().ok()?;
        let keys = child.stdin.take().unwrap();
        let out = child.stdout.take().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            BufReader::new(out).bytes().map_while(Result::ok).try_for_each(|byte| sender.send(byte))
        });
        Some(Terminal { child, keys, screen, shown: String::new() })
    }

    fn press(&mut self, keys: &[u8]) {
        self.keys.write_all(keys).unwrap();
        self.keys.flush().unwrap();
    }

    /// Waits until these texts were shown, one after the other.
    #[track_caller]
    fn see(&mut self, texts: &[&str]) {
        for text in texts {
            let mut new = Vec::new();
            while !new.ends_with(text.as_bytes()) {
                match self.screen.recv_timeout(Duration::from_secs(120)) {
                    Ok(byte) => new.push(byte),
                    Err(e) => {
                        self.shown += &String::from_utf8_lossy(&new);
                        let _ = self.child.kill();
                        panic!("no {text:?}, {e}: {}", self.shown);
                    }
                }
            }
            self.shown += &String::from_utf8_lossy(&new);
        }
    }

    /// The command ends with a code, and all that is shown has the words.
    #[track_caller]
    fn end(mut self, code: i32, words: &[&str]) {
        let rest: Vec<u8> = self.screen.iter().collect();
        self.shown += &String::from_utf8_lossy(&rest);
        assert_eq!(self.child.wait().unwrap().code(), Some(code), "{}", self.shown);
        holds(&self.shown, words);
    }
}

const PROMPT: &str = ">>> ";
const CTRL_C: &[u8] = b"\x03";

#[test]
fn ctrl_c_drops_the_line_and_twice_ends() {
    let Some(mut t) = Terminal::open("run", "xterm") else { return };
    t.see(&["/help", PROMPT]);
    t.press(b"half a line");
    t.see(&["line"]);
    t.press(CTRL_C);
    t.see(&["\n", PROMPT]);
    assert!(!t.shown.contains("once more"), "{}", t.shown);
    t.press(CTRL_C);
    t.see(&["once more", PROMPT]);
    // A line between them makes the next one the first again, whether it is dropped or not.
    for line in [&b"x\x03"[..], b"/help\r"] {
        t.press(line);
        t.see(&["\n", PROMPT]);
        t.press(CTRL_C);
        t.see(&["once more", PROMPT]);
    }
    t.press(CTRL_C);
    t.end(130, &["the chat was ended by Ctrl-C"]);
}

#[test]
fn a_chat_has_help_figures_and_a_way_out_of_a_full_context() {
    let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}";
    let dir = linked_model("models/tiny-moe", &[("chat_template.jinja", template)]);
    let args = format!("run '{}' -c 64 --ignore-eos --temp 0", dir.path().display());
    let Some(mut t) = Terminal::open(&args, "xterm") else { return };
    t.see(&[PROMPT]);
    t.press(b"/help\r");
    t.see(&["/clear", "/bye", "Ctrl-C", PROMPT]);
    t.press(b"Hello\r");
    t.see(&["tokens after", "tok/s]", "the context is full: /clear", PROMPT]);
    // One line of figures.
    assert!(!t.shown.contains("TTFT"), "{}", t.shown);
    let long = "and so on ".repeat(20);
    t.press(format!("{long}\r").as_bytes());
    t.see(&["troika: the prompt has ", "/clear starts over", PROMPT]);
    t.press(b"/clear\r");
    t.see(&["the conversation starts over", PROMPT]);
    t.press(b"Hello\r");
    t.see(&["tok/s]", PROMPT]);
    // Ctrl-D.
    t.press(b"\x04");
    t.end(0, &[]);
}

#[test]
fn json_without_a_prompt_is_refused_on_a_terminal() {
    let Some(t) = Terminal::open("run --json", "dumb") else { return };
    t.end(2, &["--json needs a prompt"]);
}

#[test]
fn a_line_that_is_not_text_does_not_end_the_chat() {
    let Some(mut t) = Terminal::open("run -n 1", "dumb") else { return };
    t.press(b"ab\xff\n");
    t.see(&["this line is not UTF-8 text", PROMPT]);
    t.press(b"Hello\n");
    t.see(&["[1 token after", PROMPT]);
    t.press(b"/bye\n");
    t.end(0, &[]);
}
