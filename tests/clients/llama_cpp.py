"""llama.cpp's paths, as its plugins and pages ask them."""

import json
import pathlib
import shutil
import tempfile
import threading
import time

from own import serve
from support import MODEL, NIGHT, equal, eventually

PROMPT = "It was a dark night"
GREEDY = {"temperature": 0, "n_predict": 24}
TIMES = ["prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second"]
TIMES += [name.replace("prompt", "predicted") for name in TIMES]
# What llama.vim wants to have.
VIM_FIELDS = ["content", *(f"timings/{name}" for name in TIMES), "truncated", "tokens_cached"]
FIM = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]
TINY = pathlib.Path(__file__).parents[2] / "models" / "tiny-moe"


def complete(server, prompt=PROMPT, **more):
    return server.post("/completion", {"prompt": prompt} | GREEDY | more)


def events(server, path, body):
    status, headers, data = server.http("POST", path, body | {"stream": True})
    equal(status, 200, f"the status of {path} ({data})")
    assert headers["Content-Type"].startswith("text/event-stream"), headers["Content-Type"]
    lines = [line for line in data.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def refused(server, path, body, status, *words):
    got, _, data = server.http("POST", path, body)
    equal(got, status, f"the status of {path} {str(body)[:100]} ({data})")
    for word in words:
        assert word in data["error"]["message"], f"no {word!r} in {data}"


def test_completion(server):
    answer = complete(server)
    plain = server.complete(PROMPT)
    equal(answer["content"], plain.choices[0].text, "the text")
    equal(answer["tokens_predicted"], plain.usage.completion_tokens, "tokens_predicted")
    equal(answer["tokens_evaluated"], len(server.tokens(PROMPT)), "tokens_evaluated")
    equal((answer["stop"], answer["stop_type"], answer["stopping_word"]), (True, "limit", ""))
    equal((answer["model"], answer["prompt"], answer["truncated"]), (MODEL, PROMPT, False))
    equal((answer["index"], answer["tokens"]), (0, []), "what is not asked for")
    equal(answer["has_new_line"], "\n" in answer["content"], "has_new_line")
    assert all(isinstance(answer["timings"][name], int | float) for name in TIMES), answer
    equal(answer["generation_settings"]["n_predict"], 24, "n_predict")
    equal(server.post("/completions", {"prompt": PROMPT} | GREEDY)["content"], answer["content"])


def test_prompts(server):
    """A text, token ids, both mixed, and lists of them."""
    want = complete(server)["content"]
    ids = server.tokens(PROMPT)
    equal(complete(server, ids)["content"], want, "the text after token ids")
    mixed = [*server.tokens("It was"), " a dark", *server.tokens(" night")]
    equal(complete(server, mixed)["content"], want, "the text after a mixed prompt")
    several = complete(server, [PROMPT, ids, "The king"])
    equal([a["index"] for a in several], [0, 1, 2], "the indices")
    equal([a["content"] for a in several[:2]], [want, want], "the texts")
    equal(several[2]["prompt"], "The king", "the prompt")
    for bad in ([], {"a": 1}, 7, [99_999_999], [[]], None):
        refused(server, "/completion", {"prompt": bad}, 400)


def test_several_answers(server):
    seeds = complete(server, n=3, temperature=1, seed=5)
    equal(len({a["content"] for a in seeds}), 3, "the number of different texts")
    equal(complete(server, temperature=1, seed=6)["content"], seeds[1]["content"], "seed 6")


def test_stream(server):
    want = complete(server)
    *parts, last = events(server, "/completion", {"prompt": PROMPT} | GREEDY)
    equal("".join(part["content"] for part in parts), want["content"], "the text")
    assert not any(part["stop"] for part in parts) and last["stop"], last
    equal((last["content"], last["tokens_predicted"]), ("", want["tokens_predicted"]), "the end")
    equal(last["has_new_line"], want["has_new_line"], "has_new_line")
    refused(server, "/completion", {"prompt": [PROMPT, PROMPT], "stream": True}, 400, "stream")


def test_continue(server):
    """Continue's provider: https://docs.continue.dev, llama.cpp."""
    body = {
        "prompt": PROMPT, "stream": True, "n_predict": 12, "frequency_penalty": None, "min_p": None,
        "mirostat": None, "stop": ["<|im_end|>"], "top_k": 40, "top_p": 0.9, "temperature": 0.01,
    }  # fmt: skip
    assert any(part["content"] for part in events(server, "/completion", body))


def test_stops(server):
    text = complete(server)["content"]
    word = next(w for w in text.split() if len(w) > 2 and w.isalpha())
    answer = complete(server, stop=[word])
    equal((answer["stop_type"], answer["stopping_word"]), ("word", word), "the end")
    equal(answer["content"], text[: text.index(word)], "the text before it")
    *_, last = events(server, "/completion", {"prompt": PROMPT, "stop": [word]} | GREEDY)
    equal((last["stop_type"], last["stopping_word"]), ("word", word), "the end of a stream")


def test_tokens_and_probabilities(server):
    answer = complete(server, return_tokens=True, n_probs=3)
    ids = answer["tokens"]
    equal(len(ids), answer["tokens_predicted"], "the number of tokens")
    equal(server.post("/detokenize", {"tokens": ids})["content"], answer["content"], "their text")
    listed = answer["completion_probabilities"]
    equal([p["id"] for p in listed], ids, "the ids")
    for one in listed:
        equal(len(one["top_logprobs"]), 3, "top_logprobs")
        # Greedy: the likeliest is the one.
        equal(one["top_logprobs"][0]["id"], one["id"], "the likeliest")
        equal(one["top_logprobs"][0]["logprob"], one["logprob"], "its logprob")
        equal(bytes(one["bytes"]).decode(errors="replace"), one["token"], "its bytes")
    *parts, _ = events(
        server, "/completion", {"prompt": PROMPT, "return_tokens": True, "n_probs": 3} | GREEDY
    )
    equal([id for part in parts for id in part["tokens"]], ids, "the tokens of a stream")
    streamed = [p for part in parts for p in part["completion_probabilities"]]
    equal(streamed, listed, "the probabilities of a stream")


def test_response_fields(server):
    answer = complete(server, response_fields=["content", "timings/prompt_n", "nothing/there"])
    equal(sorted(answer), ["content", "timings/prompt_n"], "the fields")
    equal(complete(server, response_fields=[""]), {}, "no field")


def test_form(server):
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    equal(json.loads(complete(server, json_schema=schema)["content"]), {"a": 1}, "the form")
    refused(server, "/completion", {"prompt": PROMPT, "grammar": 'root ::= "a"'}, 400, "GBNF")


def test_cache(server):
    """`cache_prompt: false` takes nothing from the cache; nothing is predicted to fill it."""
    prompt = " ".join([PROMPT] * 40)
    warm = complete(server, prompt, n_predict=0)
    equal((warm["content"], warm["tokens_predicted"]), ("", 0), "an answer of no tokens")
    again = complete(server, prompt)
    assert again["timings"]["cache_n"] >= 64, again["timings"]
    fresh = complete(server, prompt, cache_prompt=False)
    equal(fresh["timings"]["cache_n"], 0, "cache_n")
    equal(fresh["timings"]["prompt_n"], fresh["tokens_evaluated"], "prompt_n")
    equal(fresh["content"], again["content"], "the text")


def test_truncated(server):
    answer = complete(server, PROMPT, n_predict=-1, ignore_eos=True)
    equal((answer["truncated"], answer["stop_type"]), (True, "limit"), "a full context")
    assert answer["tokens_cached"] >= server.context(), answer["tokens_cached"]


def test_n_indent(server):
    """Each line after the first has to be as deep as the place."""
    newline = server.tokens("\n")[0]
    bias = {"logit_bias": [[newline, 3.0]], "temperature": 0}
    whole = complete(server, n_predict=120, **bias)["content"]
    assert "\n" in whole, whole
    first = whole.split("\n")[0]
    answer = complete(server, n_predict=120, n_indent=4, **bias)
    assert answer["content"].startswith(first + "\n"), answer["content"]
    later = answer["content"].split("\n")[1:]
    assert all(line.startswith("    ") for line in later[:-1]), later
    equal(answer["stop_type"], "limit", "the end")
    *parts, last = events(
        server, "/completion", {"prompt": PROMPT, "n_predict": 120, "n_indent": 4} | bias
    )
    equal("".join(part["content"] for part in parts), answer["content"], "the text of a stream")
    equal((last["stop_type"], last["has_new_line"]), ("limit", True), "the end of a stream")


def test_t_max_predict(server):
    newline = server.tokens("\n")[0]
    body = {"n_predict": 1500, "ignore_eos": True, "logit_bias": [[newline, 4.0]]}
    began = time.monotonic()
    whole = complete(server, **body)
    took = time.monotonic() - began
    cut = complete(server, t_max_predict_ms=1, **body)
    equal(cut["stop_type"], "limit", "the end")
    assert cut["tokens_predicted"] < whole["tokens_predicted"] / 2, (cut["timings"], took)
    assert cut["content"].endswith("\n") or "\n" in cut["content"][-20:], cut["content"][-40:]
    assert cut["timings"]["predicted_n"] > 0 and cut["timings"]["prompt_ms"] > 0, cut["timings"]


def test_chat_without_v1(server):
    body = {"model": MODEL, "messages": NIGHT, "temperature": 0, "max_tokens": 24}
    answer = server.post("/chat/completions", body)
    want = server.chat().choices[0].message.content
    equal(answer["choices"][0]["message"]["content"], want, "the text")


def test_embeddings_without_v1(server):
    want = server.openai.embeddings.create(model=MODEL, input=PROMPT).data[0].embedding
    for path in ("/embedding", "/embeddings"):
        (row,) = server.post(path, {"content": PROMPT})
        equal(row["index"], 0, "the index")
        (got,) = row["embedding"]
        assert max(abs(a - b) for a, b in zip(got, want, strict=True)) < 1e-5, path
    equal(len(server.post("/embedding", {"input": ["a", "b"]})), 2, "the number of rows")


def test_props(server):
    status, _, props = server.http("GET", "/props")
    equal(status, 200, "the status")
    equal(props["default_generation_settings"]["n_ctx"], server.context(), "n_ctx")
    assert props["total_slots"] >= 1 and props["build_info"].startswith("troika "), props
    equal((props["model_alias"], props["model_path"]), (MODEL, MODEL), "the model")
    assert not any(props["modalities"].values()), props
    for name in ("chat_template", "bos_token", "eos_token"):
        assert isinstance(props[name], str), name
    equal(server.http("GET", f"/props?model={MODEL}")[2], props, "the model's own")


def test_slots(server):
    status, _, slots = server.http("GET", "/slots")
    equal(status, 200, "the status")
    equal([s["id"] for s in slots], list(range(len(slots))), "the ids")
    equal({s["n_ctx"] for s in slots}, {server.context()}, "n_ctx")
    equal([s for s in slots if s["is_processing"]], [], "slots at work")
    body = {"prompt": PROMPT, "n_predict": -1, "ignore_eos": True}
    thread = threading.Thread(target=lambda: server.post("/completion", body))
    thread.start()
    eventually(
        lambda: sum(s["is_processing"] for s in server.http("GET", "/slots")[2]) == 1, 5, "one works"
    )
    thread.join()
    equal(server.http("GET", "/slots?fail_on_no_slot=1")[0], 200, "there is a free slot")


def test_models(server):
    status, _, models = server.http("GET", "/models")
    equal((status, models["object"]), (200, "list"), "the list")
    (model,) = models["data"]
    equal((model["id"], model["status"]["value"]), (MODEL, "loaded"), "the model")
    equal(model["meta"]["n_ctx"], server.context(), "n_ctx")
    equal([m["name"] for m in models["models"]], [MODEL], "Ollama's list")


def test_lora_adapters(server):
    equal(server.http("GET", "/lora-adapters")[2], [], "the adapters")


def test_no_tokens_to_fill_in(server):
    """The built-in model has none, and each interface says so."""
    body = {"input_prefix": "a", "input_suffix": "b"}
    refused(server, "/infill", body, 501, "Infill is not supported by this model")
    body = {"model": MODEL, "prompt": "a", "suffix": "b"}
    refused(server, "/v1/completions", body, 400, "suffix")
    status, _, data = server.http("POST", "/api/generate", body)
    assert status == 400 and "suffix" in data["error"], data
    equal(server.complete(suffix="").choices[0].text, server.complete().choices[0].text)
    assert "insert" not in server.ollama.show(MODEL).capabilities


def code_model():
    """The small model with tokens to fill in, in the place of its five rarest words."""
    folder = pathlib.Path(tempfile.mkdtemp()) / "coder"
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.gguf"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    model = tokenizer["model"]
    of = {id: token for token, id in model["vocab"].items()}
    for id, name in zip(range(len(of) - len(FIM), len(of)), FIM, strict=True):
        old = of[id]
        del model["vocab"][old]
        model["vocab"][name] = id
        pairs = [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]
        model["merges"] = [[a, b] for a, b in pairs if old not in (a, b, a + b)]
        plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        tokenizer["added_tokens"].append({"id": id, "content": name, "special": True} | plain)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n"
        "{{ m.reasoning_content }}\n</think>\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n<think>\n"
    )
    return folder


PLACE = {
    "input_prefix": "#include <cstdio>\nint main() {\n",
    "prompt": "    int n = ",
    "input_suffix": "\n}\n",
}
EXTRA = [{"filename": "llama.h", "text": "int llama_n();\n", "time": 12}, {"text": "other"}]
LAYOUT = (
    "<|repo_name|>myproject\n<|file_sep|>llama.h\nint llama_n();\n<|file_sep|>tmp\nother"
    "<|file_sep|>filename\n<|fim_prefix|>#include <cstdio>\nint main() {\n    int n = "
    "<|fim_suffix|>\n}\n<|fim_middle|>"
)


def test_fill_in(server):
    if not server.troika:
        return
    folder = code_model()
    try:
        with serve(server, str(folder), "-c", "2048") as (other, _):
            check_infill(other)
            check_plugins(other)
            check_suffix(other)
            shown = other.ollama.show("coder")
            equal(shown.capabilities, ["completion", "insert", "thinking"], "capabilities")
            assert ".Suffix" in shown.template, shown.template
            equal(shown.modelinfo["general.architecture"], "qwen3moe", "the architecture")
            equal(shown.modelinfo["qwen3moe.context_length"], 2048, "the context")
            equal(shown.modelinfo["qwen3moe.attention.head_count_kv"], 2, "heads")
    finally:
        shutil.rmtree(folder.parent)


def check_infill(server):
    answer = server.post("/infill", PLACE | GREEDY | {"input_extra": EXTRA})
    equal(answer["prompt"], LAYOUT, "the prompt")
    # The same tokens by hand.
    by_hand = complete(server, LAYOUT)
    equal(by_hand["tokens_evaluated"], answer["tokens_evaluated"], "tokens of the prompt")
    equal(answer["content"], by_hand["content"], "the text")
    *parts, last = events(server, "/infill", PLACE | GREEDY | {"input_extra": EXTRA})
    equal("".join(p["content"] for p in parts), answer["content"], "the text of a stream")
    assert last["stop"], last
    # Control tokens in the texts are text; long ones are cut: a context has room for both.
    long = PLACE | {"input_prefix": "<|fim_suffix|>" + "x = 1\n" * 3000}
    cut = server.post("/infill", long | GREEDY)
    assert cut["tokens_evaluated"] < server.post("/tokenize", {"content": "x"})["max_model_len"]
    equal(cut["prompt"].count("<|fim_suffix|>"), 1, "the suffix")
    for extra in ({}, {"filename": "ok"}, {"filename": 1, "text": "a"}, {"text": 5}):
        refused(server, "/infill", PLACE | {"input_extra": [extra]}, 400, "input_extra")
    refused(server, "/infill", {"input_prefix": "a"}, 400, "input_suffix")
    refused(server, "/infill", PLACE | {"prompt": [1]}, 400, "prompt")
    for token in FIM:
        forced = {"logit_bias": [[server.tokens(token)[0], 100.0]]}
        ended = server.post("/infill", PLACE | GREEDY | forced)
        equal((ended["stop_type"], ended["content"]), ("eos", ""), f"the end at {token}")


def check_plugins(server):
    """The bodies of llama.vim and llama.vscode."""
    common = {"top_k": 40, "top_p": 0.99, "stream": False, "cache_prompt": True}
    common |= {"samplers": ["top_k", "top_p", "infill"], "t_max_prompt_ms": 500}
    vim = {"input_extra": EXTRA, "n_predict": 128, "n_indent": 4, "t_max_predict_ms": 1000}
    vim |= {"response_fields": VIM_FIELDS}
    answer = server.post("/infill", PLACE | common | vim)
    equal(sorted(answer), sorted(VIM_FIELDS), "llama.vim's fields")
    warm = {"input_prefix": "", "input_suffix": "", "prompt": "", "input_extra": EXTRA}
    warm |= {"n_predict": 0, "temperature": 0.0, "stream": False, "samplers": []}
    warm |= {"cache_prompt": True, "t_max_prompt_ms": 1, "t_max_predict_ms": 1}
    equal(server.post("/infill", warm | {"response_fields": [""]}), {}, "llama.vim's warming up")
    code = {"input_extra": EXTRA, "n_predict": 64, "t_max_predict_ms": 2500}
    answer = server.post("/infill", PLACE | common | code)
    assert isinstance(answer["content"], str) and "generation_settings" in answer, answer
    assert isinstance(answer["tokens_cached"], int) and not answer["truncated"], answer
    assert all(name in answer["timings"] for name in TIMES), answer["timings"]


def check_suffix(server):
    """OpenAI's and Ollama's `suffix`: the prompt, the suffix, and nothing else."""
    prompt = "<|fim_prefix|>def f(a):\n<|fim_suffix|>\nreturn a<|fim_middle|>"
    want = complete(server, prompt)["content"]
    of = {"model": "coder", "prompt": "def f(a):\n", "suffix": "\nreturn a", "temperature": 0}
    answer = server.openai.completions.create(**of, max_tokens=24)
    equal(answer.choices[0].text, want, "OpenAI's text")
    echoed = server.openai.completions.create(**of, max_tokens=24, echo=True)
    equal(echoed.choices[0].text, of["prompt"] + want, "the text with its prompt")
    chunks = server.openai.completions.create(**of, max_tokens=24, stream=True)
    equal("".join(c.choices[0].text for c in chunks), want, "OpenAI's stream")
    ids = server.tokens(of["prompt"])
    answer = server.openai.completions.create(**of | {"prompt": ids}, max_tokens=24)
    equal(answer.choices[0].text, want, "the text after token ids")
    refused(server, "/v1/completions", of | {"echo": True, "logprobs": 1}, 400, "suffix")
    options = {"temperature": 0, "num_predict": 24}
    answer = server.ollama.generate(
        model="coder", prompt=of["prompt"], suffix=of["suffix"], options=options
    )
    equal(answer.response, want, "Ollama's text")
