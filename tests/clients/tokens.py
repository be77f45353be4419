"""Tokens there and back, in the forms of llama-server and of vLLM, and what lm-eval asks for."""

from support import MODEL, NIGHT, equal

TEXTS = [
    "It was a dark night",
    "",
    " ",
    "  two  spaces\n\n",
    "Ünïcödé – 雪 🌨",
    "a\x00b",
    "<|endoftext|>",
]


def test_there_and_back(server):
    for text in TEXTS:
        tokens = server.tokens(text)
        assert all(isinstance(t, int) for t in tokens), tokens
        back = server.post("/detokenize", {"tokens": tokens})
        equal(back["content"], text, "content")
        equal(back["prompt"], text, "prompt")


def test_llama_server(server):
    plain = server.tokens("dark night")
    assert plain, "no tokens"
    pieces = server.post("/tokenize", {"content": "dark night", "with_pieces": True})["tokens"]
    equal([p["id"] for p in pieces], plain, "the ids")
    equal("".join(p["piece"] for p in pieces), "dark night", "the pieces")


def test_vllm(server):
    for body in (
        {"model": MODEL, "prompt": "dark night"},
        {"prompt": "dark night", "add_special_tokens": False},
    ):
        answer = server.post("/tokenize", body)
        equal(answer["tokens"], server.tokens("dark night"), "tokens")
        equal(answer["count"], len(answer["tokens"]), "count")
        equal(answer["max_model_len"], server.context(), "max_model_len")
    chat = server.post("/tokenize", {"model": MODEL, "messages": NIGHT})
    equal(chat["count"], server.chat(max_tokens=1).usage.prompt_tokens, "the count of messages")


def test_control_tokens(server):
    equal(server.tokens("<|endoftext|>"), [0], "the tokens of <|endoftext|>")
    plain = server.post("/tokenize", {"content": "<|endoftext|>", "parse_special": False})["tokens"]
    assert len(plain) > 1, plain


def test_tokenizer_info(server):
    status, _, info = server.http(
        "GET", "/tokenizer_info", None, {"Content-Type": "application/json"}
    )
    equal(status, 200, "status")
    equal(info["eos_token"], "<|endoftext|>", "eos_token")
    for name in ("bos_token", "pad_token", "chat_template"):
        assert name in info, info


def test_apply_template(server):
    prompt = server.post("/apply-template", {"messages": NIGHT})["prompt"]
    assert NIGHT[0]["content"] in prompt, prompt
    same = server.complete(prompt).choices[0].text
    equal(same, server.chat().choices[0].message.content, "the text of a chat")


def test_refusals(server):
    for path, body, word in [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/detokenize", {"tokens": [99_999_999]}, "token"),
        ("/apply-template", {}, "messages"),
    ]:
        status, _, data = server.http("POST", path, body)
        equal(status, 400, f"the status of {path} {body}")
        assert word in data["error"]["message"], data
