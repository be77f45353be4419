"""Records what the transformers library renders, for `published_templates_render_as_in_python`.

pip install transformers jinja2
python record.py FOLDER_OF_JINJA_FILES OUT.json [NAME...]   (names: only these templates of it)

The folder of expected.json is models/templates of llama.cpp, with the names that the file has. A
conversation that a template does not read as it is given (it refuses it, or lacks a word of `needs`)
is recorded in the first form of FORMS that it reads.
"""
import copy, datetime, json, pathlib, sys
from transformers import tokenization_utils_base as base
from transformers.utils import chat_template_utils as utils


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 7, 9, 5, 3)


utils.datetime = Clock
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def tool(name, **more):
    properties = {
        "location": {"type": "string", "description": "City"},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "days": {"type": "integer", "minimum": 1, "default": None},
        "tags": {"type": "array", "items": {"type": "string"}},
        "nested": {"type": "object", "properties": {"a": {"type": "number", "default": 1.5}}, "required": ["a"]},
    }
    parameters = {"type": "object", "properties": properties, "required": ["location"], "additionalProperties": False}
    function = {"name": name, "description": 'Get the "weather" of <a> place, é', "parameters": parameters, **more}
    return {"type": "function", "function": function}


def call(name, id, **arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def says(role, content=None, **more):
    return {"role": role, "content": content, **more}


def text(*texts):
    return [{"type": "text", "text": t} for t in texts]


SYSTEM = says("system", "You are helpful.\n")
TOOLS = [tool("weather", strict=True), tool("wind")]
ASKED = [SYSTEM, says("user", "Weather in Zürich & Paris?")]
CALLS = [call("weather", "abcdefgh1", location="Zürich \"x\" <b>", days=2, tags=["a", "b"], flag=True, none=None)]
TWO = CALLS + [call("wind", "abcdefgh2", nested={"a": 1.5, "l": [1, 2.0]})]
RESULTS = [says("tool", '{"t": 21.5}', tool_call_id="abcdefgh1", name="weather"),
           says("tool", "calm", tool_call_id="abcdefgh2", name="wind")]
CHAT = [SYSTEM, says("user", "Greet me"), says("assistant", "Hello there."), says("user", "And now?"),
        says("assistant", "Fine.\n\nThanks."), says("user", "it's ok \\ 'quoted' \"x\" é😀 <think>")]
THOUGHT = [says("user", "Hi"), says("assistant", "Hello.", reasoning_content="They greet.\nI greet."), says("user", "More")]
CONVERSATIONS = {
    "plain": dict(messages=[says("user", " Hello you ")], needs=["Hello you"]),
    "multi": dict(messages=CHAT, needs=["Greet", "Fine"]),
    "noprompt": dict(messages=CHAT[:3], prompt=False),
    "tools": dict(messages=ASKED, tools=TOOLS),
    "tools_nosystem": dict(messages=ASKED[1:], tools=TOOLS),
    "called": dict(messages=[*ASKED, says("assistant", tool_calls=CALLS), RESULTS[0]], tools=TOOLS),
    "called_empty": dict(messages=[*ASKED, says("assistant", "", tool_calls=CALLS), RESULTS[0]], tools=TOOLS),
    "called_twice": dict(messages=[*ASKED, says("assistant", "Let me see.", tool_calls=TWO), *RESULTS,
                                   says("assistant", "It is 21.5 degrees."), says("user", "Thanks")], tools=TOOLS),
    "thought_called": dict(messages=[*ASKED, says("assistant", reasoning_content="I look.", tool_calls=TWO), *RESULTS], tools=TOOLS),
    "thought_said_called": dict(messages=[*ASKED, says("assistant", "So:", reasoning_content="I look.", tool_calls=CALLS), RESULTS[0]], tools=TOOLS),
    "called_no_tools": dict(messages=[*ASKED, says("assistant", tool_calls=CALLS), RESULTS[0]]),
    "thought": dict(messages=THOUGHT),
    "thought_kept": dict(messages=THOUGHT, extra={"enable_thinking": True, "thinking": True, "preserve_thinking": True, "clear_thinking": False}),
    "think": dict(messages=CHAT[:2], extra={"enable_thinking": True, "thinking": True}),
    "nothink": dict(messages=CHAT[:2], extra={"enable_thinking": False, "thinking": False}),
    "effort": dict(messages=CHAT[:2], extra={"reasoning_effort": "high"}),
    "parts": dict(messages=[says("user", text("Hi ", "there"))], needs=["Hi", "there"]),
    "parts_all": dict(messages=[says("system", text("Be brief.")), says("user", text("zig")), says("assistant", text("Yes?")), says("user", text("zag ", " zog"))],
                      needs=["brief", "zig", "Yes?", "zag", "zog"]),
    "systems": dict(messages=[SYSTEM, says("system", "Be brief."), says("user", "Hi")], needs=["helpful", "brief"]),
    "late_system": dict(messages=[says("user", "Hi"), says("assistant", "Yes?"), says("system", "Be brief."), says("user", "Go")]),
}


def thought(m):
    # Solar's name for it, which the transformers library does not give.
    return {**m, "reasoning": m["reasoning_content"]} if "reasoning_content" in m else m


def joined(m):
    content = m.get("content")
    return {**m, "content": "".join(p["text"] for p in content)} if isinstance(content, list) else m


def parts(m):
    return {**m, "content": text(m["content"])} if isinstance(m.get("content"), str) else m


def calling(m, content, as_json):
    if "tool_calls" not in m:
        return m
    m = {**m, "content": content or m.get("content") or content}
    if as_json:
        m["tool_calls"] = [{**c, "function": {**c["function"], "arguments": json.dumps(c["function"]["arguments"], ensure_ascii=False)}} for c in m["tool_calls"]]
    return m


def alone(m):
    both = "tool_calls" in m and m.get("content") and m.get("reasoning_content")
    return {**m, "content": "", "reasoning_content": m["reasoning_content"] + "\n\n" + m["content"]} if both else m


def merged(messages):
    first, second, *more = messages
    return [{**first, "content": first["content"] + "\n\n" + second["content"]}, *more] if second["role"] == "system" else messages


# What a template does not read as it is given is given in another form.
FORMS = [lambda all: all, lambda all: [m if m["role"] == "user" else joined(m) for m in all],
         lambda all: [joined(m) for m in all], lambda all: [parts(m) for m in all],
         lambda all: merged(all) if len(all) > 1 else all, lambda all: [alone(m) for m in all],
         lambda all: [calling(m, "", False) for m in all], lambda all: [calling(m, None, False) for m in all],
         lambda all: [calling(m, None, True) for m in all]]


def render(source, given):
    given = copy.deepcopy(given)
    asked = [m["content"].strip() for m in given["messages"] if m["role"] == "user" and isinstance(m["content"], str)]
    needs, why = given.get("needs", asked[-1:]), None
    for form in FORMS:
        messages = base._normalize_chat_messages([thought(m) for m in form(given["messages"])])
        try:
            rendered, _ = utils.render_jinja_template([messages], given.get("tools"), None, source,
                add_generation_prompt=given.get("prompt", True), **SPECIAL, **given.get("extra", {}))
        except Exception as e:
            why = why or {"refused": f"{type(e).__name__}: {e}"[:120]}
            continue
        lists = "{'type': 'te" in rendered[0] or '{"type": "te' in rendered[0]
        if not lists and all(word in rendered[0] for word in needs):
            return rendered[0]
    return why or {"refused": "it does not show all"}


def main(folder, out, *names):
    files = {f.stem: f for f in sorted(pathlib.Path(folder).glob("*.jinja")) if not names or f.stem in names}
    files |= {f.stem: f for f in sorted(pathlib.Path(__file__).parent.glob("*.jinja"))}
    files = {name: f.read_text() for name, f in files.items()}
    texts = {name: {c: render(source, given) for c, given in CONVERSATIONS.items() if name != "expressions" or c == "plain"} for name, source in files.items()}
    recorded = {"now": "2026-11-07T09:05:03Z", "special": SPECIAL, "conversations": CONVERSATIONS, "templates": files, "texts": texts}
    pathlib.Path(out).write_text(json.dumps(recorded, ensure_ascii=False, indent=1) + "\n")
    refused = sum(isinstance(t, dict) for all in texts.values() for t in all.values())
    print(len(files), "templates,", len(files) * len(CONVERSATIONS), "texts,", refused, "refused")


main(*sys.argv[1:])
