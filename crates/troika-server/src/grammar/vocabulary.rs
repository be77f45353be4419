//! The tokens of a model, prepared once for all grammars.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv,
};
use llguidance::{Matcher, ParserFactory, panic_utils};

use super::constrain::Constrain;
use super::error::shorten;
use super::mask::Grammar;
use super::pool::Pool;

/// Gives the tokens of a text.
pub type Encode = Arc<dyn Fn(&[u8]) -> Vec<u32> + Send + Sync>;

/// Threads that compute masks.
pub(super) const THREADS: usize = 2;
/// Grammars nest: the thread that compiles them has a stack that holds what the limits allow.
const STACK: usize = 64 << 20;
/// How long anyone waits for a grammar. The limits end it sooner, unless the machine is busy.
const PATIENCE: Duration = Duration::from_secs(5);

/// A model's tokens.
pub struct Vocabulary {
    factory: Arc<ParserFactory>,
    pub(super) pool: Arc<Pool>,
}

impl Vocabulary {
    /// Prepares the tokens of a model: the bytes of each, which ones are special, and those that
    /// end an answer. `encode` is the model's tokenizer; where it does not give a text's own bytes
    /// back, as with a blank put before it, the longest tokens are taken instead.
    pub fn new(
        tokens: Vec<Vec<u8>>,
        special: Vec<bool>,
        eos: Vec<u32>,
        encode: Encode,
    ) -> Result<Self, String> {
        check(&tokens, &special, &eos)?;
        let words: Vec<_> = tokens.into_iter().zip(special).map(|(t, s)| word(t, s)).collect();
        let refused = |e: String| unusable(&shorten(&e));
        // The trie and the slices panic on what they do not expect.
        let factory = panic_utils::catch_unwind(AssertUnwindSafe(|| {
            let info = TokRxInfo::new(words.len() as u32, eos[0]);
            let trie = TokTrie::from(&info, &words).with_eos_tokens(&eos);
            let env: TokEnv = Arc::new(Tokenizer { trie, encode });
            let slices = SlicedBiasComputer::general_slices();
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
        }));
        let mut factory = factory.map_err(|e| refused(e.to_string()))?;
        factory.quiet();
        // A grammar may take at most some 100 MB and some 50 ms for a mask.
        *factory.limits_mut() = ParserLimits {
            initial_lexer_fuel: 500_000,
            step_lexer_fuel: 100_000,
            step_max_items: 50_000,
            max_lexer_states: 50_000,
            max_grammar_size: 200_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        let pool = Pool::new(THREADS).map_err(|e| refused(e.to_string()))?;
        Ok(Self { factory: Arc::new(factory), pool: Arc::new(pool) })
    }

    /// Compiles a constraint. What it cannot honour is an error, and so is what takes too long:
    /// that goes on meanwhile, and holds `place` until its end.
    pub fn compile_holding(
        &self,
        constrain: &Constrain,
        place: impl Send + 'static,
    ) -> Result<Grammar, String> {
        let parser = constrain.grammar()?;
        let matcher = self.matcher(parser, place).map_err(|why| constrain.refused(why))?;
        if let Some(error) = matcher.get_error() {
            return Err(constrain.refused(shorten(&error)));
        }
        let (env, pool) = (Arc::clone(self.factory.tok_env()), Arc::clone(&self.pool));
        let grammar = Grammar { matcher, env, pool, is_json: constrain.is_json() };
        // The first mask shows whether the grammar can be followed.
        let mut first = grammar.start();
        let _ = first.allowed();
        first.error().map_or(Ok(grammar), |why| Err(constrain.refused(why)))
    }

    /// Compiles in a thread of its own, which nothing can stop: what waits for it goes on after a
    /// while.
    fn matcher(
        &self,
        grammar: TopLevelGrammar,
        place: impl Send + 'static,
    ) -> Result<Matcher, &'static str> {
        let (sender, receiver) = channel();
        let factory = Arc::clone(&self.factory);
        let thread = std::thread::Builder::new().name("compile grammar".to_owned());
        let compile = move || {
            let matcher = Matcher::new(factory.create_parser(grammar)).into_cancellable();
            drop(place);
            // Fails if nobody waits any longer.
            drop(sender.send(matcher));
        };
        let spawned = thread.stack_size(STACK).spawn(compile);
        spawned.map_err(|_| "there is no thread to compile it, so try again later")?;
        receiver.recv_timeout(PATIENCE).map_err(|_| "it takes too long to compile")
    }
}

fn unusable(why: &str) -> String {
    format!("the model's vocabulary cannot be constrained: {why}")
}

fn check(tokens: &[Vec<u8>], special: &[bool], eos: &[u32]) -> Result<(), String> {
    let refused = |why: String| Err(unusable(&why));
    if tokens.is_empty() || u32::try_from(tokens.len()).is_err() {
        return refused(format!("it has {} tokens", tokens.len()));
    }
    if tokens.len() != special.len() {
        return refused(format!("{} tokens have {} marks", tokens.len(), special.len()));
    }
    if eos.is_empty() {
        return refused("no token ends an answer".to_owned());
    }
    match eos.iter().find(|token| **token as usize >= tokens.len()) {
        Some(token) => refused(format!("token {token}, which ends answers, is not in it")),
        None => Ok(()),
    }
}

/// The bytes as the trie knows them: special tokens have a byte before them that no text has.
fn word(token: Vec<u8>, special: bool) -> Vec<u8> {
    const MARK: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
    if token.is_empty() {
        return token;
    }
    if special {
        return [&[MARK], token.as_slice()].concat();
    }
    // A byte that is not UTF-8 would pass for a special token. No grammar has a place for it.
    if token[0] == MARK { Vec::new() } else { token }
}

struct Tokenizer {
    trie: TokTrie,
    encode: Encode,
}

impl TokenizerEnv for Tokenizer {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        let tokens = (self.encode)(text);
        let known = tokens.iter().all(|token| (*token as usize) < self.trie.vocab_size());
        if known && self.trie.decode_raw(&tokens) == text {
            tokens
        } else {
            self.trie.greedy_tokenize(text)
        }
    }
}
