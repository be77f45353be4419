"""Thoughts with forms, tools and budgets, by a small model with templates of its own."""

import contextlib
import json
import pathlib
import shutil
import tempfile

import jsonschema

from own import serve
from support import equal

MODEL = pathlib.Path(__file__).parents[2] / "models/tiny-moe"
TURNS = """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}
{%- if m.reasoning_content %}{{- '<think>\n' + m.reasoning_content + '\n</think>\n' }}{% endif %}
{{- m.content + '<|im_end|>\n' }}{% endfor %}"""
PLAIN = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}{# <tool_call> #}"
THINK = TURNS + "{{- '<|im_start|>assistant\n<think>\n' }}{# </think> <tool_call> #}"
HARMONY = TURNS + "{{- '<|start|>assistant' }}{# <|channel|> <|message|> <|call|> #}"
ONE = {
    "type": "object",
    "properties": {"a": {"enum": [1]}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": ONE}}
HI = [{"role": "user", "content": "hi"}]


@contextlib.contextmanager
def with_template(server, template, tokens=()):
    """A server of the small model with this template, and these control tokens."""
    with tempfile.TemporaryDirectory() as place:
        model = pathlib.Path(place) / "m"
        shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("*.gguf"))
        (model / "chat_template.jinja").write_text(template)
        known = json.loads((model / "tokenizer.json").read_text())
        # Some of the vocabulary's last tokens take their place.
        words = known["model"]["vocab"]
        last = sorted(words, key=words.get)[-len(tokens) :] if tokens else []
        for old, new in zip(last, tokens, strict=True):
            token = {"id": words[old], "content": new, "special": True}
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            known["added_tokens"].append(token | flags)
            words[new] = words.pop(old)
            gone = [m for m in known["model"]["merges"] if "".join(m).replace(" ", "") == old]
            for merge in gone:
                known["model"]["merges"].remove(merge)
        (model / "tokenizer.json").write_text(json.dumps(known))
        with serve(server, str(model)) as (other, _):
            yield other


def schema(name="it"):
    return {"type": "json_schema", "json_schema": {"name": name, "schema": ONE}}


def chat(other, stream=False, **fields):
    """The message and why it ended, whole or joined from a stream."""
    body = {"messages": HI, "max_tokens": 64, "temperature": 0, "stream": stream} | fields
    if not stream:
        choice = other.post("/v1/chat/completions", body)["choices"][0]
        return choice["message"], choice["finish_reason"]
    _, _, data = other.http("POST", "/v1/chat/completions", body)
    message, why = {"content": "", "reasoning_content": ""}, None
    for line in data.decode().split("\n\n"):
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            for name in message:
                message[name] += choice["delta"].get(name) or ""
            why = choice["finish_reason"] or why
    return message, why


def holds(text):
    jsonschema.validate(json.loads(text), ONE)


def test_form_after_an_opened_thought(server):
    """All interfaces: the thought ends, and the form is the answer."""
    with with_template(server, THINK) as other:
        for stream in (False, True):
            message, why = chat(other, stream, response_format=schema())
            holds(message["content"])
            assert message["reasoning_content"], message
            assert "think>" not in message["reasoning_content"], message
            equal(why, "stop", "why it ended")
        asked = {"messages": HI, "stream": False, "options": {"num_predict": 64}}
        answer = other.post("/api/chat", asked | {"model": "m", "format": ONE})["message"]
        holds(answer["content"])
        assert answer["thinking"], answer
        form = {"format": {"type": "json_schema", "name": "it", "schema": ONE}}
        answer = other.post(
            "/v1/responses", {"input": "hi", "max_output_tokens": 64, "text": form}
        )
        equal([item["type"] for item in answer["output"]], ["reasoning", "message"], "the items")
        holds(answer["output"][1]["content"][0]["text"])
        answer = other.post(
            "/v1/messages", {"messages": HI, "max_tokens": 64, "output_config": form}
        )
        equal([b["type"] for b in answer["content"]], ["thinking", "text"], "the blocks")
        holds(answer["content"][1]["text"])


def test_form_after_harmony(server):
    """The message of the final channel is bound, whether the markers are tokens or not."""
    tokens = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"]
    for special in ([], [*tokens, "<|constrain|>"]):
        with with_template(server, HARMONY, special) as other:
            for stream in (False, True):
                message, why = chat(other, stream, response_format=schema(), max_tokens=192)
                holds(message["content"])
                equal(why, "stop", "why it ended")


def test_form_and_tools(server):
    """Either, when the model may choose; the call, when it has to."""
    with with_template(server, THINK) as other:
        both = {"response_format": schema(), "tools": [TOOL], "max_tokens": 200}
        both["parallel_tool_calls"] = False
        message, why = chat(other, **both)
        if message.get("tool_calls"):
            equal(why, "tool_calls", "why it ended")
        else:
            holds(message["content"])
        for choice in ("required", {"type": "function", "function": {"name": "look"}}):
            message, _ = chat(other, tool_choice=choice, **both)
            call = message["tool_calls"][0]["function"]
            equal(call["name"], "look", "the call")
            holds(call["arguments"])
        message, _ = chat(other, tool_choice="none", **both)
        holds(message["content"])


def test_forced_call_that_is_cut_off(server):
    """It is given as far as it came, whole or streamed."""
    text = {"type": "object", "properties": {"t": {"type": "string"}}, "required": ["t"]}
    tool = {"type": "function", "function": {"name": "say", "parameters": text}}
    body = {"model": "m", "messages": HI, "max_tokens": 48, "temperature": 0}
    with with_template(server, PLAIN) as other:
        forced = body | {"tools": [tool], "tool_choice": "required"}
        choice = other.post("/v1/chat/completions", forced)["choices"][0]
        equal(choice["finish_reason"], "length", "why it ended")
        call = choice["message"]["tool_calls"][0]["function"]
        assert call["name"] == "say" and call["arguments"].startswith('{"t"'), call
        stream = other.openai.chat.completions.create(**forced, stream=True)
        calls = [c.choices[0].delta.tool_calls for c in stream if c.choices]
        parts = [c[0].function.arguments or "" for c in calls if c]
        equal("".join(parts), call["arguments"], "the streamed arguments")
        flat = {"type": "function", "name": "say", "parameters": text}
        asked = {"input": "hi", "max_output_tokens": 48, "tools": [flat], "tool_choice": "required"}
        answer = other.post("/v1/responses", asked | {"temperature": 0})
        equal(answer["status"], "incomplete", "the status")
        equal(answer["output"][-1]["type"], "function_call", "the last item")
        own = {"name": "say", "input_schema": text}
        asked = body | {"tools": [own], "tool_choice": {"type": "any"}}
        answer = other.post("/v1/messages", asked)
        equal(answer["stop_reason"], "max_tokens", "why it ended")
        equal(answer["content"][-1]["type"], "tool_use", "the last block")


def test_budgets(server):
    """A thought ends when its budget is spent, under every name."""
    with with_template(server, THINK) as other:
        names = ("reasoning_budget", "thinking_budget_tokens", "max_thinking_tokens")
        for name in names:
            for budget in (0, 1, 5):
                message, _ = chat(other, **{name: budget}, ignore_eos=True)
                thought = message.get("reasoning_content", "")
                assert len(other.tokens(thought)) <= budget + 1, (budget, thought)
                assert message["content"], message
        asked = {"messages": HI, "max_tokens": 64, "temperature": 0}
        thinking = {"type": "enabled", "budget_tokens": 4}
        answer = other.post("/v1/messages", asked | {"thinking": thinking})
        assert answer["content"][-1]["type"] == "text", answer
        for more in ({}, {"budget_tokens": 4}):
            thinking = {"type": "disabled"} | more
            answer = other.post("/v1/messages", asked | {"thinking": thinking})
            equal([b["type"] for b in answer["content"]], ["text"], "the blocks without thinking")
        message, _ = chat(other, chat_template_kwargs={"enable_thinking": False})
        assert not message.get("reasoning_content"), message
        message, _ = chat(other)
        assert message["reasoning_content"], "no thought without a budget"
