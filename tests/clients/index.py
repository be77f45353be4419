"""LlamaIndex, which `programs.py` runs in an environment of its own: `python index.py URL`."""

import asyncio
import sys
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from runner import run

ASK = "How is the weather in York?"
PLACES = ("London", "York", "Bath")


class Weather(BaseModel):
    """The weather of a place."""

    place: Literal["London", "York", "Bath"]
    wet: bool


def weather(place: Literal["London", "York", "Bath"]) -> str:
    """The weather of a place."""
    return f"It rains in {place}."


def chats(model):
    messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(content=ASK)]
    assert model.chat(messages).message.content
    assert model.complete(ASK).text
    assert list(model.stream_chat(messages))[-1].message.content

    async def wait():
        assert (await model.achat(messages)).message.content
        pieces = await model.astream_chat(messages)
        assert [piece async for piece in pieces][-1].message.content

    asyncio.run(wait())


def test_openai_like(url):
    model = OpenAILike(
        model="any-name",
        api_base=f"{url}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        max_tokens=120,
        max_retries=0,
    )
    chats(model)
    assert model.as_structured_llm(Weather).complete(ASK).raw.place in PLACES
    tool = FunctionTool.from_defaults(weather)
    given = {"tools": [tool], "user_msg": ASK, "tool_required": True}
    answer = model.chat_with_tools(**given)
    [call] = model.get_tool_calls_from_response(answer)
    assert call.tool_kwargs["place"] in PLACES, call
    streamed = list(model.stream_chat_with_tools(**given))[-1]
    [call] = model.get_tool_calls_from_response(streamed)
    assert call.tool_kwargs["place"] in PLACES, call
    result = ChatMessage(
        role="tool", content="It rains.", additional_kwargs={"tool_call_id": call.tool_id}
    )
    history = [ChatMessage(content=ASK), streamed.message, result]
    assert model.chat_with_tools(tools=[tool], chat_history=history).message


def test_ollama(url):
    model = Ollama(
        model="any-name",
        base_url=url,
        request_timeout=120,
        context_window=2048,
        additional_kwargs={"num_predict": 60},
    )
    chats(model)
    assert model.as_structured_llm(Weather).complete(ASK).raw.place in PLACES
    tool = FunctionTool.from_defaults(weather)
    assert model.chat_with_tools(tools=[tool], user_msg=ASK).message


if __name__ == "__main__":
    own = {name: test for name, test in globals().items() if name.startswith("test_")}
    sys.exit(run([(f"llama_index.{n[5:]}", test) for n, test in own.items()], sys.argv[1]))
