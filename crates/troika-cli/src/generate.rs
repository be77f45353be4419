//! Generates by the flags of `troika run`: once for a prompt, or for each turn of a chat.

use troika::{Control, Model, Output, Request, Session};

use crate::error::CliError;
use crate::flags::RunArgs;
use crate::interrupt::Interrupt;
use crate::output;

/// The request that follows from the flags.
pub fn request(model: &Model, args: &RunArgs) -> Result<Request, CliError> {
    let params = args.sampling.resolve(model.defaults())?;
    let vocab = model.spec().vocab;
    if let Some((id, _)) = params.logit_bias.iter().find(|(id, _)| **id as usize >= vocab) {
        let why = format!("--logit-bias names token {id}, but the model has {vocab} tokens");
        return Err(CliError::Usage(why));
    }
    Ok(Request {
        params,
        max_tokens: usize::try_from(args.n_predict).ok(),
        stop: args.sampling.stop.clone(),
        ignore_eos: args.sampling.ignore_eos,
        ..Request::default()
    })
}

/// Generates, streaming the text unless JSON is wanted. `first` is called at the first token.
pub fn generate(
    model: &Model,
    session: &mut Session,
    args: &RunArgs,
    ids: &[u32],
    interrupt: &Interrupt,
    first: &mut dyn FnMut(),
) -> Result<Output, CliError> {
    let request = request(model, args)?;
    let ids_only = model.tokenizer().is_none();
    let (mut failed, mut first) = (None, Some(first));
    let _ends = interrupt.ends(session.canceller());
    let out = session.generate(ids, &request, &mut |token, text| {
        first.take().into_iter().for_each(|first| first());
        let piece = if ids_only { format!("{token} ") } else { text.to_string() };
        if !args.json && !piece.is_empty() {
            failed = output::answer(&piece).err();
        }
        if failed.is_some() || interrupt.pressed() { Control::Stop } else { Control::Continue }
    })?;
    failed.map_or(Ok(out), Err)
}
