"""OpenAI's /v1/responses."""

import json

import jsonschema
import openai

from calls import SCHEMAS, WEATHER
from structure import PERSON
from support import MODEL, equal, raises

TOOLS = [
    {"type": "function", "name": name, "parameters": schema, "strict": True}
    for name, schema in SCHEMAS.items()
]


def create(server, **options):
    options.setdefault("input", "It was a dark night, and the old man said")
    options.setdefault("temperature", 0)
    options.setdefault("max_output_tokens", 24)
    return server.openai.responses.create(model=MODEL, **options)


def test_create(server):
    answer = create(server)
    equal((answer.object, answer.model), ("response", MODEL), "the answer")
    assert answer.output_text.strip(), answer
    equal([item.type for item in answer.output], ["message"], "the items")
    part = answer.output[0].content[0]
    equal((part.type, part.annotations, answer.output[0].role), ("output_text", [], "assistant"))
    usage = answer.usage
    equal(usage.total_tokens, usage.input_tokens + usage.output_tokens, "total_tokens")
    assert usage.input_tokens_details.cached_tokens >= 0, usage
    equal(create(server).output_text, answer.output_text, "the greedy text")


def test_incomplete(server):
    answer = create(server, max_output_tokens=16, extra_body={"ignore_eos": True})
    equal(answer.status, "incomplete", "status")
    equal(answer.incomplete_details.reason, "max_output_tokens", "the reason")
    equal(answer.usage.output_tokens, 16, "output_tokens")


def test_same_as_chat(server):
    """Both endpoints stand on one way to generate."""
    chat = server.chat(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hail"}]
    )
    text = chat.choices[0].message.content
    equal(create(server, instructions="Be brief.", input="Hail").output_text, text, "instructions")
    items = [
        {"role": "system", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hail"}]},
    ]
    equal(create(server, input=items).output_text, text, "items")


def test_conversation(server):
    first = create(server)
    items = [{"role": "user", "content": "It was night."}]
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items += [{"role": "user", "content": "Go on."}]
    again = create(server, input=items)
    assert again.usage.input_tokens > first.usage.output_tokens + 8, again.usage


def check_stream(events):
    """The rules of every stream; returns the types without repeats."""
    equal([e.sequence_number for e in events], list(range(len(events))), "sequence_number")
    types = [e.type.removeprefix("response.") for e in events]
    equal(types[:2], ["created", "in_progress"], "the first events")
    equal(events[0].response.status, "in_progress", "status")
    return [t for i, t in enumerate(types) if not i or t != types[i - 1]]


def test_stream(server):
    plain = create(server)
    events = list(create(server, stream=True))
    ending = "completed" if plain.status == "completed" else "incomplete"
    equal(
        check_stream(events),
        ["created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
         "output_text.done", "content_part.done", "output_item.done", ending],
        "the events",
    )  # fmt: skip
    deltas = [e for e in events if e.type == "response.output_text.delta"]
    assert len(deltas) > 5, "too few pieces"
    equal("".join(e.delta for e in deltas), plain.output_text, "the deltas")
    done = next(e for e in events if e.type == "response.output_text.done")
    equal(done.text, plain.output_text, "the text at the end")
    item = next(e for e in events if e.type == "response.output_item.done").item
    equal({e.item_id for e in deltas}, {item.id}, "item_id")
    last = events[-1].response
    equal(last.output_text, plain.output_text, "the text of the last event")
    equal(last.usage.output_tokens, plain.usage.output_tokens, "output_tokens")
    equal({e.response.id for e in events if hasattr(e, "response")}, {last.id}, "the id")


def test_stream_helper(server):
    with server.openai.responses.stream(
        model=MODEL, input="Hail", temperature=0, max_output_tokens=24
    ) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    equal(text, create(server, input="Hail").output_text, "the text")


def test_schema(server):
    form = {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}
    answer = create(server, text={"format": form}, max_output_tokens=300)
    equal(answer.status, "completed", "status")
    jsonschema.validate(json.loads(answer.output_text), PERSON)
    bad = form | {"schema": {"type": "strin"}}
    with raises(openai.BadRequestError, "schema"):
        create(server, text={"format": bad})


def test_tools(server):
    choice = {"type": "function", "name": "weather"}
    answer = create(server, tools=TOOLS, tool_choice=choice, max_output_tokens=200)
    equal([item.type for item in answer.output], ["function_call"], "the items")
    call = answer.output[0]
    equal((call.name, call.status), ("weather", "completed"), "the call")
    assert call.call_id and call.id, call
    jsonschema.validate(json.loads(call.arguments), WEATHER)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    items = [
        {"role": "user", "content": "The weather?"},
        call.model_dump(exclude_none=True),
        result,
    ]
    last = create(server, input=items, tools=TOOLS, tool_choice="none")
    assert last.output_text and [i.type for i in last.output] == ["message"], last.output


def test_tools_required(server):
    answer = create(server, tools=TOOLS, tool_choice="required", max_output_tokens=300)
    assert answer.output, answer
    for call in answer.output:
        equal(call.type, "function_call", "the item")
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


def test_tools_streamed(server):
    options = {"tools": TOOLS, "tool_choice": {"type": "function", "name": "add"}}
    plain = create(server, max_output_tokens=200, **options)
    events = list(create(server, max_output_tokens=200, stream=True, **options))
    equal(
        check_stream(events),
        ["created", "in_progress", "output_item.added", "function_call_arguments.delta",
         "function_call_arguments.done", "output_item.done", "completed"],
        "the events",
    )  # fmt: skip
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    equal("".join(deltas), plain.output[0].arguments, "the arguments")


def test_namespaces(server):
    """Functions in a namespace are called as such, as Codex has it."""
    inner = [TOOLS[1], {"type": "custom", "name": "patch"}]
    tools = [TOOLS[0], {"type": "namespace", "name": "numbers", "tools": inner}]
    choice = {"type": "function", "namespace": "numbers", "name": TOOLS[1]["name"]}
    body = {"model": MODEL, "input": "Add", "max_output_tokens": 200, "temperature": 0}
    body |= {"tools": tools, "tool_choice": choice}
    status, headers, answer = server.http("POST", "/v1/responses", body)
    equal((status, headers["X-Troika-Left-Out"]), (200, "custom"), "the status and what is left out")
    call = answer["output"][0]
    equal((call["namespace"], call["name"]), ("numbers", TOOLS[1]["name"]), "the call")
    jsonschema.validate(json.loads(call["arguments"]), SCHEMAS[TOOLS[1]["name"]])
    _, _, data = server.http("POST", "/v1/responses", body | {"stream": True})
    done = [e for e in data.decode().split("\n\n") if e.startswith("event: response.output_item.done")]
    item = json.loads(done[0].split("data: ", 1)[1])["item"]
    equal((item["namespace"], item["name"]), ("numbers", TOOLS[1]["name"]), "the streamed call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "5"}
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    body |= {"input": [{"role": "user", "content": "Add"}, search, call, result]}
    body |= {"tool_choice": "none"}
    status, headers, answer = server.http("POST", "/v1/responses", body)
    equal((status, headers["X-Troika-Left-Out"]), (200, "custom, web_search_call"), "the next turn")


def test_earlier_response(server):
    """The server keeps none. Said in words, or honoured: not ignored."""
    first = create(server)
    try:
        second = create(server, input="Go on.", previous_response_id=first.id)
    except (openai.BadRequestError, openai.NotFoundError) as error:
        assert "previous_response_id" in str(error), error
    else:
        assert second.usage.input_tokens > first.usage.input_tokens, "it was ignored"


def test_refusals(server):
    for word, options in [
        ("background", {"background": True}),
        ("max_output_tokens", {"max_output_tokens": -5}),
        ("temperature", {"temperature": -1}),
        ("web_search", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}),
        ("input", {"input": 5}),
        (
            "image",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "a"}]}]},
        ),
    ]:
        with raises(openai.BadRequestError, word):
            create(server, **options)
    answer = server.openai.responses.create(model="gpt-9", input="a", max_output_tokens=2)
    equal(answer.model, MODEL, "the model")
    context = str(server.context())
    with raises(openai.BadRequestError, context, code="context_length_exceeded"):
        create(server, input=server.too_long())
