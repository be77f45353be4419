"""Conversations as templates read them: thoughts, forms of messages, words for thinking."""

import contextlib
import pathlib
import shutil
import tempfile

from own import serve
from support import equal

REPOSITORY = pathlib.Path(__file__).parent.parent.parent
TEMPLATES = REPOSITORY / "crates/troika-model/tests/chat"
VARIABLES = "{{ enable_thinking }}/{{ thinking }}/{{ reasoning_effort }}/{{ messages|length }}"
USER = {"role": "user", "content": "hello"}


@contextlib.contextmanager
def model(server, template):
    """A server of a small model with this template: a text, or the name of a file."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder, "model")
        shutil.copytree(REPOSITORY / "models/tiny-moe", copy)
        named = TEMPLATES / f"{template}.jinja"
        text = template if "{" in template else named.read_text(encoding="utf8")
        (copy / "chat_template.jinja").write_text(text, encoding="utf8")
        with serve(server, str(copy)) as (other, _):
            yield other


def prompt(other, *messages, **more):
    return other.post("/apply-template", {"messages": messages, **more})["prompt"]


def test_thoughts_in_the_history(server):
    with model(server, "t-think") as other:
        said = [
            prompt(other, USER, {"role": "assistant", "content": "x", name: "R1"}, USER)
            for name in ("reasoning_content", "reasoning", "thinking")
        ]
        assert "<think>\nR1\n</think>\nx" in said[0], said[0]
        equal(said[1:], said[:1] * 2, "the prompts with other names")
        # What was thought is read from the cache when it is sent back.
        ask = {"messages": [USER], "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        first = other.post("/v1/chat/completions", ask)
        answer = first["choices"][0]["message"]
        assert answer["reasoning_content"], answer
        for name in ("reasoning_content", "reasoning"):
            back = {
                "role": "assistant",
                "content": answer["content"] or "",
                name: answer["reasoning_content"],
            }
            second = other.post(
                "/v1/chat/completions", {**ask, "messages": [USER, back, USER], "max_tokens": 1}
            )
            cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached >= first["usage"]["total_tokens"] - 64, (name, cached, first["usage"])

        def count(**body):
            body = {"max_tokens": 1, "messages": [USER], **body}
            return other.post("/v1/messages/count_tokens", body)["input_tokens"]

        text = {"type": "text", "text": "x"}
        thought = {"type": "thinking", "thinking": "R1 and more", "signature": ""}
        short, long = (
            count(messages=[USER, {"role": "assistant", "content": blocks}, USER])
            for blocks in ([text], [thought, text])
        )
        assert long > short + 3, (short, long)


def test_system_messages(server):
    system = {"role": "system", "content": "one"}
    developer = {"role": "developer", "content": "two"}
    with model(server, "t-strict") as other:
        equal(
            prompt(other, system, developer, USER),
            "<|im_start|>system\none\n\ntwo<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
            "<|im_start|>assistant\n",
        )
        body = {"instructions": "one", "input": [developer, USER], "max_output_tokens": 1}
        equal(other.post("/v1/responses", body)["object"], "response")
        status, _, answer = other.http("POST", "/apply-template", {"messages": [USER, system]})
        equal(status, 400, "the status of a late system message")
        assert "System message must be at the beginning." in answer["error"]["message"], answer
        empty = {"role": "user", "content": [{"type": "text", "text": ""}]}
        body = {"max_tokens": 1, "messages": [empty]}
        assert other.post("/v1/messages/count_tokens", body)["input_tokens"]


def test_parts(server):
    parts = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    for template in ("t-parts", "{{ messages[0]['content'][0]['text'] }}", "t-strict"):
        with model(server, template) as other:
            said = [prompt(other, message) for message in (USER, parts)]
            equal(said[1], said[0])
            assert "hello" in said[0], said[0]


def test_words_for_thinking(server):
    with model(server, VARIABLES) as other:
        for body, says in [
            ({}, "///1"),
            ({"reasoning_effort": "none"}, "False/False/none/1"),
            ({"reasoning_effort": "minimal"}, "True/True/minimal/1"),
            ({"thinking": {"type": "adaptive"}}, "True/True//1"),
            ({"chat_template_kwargs": {"enable_thinking": False}}, "False/False//1"),
        ]:
            equal(prompt(other, USER, **body), says, body)

        def count(path, **body):
            return other.post(path, {"max_tokens": 1, "messages": [USER], **body})

        def anthropic(**body):
            return count("/v1/messages/count_tokens", **body)["input_tokens"]

        on, off, absent = (
            len(other.tokens(text)) for text in ("True/True//1", "False/False//1", "///1")
        )
        equal(anthropic(thinking={"type": "adaptive"}), on, "adaptive")
        equal(anthropic(thinking={"type": "enabled", "budget_tokens": 1024}), on, "enabled")
        equal(anthropic(thinking={"type": "disabled"}), off, "disabled")
        equal(anthropic(), absent, "without thinking")


def test_a_billing_line_is_left_out(server):
    def system(code):
        line = f"x-anthropic-billing-header: cc_version=1; cch={code};"
        return [{"type": "text", "text": line}, {"type": "text", "text": "Be brief. " * 40}]

    with model(server, "t-strict") as other:
        for code, least in (("aaaaa", 0), ("bbbbb", 64)):
            body = {"max_tokens": 1, "messages": [USER], "system": system(code)}
            status, headers, answer = other.http("POST", "/v1/messages", body)
            equal(status, 200, answer)
            equal(headers["X-Troika-Left-Out"], "billing header")
            assert answer["usage"]["cache_read_input_tokens"] >= least, answer["usage"]
