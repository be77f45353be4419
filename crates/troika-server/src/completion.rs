//! Answers: the only place that starts sessions.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use troika::engine::sample::{Constraint, Logprobs};
use troika::engine::{PromptProgress, WantedLogits};
use troika::{
    Finish, Output, Pooling, Request, Session, SessionCanceller, SessionOptions, TextPiece,
};

use crate::grammar::{Grammar, Mask};
use crate::line_limit::LineLimit;
use crate::open_model::InUse;
use crate::problem::Problem;
use crate::queue::{Permit, QueueError};
use crate::record::Record;
use crate::state::apart;
use crate::thinking::ThinkingBudget;
use crate::turn::Turn;

/// Positions whose logits are read at once: they are kept until then.
const READ_AT_ONCE: usize = 64;

/// Positions whose states are: they are smaller.
pub const STATES_AT_ONCE: usize = 256;

/// How often it is looked how far a prompt is read.
const LOOK: Duration = Duration::from_millis(200);

/// Answers to a prompt.
#[derive(Clone, Default)]
pub struct Generation {
    pub prompt: Vec<u32>,
    /// How to generate. The second answer has the next seed, and so on.
    pub request: Request,
    pub choices: usize,
    /// What they must follow.
    pub grammar: Option<Arc<Grammar>>,
    /// How many tokens of thoughts they may have.
    pub thinking: Option<ThinkingBudget>,
    /// Where they end besides their stops.
    pub lines: Option<LineLimit>,
    /// Whether nothing is taken from the cache, nor left there.
    pub fresh: bool,
}

/// Why an answer could not follow its grammar to the end, if it could not.
type GrammarFault = Arc<OnceLock<String>>;

/// What becomes of answers.
#[derive(Debug)]
pub enum Progress {
    /// How far the prompt is read, and since when: first what was cached, at last all.
    Prompt(PromptProgress, Duration),
    /// A token with the text that it completes.
    Token(usize, TextPiece),
    /// The end, with text that was held back.
    End(usize, Box<Output>, String),
    /// An answer failed, and with it the request.
    Failed(Problem),
}

/// Receives what becomes of answers. Dropping it cancels them.
pub type Answers = UnboundedReceiver<Progress>;

impl From<QueueError> for Problem {
    fn from(error: QueueError) -> Problem {
        let message = error.to_string();
        match error {
            QueueError::Full { retry_after, .. } => Problem {
                retry_after: Some(retry_after),
                ..Problem::new(StatusCode::TOO_MANY_REQUESTS, message)
            },
            QueueError::TooMany { .. } => Problem::field("n", message),
            QueueError::Closed => Problem::new(StatusCode::SERVICE_UNAVAILABLE, message),
        }
    }
}

/// What an answer must follow, as the sampler asks for it.
struct Constrained {
    mask: Option<Mask>,
    thinking: Option<ThinkingBudget>,
    fault: GrammarFault,
}

impl std::fmt::Debug for Constrained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constrained").finish_non_exhaustive()
    }
}

impl Constraint for Constrained {
    fn is_ready(&mut self) -> bool {
        self.mask.as_mut().is_none_or(Mask::is_ready)
    }

    fn allowed(&mut self) -> Option<&[u32]> {
        if let Some(only) = self.thinking.as_ref().and_then(ThinkingBudget::allowed) {
            return Some(only);
        }
        let mask = self.mask.as_mut()?;
        // It waits for the mask. One that failed allows the end alone, and says why.
        let _ = mask.allowed();
        if let Some(why) = mask.error() {
            self.fault.get_or_init(|| why);
        }
        mask.allowed()
    }

    fn accept(&mut self, token: u32) {
        if let Some(thinking) = &mut self.thinking {
            thinking.accept(token);
        }
        if let Some(mask) = &mut self.mask {
            mask.accept(token);
        }
    }
}

/// Starts answers when it is the client's turn.
///
/// # Errors
/// The queue is full, or the request cannot be served in time.
pub async fn start(turn: &Turn, generation: Generation) -> Result<Answers, Problem> {
    let permit = turn.enter(&turn.server.queue, generation.choices).await?;
    let options = SessionOptions { fresh: generation.fresh, ..turn.session_options() };
    let mut session = turn.host.model.session_with(options)?;
    let fault = GrammarFault::default();
    begin(&mut session, &generation, 0, &fault)?;
    let (tell, answers) = unbounded_channel();
    let answering = Answering {
        host: turn.host.clone(),
        generation: Arc::new(generation),
        fault,
        tell,
        _permit: Arc::new(permit),
    };
    let turn = turn.clone();
    tokio::spawn(async move {
        let failure = answering.tell.clone();
        if let Err(late) = turn.in_time(answering.drive(session, 0)).await {
            // The client may be gone.
            let _ = failure.send(Progress::Failed(late));
        }
    });
    Ok(answers)
}

fn begin(
    session: &mut Session,
    generation: &Generation,
    choice: usize,
    fault: &GrammarFault,
) -> Result<(), Problem> {
    let mut request = generation.request.clone();
    request.params.seed = request.params.seed.wrapping_add(choice as u64);
    let mask = generation.grammar.as_ref().map(|grammar| grammar.start());
    let thinking = generation.thinking.clone();
    let is_held = mask.is_some() || thinking.is_some();
    let held = Constrained { mask, thinking, fault: fault.clone() };
    let constraint = is_held.then(|| Box::new(held) as Box<dyn Constraint>);
    Ok(session.start_within(&generation.prompt, &request, constraint)?)
}

/// Answers that are being generated.
#[derive(Clone)]
struct Answering {
    host: InUse,
    generation: Arc<Generation>,
    fault: GrammarFault,
    tell: UnboundedSender<Progress>,
    /// Given back when the last answer ends.
    _permit: Arc<Permit>,
}

impl Answering {
    /// Passes on an answer as it grows. The other answers begin when the prompt is computed, from
    /// its pages.
    async fn drive(self, mut session: Session, choice: usize) {
        let Some(ended) = self.follow(&mut session, choice).await else { return };
        let told = ended.and_then(|()| self.end(&mut session, choice));
        // The client may be gone.
        let _ = self.tell.send(told.unwrap_or_else(Progress::Failed));
    }

    /// Passes on tokens until the end; `None` when the client is gone, or was told of a failure.
    async fn follow(&self, session: &mut Session, choice: usize) -> Option<Result<(), Problem>> {
        let mut failure = self.host.failed.clone();
        let mut is_first = true;
        let mut lines = self.generation.lines;
        let mut cut = false;
        let (mut look, mut told) = (tokio::time::interval(LOOK), None);
        let began = Instant::now();
        loop {
            let piece = tokio::select! {
                biased;
                () = self.tell.closed() => return None,
                piece = poll_fn(|cx| session.poll_piece(cx)) => piece,
                why = failed(&mut failure) => return Some(Err(Problem::fault(why))),
                _ = look.tick(), if is_first && choice == 0 => {
                    self.tell_progress(session, &mut told, began)?;
                    continue;
                }
            };
            match piece {
                // What follows the end of a line that ended the answer.
                Ok(Some(_)) if cut => {}
                Ok(Some(mut piece)) => {
                    self.host.count_generated();
                    if let Some(end) =
                        lines.as_mut().and_then(|l| l.end_in(&piece.text, Instant::now()))
                    {
                        piece.text.truncate(end);
                        session.canceller().cancel();
                        cut = true;
                    }
                    if std::mem::take(&mut is_first) && choice == 0 {
                        self.tell_progress(session, &mut told, began)?;
                        if let Err(problem) = self.start_others(session) {
                            return Some(Err(problem));
                        }
                    }
                    self.tell.send(Progress::Token(choice, piece)).ok()?;
                }
                Ok(None) => return Some(Ok(())),
                Err(e) => return Some(Err(e.into())),
            }
        }
    }

    /// Passes on how far the prompt is read, if that is new; `None` when the client is gone.
    fn tell_progress(
        &self,
        session: &Session,
        told: &mut Option<PromptProgress>,
        began: Instant,
    ) -> Option<()> {
        let is_news = |now: &PromptProgress| told.is_none_or(|told| now.done > told.done);
        let Some(now) = session.progress().filter(is_news) else { return Some(()) };
        let first = PromptProgress { done: now.cached, ..now };
        for news in told.is_none().then_some(first).into_iter().chain((now != first).then_some(now))
        {
            self.tell.send(Progress::Prompt(news, began.elapsed())).ok()?;
        }
        *told = Some(now);
        Some(())
    }

    fn start_others(&self, first: &Session) -> Result<(), Problem> {
        for choice in 1..self.generation.choices {
            let mut session = first.fork()?;
            begin(&mut session, &self.generation, choice, &self.fault)?;
            // Boxed, since a future cannot hold itself.
            let drive: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> =
                Box::pin(self.clone().drive(session, choice));
            tokio::spawn(drive);
        }
        Ok(())
    }

    fn end(&self, session: &mut Session, choice: usize) -> Result<Progress, Problem> {
        let mut rest = String::new();
        let output = session.finish(Some(&mut |_, text| {
            rest.push_str(text);
            troika::Control::Continue
        }))?;
        if output.finish == Finish::Cancelled {
            // It follows the end of a line that ended the answer.
            rest.clear();
        }
        if let Some(why) = self.fault.get() {
            let why = format!("the answer could not follow its grammar to the end: {why}");
            return Err(Problem::bad(why));
        }
        Ok(Progress::End(choice, Box::new(output), rest))
    }
}

/// Waits until an engine fails; for ever if it does not.
async fn failed(failure: &mut tokio::sync::watch::Receiver<Option<String>>) -> String {
    match failure.wait_for(Option::is_some).await.map(|why| why.clone()) {
        Ok(Some(why)) => why,
        _ => std::future::pending().await,
    }
}

/// The probabilities of a prompt's tokens after the first, each with the probabilities of the `top`
/// most likely tokens.
pub async fn prompt_logprobs(
    turn: &Turn,
    prompt: &[u32],
    top: usize,
) -> Result<Vec<Logprobs>, Problem> {
    let next = prompt.get(1..).unwrap_or_default().to_vec();
    let prompts = [prompt.to_vec()];
    read(turn, prompts.into(), WantedLogits::All, Vec::new(), move |known, _, position, row| {
        if let Some(&next) = next.get(position) {
            known.push(Logprobs::of(row, next, top));
        }
    })
    .await
}

/// The embeddings of texts that are read together, as the model pools them.
pub async fn embeddings(
    turn: Turn,
    texts: Vec<Vec<u32>>,
    pooling: Pooling,
) -> Result<Vec<Vec<f64>>, Problem> {
    let lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
    let add = move |sums: &mut Vec<Vec<f64>>, text: usize, position: usize, row: &[f32]| {
        let (sum, last) = (&mut sums[text], lengths[text] - 1);
        let part = match pooling {
            Pooling::Mean => 1.0 / lengths[text] as f64,
            Pooling::Cls if position == 0 => 1.0,
            Pooling::Last if position == last => 1.0,
            _ => return,
        };
        sum.resize(row.len(), 0.0);
        sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x) * part);
    };
    let none = vec![Vec::new(); texts.len()];
    read(&turn, texts, WantedLogits::States, none, add).await
}

/// Ends the reading of texts within a step, when nobody waits for it any longer.
struct EndsWhenDropped {
    sessions: Vec<SessionCanceller>,
    ended: Arc<AtomicBool>,
}

impl Drop for EndsWhenDropped {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.sessions.iter().for_each(SessionCanceller::cancel);
    }
}

/// Computes texts together when it is the client's turn, and adds to `sum` the row that is wanted for
/// each token, with its text and position. Where there are several, none has more tokens than are
/// read at once.
///
/// # Errors
/// A text is too long, the queue is full, the request's time is over, or the engine fails.
async fn read<T: Send + 'static>(
    turn: &Turn,
    texts: Vec<Vec<u32>>,
    wanted: WantedLogits,
    mut sum: T,
    add: impl Fn(&mut T, usize, usize, &[f32]) + Send + 'static,
) -> Result<T, Problem> {
    let model = &turn.host.model;
    let context = model.context();
    if let Some(long) = texts.iter().find(|text| text.len() > context) {
        let (prompt, model) = (long.len(), model.spec().context);
        return Err(troika::Error::PromptTooLong { prompt, context, model }.into());
    }
    Record::current().note(|told| told.prompt += texts.iter().map(Vec::len).sum::<usize>());
    let permit = turn.enter(&turn.server.queue, 1).await?;
    let options = SessionOptions { fresh: true, ..turn.session_options() };
    let open = |_: &Vec<u32>| model.session_with(options);
    let mut sessions = texts.iter().map(open).collect::<Result<Vec<Session>, _>>()?;
    let ended: Arc<AtomicBool> = Arc::default();
    let cancellers = sessions.iter().map(Session::canceller).collect();
    let guard = EndsWhenDropped { sessions: cancellers, ended: ended.clone() };
    let at_once = if wanted == WantedLogits::States { STATES_AT_ONCE } else { READ_AT_ONCE };
    let work = apart(move || {
        let _permit = permit;
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        for from in (0..longest).step_by(at_once) {
            if ended.load(Ordering::Relaxed) {
                return Err(troika::Error::Cancelled.into());
            }
            let part = |text: &'_ Vec<u32>| from..text.len().min(from + at_once);
            let all = sessions.iter_mut().zip(&texts);
            let mut fed: Vec<_> = all.map(|(session, text)| (session, &text[part(text)])).collect();
            let mut on_row = |i, at, row: &mut [f32]| add(&mut sum, i, at, row);
            Session::feed_all(&mut fed, wanted, &mut on_row)?;
        }
        Ok(sum)
    });
    let done = turn.in_time(work).await;
    drop(guard);
    done?
}
