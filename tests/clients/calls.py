"""Tools through OpenAI's chat: forced calls, streams of them, and a loop of an agent."""

import json

import jsonschema
import openai

from support import MODEL, NIGHT, equal, raises

WEATHER = {
    "type": "object",
    "properties": {
        "place": {"type": "string", "enum": ["London", "York", "Bath"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["place", "days"],
    "additionalProperties": False,
}
SUM = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 99},
        "b": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
SCHEMAS = {"weather": WEATHER, "add": SUM}


def tool(name, about="A tool."):
    function = {"name": name, "description": about, "parameters": SCHEMAS[name]}
    return {"type": "function", "function": function}


TOOLS = [tool("weather", "The weather of the next days."), tool("add", "Adds two numbers.")]


def named(name):
    return {"type": "function", "function": {"name": name}}


def valid(call):
    """Checks a call, and returns its arguments."""
    equal(call.type, "function", "type")
    assert call.id, call
    arguments = json.loads(call.function.arguments)
    jsonschema.validate(arguments, SCHEMAS[call.function.name])
    return arguments


def test_named(server):
    for name in SCHEMAS:
        choice = server.chat(tools=TOOLS, tool_choice=named(name), max_tokens=200).choices[0]
        equal([c.function.name for c in choice.message.tool_calls], [name], "the calls")
        valid(choice.message.tool_calls[0])
        assert not choice.message.content, choice.message
        assert choice.finish_reason in ("tool_calls", "stop"), choice.finish_reason


def test_required(server):
    for seed in range(3):
        answer = server.chat(
            tools=TOOLS, tool_choice="required", temperature=1, seed=seed, max_tokens=300
        )
        calls = answer.choices[0].message.tool_calls
        assert calls, answer.choices[0]
        for call in calls:
            valid(call)
        # The built-in model does not know when to end.
        assert answer.choices[0].finish_reason in ("tool_calls", "length"), answer.choices[0]
        equal(len({c.id for c in calls}), len(calls), "the number of ids")


def test_one_at_a_time(server):
    for seed in range(4):
        answer = server.chat(
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=1,
            seed=seed,
            max_tokens=300,
        )
        equal(len(answer.choices[0].message.tool_calls), 1, "the number of calls")
        equal(answer.choices[0].finish_reason, "tool_calls", "finish_reason")


def test_none(server):
    choice = server.chat(tools=TOOLS, tool_choice="none").choices[0]
    assert not choice.message.tool_calls and choice.message.content, choice


def test_auto(server):
    """The built-in model knows no tools: its text must come as such."""
    for options in ({}, {"tool_choice": "auto"}):
        choice = server.chat(tools=TOOLS, **options).choices[0]
        assert choice.message.content or choice.message.tool_calls, choice


def test_allowed(server):
    allowed = {"mode": "required", "tools": [named("add")]}
    choice = server.chat(
        tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}, max_tokens=300
    ).choices[0]
    equal({c.function.name for c in choice.message.tool_calls}, {"add"}, "the calls")


def streamed(chunks):
    """Puts calls together as clients do: by index."""
    calls, end = {}, None
    for chunk in chunks:
        for choice in chunk.choices:
            end = choice.finish_reason or end
            for piece in choice.delta.tool_calls or []:
                call = calls.setdefault(
                    piece.index, {"id": "", "name": "", "arguments": "", "n": 0}
                )
                call["id"] += piece.id or ""
                call["name"] += piece.function.name or ""
                call["arguments"] += piece.function.arguments or ""
                call["n"] += 1
    return [calls[index] for index in sorted(calls)], end


def test_streamed(server):
    options = {"tools": TOOLS, "tool_choice": named("weather"), "max_tokens": 200}
    plain = server.chat(**options).choices[0]
    calls, end = streamed(server.chat(stream=True, **options))
    equal(len(calls), 1, "the number of calls")
    equal(calls[0]["name"], "weather", "the name")
    assert calls[0]["id"] and calls[0]["n"] > 1, calls
    want = json.loads(plain.message.tool_calls[0].function.arguments)
    equal(json.loads(calls[0]["arguments"]), want, "the arguments")
    equal(end, plain.finish_reason, "finish_reason")


def test_stream_helper(server):
    with server.openai.chat.completions.stream(
        model=MODEL,
        messages=NIGHT,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=300,
        temperature=0,
    ) as stream:
        for _ in stream:
            pass
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert calls, "no calls"
    for call in calls:
        valid(call)


def test_agent(server):
    """Two rounds: a forced call of each tool, whose results go back, and an answer in text."""
    does = {
        "weather": lambda place, days: f"rain in {place} for {days} days",
        "add": lambda a, b: a + b,
    }
    messages = [{"role": "user", "content": "What is the weather, and what is 2 and 3?"}]
    for name in does:
        message = server.chat(messages, tools=TOOLS, tool_choice=named(name), max_tokens=200)
        message = message.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            result = does[call.function.name](**valid(call))
            messages.append(
                {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)}
            )
    before = server.chat(messages[:1], tools=TOOLS, tool_choice="none").usage.prompt_tokens
    last = server.chat(messages, tools=TOOLS, tool_choice="none")
    assert last.choices[0].message.content and not last.choices[0].message.tool_calls, last
    more = last.usage.prompt_tokens - before
    assert more > 20, f"two calls and their results are {more} tokens of the prompt"


def test_no_parameters(server):
    """A tool may have none: the arguments are an object all the same."""
    tools = [{"type": "function", "function": {"name": "now"}}]
    call = (
        server.chat(tools=tools, tool_choice="required", max_tokens=60)
        .choices[0]
        .message.tool_calls[0]
    )
    assert isinstance(json.loads(call.function.arguments), dict), call


def left_out(server, path, body, **more):
    """What an answer says is left out, whole and as a stream."""
    names = set()
    for stream in (False, True):
        status, headers, data = server.http("POST", path, body | {"stream": stream} | more)
        equal(status, 200, f"the status of {path}: {data}")
        names.add(headers["X-Troika-Left-Out"])
    equal(len(names), 1, "the number of different headers")
    return names.pop()


def test_what_only_a_vendor_runs(server):
    """It is left out in all interfaces, and named."""
    vendors = [{"type": "web_search"}, {"type": "local_shell"}, {"type": "mcp", "server_label": "a"}]
    want = "local_shell, mcp, web_search"
    body = {"model": MODEL, "messages": NIGHT, "max_tokens": 4, "tools": TOOLS + vendors}
    equal(left_out(server, "/v1/chat/completions", body), want, "left out")
    equal(left_out(server, "/v1/chat/completions", body, tool_choice="required"), want, "left out")
    equal(left_out(server, "/v1/chat/completions", body | {"tools": TOOLS}), None, "left out")
    own = body | {"options": {"num_predict": 4}}
    equal(left_out(server, "/api/chat", own), want, "left out by Ollama's")
    flat = [{"type": "function", "name": n, "parameters": s} for n, s in SCHEMAS.items()]
    responses = {"model": MODEL, "input": "a", "max_output_tokens": 4, "tools": flat + vendors}
    equal(left_out(server, "/v1/responses", responses), want, "left out by the responses")
    theirs = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124"}]
    own = [{"name": n, "input_schema": s} for n, s in SCHEMAS.items()]
    want = "bash_20250124, web_search_20250305"
    equal(left_out(server, "/v1/messages", body | {"tools": own + theirs}), want, "left out")
    choice = {"type": "tool", "name": "web_search"}
    body |= {"tools": own + theirs, "tool_choice": choice}
    equal(server.http("POST", "/v1/messages", body)[0], 400, "the status when it has to be called")


def test_schemas_that_cannot_be_kept(server):
    """Of a tool they are kept as far as can be, and what cannot be is named."""
    tags = {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2, "uniqueItems": True}
    name = {"type": "string", "pattern": "^(?=x).*$", "maxLength": 4, "format": "password"}
    schema = {"type": "object", "properties": {"tags": tags, "name": name}, "required": ["tags"]}
    odd = {"type": "function", "function": {"name": "odd", "parameters": schema}}
    body = {"model": MODEL, "messages": NIGHT, "max_tokens": 100, "tools": [*TOOLS, odd]}
    body |= {"temperature": 0, "tool_choice": named("odd")}
    want = "pattern of odd, uniqueItems of odd"
    equal(left_out(server, "/v1/chat/completions", body), want, "left out")
    call = server.post("/v1/chat/completions", body)["choices"][0]["message"]["tool_calls"][0]
    arguments = json.loads(call["function"]["arguments"])
    assert set(arguments) <= {"tags", "name"} and set(arguments["tags"]) <= {"a", "b"}, arguments
    # Nothing is forced, so nothing is left out.
    equal(left_out(server, "/v1/chat/completions", body, tool_choice="auto"), None, "left out")


def test_refusals(server):
    bad = tool("add") | {"function": {"name": "add", "parameters": {"type": "strin"}}}
    for word, options in [
        ("tools", {"tool_choice": "required"}),
        ("sail", {"tools": TOOLS, "tool_choice": named("sail")}),
        ("tool_choice", {"tools": TOOLS, "tool_choice": "perhaps"}),
        ("add", {"tools": [bad], "tool_choice": "required"}),
        ("name", {"tools": [{"type": "function", "function": {}}]}),
    ]:
        with raises(openai.BadRequestError, word):
            server.chat(**options)
