//! `troika tokenize`.

use serde_json::json;

use crate::error::CliError;
use crate::file::read_input;
use crate::flags::TokenizeArgs;
use crate::{output, resolve};

/// Prints ids, with their tokens.
pub fn run(args: &TokenizeArgs) -> Result<(), CliError> {
    let source = resolve::model(&args.model)?;
    let text = match &args.prompt {
        Some(p) => p.clone(),
        None => read_input(args.file.as_deref())?,
    };
    let (tokenizer, warning) = resolve::tokenizer(&source)?;
    output::warn(warning);
    output::warn(tokenizer.warnings());
    let ids = tokenizer
        .encode(&text, !args.no_bos, !args.no_parse_special)
        .map_err(troika::Error::from)?;
    let token = |id: &u32| tokenizer.token(*id).unwrap_or_default();
    if args.json {
        let tokens: Vec<String> = ids.iter().map(token).collect();
        return output::json(&json!({"ids": ids, "tokens": tokens}));
    }
    if args.ids {
        let list: Vec<String> = ids.iter().map(u32::to_string).collect();
        return output::write(&format!("{}\n", list.join(",")));
    }
    let lines: String = ids.iter().map(|id| format!("{id:>7} -> {:?}\n", token(id))).collect();
    output::write(&lines)
}
