//! Fill in the middle: how models are asked for the text between two others.

use serde::Deserialize;

use super::encode::Tokenizer;
use super::error::Result;
use super::fim_tokens::FimTokens;
use crate::spec::GgufMeta;

/// A place in a file, with what is around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Infill {
    /// The text before its line.
    pub prefix: String,
    /// Its line up to it.
    pub line: String,
    /// The text after it.
    pub suffix: String,
    /// Texts from other files.
    pub files: Vec<FilePart>,
}

/// A text from a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct FilePart {
    /// The file.
    pub filename: Option<String>,
    /// The text.
    pub text: String,
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

/// What llama.cpp calls a repository and files without a name.
const REPO: &str = "myproject\n";
const FILE: &str = "filename\n";
const PART: &str = "tmp";
/// What it writes before other files where there is no token for that.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

impl Tokenizer {
    /// The tokens that the metadata names for a text between two others, or that are known by name.
    pub(super) fn find_fim(&self, meta: Option<&GgufMeta>) -> Option<FimTokens> {
        let by_key = |key: &&str| {
            let id = meta?.get(&format!("tokenizer.ggml.{key}_token_id"))?.as_u64();
            id.and_then(|id| u32::try_from(id).ok()).filter(|id| self.token(*id).is_some())
        };
        let [prefix, suffix, middle, repo, file, pad] = KNOWN.map(|known| {
            let names: Vec<&str> = known.split(' ').collect();
            let (keys, names) = names.split_at(2);
            keys.iter().find_map(by_key).or_else(|| names.iter().find_map(|name| self.id(name)))
        });
        Some(FimTokens { prefix: prefix?, suffix: suffix?, middle: middle?, repo, file, pad })
    }
}

impl FimTokens {
    /// The prompt for what is between two texts.
    pub fn between(self, of: &Tokenizer, prefix: &[u32], suffix: &[u32]) -> Vec<u32> {
        let begin = of.begins().into_iter().chain([self.prefix]).collect::<Vec<u32>>();
        [&*begin, prefix, &[self.suffix], suffix, &[self.middle]].concat()
    }

    /// The prompt for a place in a file, as llama.cpp's server writes it: what is around the place
    /// takes about `near` tokens, three of four of them before it; other files take at most
    /// `beside`, of which the last remain.
    ///
    /// # Errors
    /// An error of the tokenizer.
    pub fn infill(
        self,
        of: &Tokenizer,
        place: &Infill,
        near: usize,
        beside: usize,
    ) -> Result<Vec<u32>> {
        let mut all = self.files(of, &place.files)?;
        all.drain(..all.len().saturating_sub(beside));
        let [prefix, suffix] = [&place.prefix, &place.suffix].map(|t| of.encode(t, false, false));
        let (prefix, suffix, line) = (prefix?, suffix?, of.encode(&place.line, false, true)?);
        let before = &prefix[prefix.len().saturating_sub(3 * (near / 4))..];
        let after = (near / 4).saturating_sub(2 + line.len()).min(suffix.len());
        all.extend(self.between(of, &[before, &line].concat(), &suffix[..after]));
        Ok(all)
    }

    fn files(self, of: &Tokenizer, files: &[FilePart]) -> Result<Vec<u32>> {
        let mut all = Vec::new();
        let mut add = |token: Option<u32>, text: &str| -> Result<()> {
            all.extend(token);
            all.extend(of.encode(text, false, false)?);
            Ok(())
        };
        if self.repo.is_some() {
            add(self.repo, REPO)?;
        }
        for FilePart { filename, text } in files {
            match self.file {
                Some(_) => add(self.file, &format!("{}\n", filename.as_deref().unwrap_or(PART)))?,
                None => add(None, SNIPPET)?,
            }
            add(None, text)?;
        }
        if self.file.is_some() {
            add(self.file, FILE)?;
        }
        Ok(all)
    }
}

impl Infill {
    /// Bytes of its texts.
    pub fn bytes(&self) -> usize {
        let files: usize = self.files.iter().map(|file| file.text.len()).sum();
        self.prefix.len() + self.line.len() + self.suffix.len() + files
    }
}

#[cfg(test)]
mod tests {
    use super::{FilePart, Infill};
    use crate::spec::{GgufMeta, GgufValue};
    use crate::tokenizer::Tokenizer;

    /// A tokenizer of letters, with these tokens from id 1000 on.
    fn tokenizer(names: &[&str]) -> Tokenizer {
        let letters = (10..127u32).map(|i| (char::from_u32(i).unwrap().to_string(), i.into()));
        let vocab: serde_json::Map<_, _> = letters.collect();
        let added = (1000..).zip(names).map(|(id, name)| {
            serde_json::json!({"id": id, "content": name, "special": true,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
        });
        let json = serde_json::json!({
            "added_tokens": added.collect::<Vec<_>>(),
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
    }

    fn spelled(of: &Tokenizer, ids: &[u32]) -> String {
        ids.iter().map(|id| of.token(*id).unwrap()).collect()
    }

    #[test]
    fn llama_cpp_s_names() {
        for names in [
            ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
            ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
            ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
            ["▁<PRE>", "▁<SUF>", "▁<MID>"],
        ] {
            let of = tokenizer(&names);
            let found = of.find_fim(None).unwrap();
            assert_eq!(found.all().collect::<Vec<_>>(), [1000, 1001, 1002], "{names:?}");
            assert_eq!(of.fim(), Some(found));
        }
        assert_eq!(tokenizer(&["<|fim_prefix|>", "<|fim_suffix|>"]).fim(), None);
        // A file's own say comes first.
        let of = tokenizer(&["<PRE>", "<SUF>", "<MID>", "other"]);
        let key = "tokenizer.ggml.fim_mid_token_id".to_string();
        let meta = GgufMeta([(key, GgufValue::Uint(1003))].into());
        assert_eq!(of.find_fim(Some(&meta)).map(|fim| fim.middle), Some(1003));
    }

    #[test]
    fn llama_cpp_s_layout() {
        let names = ["<PRE>", "<SUF>", "<MID>", "<REPO>", "<|file_sep|>"];
        let place = Infill {
            prefix: "abcdefgh".into(),
            line: "x=".into(),
            suffix: "ABCDEFGH".into(),
            files: vec![FilePart { filename: Some("a.h".into()), text: "text".into() }],
        };
        let infill = |names: &[&str], near, beside| {
            let of = tokenizer(names);
            let prompt = of.fim().unwrap().infill(&of, &place, near, beside).unwrap();
            spelled(&of, &prompt)
        };
        let whole = "<REPO>myproject\n<|file_sep|>a.h\ntext<|file_sep|>filename\n\
                     <PRE>abcdefghx=<SUF>ABCDEFGH<MID>";
        assert_eq!(infill(&names, 2048, 2048), whole);
        // 3 of 4 before; the last fourth less two and the line's tokens after.
        let cut = "filename\n<PRE>cdefghx=<SUF><MID>";
        assert_eq!(infill(&names, 8, 9), cut);
        assert_eq!(infill(&names, 20, 0), "<PRE>abcdefghx=<SUF>A<MID>");
        let bare = "\n\n--- snippet ---\n\ntext<PRE>abcdefghx=<SUF>ABCDEFGH<MID>";
        assert_eq!(infill(&names[..3], 2048, 2048), bare);
    }
}
