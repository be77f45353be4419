use serde_json::json;

use super::*;

fn input(messages: &[(&str, &str)]) -> ChatInput {
    ChatInput {
        messages: messages.iter().map(|(r, c)| json!({"role": r, "content": c})).collect(),
        add_generation_prompt: true,
        bos_token: "<s>".into(),
        eos_token: "</s>".into(),
        today: Some((2024, 7, 4)),
        ..ChatInput::default()
    }
}

fn render(source: &str, messages: &[(&str, &str)]) -> Result<String, ChatError> {
    ChatTemplate::new(source)?.render(&input(messages))
}

#[test]
fn chatml() {
    let t = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + \
             message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}\
             {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    assert_eq!(
        render(t, &[("user", " hi ")]).unwrap(),
        "<|im_start|>user\n hi <|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn blocks_are_trimmed_as_transformers_does() {
    let t = "{{ bos_token }}\n{% for m in messages %}\n    {% if m.role == 'user' %}\n[{{ m.content | trim }}]\n    {% endif %}\n{% endfor %}\n";
    assert_eq!(render(t, &[("user", " a "), ("x", "b")]).unwrap(), "<s>\n[a]\n");
}

#[test]
fn python_methods_slices_and_namespaces() {
    let t = "{% set ns = namespace(last=none) %}{% for m in messages[::-1] %}\
             {% if ns.last is none and m.role == 'assistant' %}{% set ns.last = m.content %}{% endif %}\
             {% endfor %}{{ ns.last.split('</think>')[-1].lstrip('\\n') }}|\
             {{ messages[0].content.startswith('q') }}|{{ messages[0].get('name', 'none') }}";
    let m = [("user", "q"), ("assistant", "<think>x</think>\n\nyes")];
    assert_eq!(render(t, &m).unwrap(), "yes|True|none");
}

#[test]
fn dates_json_and_loop_controls() {
    let t = "{{ strftime_now('%d %b %Y') }} {{ {'a': [1, 'é<'], 'b': none} | tojson }} \
             {{ [1] | tojson(indent=2) }} {% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}";
    assert_eq!(
        render(t, &[]).unwrap(),
        "04 Jul 2024 {\"a\": [1, \"é<\"], \"b\": null} [\n  1\n] 01"
    );
}

#[test]
fn a_template_may_refuse() {
    let t = "{% if messages[0].role != 'user' %}{{ raise_exception('roles must alternate') }}{% endif %}";
    let e = render(t, &[("assistant", "x")]).unwrap_err();
    assert!(e.to_string().contains("roles must alternate"), "{e}");
}

#[test]
fn training_marks_are_dropped_and_bad_syntax_is_an_error() {
    let t = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
    assert_eq!(render(t, &[("user", "a")]).unwrap(), "a");
    assert!(matches!(ChatTemplate::new("{% if %}"), Err(ChatError::Syntax(_))));
}
