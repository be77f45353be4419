"""Ollama's lists of models, and how long they stay."""

import re
import time

import ollama

from support import MODEL, NIGHT, equal, eventually

SHORT = {"temperature": 0, "num_predict": 2}


def test_version(server):
    status, _, data = server.http("GET", "/api/version")
    equal(status, 200, "status")
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", data["version"]), data


def test_root(server):
    """Clients ask for the root to see whether anybody is there."""
    for method in ("GET", "HEAD"):
        equal(server.http(method, "/")[0], 200, f"the status of {method} /")


def test_list(server):
    models = server.ollama.list().models
    model = next(m for m in models if m.model.startswith(MODEL))
    assert model.size > 1_000_000 and model.modified_at and model.digest, model
    assert model.details.family and model.details.format and model.details.parameter_size, model
    assert server.ollama.chat(model=model.model, messages=NIGHT, options=SHORT).done


def test_show(server):
    shown = server.ollama.show(MODEL)
    assert "completion" in shown.capabilities and shown.details.family, shown
    lengths = [v for k, v in shown.modelinfo.items() if k.endswith(".context_length")]
    assert lengths and lengths[0] >= 1024, shown.modelinfo
    assert shown.template, "no template"
    # Without a chat template it knows neither tools nor thoughts.
    equal(shown.capabilities, ["completion"], "capabilities")
    equal(shown.modelinfo["general.architecture"], "qwen3moe", "GGUF's name of the architecture")
    equal(shown.modelinfo["qwen3moe.context_length"], lengths[0], "its context")
    for key in ("embedding_length", "block_count", "attention.head_count"):
        assert shown.modelinfo[f"qwen3moe.{key}"] > 0, key
    equal(server.ollama.show("gpt-9:7b").modelinfo, shown.modelinfo, "what any name shows")


def test_latest(server):
    """Clients add this tag by themselves."""
    assert server.ollama.show(f"{MODEL}:latest").details
    assert server.ollama.chat(model=f"{MODEL}:latest", messages=NIGHT, options=SHORT).done


def running(server):
    return [m.model for m in server.ollama.ps().models if m.model.startswith(MODEL)]


def test_keep_alive(server):
    def ask(keep_alive):
        return server.ollama.chat(
            model=MODEL, messages=NIGHT, options=SHORT, keep_alive=keep_alive
        ).message.content

    texts = set()
    year = 365 * 86_400
    for keep_alive, seconds in (("5m", 300), (60, 60), ("1h30m", 5400), ("1.5h", 5400), (-1, year)):
        texts.add(ask(keep_alive))
        left = stays(server)
        at_most = float("inf") if seconds == year else seconds + 1
        assert seconds - 5 < left <= at_most, f"{keep_alive!r}: {left} s"
    # What was said last holds for requests that say nothing.
    ask("2h")
    server.chat(max_tokens=2)
    assert stays(server) > 7190, stays(server)
    equal(len(texts), 1, "the number of different texts")
    equal(texts, {ask(0)}, "the text of a model that is closed after it")
    eventually(lambda: not running(server), 5, "it is closed after the answer")
    equal(texts, {ask("1s")}, "the text of a model that is opened again")
    eventually(lambda: not running(server), 5, "it is closed a second later")
    for path, what in (("/api/embed", "input"), ("/api/embeddings", "prompt")):
        server.post(path, {"model": MODEL, what: "a", "keep_alive": "3m"})
        assert 175 < stays(server) <= 181, (path, stays(server))
        ask("5m")
    for bad in ("soon", "5 m", "5x", "m", "", True, [5]):
        status, _, data = server.http(
            "POST", "/api/generate", {"model": MODEL, "prompt": "a", "keep_alive": bad}
        )
        assert status == 400 and "keep_alive" in data["error"], (bad, status, data)


def stays(server):
    """Seconds until the model is closed."""
    (model,) = server.ollama.ps().models
    return model.expires_at.timestamp() - time.time()


def test_unload(server):
    """A request without a prompt, which keeps the model for no time, closes it."""
    answer = server.ollama.generate(model=MODEL, keep_alive=0)
    assert answer.done, answer
    assert server.chat(max_tokens=2).choices[0].message.content is not None


def test_what_is_not_there(server):
    """Making, copying and removing models is refused in words."""
    for ask in (
        lambda: server.ollama.create(model="mine", from_=MODEL),
        lambda: server.ollama.copy(MODEL, "mine"),
        lambda: server.ollama.delete("no-such-model"),
    ):
        try:
            ask()
        except ollama.ResponseError as error:
            assert 400 <= error.status_code < 500 or error.status_code == 501, error
            assert len(error.error) > 15, f"no words: {error.error!r}"
        else:
            raise AssertionError("it says that it was done")
