//! The tokens by which models are asked for the text between two others.

use crate::spec::GgufMeta;

/// The tokens that ask for the text between two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FimTokens {
    /// Before the text that precedes.
    pub prefix: u32,
    /// Before the text that follows.
    pub suffix: u32,
    /// After both.
    pub middle: u32,
    /// Before a repository's name.
    pub repo: Option<u32>,
    /// Before a file's name.
    pub file: Option<u32>,
    /// Fills up.
    pub pad: Option<u32>,
}

/// Keys of GGUF files, today's and an older one, and llama.cpp's names of each token.
const KNOWN: [&str; 6] = [
    "fim_pre prefix <|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> \
     <|code_prefix|> <|prefix|>",
    "fim_suf suffix <|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> \
     <|code_suffix|> <|suffix|>",
    "fim_mid middle <|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> \
     <|code_middle|> <|middle|>",
    "fim_rep - <|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "fim_sep - <|file_sep|>",
    "fim_pad - <|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
];

impl FimTokens {
    /// The tokens that the metadata names, or by their names. `id` gives the token of a name, and
    /// `known` says whether there is a token.
    pub(super) fn find(
        meta: Option<&GgufMeta>,
        id: impl Fn(&str) -> Option<u32>,
        known: impl Fn(u32) -> bool,
    ) -> Option<FimTokens> {
        let by_key = |key: &&str| {
            let id = meta?.get(&format!("tokenizer.ggml.{key}_token_id"))?.as_u64();
            id.and_then(|id| u32::try_from(id).ok()).filter(|id| known(*id))
        };
        let [prefix, suffix, middle, repo, file, pad] = KNOWN.map(|known| {
            let names: Vec<&str> = known.split(' ').collect();
            let (keys, names) = names.split_at(2);
            keys.iter().find_map(by_key).or_else(|| names.iter().find_map(|name| id(name)))
        });
        Some(FimTokens { prefix: prefix?, suffix: suffix?, middle: middle?, repo, file, pad })
    }

    /// All of them: none belongs to an answer.
    pub fn all(self) -> impl Iterator<Item = u32> {
        let all = [Some(self.prefix), Some(self.suffix), Some(self.middle)];
        all.into_iter().chain([self.repo, self.file, self.pad]).flatten()
    }
}
