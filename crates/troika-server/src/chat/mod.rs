//! A conversation to be answered, whichever interface it came by.

mod events;
mod messages;
mod tools;

pub use events::{ChatAnswer, ChatEvent, ChatStream, ChoiceAnswer, EndReason, TokenLogprob, Usage};
pub use messages::{chat_messages, text_bytes, text_of, text_part, without_billing};
pub use tools::{ToolChoice, Tools, arguments_so_far, full_name};

use serde_json::{Map, Value};
use troika::engine::sample::SampleParams;
use troika::model::chat::{ChatPrompt, local_time};
use troika::{Conversation, Request};

use crate::completion::{self, Generation};
use crate::grammar::Constrain;
use crate::limits;
use crate::open_model::InUse;
use crate::problem::Problem;
use crate::thinking::ThinkingBudget;
use crate::turn::Turn;
use troika::model::answer::{Format, ReaderOptions};

/// What is asked for, as every interface says it.
#[derive(Clone, Debug, Default)]
pub struct ChatRequest {
    /// Messages in OpenAI's form, with texts as contents.
    pub messages: Vec<Value>,
    /// The tools, and whether they have to be called.
    pub tools: Tools,
    /// What the answer must follow.
    pub constrain: Option<Constrain>,
    /// How tokens are chosen.
    pub params: SampleParams,
    /// The most tokens; `None`: what the context holds.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Goes on after the end of text.
    pub ignore_eos: bool,
    pub choices: usize,
    /// Whether the prompt is computed as a whole, whatever of it is cached.
    pub fresh: bool,
    /// Whether probabilities are told, and of how many other tokens.
    pub logprobs: Option<usize>,
    /// Variables for the chat template.
    pub extra: Map<String, Value>,
    /// The most tokens of thoughts; `None`: as many as the model wants.
    pub thinking_budget: Option<usize>,
    /// Whether reasoning is told apart from the answer.
    pub split_reasoning: bool,
    /// Whether calls are told when they are complete, so that broken ones are text.
    pub whole_calls: bool,
    /// Whether the last message, the assistant's, is to be continued.
    pub continues: bool,
}

/// A conversation that is ready to be answered.
pub struct Prepared {
    pub generation: Generation,
    format: Format,
    reader: ReaderOptions,
    tools: Tools,
}

impl ChatRequest {
    /// Renders the conversation and compiles what the answer must follow, each when it is the
    /// client's turn.
    ///
    /// # Errors
    /// The template refuses the messages, the prompt is too long, or a grammar cannot be honoured.
    pub async fn prepare(self, turn: &Turn) -> Result<Prepared, Problem> {
        let tools = self.tools.clone();
        turn.host.model.check_text(text_bytes(&self.messages))?;
        let schemas = tools.list.iter().map(|tool| limits::size(&tool.parameters));
        let bytes = self.messages.iter().map(limits::size).chain(schemas).sum();
        let most = turn.server.options.max_tokens;
        let rendered = turn.prepare(bytes, move |host| self.render(host, most)).await?;
        let (mut prepared, constrain) = rendered;
        if let Some(constrain) = constrain {
            prepared.generation.grammar = Some(match turn.compile(constrain).await {
                Ok(grammar) => grammar,
                Err(problem) => return Err(tools.blame(turn).await.unwrap_or(problem)),
            });
        }
        Ok(prepared)
    }

    /// The conversation without its grammar, and what the answer must follow.
    fn render(
        self,
        host: &InUse,
        most: Option<usize>,
    ) -> Result<(Prepared, Option<Constrain>), Problem> {
        let model = &host.model;
        let shown = self.tools.shown();
        let format = if shown { host.format } else { host.plain_format };
        let off = self.extra.get("enable_thinking").is_some_and(|on| *on == false);
        let rendered = self.rendered(host)?;
        model.check_text(rendered.text.len())?;
        let (prompt, _) = model.tokenize_chat(&rendered)?;
        let opened = format.opened_by(&rendered.text);
        let reader = ReaderOptions {
            tools: if shown { self.tools.list.as_slice().into() } else { [].into() },
            reasoning: self.split_reasoning,
            opened,
            // A forced call cannot fail in its middle. It can be cut off.
            whole_calls: self.whole_calls && !self.tools.forced(),
        };
        let mut tools = self.tools;
        let thoughts = format.thoughts.filter(|_| !format.closed_by(&rendered.text));
        let held = Format { thoughts, ..format };
        let special = |text: &str| control_token(host, text);
        let constrain = tools.constrain(&held, opened, self.constrain, &special);
        let keeps = |text: &&str| model.tokenizer().and_then(|t| t.id(text));
        let reads = reader.reasoning || !reader.tools.is_empty();
        let markers = if reads { format.markers() } else { Vec::new() };
        let max_tokens = most.into_iter().chain(self.max_tokens).min();
        // What must follow a thought needs room, too.
        let room =
            model.context().saturating_sub(prompt.len()).min(max_tokens.unwrap_or(usize::MAX));
        // Thinking that is switched off has no budget, whatever the request says of it.
        let budget = if off { Some(0) } else { self.thinking_budget };
        let budget = budget.or(constrain.is_some().then_some(room / 2));
        let thinking =
            budget.and_then(|budget| ThinkingBudget::new(host, &held, shown, opened, budget));
        let request = Request {
            params: self.params,
            max_tokens,
            stop: self.stop,
            ignore_eos: self.ignore_eos,
            logprobs: self.logprobs,
            keep_tokens: markers.iter().filter_map(keeps).collect(),
        };
        let (choices, fresh) = (self.choices, self.fresh);
        let generation =
            Generation { prompt, request, choices, thinking, fresh, ..Generation::default() };
        Ok((Prepared { generation, format, reader, tools }, constrain))
    }

    /// The prompt that the template makes of it.
    fn rendered(&self, host: &InUse) -> Result<ChatPrompt, Problem> {
        let mut messages = match host.model.has_template() {
            true => self.messages.clone(),
            false => messages::with_calls_as_text(&self.messages),
        };
        let mark = self.continues.then(|| messages::mark_last(&mut messages)).transpose()?;
        let conversation = Conversation {
            tools: self.tools.for_template(),
            extra: self.extra.clone(),
            now: Some(local_time()),
            add_generation_prompt: !self.continues,
            ..Conversation::new(messages)
        };
        let mut rendered = host.model.chat_prompt(&conversation)?;
        if let Some(mark) = mark {
            let content = self.messages.last().map(|m| text_of(&m["content"])).transpose()?;
            messages::cut_at(&mark, &content.unwrap_or_default(), &mut rendered)?;
        }
        Ok(rendered)
    }
}

fn control_token(host: &InUse, text: &str) -> Option<u32> {
    let tokenizer = host.model.tokenizer()?;
    tokenizer.id(text).filter(|id| tokenizer.is_control(*id))
}

impl Prepared {
    /// A prompt whose answers are passed on as they are.
    pub fn plain(generation: Generation) -> Prepared {
        let (reader, tools) = (ReaderOptions::default(), Tools::default());
        Prepared { generation, format: Format::detect(None), reader, tools }
    }

    /// Starts the answers when it is the client's turn.
    ///
    /// # Errors
    /// The queue is full, or the request cannot be served.
    pub async fn start(self, turn: &Turn) -> Result<ChatStream, Problem> {
        let Prepared { generation, format, reader, tools } = self;
        let (choices, prompt) = (generation.choices, generation.prompt.len());
        let answers = completion::start(turn, generation).await?;
        let readers = (0..choices).map(|_| format.reader(reader.clone())).collect();
        Ok(ChatStream::new(turn.server.metrics.clone(), answers, readers, &tools, prompt))
    }
}
