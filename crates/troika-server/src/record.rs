//! What is told of a request when it has ended. Texts of prompts and answers never come here.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::ids;
use crate::options::Log;
use crate::problem::Problem;
use troika::model::chat::rfc3339;

tokio::task_local! {
    /// The request that a task answers.
    pub static RECORD: Arc<Record>;
}

/// What is known of a request. Its line is written when the last one drops it: whoever answers it,
/// or the stream of the answer.
#[derive(Default)]
pub struct Record {
    log: Option<Log>,
    told: Mutex<Told>,
}

#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Method and path, and the status of the answer.
    pub asked: String,
    /// Whether the answer, or a stream of it, has been made to its end.
    pub whole: bool,
    /// When the request came, and the first and the last token of its answers.
    times: Vec<Instant>,
    /// Fields that nobody knows.
    pub ignored: Vec<String>,
    pub model: String,
    pub prompt: usize,
    /// The part of them that was cached.
    pub cached: usize,
    tokens: usize,
    /// Why its answers ended, or why there is none, and what was left out.
    pub why: BTreeSet<String>,
}

impl Record {
    /// The record of a request that comes now.
    pub fn new(log: Option<Log>, asked: String) -> Arc<Record> {
        let told = Told { asked, times: vec![Instant::now()], ..Told::default() };
        Arc::new(Record { log, told: Mutex::new(told) })
    }

    /// The record of the request that this task answers.
    pub fn current() -> Arc<Record> {
        RECORD.try_with(Clone::clone).unwrap_or_default()
    }

    pub fn note<T>(&self, note: impl FnOnce(&mut Told) -> T) -> T {
        note(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn token(&self) {
        self.note(|told| {
            told.tokens += 1;
            told.times.truncate(2);
            told.times.push(Instant::now());
        });
    }

    /// Notes why there is no answer, or no end of one.
    pub fn problem(&self, problem: &Problem) {
        self.note(|told| {
            told.why.insert(problem.for_log());
            told.whole = true;
        });
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let Some(log) = &self.log else { return };
        let told = self.note(|told| told.clone());
        let [began, rest @ ..] = told.times.as_slice() else { return };
        let ms = |from: &Instant, to: Instant| (to - *from).as_secs_f64() * 1e3;
        let time = rfc3339(ids::since_1970());
        let asked = format!("{}Z {} {:.1} ms", &time[..19], told.asked, ms(began, Instant::now()));
        let mut line = vec![asked];
        line.extend((!told.model.is_empty()).then(|| format!("model {}", told.model)));
        let prompt = || format!("prompt {} (cached {})", told.prompt, told.cached);
        line.extend((told.prompt > 0).then(prompt));
        if let [first, last @ ..] = rest {
            let per_second = |last: &Instant| (told.tokens - 1) as f64 * 1e3 / ms(first, *last);
            let rate = last.first().map(|last| format!(" ({:.1}/s)", per_second(last)));
            line.push(format!("first token {:.1} ms", ms(began, *first)));
            line.push(format!("tokens {}{}", told.tokens, rate.unwrap_or_default()));
        }
        line.extend((!told.whole).then(|| String::from("client gone")));
        line.extend(told.why);
        line.extend(
            (!told.ignored.is_empty()).then(|| format!("ignored: {}", told.ignored.join(", "))),
        );
        log(&line.join(", "));
    }
}
