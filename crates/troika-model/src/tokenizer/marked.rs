//! Tokenizes a prompt in which some spellings of control tokens are plain text.

use std::collections::HashMap;
use std::ops::Range;

use tokenizers::{AddedToken, Model};

use super::encode::Tokenizer;
use super::error::{Result, TokenizerError};
use super::shared::Inner;

/// An added token found in a text.
struct Found {
    range: Range<usize>,
    id: u32,
    plain: bool,
}

impl Tokenizer {
    /// Spellings of the control tokens (added tokens marked as special).
    pub fn control_tokens(&self) -> Vec<String> {
        let added = self.inner.get_added_tokens_decoder();
        let mut list: Vec<(u32, String)> =
            added.into_iter().filter(|(_, t)| t.special).map(|(id, t)| (id, t.content)).collect();
        list.sort_unstable();
        list.into_iter().map(|(_, spelling)| spelling).collect()
    }

    /// Text to ids, like [`Tokenizer::encode`] with `parse_special`. But control tokens whose
    /// spelling covers one of the byte offsets in `plain` (ascending) count as plain text.
    ///
    /// If there are none, the ids are the same as `encode`'s. Otherwise the remaining control
    /// tokens are replaced by private characters. A copy of the tokenizer knows these as added
    /// tokens of the same kind, and knows no control tokens. So normalization, SentencePiece's
    /// first space and merges see the whole text, as in `encode`.
    ///
    /// # Errors
    /// What the tokenizer reports.
    pub fn encode_marked(
        &self,
        text: &str,
        plain: &[usize],
        add_special: bool,
    ) -> Result<Vec<u32>> {
        let added: HashMap<u32, AddedToken> =
            self.inner.get_added_tokens_decoder().into_iter().collect();
        let found = if plain.is_empty() { Vec::new() } else { find(&added, text, plain) };
        if !found.iter().any(|f| f.plain) {
            return self.encode(text, add_special, true);
        }
        let mut copy = self.inner.clone();
        copy.set_encode_special_tokens(true);
        let bad = |e: tokenizers::Error| TokenizerError::Encode(e.to_string());
        let (aliased, names) = self.alias(text, &found)?;
        let tokens = names.iter().map(|(&id, &name)| {
            let real = &added[&id];
            AddedToken::from(String::from(name), false)
                .normalized(false)
                .single_word(real.single_word)
                .lstrip(real.lstrip)
                .rstrip(real.rstrip)
        });
        copy.add_tokens(tokens).map_err(bad)?;
        let real: HashMap<u32, u32> = names
            .iter()
            .filter_map(|(&id, &name)| Some((copy.token_to_id(&String::from(name))?, id)))
            .collect();
        let encoding = copy.encode_fast(aliased, false).map_err(bad)?;
        let mut ids = Vec::with_capacity(encoding.len());
        for &id in encoding.get_ids() {
            match (real.get(&id), added.get(&id)) {
                (Some(&id), _) => ids.push(id),
                // Some models find control tokens themselves, as pieces of their vocabulary.
                (None, Some(t)) if t.special => {
                    let piece = copy.get_model().id_to_token(id);
                    ids.extend(pieces(&copy, &added, piece.as_ref().unwrap_or(&t.content))?);
                }
                _ => ids.push(id),
            }
        }
        if add_special { self.frame(ids) } else { Ok(ids) }
    }

    /// Replaces every remaining control token by a private character. Also returns the characters'
    /// tokens.
    fn alias(&self, text: &str, found: &[Found]) -> Result<(String, HashMap<u32, char>)> {
        let mut free = (0x0F_0000..=0x10_FFFD)
            .filter_map(char::from_u32)
            .filter(|&c| !text.contains(c) && self.inner.token_to_id(&String::from(c)).is_none());
        let mut names = HashMap::new();
        let (mut out, mut copied) = (String::with_capacity(text.len()), 0);
        for f in found.iter().filter(|f| !f.plain) {
            let name = match names.get(&f.id) {
                Some(&name) => name,
                None => {
                    let none = || TokenizerError::Encode("the text holds every character".into());
                    let name = free.next().ok_or_else(none)?;
                    names.insert(f.id, name);
                    name
                }
            };
            out.push_str(&text[copied..f.range.start]);
            out.push(name);
            copied = f.range.end;
        }
        out.push_str(&text[copied..]);
        Ok((out, names))
    }

    /// Adds around ids what `encode` adds to a text.
    fn frame(&self, ids: Vec<u32>) -> Result<Vec<u32>> {
        let (bare, framed) = (self.encode("a", false, true)?, self.encode("a", true, true)?);
        let at = framed.windows(bare.len().max(1)).position(|w| w == bare.as_slice());
        let Some(at) = at else { return Ok(ids) };
        let (before, after) = (&framed[..at], &framed[at + bare.len()..]);
        let again = !before.is_empty() && before.first() == ids.first();
        let mut out = if again { Vec::new() } else { before.to_vec() };
        out.extend(ids);
        out.extend_from_slice(after);
        Ok(out)
    }
}

/// The control tokens in a text, the longest at each place, as the tokenizer finds them.
fn find(added: &HashMap<u32, AddedToken>, text: &str, plain: &[usize]) -> Vec<Found> {
    let mut by_first: HashMap<char, Vec<(&str, u32, bool)>> = HashMap::new();
    for (&id, t) in added {
        if let Some(c) = t.content.chars().next() {
            by_first.entry(c).or_default().push((&t.content, id, t.special));
        }
    }
    by_first.values_mut().for_each(|l| l.sort_by_key(|t| std::cmp::Reverse(t.0.len())));
    let mut found = Vec::new();
    let mut next = 0;
    for (at, c) in text.char_indices() {
        let Some(list) = by_first.get(&c).filter(|_| at >= next) else { continue };
        let Some(&(spelling, id, special)) = list.iter().find(|t| text[at..].starts_with(t.0))
        else {
            continue;
        };
        let range = at..at + spelling.len();
        let first = plain.partition_point(|&p| p < range.start);
        let plain = plain.get(first).is_some_and(|p| range.contains(p));
        // Plain text does not hide a marker that begins within it.
        next = if plain { at + c.len_utf8() } else { range.end };
        if special {
            found.push(Found { range, id, plain });
        }
    }
    found
}

/// A control token's spelling as pieces of the model, without control tokens among them.
fn pieces(tokenizer: &Inner, added: &HashMap<u32, AddedToken>, spelling: &str) -> Result<Vec<u32>> {
    let control = |id: u32| added.get(&id).is_some_and(|t| t.special);
    let model = |part: &str| -> Option<Vec<u32>> {
        let ids: Vec<u32> =
            tokenizer.get_model().tokenize(part).ok()?.into_iter().map(|t| t.id).collect();
        (!ids.is_empty() && !ids.iter().any(|&id| control(id))).then_some(ids)
    };
    let cut = |at: usize| Some([model(&spelling[..at])?, model(&spelling[at..])?].concat());
    let cuts = spelling.char_indices().skip(1).filter_map(|(at, _)| cut(at));
    let why = || format!("the control token {spelling:?} cannot be spelled as plain text");
    cuts.min_by_key(Vec::len).ok_or_else(|| TokenizerError::Encode(why()))
}

#[cfg(test)]
mod tests;
