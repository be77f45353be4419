"""Anthropic's /v1/messages."""

import json

import anthropic
import jsonschema

from calls import SCHEMAS, WEATHER
from structure import PERSON
from support import MODEL, NIGHT, equal, raises, word_within

TOOLS = [
    {"name": name, "description": "A tool.", "input_schema": schema}
    for name, schema in SCHEMAS.items()
]
# The package has no argument for it any more; the service takes it.
GREEDY = {"temperature": 0}


def create(server, messages=None, **options):
    options.setdefault("max_tokens", 24)
    body = GREEDY | options.pop("extra_body", {})
    messages = NIGHT if messages is None else messages
    return server.anthropic.messages.create(
        model=MODEL, messages=messages, extra_body=body, **options
    )


def prompt(usage):
    """All tokens of the prompt: those that were cached are counted apart."""
    return usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_plain(server):
    answer = create(server)
    equal((answer.type, answer.role, answer.model), ("message", "assistant", MODEL), "the answer")
    equal([block.type for block in answer.content], ["text"], "the blocks")
    equal(answer.content[0].text, server.chat().choices[0].message.content, "the text")
    assert prompt(answer.usage) > 5 and 0 < answer.usage.output_tokens <= 24, answer.usage
    assert answer.id.startswith("msg_"), answer.id


def test_max_tokens(server):
    answer = create(server, max_tokens=5, extra_body={"ignore_eos": True})
    equal((answer.stop_reason, answer.stop_sequence), ("max_tokens", None), "the reason")
    equal(answer.usage.output_tokens, 5, "output_tokens")


def test_system(server):
    bare = create(server)
    text = create(server, system="You write in verse.")
    assert prompt(text.usage) > prompt(bare.usage), text.usage
    blocks = create(server, system=[{"type": "text", "text": "You write in verse."}])
    equal(blocks.content[0].text, text.content[0].text, "the text with blocks")
    want = server.chat([{"role": "system", "content": "You write in verse."}, *NIGHT])
    equal(text.content[0].text, want.choices[0].message.content, "the text")


def test_blocks(server):
    blocks = [{"type": "text", "text": NIGHT[0]["content"], "cache_control": {"type": "ephemeral"}}]
    answer = create(server, [{"role": "user", "content": blocks}])
    equal(answer.content[0].text, create(server).content[0].text, "the text")


def test_turn_is_continued(server):
    """An assistant's turn at the end is a beginning of the answer."""
    answer = create(server, [*NIGHT, {"role": "assistant", "content": "Once upon a"}])
    assert answer.content[0].text, answer
    closed = create(server, [*NIGHT, {"role": "assistant", "content": "Once upon a"}, *NIGHT])
    assert prompt(closed.usage) > prompt(answer.usage), (closed.usage, answer.usage)


def test_stop_sequences(server):
    whole = create(server, max_tokens=60).content[0].text
    word, before = word_within(whole)
    options = {"max_tokens": 60, "stop_sequences": ["\x00never", word]}
    answer = create(server, **options)
    equal((answer.stop_reason, answer.stop_sequence), ("stop_sequence", word), "the reason")
    equal(answer.content[0].text, before, "the text")
    end = next(e for e in create(server, stream=True, **options) if e.type == "message_delta")
    equal((end.delta.stop_reason, end.delta.stop_sequence), ("stop_sequence", word), "streamed")


def test_end(server):
    answer = create(server, extra_body={"logit_bias": {"0": 100}})
    equal((answer.stop_reason, answer.stop_sequence), ("end_turn", None), "the reason")


def types(events):
    """The types of events without pings and repeats."""
    every = [e.type for e in events if e.type != "ping"]
    return [t for i, t in enumerate(every) if not i or t != every[i - 1]]


def test_stream(server):
    plain = create(server)
    events = list(create(server, stream=True))
    equal(
        types(events),
        ["message_start", "content_block_start", "content_block_delta", "content_block_stop",
         "message_delta", "message_stop"],
        "the events",
    )  # fmt: skip
    start = events[0].message
    equal((start.content, start.stop_reason), ([], None), "the message at the start")
    equal(prompt(start.usage), prompt(plain.usage), "input_tokens")
    deltas = [e.delta for e in events if e.type == "content_block_delta"]
    assert len(deltas) > 5, "too few pieces"
    equal("".join(d.text for d in deltas), plain.content[0].text, "the text")
    end = next(e for e in events if e.type == "message_delta")
    equal(end.delta.stop_reason, plain.stop_reason, "stop_reason")
    equal(end.usage.output_tokens, plain.usage.output_tokens, "output_tokens")


def test_stream_helper(server):
    with server.anthropic.messages.stream(
        model=MODEL, messages=NIGHT, max_tokens=24, extra_body=GREEDY
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    equal(text, create(server).content[0].text, "the text")
    equal(final.content[0].text, text, "the text of the message")


def test_events_have_names(server):
    """Clients other than this package go by the lines `event:`."""
    body = {"model": MODEL, "messages": NIGHT, "max_tokens": 3, "stream": True}
    status, _, data = server.http("POST", "/v1/messages", body)
    equal(status, 200, "status")
    for event in data.decode().strip().split("\n\n"):
        if event.startswith(":"):
            continue
        name, line = event.split("\n")
        equal(name, "event: " + json.loads(line.removeprefix("data: "))["type"], "the name")


def test_tools(server):
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        answer = create(server, tools=TOOLS, tool_choice=choice, max_tokens=300)
        # The built-in model does not know when to end.
        ends = ("tool_use",) if "name" in choice else ("tool_use", "max_tokens")
        assert answer.stop_reason in ends, answer
        calls = [block for block in answer.content if block.type == "tool_use"]
        assert calls, answer.content
        for call in calls:
            assert call.id, call
            jsonschema.validate(call.input, SCHEMAS[call.name])
    equal([call.name for call in calls], ["weather"], "the calls")


def test_one_tool_at_a_time(server):
    choice = {"type": "any", "disable_parallel_tool_use": True}
    for seed in range(3):
        answer = create(
            server,
            tools=TOOLS,
            tool_choice=choice,
            max_tokens=300,
            extra_body={"temperature": 1, "seed": seed},
        )
        equal([block.type for block in answer.content], ["tool_use"], "the blocks")


def test_tools_streamed(server):
    options = {
        "tools": TOOLS,
        "tool_choice": {"type": "tool", "name": "weather"},
        "max_tokens": 200,
    }
    plain = create(server, **options).content[0]
    events = list(create(server, stream=True, **options))
    start = next(e for e in events if e.type == "content_block_start").content_block
    equal((start.type, start.name, start.input), ("tool_use", "weather", {}), "the block")
    pieces = [e.delta for e in events if e.type == "content_block_delta"]
    equal({p.type for p in pieces}, {"input_json_delta"}, "the deltas")
    equal(json.loads("".join(p.partial_json for p in pieces)), plain.input, "the input")
    end = next(e for e in events if e.type == "message_delta")
    equal(end.delta.stop_reason, "tool_use", "stop_reason")


def test_agent(server):
    messages = list(NIGHT)
    for name in SCHEMAS:
        answer = create(
            server,
            messages,
            tools=TOOLS,
            tool_choice={"type": "tool", "name": name},
            max_tokens=200,
        )
        messages.append({"role": "assistant", "content": [b.model_dump() for b in answer.content]})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": content}
            for block in answer.content
            for content in ["rain" if name == "weather" else [{"type": "text", "text": "5"}]]
        ]
        messages.append({"role": "user", "content": results})
    last = create(server, messages, tools=TOOLS, tool_choice={"type": "none"})
    equal([block.type for block in last.content], ["text"], "the blocks")


def test_output_schema(server):
    """Honoured, or refused in words: not ignored."""
    form = {"format": {"type": "json_schema", "schema": PERSON}}
    try:
        answer = create(server, output_config=form, max_tokens=300)
    except anthropic.BadRequestError as error:
        assert "output_config" in str(error), error
    else:
        jsonschema.validate(json.loads(answer.content[0].text), PERSON)


def test_count_tokens(server):
    def count(**options):
        return server.anthropic.messages.count_tokens(
            model=MODEL, messages=NIGHT, **options
        ).input_tokens

    equal(count(), prompt(create(server).usage), "input_tokens")
    assert count(system="You write in verse.") > count(), "the system's text is not counted"
    assert count(tools=TOOLS) >= count(), "tools make the prompt shorter"


def test_errors(server):
    answer = server.anthropic.messages.create(model="claude-9", messages=NIGHT, max_tokens=1)
    equal(answer.model, MODEL, "the model")
    with raises(anthropic.BadRequestError, str(server.context()), "invalid_request_error"):
        create(server, [{"role": "user", "content": server.too_long()}])
    for word, options in [
        ("max_tokens", {"max_tokens": -5}),
        ("temperature", {"extra_body": {"temperature": -1}}),
        ("messages", {"messages": []}),
        ("role", {"messages": [{"role": "king", "content": "a"}]}),
        ("tool", {"tool_choice": {"type": "any"}}),
        ("sail", {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "sail"}}),
        ("stop_sequences", {"stop_sequences": 5}),
    ]:
        with raises(anthropic.BadRequestError, word, "invalid_request_error"):
            create(server, **options)


def test_error_has_its_form(server):
    body = {"model": MODEL, "messages": NIGHT}
    status, _, data = server.http("POST", "/v1/messages", body)
    equal((status, data["type"]), (400, "error"), "the error")
    equal(data["error"]["type"], "invalid_request_error", "type")
    assert "max_tokens" in data["error"]["message"], data


def test_schema_is_kept_at_any_temperature(server):
    options = {
        "tools": TOOLS,
        "tool_choice": {"type": "tool", "name": "weather"},
        "max_tokens": 200,
    }
    for seed in range(4):
        answer = create(server, extra_body={"temperature": 1, "seed": seed}, **options)
        jsonschema.validate(answer.content[0].input, WEATHER)
