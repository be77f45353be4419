//! Fill in the middle: how models are asked for the text between two others.

use super::encode::Tokenizer;
use super::error::Result;
use crate::spec::{GgufMeta, GgufValue};

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

/// A place in a text, with what is around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Infill {
    /// Tokens before its line.
    pub prefix: Vec<u32>,
    /// Tokens of its line up to it.
    pub line: Vec<u32>,
    /// Tokens after it.
    pub suffix: Vec<u32>,
    /// Names and texts of other files.
    pub files: Vec<(String, String)>,
}

/// A token's keys in GGUF files, today's and the older one, and its names as llama.cpp knows them.
struct Known {
    keys: [&'static str; 2],
    names: &'static str,
}

const KNOWN: [Known; 6] = [
    Known {
        keys: ["fim_pre", "prefix"],
        names: "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> \
                <|code_prefix|> <|prefix|>",
    },
    Known {
        keys: ["fim_suf", "suffix"],
        names: "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> \
                <|code_suffix|> <|suffix|>",
    },
    Known {
        keys: ["fim_mid", "middle"],
        names: "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> \
                <|code_middle|> <|middle|>",
    },
    Known {
        keys: ["fim_rep", ""],
        names: "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    },
    Known { keys: ["fim_sep", ""], names: "<|file_sep|>" },
    Known { keys: ["fim_pad", ""], names: "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]" },
];

/// What llama.cpp calls the repository and the file, whose names are not told.
const REPO: &str = "myproject\n";
const FILE: &str = "filename\n";
/// What it writes before other files where there is no token for that.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

impl FimTokens {
    /// The tokens that the metadata names, or by their names.
    pub(super) fn find(tokenizer: &Tokenizer, meta: Option<&GgufMeta>) -> Option<FimTokens> {
        let by_key = |key: &&str| {
            let id = meta?.get(&format!("tokenizer.ggml.{key}_token_id"))?;
            let id = GgufValue::as_u64(id).and_then(|id| u32::try_from(id).ok())?;
            tokenizer.token(id).map(|_| id)
        };
        let by_name = |names: &str| names.split(' ').find_map(|name| tokenizer.id(name));
        let [prefix, suffix, middle, repo, file, pad] =
            KNOWN.map(|of| of.keys.iter().find_map(by_key).or_else(|| by_name(of.names)));
        Some(FimTokens { prefix: prefix?, suffix: suffix?, middle: middle?, repo, file, pad })
    }

    /// All of them: none belongs to an answer.
    pub fn all(self) -> impl Iterator<Item = u32> {
        let others = [self.repo, self.file, self.pad].into_iter().flatten();
        [self.prefix, self.suffix, self.middle].into_iter().chain(others)
    }

    /// The prompt for what is between two texts.
    ///
    /// # Errors
    /// An error of the tokenizer.
    pub fn between(self, of: &Tokenizer, prefix: &[u32], suffix: &[u32]) -> Result<Vec<u32>> {
        let bos = of.encode("", true, false)?.into_iter().next().filter(|id| of.bos() == Some(*id));
        let before = bos.into_iter().chain([self.prefix]).chain(prefix.iter().copied());
        let after = [self.suffix].into_iter().chain(suffix.iter().copied());
        Ok(before.chain(after).chain([self.middle]).collect())
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
        let Infill { prefix, line, suffix, .. } = place;
        let before = &prefix[prefix.len().saturating_sub(3 * (near / 4))..];
        let after = (near / 4).saturating_sub(2 + line.len()).min(suffix.len());
        all.extend(self.between(of, &[before, line].concat(), &suffix[..after])?);
        Ok(all)
    }

    fn files(self, of: &Tokenizer, files: &[(String, String)]) -> Result<Vec<u32>> {
        let mut all = Vec::new();
        let mut add = |token: Option<u32>, text: &str| {
            all.extend(token);
            all.extend(of.encode(text, false, false)?);
            Ok(())
        };
        if self.repo.is_some() {
            add(self.repo, REPO)?;
        }
        for (name, text) in files {
            match self.file {
                Some(_) => add(self.file, &format!("{name}\n"))?,
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

#[cfg(test)]
mod tests {
    use super::{FimTokens, Infill};
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
            let found = FimTokens::find(&of, None).unwrap();
            assert_eq!(found.all().collect::<Vec<_>>(), [1000, 1001, 1002], "{names:?}");
            assert_eq!(of.fim(), Some(found));
        }
        assert_eq!(tokenizer(&["<|fim_prefix|>", "<|fim_suffix|>"]).fim(), None);
        // A file's own say comes first.
        let of = tokenizer(&["<PRE>", "<SUF>", "<MID>", "other"]);
        let key = "tokenizer.ggml.fim_mid_token_id".to_string();
        let meta = GgufMeta([(key, GgufValue::Uint(1003))].into());
        assert_eq!(FimTokens::find(&of, Some(&meta)).map(|fim| fim.middle), Some(1003));
    }

    #[test]
    fn llama_cpp_s_layout() {
        let names = ["<PRE>", "<SUF>", "<MID>", "<REPO>", "<|file_sep|>"];
        let ids = |of: &Tokenizer, text| of.encode(text, false, false).unwrap();
        let place = |of: &Tokenizer| Infill {
            prefix: ids(of, "abcdefgh"),
            line: ids(of, "x="),
            suffix: ids(of, "ABCDEFGH"),
            files: vec![("a.h".into(), "text".into())],
        };
        let infill = |names: &[&str], near, beside| {
            let of = tokenizer(names);
            let prompt = of.fim().unwrap().infill(&of, &place(&of), near, beside).unwrap();
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
