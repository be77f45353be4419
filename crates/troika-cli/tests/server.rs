//! The server as people use it: by the clients' own packages, by its page in a browser, and by what
//! its command says when it starts and ends.

#![allow(clippy::panic, clippy::unwrap_used)]

mod common;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{ends, holds, in_root, installed, root};

/// A running server.
struct Server {
    child: Child,
    address: String,
    said: BufReader<ChildStderr>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(args: &[&str]) -> Command {
    let mut c = common::command(&["serve"]);
    c.args(args).env_remove("TROIKA_API_KEY");
    c
}

impl Server {
    fn start(args: &[&str]) -> Server {
        Server::at("0", args)
    }

    fn at(port: &str, args: &[&str]) -> Server {
        let mut command = command(args);
        let mut child = command.args(["--port", port]).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert!(said.read_line(&mut line).unwrap() > 0, "it ended before it listened");
            if let Some(rest) = line.split("listening at http://").nth(1) {
                break rest.split(' ').next().unwrap().to_string();
            }
        };
        Server { child, address, said }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn port(&self) -> &str {
        self.address.rsplit(':').next().unwrap()
    }

    /// Sends a request, and returns all that comes until the connection is closed.
    fn ask(&self, head: &str, body: &str) -> String {
        std::io::read_to_string(self.send(head, body)).unwrap()
    }

    fn send(&self, head: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        let own = if head.contains("Host:") { "" } else { "Host: localhost\r\n" };
        let rest = format!("{own}Connection: close\r\nContent-Length: {length}\r\n\r\n{body}");
        stream.write_all(format!("{head}\r\n{rest}").as_bytes()).unwrap();
        stream
    }

    /// Asks for a text that streams, and reads until that has begun.
    #[cfg(unix)]
    fn begin(&self, tokens: usize) -> (BufReader<TcpStream>, String) {
        let mut answer = BufReader::new(self.send(COMPLETE, &completion(tokens)));
        let mut read = String::new();
        while !read.contains("data: ") {
            assert!(answer.read_line(&mut read).unwrap() > 0, "{read}");
        }
        (answer, read)
    }

    #[cfg(unix)]
    fn terminate(&self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    }

    /// Waits for its end with a code. The rest of what it said has the words.
    fn ends(mut self, code: i32, words: &[&str]) {
        let rest = std::io::read_to_string(&mut self.said).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(code), "{rest}");
        holds(&rest, words);
    }
}

const COMPLETE: &str = "POST /v1/completions HTTP/1.1";

fn completion(tokens: usize) -> String {
    format!(
        "{{\"prompt\": \"It was\", \"max_tokens\": {tokens}, \"ignore_eos\": true, \
         \"temperature\": 0, \"stream\": true}}"
    )
}

/// Runs a script of `tests/clients`, which prints a line for each of its checks.
fn script(environment: &Path, name: &str, args: &[&str]) {
    // One after the other: each has the machine to itself, as a person would.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = root().join("tests/clients");
    let mut script = Command::new(environment.join("bin/python"));
    let ran = script.current_dir(dir).arg(name).args(args).env("PYTHONDONTWRITEBYTECODE", "1");
    let Output { status, stdout, stderr } = ran.output().unwrap();
    let [stdout, stderr] = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success() && stdout.contains(" 0 failed"), "{stdout}\n{stderr}");
}

#[test]
fn clients_of_other_servers_are_served() {
    let server = Server::start(&[]);
    let args = [&server.url(), "--troika", env!("CARGO_BIN_EXE_troika")];
    script(&installed("clients"), "clients.py", &args);
}

#[test]
fn programs_are_served() {
    let place = installed("programs");
    let (troika, place_text) = (env!("CARGO_BIN_EXE_troika"), place.to_str().unwrap());
    // The page's blocks know no limits, and the small model no end: they take too long here.
    let args = [troika, place_text, "libraries.", "node", "index"];
    script(&place.join("libraries"), "programs.py", &args);
}

#[test]
fn the_page_works_in_a_browser() {
    let server = Server::start(&[]);
    let browsers = ["chromium", "chromium-browser", "google-chrome"];
    let environment = installed("clients");
    let is_there = |name: &&&str| Command::new(name).arg("--version").output().is_ok();
    let browser = browsers.iter().find(is_there).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("broken.gguf");
    std::fs::write(&file, "no model").unwrap();
    let broken = Server::start(&[&in_root("models/tiny-moe"), file.to_str().unwrap()]);
    script(&environment, "page.py", &[&server.url(), browser, &broken.url()]);
}

#[test]
fn what_cannot_be_served_is_said_at_once() {
    let taken = Server::start(&[]);
    let port = taken.port();
    let dir = tempfile::tempdir().unwrap();
    let (folder, keys) = (dir.path().to_str().unwrap(), dir.path().join("keys"));
    std::fs::write(&keys, "\n \n").unwrap();
    let models = dir.path().join("models");
    std::fs::create_dir(&models).unwrap();
    for name in ["a.gguf", "b.gguf"] {
        std::fs::write(models.join(name), "").unwrap();
    }
    let models = models.to_str().unwrap();
    let keys = keys.to_str().unwrap();
    for (args, code, says) in [
        (vec!["--host", "0.0.0.0"], 1, "give an --api-key"),
        (vec!["--host", "no.such.host.invalid"], 2, "is no address of this machine"),
        (vec!["--port", port], 1, "take another --port"),
        (vec!["--api-key", ""], 2, "--api-key is empty"),
        (vec!["--api-key-file", keys], 1, "it holds no key"),
        (vec!["--models-dir", folder], 1, "no .gguf file and no folder"),
        (vec!["--alias", "a,b,c", "--models-dir", models], 2, "3 names to 2 models"),
        (vec!["there/is/no.gguf"], 1, "no.gguf"),
        (vec!["--timeout", "soon"], 2, "no number of seconds"),
    ] {
        ends(&command(&args).output().unwrap(), code, &[says]);
    }
}

#[test]
fn keys_are_asked_for() {
    let server = Server::start(&["--api-key", "first,second"]);
    for (key, code) in [
        ("", "401"),
        ("\r\nAuthorization: Bearer third", "401"),
        ("\r\nAuthorization: Bearer firstsecond", "401"),
        ("\r\nAuthorization: Bearer second", "200"),
        ("\r\nAuthorization: bearer first", "200"),
        ("\r\nx-api-key: first", "200"),
    ] {
        let answer = server.ask(&format!("GET /v1/models HTTP/1.1{key}"), "");
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{key:?}: {answer}");
    }
    // The page and what says whether the server is there need none.
    for path in ["/", "/app.js"] {
        let answer = server.ask(&format!("GET {path} HTTP/1.1"), "");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    // While the model is being opened it is not well, which it says without a key, too.
    let answer = server.ask("GET /health HTTP/1.1", "");
    let well = answer.starts_with("HTTP/1.1 200");
    assert!(well || answer.starts_with("HTTP/1.1 503"), "{answer}");
    // `troika ps` finds its key where the server finds its keys, as in a container's health check.
    let port = server.port();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys");
    std::fs::write(&file, "\nsecond\nfirst\n").unwrap();
    for (variable, value) in
        [("TROIKA_API_KEY", OsStr::new("first,second")), ("TROIKA_API_KEY_FILE", file.as_os_str())]
    {
        let mut ps = common::command(&["ps", "--port", port]);
        ends(&ps.env(variable, value).output().unwrap(), 0, &[]);
    }
}

fn named(name: &str) -> String {
    format!(
        "{{\"model\": \"{name}\", \"prompt\": \"a\", \"max_tokens\": 1, \"input\": \"a\", \
         \"messages\": [{{\"role\": \"user\", \"content\": \"a\"}}]}}"
    )
}

/// All paths that take the name of a model.
const PATHS: [&str; 11] = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /v1/messages",
    "POST /v1/embeddings",
    "POST /api/chat",
    "POST /api/generate",
    "POST /api/embed",
    "POST /api/show",
    "POST /tokenize",
    "GET /v1/models/c",
];

/// A single model may have several names. Others are refused, if the server is told to.
#[test]
fn a_model_has_its_names() {
    let server = Server::start(&["--alias", "a,b/b", "--alias", "c", "--strict-model"]);
    for path in PATHS {
        for (name, found) in [("a", true), ("b/b", true), ("c:latest", true), ("gpt-9", false)] {
            let path = path.replace("models/c", &format!("models/{name}"));
            // Unknown fields are not looked at.
            let own = if path.contains("responses") {
                [("prompt", "no_prompt"), ("max_tokens", "max_output_tokens")]
            } else {
                [("", ""); 2]
            };
            let body = own.iter().fold(named(name), |body, (from, to)| body.replacen(from, to, 1));
            let answer = server.ask(&format!("{path} HTTP/1.1"), &body);
            let code = if found { "HTTP/1.1 200" } else { "HTTP/1.1 404" };
            assert!(answer.starts_with(code), "{path} {name}: {answer}");
        }
    }
    let list = server.ask("GET /v1/models HTTP/1.1", "");
    let tags = server.ask("GET /api/tags HTTP/1.1", "");
    for name in ["a", "b/b", "c"] {
        assert!(list.contains(&format!("\"id\":\"{name}\"")), "{list}");
        assert!(tags.contains(&format!("\"name\":\"{name}\"")), "{tags}");
    }
}

/// Several models are asked by their names alone.
#[test]
fn one_of_several_models_is_named() {
    let [one, two] = ["qwen3", "qwen2.5"].map(|name| in_root(&format!("tests/golden/{name}")));
    let server = Server::start(&[&one, &two, "--alias", "one,two"]);
    let unknown = server.ask(COMPLETE, &named("gpt-9"));
    assert!(unknown.starts_with("HTTP/1.1 404") && unknown.contains("one, two"), "{unknown}");
    for (name, code) in [("one", "200"), ("two", "200"), ("qwen3", "404"), ("gpt-9", "404")] {
        let answer = server.ask(&format!("GET /v1/models/{name} HTTP/1.1"), "");
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{name}: {answer}");
    }
}

/// Memory of the KV cache that was never written does not close models: all sequences of one could
/// fill more than both may take.
#[test]
fn two_models_that_fit_stay_open() {
    let model = root().join("models/tiny-moe");
    let dir = tempfile::tempdir().unwrap();
    let two = dir.path().join("two");
    common::copy_files(&model, &two);
    let server = Server::start(&[model.to_str().unwrap(), two.to_str().unwrap(), "--memory", "40"]);
    for name in ["tiny-moe", "two", "tiny-moe"] {
        let (status, answer) = post(&server, "/v1/completions", "", &named(name));
        assert_eq!(status, 200, "{name}: {answer}");
    }
    let status = server.ask("GET /troika/status HTTP/1.1", "");
    assert_eq!(status.matches("\"state\":\"open\"").count(), 2, "{status}");
}

/// Budgets that are none are refused; with those that are tiny, or more than there is, it answers.
#[test]
fn odd_budgets_of_memory_are_refused_or_work() {
    for flag in ["--kv-size", "--memory"] {
        let refused = command(&[flag, "0"]).output().unwrap();
        ends(&refused, 2, &[&format!("invalid value '0' for '{flag}")]);
        for most in ["1", "1099511627776"] {
            let server = Server::start(&[flag, most]);
            let (status, answer) = post(&server, "/v1/completions", "", &named("tiny-moe"));
            let told = status == 503 && answer.contains("--memory");
            assert!(status == 200 || (flag == "--memory" && most == "1" && told), "{answer}");
        }
    }
}

/// What is left out of a request is said.
#[test]
fn what_is_left_out_is_logged() {
    let mut server = Server::start(&["-v"]);
    let body = named("a").replacen('{', "{\"tools\": [{\"type\": \"web\\u2028search\"}], ", 1);
    let answer = server.ask("POST /v1/chat/completions HTTP/1.1", &body);
    assert!(answer.contains("x-troika-left-out: web?search\r\n"), "{answer}");
    let mut line = String::new();
    server.said.read_line(&mut line).unwrap();
    holds(&line, &["/v1/chat/completions 200", ", left out: web?search"]);
}

/// Answers that can end in time are not cut off.
#[cfg(unix)]
#[test]
fn a_server_that_is_told_to_stop_lets_answers_end() {
    let server = Server::start(&[]);
    let (mut answer, mut read) = server.begin(200);
    server.terminate();
    answer.read_to_string(&mut read).unwrap();
    assert!(read.contains("data: [DONE]"), "{read}");
    server.ends(0, &[]);
}

/// Those that cannot are cut off, and the server says so.
#[cfg(unix)]
#[test]
fn answers_that_are_cut_off_are_counted() {
    common::ctrl_c::ends_commands();
    let server = Server::start(&["--grace", "0"]);
    let (mut answer, mut read) = server.begin(1000);
    common::ctrl_c::press(&server.child);
    server.ends(130, &["answers that were cut off: 1"]);
    // The client can tell: the stream has no end.
    let _ = answer.read_to_string(&mut read);
    assert!(!read.contains("[DONE]"), "{read}");
}

/// After a kill nothing has to be mended.
#[cfg(unix)]
#[test]
fn a_killed_server_starts_again() {
    let mut server = Server::start(&[]);
    let (mut answer, mut read) = server.begin(1000);
    let port = server.port().to_string();
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    let _ = answer.read_to_string(&mut read);
    assert!(!read.contains("[DONE]"), "{read}");
    // At the same port.
    let server = Server::at(&port, &[]);
    assert_eq!(server.address, format!("127.0.0.1:{port}"));
    let answer = server.ask(COMPLETE, &completion(3));
    assert!(answer.contains("data: [DONE]"), "{answer}");
}

/// Posts JSON as a client with a key. Returns the status and the rest of the answer.
fn post(server: &Server, path: &str, key: &str, body: &str) -> (u16, String) {
    let head = format!("POST {path} HTTP/1.1\r\nAuthorization: Bearer {key}");
    let answer = server.ask(&head, body);
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.unwrap_or_else(|| panic!("no status: {answer:?}")), answer)
}

/// Waits until nothing is computed and nobody waits.
fn idle(server: &Server, key: &str) {
    let begun = std::time::Instant::now();
    let head = format!("GET /troika/status HTTP/1.1\r\nAuthorization: Bearer {key}");
    loop {
        let status = server.ask(&head, "");
        if status.contains("\"running\":0,") && status.contains("\"queued\":0,") {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "it goes on for nobody: {status}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Prompts of token ids, which take a while to compute.
fn prompts(count: usize) -> String {
    let prompt = |i: usize| format!("[{}]", vec![(40 + i % 50).to_string(); 2000].join(","));
    format!("[{}]", (0..count).map(prompt).collect::<Vec<_>>().join(","))
}

/// Grammars wait for their turn; nobody is refused by chance.
#[test]
fn agents_that_start_at_once_all_get_their_tools() {
    let server = Server::start(&[]);
    let call = |agent: usize| {
        let tool = |i: usize| {
            format!(
                r#"{{"type": "function", "function": {{"name": "tool_{agent}_{i}", "parameters":
                {{"type": "object", "properties": {{"city": {{"type": "string"}}, "unit": {{"enum":
                ["c", "f", "{agent}"]}}, "days": {{"type": "integer"}}}}, "required": ["city"],
                "additionalProperties": false}}}}}}"#
            )
        };
        let tools: Vec<String> = (0..12).map(tool).collect();
        format!(
            r#"{{"messages": [{{"role": "user", "content": "hi"}}], "max_tokens": 4,
            "tool_choice": "required", "tools": [{}]}}"#,
            tools.join(",")
        )
    };
    std::thread::scope(|scope| {
        let ask = |agent: usize| {
            let (server, body) = (&server, call(agent));
            scope.spawn(move || post(server, "/v1/chat/completions", "", &body))
        };
        let asked: Vec<_> = (0..64).map(ask).collect();
        for agent in asked {
            let (status, answer) = agent.join().unwrap();
            assert_eq!(status, 200, "{answer}");
        }
    });
}

/// Everything that is computed takes turns by key, and ends with its time or with its client.
#[test]
fn prompts_and_embeddings_take_turns_and_end_in_time() {
    let server = Server::start(&["--api-key", "a,b", "--parallel", "2", "--timeout", "60"]);
    let measured =
        format!(r#"{{"prompt": {}, "echo": true, "logprobs": 1, "max_tokens": 0}}"#, prompts(64));
    let embedded = format!(r#"{{"input": {}}}"#, prompts(64));
    let small = r#"{"prompt": "It was", "max_tokens": 20, "ignore_eos": true}"#;
    assert_eq!(post(&server, "/v1/completions", "b", small).0, 200);
    for (path, body) in [("/v1/completions", &measured), ("/v1/embeddings", &embedded)] {
        let head = format!("POST {path} HTTP/1.1\r\nAuthorization: Bearer a");
        let mut streams: Vec<TcpStream> = (0..4).map(|_| server.send(&head, body)).collect();
        for _ in 0..3 {
            assert_eq!(post(&server, "/v1/completions", "b", small).0, 200);
        }
        // The other key did not have to wait for all of that.
        for stream in &mut streams {
            stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            let early = stream.read(&mut [0; 1]);
            assert!(early.is_err(), "{path} was done before the small requests");
        }
        drop(streams);
        idle(&server, "b");
    }
    let server = Server::start(&["--timeout", "0.3"]);
    for (path, body) in [("/v1/completions", &measured), ("/v1/embeddings", &embedded)] {
        // The model may still be opened for embeddings: that does not count.
        let (status, answer) = post(&server, path, "", body);
        assert_eq!(status, 504, "{path}: {answer}");
        assert!(answer.contains("--timeout"), "{path}: {answer}");
        idle(&server, "");
    }
}

/// A key that asks for much gives way where the queue is full.
#[test]
fn one_key_does_not_keep_others_out() {
    let server = Server::start(&["--api-key", "a,b", "--parallel", "1", "--queue", "4"]);
    let long = r#"{"prompt": "It was", "max_tokens": 1500, "ignore_eos": true}"#;
    let head = format!("{COMPLETE}\r\nAuthorization: Bearer a\r\nX-Priority: 10");
    let streams: Vec<TcpStream> = (0..12).map(|_| server.send(&head, long)).collect();
    std::thread::sleep(Duration::from_millis(200));
    let small = r#"{"prompt": "It was", "max_tokens": 2}"#;
    for _ in 0..4 {
        let (status, answer) = post(&server, "/v1/completions", "b", small);
        assert_eq!(status, 200, "{answer}");
    }
    let read = |stream: TcpStream| std::io::read_to_string(stream).unwrap();
    let answers: Vec<String> = streams.into_iter().map(read).collect();
    let count = |code: &str| answers.iter().filter(|a| a.starts_with(code)).count();
    assert_eq!(count("HTTP/1.1 200") + count("HTTP/1.1 429"), 12, "{answers:?}");
    assert!(count("HTTP/1.1 200") >= 4 && count("HTTP/1.1 429") >= 7, "{answers:?}");
}

/// Bytes of memory of a process.
#[cfg(target_os = "linux")]
fn resident(server: &Server) -> u64 {
    let path = format!("/proc/{}/status", server.child.id());
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Texts beyond the context are refused before they are tokenized, and take no memory for long.
#[cfg(target_os = "linux")]
#[test]
fn long_texts_leave_no_memory_behind() {
    let server = Server::start(&[]);
    let small = r#"{"prompt": "It was", "max_tokens": 2}"#;
    assert_eq!(post(&server, "/v1/completions", "", small).0, 200);
    let before = resident(&server);
    let text = "the night was dark and ".repeat((14 << 20) / 23);
    let bodies = [
        ("/tokenize", format!(r#"{{"content": "{text}", "with_pieces": true}}"#)),
        ("/v1/completions", format!(r#"{{"prompt": "{text}"}}"#)),
        ("/v1/embeddings", format!(r#"{{"input": ["{text}"]}}"#)),
        (
            "/v1/chat/completions",
            format!(r#"{{"messages": [{{"role": "user", "content": "{text}"}}]}}"#),
        ),
        ("/v1/completions", format!(r#"{{"prompt": "a", "stop": "{text}"}}"#)),
        ("/v1/completions", format!(r#"{{"prompt": "a", "guided_regex": "{text}"}}"#)),
    ];
    std::thread::scope(|scope| {
        let asked: Vec<_> = (bodies.iter().cycle().take(12))
            .map(|(path, body)| (path, scope.spawn(|| post(&server, path, "", body))))
            .collect();
        for (path, asked) in asked {
            let (status, answer) = asked.join().unwrap();
            assert_eq!(status, 400, "{path}: {answer}");
            assert!(answer.contains("are allowed") || answer.contains("shorten it"), "{answer}");
        }
    });
    // The heap is given back a moment after the last answer.
    let begun = std::time::Instant::now();
    while resident(&server) > before + (300 << 20) {
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "{} MB more",
            (resident(&server) - before) >> 20
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}
