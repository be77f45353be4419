"""Libraries of Python that ask language models, each as its users write: a chat, a stream, a form, a
call of a tool with the turn that follows, and the same without waiting, where the library has it.

`programs.py` runs these tests in an environment of the libraries' own.
"""

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

# Nothing beyond this machine is asked for prices, updates or traces.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

from pydantic import BaseModel  # noqa: E402

ASK = "How is the weather in York?"
CHAT = [{"role": "user", "content": ASK}]
MODEL = "any-name"


class Weather(BaseModel):
    """The weather of a place."""

    place: Literal["London", "York", "Bath"]
    wet: bool


def weather(place: Literal["London", "York", "Bath"]) -> str:
    """The weather of a place.

    Args:
        place: The place.
    """
    return f"It rains in {place}."


SCHEMA = Weather.model_json_schema()
PLACES = SCHEMA["properties"]["place"]["enum"]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "enum": PLACES}},
            "required": ["place"],
        },
    },
}
NAMED = {"type": "function", "function": {"name": "weather"}}


def is_weather(arguments):
    """Checks the arguments of a call."""
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    assert arguments.keys() == {"place"} and arguments["place"] in PLACES, arguments


def form(answer):
    assert isinstance(answer, Weather) and answer.place in PLACES, repr(answer)


# LiteLLM.


def litellm_options(url, provider):
    base = {"openai": f"{url}/v1", "anthropic": url, "ollama_chat": url}[provider]
    return {
        "model": f"{provider}/{MODEL}",
        "api_base": base,
        "api_key": "none",
        "max_tokens": 120,
        "messages": CHAT,
    }


def litellm_all(url, provider):
    import litellm

    options = litellm_options(url, provider)
    answer = litellm.completion(**options)
    assert answer.choices[0].message.content and answer.usage.prompt_tokens, answer
    chunks = list(litellm.completion(**options, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks), chunks
    assert chunks[-1].choices[0].finish_reason, chunks[-1]

    async def wait():
        answer = await litellm.acompletion(**options)
        assert answer.choices[0].message.content, answer
        pieces = await litellm.acompletion(**options, stream=True)
        assert "".join([c.choices[0].delta.content or "" async for c in pieces])

    asyncio.run(wait())


def litellm_form(url, provider):
    import litellm

    answer = litellm.completion(**litellm_options(url, provider), response_format=Weather)
    form(Weather.model_validate_json(answer.choices[0].message.content))


def litellm_calls(url, provider):
    import litellm

    options = litellm_options(url, provider) | {
        "tools": [TOOL],
        "tool_choice": NAMED,
        "parallel_tool_calls": False,
    }
    message = litellm.completion(**options).choices[0].message
    [call] = message.tool_calls
    is_weather(call.function.arguments)
    chunks = list(litellm.completion(**options, stream=True))
    whole = litellm.stream_chunk_builder(chunks).choices[0].message
    [streamed] = whole.tool_calls
    is_weather(streamed.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "It rains."}
    options |= {"messages": [*CHAT, message, result], "tool_choice": "auto"}
    assert litellm.completion(**options).choices[0].finish_reason


def test_litellm_openai(url):
    litellm_all(url, "openai")
    litellm_form(url, "openai")
    litellm_calls(url, "openai")


def test_litellm_anthropic(url):
    litellm_all(url, "anthropic")
    litellm_calls(url, "anthropic")


def test_litellm_ollama(url):
    litellm_all(url, "ollama_chat")
    litellm_form(url, "ollama_chat")


def test_litellm_responses(url):
    import litellm

    options = litellm_options(url, "openai") | {"input": ASK, "max_output_tokens": 40}
    del options["messages"], options["max_tokens"]
    assert litellm.responses(**options).output[0].content[0].text
    events = [e.type for e in litellm.responses(**options, stream=True)]
    assert events[-1] in ("response.completed", "response.incomplete"), events


def test_litellm_embeddings(url):
    import litellm

    answer = litellm.embedding(
        f"openai/{MODEL}", ["one", "two"], api_base=f"{url}/v1", api_key="none"
    )
    assert len(answer.data) == 2 and answer.data[0]["embedding"]


# LangChain.


def langchain(url, interface):
    if interface == "ollama":
        from langchain_ollama import ChatOllama

        return ChatOllama(model=MODEL, base_url=url, num_predict=120)
    if interface == "anthropic":
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(model=MODEL, base_url=url, api_key="none", max_tokens=120)
    from langchain_openai import ChatOpenAI

    responses = interface == "responses"
    return ChatOpenAI(
        model=MODEL,
        base_url=f"{url}/v1",
        api_key="none",
        max_tokens=120,
        use_responses_api=responses,
        stream_usage=True,
    )


def langchain_chat(model):
    answer = model.invoke(ASK)
    assert answer.text and answer.usage_metadata["output_tokens"], answer
    pieces = list(model.stream([("system", "Be brief."), ("user", ASK)]))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    assert len(pieces) > 2 and whole.text and whole.usage_metadata["output_tokens"], whole

    async def wait():
        assert (await model.ainvoke(ASK)).text
        assert "".join([p.text async for p in model.astream(ASK)])
        both = await model.abatch([ASK, "And now?"])
        assert all(answer.text for answer in both)

    asyncio.run(wait())


def langchain_calls(model):
    from langchain_core.messages import HumanMessage, ToolMessage

    bound = model.bind_tools([weather], tool_choice="weather", parallel_tool_calls=False)
    answer = bound.invoke(ASK)
    [call] = answer.tool_calls
    is_weather(call["args"])
    pieces = list(bound.stream(ASK))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece
    [streamed] = whole.tool_calls
    is_weather(streamed["args"])
    result = ToolMessage(content="It rains.", tool_call_id=call["id"])
    turn = [HumanMessage(ASK), answer, result]
    assert model.bind_tools([weather]).invoke(turn).usage_metadata


def test_langchain_openai(url):
    model = langchain(url, "chat")
    langchain_chat(model)
    langchain_calls(model)
    for method in ("json_schema", "function_calling"):
        form(model.with_structured_output(Weather, method=method).invoke(ASK))


def test_langchain_responses(url):
    model = langchain(url, "responses")
    langchain_chat(model)
    langchain_calls(model)
    form(model.with_structured_output(Weather, method="json_schema").invoke(ASK))


def test_langchain_anthropic(url):
    model = langchain(url, "anthropic")
    langchain_chat(model)
    langchain_calls(model)
    for method in ("json_schema", "function_calling"):
        form(model.with_structured_output(Weather, method=method).invoke(ASK))


def test_langchain_ollama(url):
    model = langchain(url, "ollama")
    langchain_chat(model)
    form(model.with_structured_output(Weather, method="json_schema").invoke(ASK))
    # Ollama's interface forces no call, so the call of the earlier turn is made up.
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

    call = {"name": "weather", "args": {"place": "York"}, "id": "one", "type": "tool_call"}
    turn = [
        HumanMessage(ASK),
        AIMessage(content="", tool_calls=[call]),
        ToolMessage(content="It rains.", tool_call_id="one"),
    ]
    assert model.bind_tools([weather]).invoke(turn).usage_metadata


def test_langchain_embeddings(url):
    from langchain_ollama import OllamaEmbeddings
    from langchain_openai import OpenAIEmbeddings

    for embeddings in (
        OpenAIEmbeddings(
            model=MODEL,
            base_url=f"{url}/v1",
            api_key="none",
            check_embedding_ctx_length=False,
        ),
        OllamaEmbeddings(model=MODEL, base_url=url),
    ):
        assert len(embeddings.embed_documents(["one", "two"])) == 2
        assert embeddings.embed_query("one")


# instructor.


def test_instructor(url):
    import anthropic
    import instructor
    import openai

    plain = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    options = {"model": MODEL, "messages": CHAT, "response_model": Weather, "max_retries": 0}
    options["max_tokens"] = 120
    for mode in ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"):
        client = instructor.from_openai(plain, mode=instructor.Mode[mode])
        form(client.create(**options))
    client = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
    assert list(client.create_partial(**options))[-1].place in PLACES
    waiting = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    form(asyncio.run(instructor.from_openai(waiting).create(**options)))
    plain = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    form(instructor.from_anthropic(plain).create(**options))


# Pydantic AI.


def pydantic_models(url):
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    # Its Anthropic models cannot be built with the pinned package of Anthropic.
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    yield OpenAIChatModel(MODEL, provider=provider)
    yield OpenAIResponsesModel(MODEL, provider=provider)


def test_pydantic_ai(url):
    from pydantic_ai import Agent, NativeOutput, ToolOutput

    for model in pydantic_models(url):
        few = {"max_tokens": 120}
        agent = Agent(model, instructions="Be brief.", model_settings=few)
        first = agent.run_sync(ASK)
        assert first.output and first.usage.output_tokens, first
        assert agent.run_sync("And now?", message_history=first.all_messages()).output

        async def stream(agent=agent):
            async with agent.run_stream(ASK) as result:
                return [piece async for piece in result.stream_text(delta=True)]

        assert "".join(asyncio.run(stream()))
        form(Agent(model, output_type=ToolOutput(Weather), model_settings=few).run_sync(ASK).output)
        native = Agent(model, output_type=NativeOutput(Weather), model_settings=few)
        form(native.run_sync(ASK).output)


def test_pydantic_ai_calls(url):
    from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart
    from pydantic_ai.direct import model_request_stream_sync, model_request_sync
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    about = TOOL["function"]
    tool = ToolDefinition(
        name="weather",
        description=about["description"],
        parameters_json_schema=about["parameters"],
    )
    asks = ModelRequest(parts=[UserPromptPart(ASK)])
    for model in pydantic_models(url):
        given = {
            "model_settings": {"max_tokens": 120, "parallel_tool_calls": False},
            "model_request_parameters": ModelRequestParameters(
                function_tools=[tool], allow_text_output=False
            ),
        }
        answer = model_request_sync(model, [asks], **given)
        [call] = answer.tool_calls
        is_weather(call.args)
        with model_request_stream_sync(model, [asks], **given) as events:
            for _ in events:
                pass
            [streamed] = events.response.tool_calls
        is_weather(streamed.args)
        result = ToolReturnPart(
            tool_name="weather", content="It rains.", tool_call_id=call.tool_call_id
        )
        given["model_request_parameters"] = ModelRequestParameters(function_tools=[tool])
        assert model_request_sync(model, [asks, answer, ModelRequest(parts=[result])], **given)


# OpenAI's agents.


def test_openai_agents(url):
    import agents

    # The package's client belongs to the loop of events that it was first used in.
    for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        asyncio.run(openai_agents(url, kind))


async def openai_agents(url, kind):
    import agents
    import openai

    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    called = []

    @agents.function_tool
    def weather(place: Literal["London", "York", "Bath"]) -> str:
        """The weather of a place."""
        called.append(place)
        return f"It rains in {place}."

    common = {"name": "clerk", "instructions": "Be brief.", "model": kind(MODEL, client)}
    few = agents.ModelSettings(max_tokens=120)
    plain = agents.Agent(**common, model_settings=few)
    # To the package an answer of Responses that max_tokens cuts off is an error: a form ends by itself.
    free = kind is agents.OpenAIChatCompletionsModel
    assert not free or (await agents.Runner.run(plain, ASK)).final_output
    formed = agents.Agent(**common, model_settings=few, output_type=Weather)
    form((await agents.Runner.run(formed, ASK)).final_output)
    forced = agents.ModelSettings(max_tokens=120, tool_choice="weather", parallel_tool_calls=False)
    # After the first call the model may answer as it likes.
    caller = agents.Agent(**common, model_settings=forced, tools=[weather])
    if free:
        assert (await agents.Runner.run(caller, ASK)).final_output
        assert len(called) == 1 and called[0] in PLACES, called
    result = agents.Runner.run_streamed(formed, ASK)
    events = [event.type async for event in result.stream_events()]
    form(result.final_output)
    assert "run_item_stream_event" in events, events


# smolagents.


def test_smolagents(url):
    import smolagents
    from smolagents.monitoring import LogLevel

    tool = smolagents.tool(weather_tool)
    options = {
        "model_id": MODEL,
        "api_base": f"{url}/v1",
        "api_key": "none",
        "max_tokens": 120,
        "client_kwargs": {"max_retries": 0},
    }
    model = smolagents.OpenAIServerModel(**options)
    message = smolagents.ChatMessage(role="user", content=[{"type": "text", "text": ASK}])
    assert model([message]).content
    assert "".join(d.content or "" for d in model.generate_stream([message]))
    quiet = {"model": model, "max_steps": 2, "verbosity_level": LogLevel.OFF}
    for streams in (False, True):
        agent = smolagents.ToolCallingAgent(tools=[tool], stream_outputs=streams, **quiet)
        agent.run(ASK)
        steps = [s for s in agent.memory.steps if isinstance(s, smolagents.ActionStep)]
        assert any(step.tool_calls for step in steps), steps
        agent = smolagents.CodeAgent(tools=[tool], stream_outputs=streams, **quiet)
        agent.run(ASK)


def weather_tool(place: str) -> str:
    """The weather of a place.

    Args:
        place: The place.
    """
    return f"It rains in {place}."


# llm.


def llm_command(url, home, *arguments):
    command = [Path(sys.executable).with_name("llm"), *arguments]
    own = {"LLM_USER_PATH": home, "OLLAMA_HOST": url, "HOME": home}
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env={**os.environ, **own}
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_llm(url):
    with tempfile.TemporaryDirectory() as home:
        models = [
            {"model_id": "chat", "supports_tools": True, "supports_schema": True},
            {"model_id": "plain", "completion": True},
            {"model_id": "responses", "responses": True, "supports_schema": True},
        ]
        common = {"model_name": MODEL, "api_base": f"{url}/v1", "api_key_name": "none"}
        # JSON is YAML, too.
        text = json.dumps([{**common, **model} for model in models])
        Path(home, "extra-openai-models.yaml").write_text(text)
        Path(home, "keys.json").write_text('{"none": "none"}')
        functions = "def weather(place: str) -> str:\n    return 'rain'"
        for model in ("chat", "plain", "responses"):
            few = ["-o", "max_tokens", "20"]
            # It takes no limit for this interface, and the small model knows no end.
            for more in ([], ["--no-stream"]) if model != "responses" else ():
                assert llm_command(url, home, "-m", model, *few, *more, ASK).strip()
            if model != "plain":
                schema = ["--schema", json.dumps(SCHEMA)]
                form(Weather.model_validate_json(llm_command(url, home, "-m", model, *schema, ASK)))
            if model == "chat":
                tools = ["--functions", functions]
                assert llm_command(url, home, "-m", model, *few, *tools, ASK).strip()
        assert json.loads(llm_command(url, home, "logs", "--json", "-n", "1"))
        # By Ollama's interface, under the names that it lists.
        names = re.findall("^Ollama: (\\S+)", llm_command(url, home, "models"), re.M)
        assert names, "llm-ollama lists no model"
        few = ["-o", "num_predict", "20"]
        for more in ([], ["--no-stream"]):
            assert llm_command(url, home, "-m", names[0], *few, *more, ASK).strip()
        schema = ["--schema", json.dumps(SCHEMA)]
        form(Weather.model_validate_json(llm_command(url, home, "-m", names[0], *schema, ASK)))
