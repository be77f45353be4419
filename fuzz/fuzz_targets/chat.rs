//! Any text as a chat template with messages: it is parsed and rendered within the limits, or
//! refused. The template ends at the first NUL; the messages' texts follow, alternately of user and
//! assistant. A slow rendering is a finding: run with `-timeout=20`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use troika_model::chat::{ChatInput, ChatTemplate};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut parts = text.split('\0');
    let Ok(template) = ChatTemplate::new(parts.next().unwrap_or_default()) else { return };
    let roles = ["user", "assistant"].into_iter().cycle();
    let messages = roles.zip(parts).map(|(role, text)| json!({"role": role, "content": text}));
    let special = json!({"bos_token": "<s>", "eos_token": "</s>"});
    let input = ChatInput {
        messages: messages.collect(),
        add_generation_prompt: true,
        tools: Some(json!([{"type": "function", "function": {"name": "f", "parameters": {}}}])),
        special: special.as_object().cloned().unwrap_or_default(),
        control: ["<s>", "</s>", "<|im_start|>", "<|im_end|>"].map(String::from).to_vec(),
        ..ChatInput::default()
    };
    let Ok(prompt) = template.render(&input) else { return };
    for &at in &prompt.plain {
        assert!(prompt.text.is_char_boundary(at));
    }
});
