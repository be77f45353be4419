//! OpenAI's `/v1/responses`. Nothing is kept between requests.

use super::Answer;
use super::request::{chat_request, max_tokens, start};
use super::responses_form::ResponseForm;
use super::responses_input::messages;
use super::responses_stream::ResponseWriter;
use crate::chat::Tools;
use crate::json_request::JsonRequest;
use crate::problem::Problem;
use crate::stream;

pub async fn responses(call: JsonRequest) -> Answer {
    let host = call.host().await?;
    let fields = call.fields();
    if fields.texts("include")?.iter().any(|what| what == "message.output_text.logprobs") {
        let why = "include: /v1/chat/completions tells the probabilities of tokens";
        return Err(Problem::field("include", why));
    }
    let mut tools = Tools::read(&fields, "parameters")?.chosen(&fields)?;
    let messages = messages(&fields, &mut tools.left_out)?;
    let mut request = chat_request(&fields, &host, messages, tools)?;
    request.max_tokens = max_tokens(&fields, &["max_output_tokens"])?;
    if let Some(format) = fields.inner("text")?.value("format") {
        request.constrain = super::constrain::format(format, "text.format")?;
    }
    let form = ResponseForm::new(&fields, &host.name);
    let streams = fields.flag("stream")?;
    let answers = start(&call, &host, request).await?;
    let writer = ResponseWriter::new(form);
    stream::answer(answers, streams, writer, |writer, answer| writer.form.whole(answer)).await
}
