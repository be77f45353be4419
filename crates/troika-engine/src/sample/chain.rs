//! What says which samplers work on candidates, in which order.

/// A sampler of a chain, as llama.cpp names it.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Penalties,
    Dry,
    TopNSigma,
    TopK,
    TypicalP,
    TopP,
    MinP,
    Xtc,
    Temperature,
}

/// All samplers in llama.cpp's order, each with its name and letter there.
pub(super) const ALL: [(Step, &str, &str); 9] = [
    (Step::Penalties, "penalties", "e"),
    (Step::Dry, "dry", "d"),
    (Step::TopNSigma, "top_n_sigma", "s"),
    (Step::TopK, "top_k", "k"),
    (Step::TypicalP, "typ_p", "y"),
    (Step::TopP, "top_p", "p"),
    (Step::MinP, "min_p", "m"),
    (Step::Xtc, "xtc", "x"),
    (Step::Temperature, "temperature", "t"),
];

impl Step {
    /// Reads an order of names and letters in llama.cpp's spellings. Those of its other samplers are
    /// passed over: its clients list them, and they are off.
    ///
    /// # Errors
    /// A sampler that is not known, or is named twice; the sentence follows a field's name.
    pub fn order<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<Step>, String> {
        let plain = |name: &str| name.to_lowercase().replace(['_', '-'], "");
        let mut order = Vec::new();
        for name in names {
            let spelled = plain(name);
            let spelled = match spelled.as_str() {
                "infill" | "i" | "adaptivep" | "a" | "tfsz" => continue,
                "nucleus" => "topp",
                "temp" => "temperature",
                "typ" | "typicalp" => "typp",
                other => other,
            };
            let is = |known: &str, letter: &str| plain(known) == spelled || letter == spelled;
            let found = ALL.iter().find(|(_, known, letter)| is(known, letter));
            let new = found.map(|(step, ..)| *step).filter(|step| !order.contains(step));
            order.push(new.ok_or_else(|| {
                let known = ALL.map(|(_, known, _)| known).join(", ");
                format!("has {name:?}; name each of these once at most: {known}")
            })?);
        }
        Ok(order)
    }
}

/// The struct of a chain from a list of its numbers, each with its default and bounds.
macro_rules! numbers {
    ($($(#[doc = $doc:literal])* $name:ident = $default:literal in $least:expr, $most:expr;)*) => {
        /// The order of the samplers, and the parameters of those that are off by default.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Chain {
            /// The samplers that work, in their order.
            pub samplers: Vec<Step>,
            /// Texts beyond which DRY follows no repetition.
            pub dry_sequence_breakers: Vec<String>,
            $($(#[doc = $doc])* pub $name: f32,)*
        }

        impl Default for Chain {
            /// llama.cpp's defaults.
            fn default() -> Chain {
                Chain {
                    samplers: ALL.map(|(step, ..)| step).to_vec(),
                    dry_sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_string).to_vec(),
                    $($name: $default,)*
                }
            }
        }

        impl Chain {
            /// All numbers by their names.
            pub fn numbers_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut f32)> {
                [$((stringify!($name), &mut self.$name)),*].into_iter()
            }

            /// All numbers with their names and bounds.
            pub(super) fn bounds(&self) -> impl Iterator<Item = (&'static str, f32, (f32, f32))> {
                [$((stringify!($name), self.$name, ($least, $most))),*].into_iter()
            }
        }
    };
}

numbers! {
    /// DRY: the penalty of a token that goes on with a repetition of the allowed length (0: off).
    dry_multiplier = 0.0 in 0.0, f32::MAX;
    /// By how much the penalty grows with each further token of the repetition.
    dry_base = 1.75 in 1.0, f32::MAX;
    /// The shortest repetition whose next token has a penalty.
    dry_allowed_length = 2.0 in 0.0, f32::MAX;
    /// How many recent tokens are looked at (0: off; -1: all).
    dry_penalty_last_n = 64.0 in f32::MIN, f32::MAX;
    /// Keep logits at most so many standard deviations below the best (0 and less: all).
    top_n_sigma = -1.0 in f32::MIN, f32::MAX;
    /// Keep the tokens whose surprise is nearest to the expected one, up to this probability (1: all).
    typical_p = 1.0 in 0.0, 1.0;
    /// XTC: how often the likeliest tokens are dropped (0: never).
    xtc_probability = 0.0 in 0.0, 1.0;
    /// Those at least so likely are dropped, but for the last of them (above 0.5: none).
    xtc_threshold = 0.1 in 0.0, 1.0;
    /// The temperature goes so far down and up with the entropy (0: it is fixed).
    dynatemp_range = 0.0 in 0.0, f32::MAX;
    /// The power of the entropy by which it does.
    dynatemp_exponent = 1.0 in 0.0, f32::MAX;
    /// 2: mirostat 2 in place of all samplers but temperature; 0: off.
    mirostat = 0.0 in 0.0, 2.0;
    /// Mirostat's target for a token's surprise in bits.
    mirostat_tau = 5.0 in 0.0, f32::MAX;
    /// How fast it is followed.
    mirostat_eta = 0.1 in 0.0, f32::MAX;
}

impl Chain {
    /// How many recent tokens DRY looks at.
    pub(super) fn window(&self) -> usize {
        if self.dry_penalty_last_n < 0.0 { usize::MAX } else { self.dry_penalty_last_n as usize }
    }
}
