"""Drives the server's page in a headless Chromium against a real server.

python page.py URL CHROMIUM BROKEN

URL is a running server with the built-in model and no key; CHROMIUM is the browser's path; BROKEN is
a server with a good model and one named "broken" that cannot be opened.
The page forbids eval, so checks poll with `evaluate` and never use `wait_for_function`.
"""

import json
import re
import shutil
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

from playwright.sync_api import expect, sync_playwright

MARKDOWN = """# Title

Some **bold** and `code`, a [good](https://example.org/) and a [bad](javascript:alert(1)) link.

- one
- two

| a | b |
| - | -: |
| 1 | 2 |

```rust
fn main() {} // a comment
```"""
SCRIPT = '<script>window.hit = 1</script><img src="x" onerror="window.hit = 1">'
VIEWS = ["chat", "devices", "plan", "settings"]


def until(found, seconds=20, what="it"):
    """Calls `found` until it gives something true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"{what} did not come within {seconds} s")


class Page:
    """The page in one browser context, and what it logged and asked for."""

    def __init__(self, browser, url, scheme="light", size=(1280, 800)):
        self.url = url
        viewport = {"width": size[0], "height": size[1]}
        self.context = browser.new_context(
            viewport=viewport, color_scheme=scheme, accept_downloads=True
        )
        self.tab = self.context.new_page()
        self.errors = []
        self.requests = []
        self.tab.on(
            "console",
            lambda said: (
                self.errors.append(said.text) if said.type in ("error", "warning") else None
            ),
        )
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))

    def open(self):
        self.tab.goto(self.url)
        expect(self.tab.locator("#health.ready")).to_be_visible(timeout=20000)

    def view(self, name):
        self.tab.evaluate(f"location.hash = '#{name}'")
        expect(self.tab.locator(f".{name}-view")).to_be_visible()

    def limit(self, tokens):
        self.view("settings")
        self.tab.fill("#max_tokens", str(tokens))
        self.view("chat")

    def fresh(self):
        self.view("chat")
        self.tab.locator(".chats button").first.click()

    def send(self, text):
        self.tab.fill("#ask", text)
        self.tab.press("#ask", "Enter")

    def ended(self, seconds=60):
        expect(self.tab.locator(".send:not(.stop)")).to_be_visible(timeout=seconds * 1000)

    def answer(self):
        """The last answer's text so far."""
        return self.tab.evaluate(
            "[...document.querySelectorAll('.message.answer')].at(-1)?.querySelector(':scope > .prose')?.textContent ?? ''"
        )

    def background(self):
        return self.tab.evaluate("getComputedStyle(document.documentElement).backgroundColor")


def status(url):
    with urllib.request.urlopen(urllib.parse.urljoin(url, "troika/status"), timeout=10) as answer:
        return json.load(answer)


def loads(page):
    page.open()
    expect(page.tab.locator("#ask")).to_be_focused()
    assert page.tab.locator("#tabs a").count() == len(VIEWS)
    assert not page.errors, page.errors


NOTE_LENGTHS = """() => {
    window.lengths = new Set();
    const note = () => {
        const last = [...document.querySelectorAll('.message.answer')].at(-1);
        const length = last?.querySelector(':scope > .prose')?.textContent.length ?? 0;
        if (length > 0) window.lengths.add(length);
    };
    new MutationObserver(note).observe(document.body, {
        subtree: true, childList: true, characterData: true,
    });
}"""


def streams(page):
    page.limit(1500)
    # The model answers within a few of a browser's frames, of which a busy machine draws fewer still.
    for _ in range(5):
        page.fresh()
        # The page notes each length itself: the model is faster than questions from here.
        page.tab.evaluate(NOTE_LENGTHS)
        page.send("The sea was calm that evening, and")
        page.ended()
        lengths = page.tab.evaluate("[...window.lengths]")
        if len(lengths) >= 3:
            break
    assert len(lengths) >= 3, f"the answer came in {len(lengths)} pieces"
    figures = page.tab.locator(".message.answer .stats").last.inner_text()
    assert "tokens/s" in figures and "first token" in figures, figures
    assert "≈" not in figures, f"no usage in the last chunk: {figures}"


def stops(page):
    page.limit(900)
    for start in ["It was late, and", "The road went on, and", "Nobody in the house knew that"]:
        page.fresh()
        page.send(start)
        until(
            lambda: page.answer() or page.tab.locator(".send.stop").count() == 0,
            30,
            "a first token",
        )
        # The model may end by itself first; then there was nothing to stop.
        page.tab.keyboard.press("Escape")
        page.ended(5)
        if page.tab.get_by_text("You stopped this answer.").count() == 1:
            break
    expect(page.tab.get_by_text("You stopped this answer.")).to_be_visible()
    before = page.answer()
    time.sleep(0.5)
    assert before and page.answer() == before, "the answer grew after it was stopped"
    until(lambda: status(page.url)["running"] == 0, 5, "the end of the request on the server")


def renders(page):
    page.limit(16)
    page.fresh()
    page.send(MARKDOWN)
    bubble = page.tab.locator(".message.user .bubble").last
    expect(bubble.locator("h3")).to_have_text("Title")
    expect(bubble.locator("strong")).to_have_text("bold")
    expect(bubble.locator("ul li")).to_have_text(["one", "two"])
    expect(bubble.locator("td")).to_have_text(["1", "2"])
    expect(bubble.locator("pre .hl-comment")).to_have_text("// a comment")
    expect(bubble.locator("a")).to_have_count(1)
    expect(bubble.locator("a")).to_have_attribute("rel", "noopener noreferrer")
    page.ended()


def shows_markup_as_text(page):
    page.limit(16)
    page.fresh()
    page.send(SCRIPT)
    expect(page.tab.locator(".message.user .bubble").last).to_have_text(SCRIPT)
    page.ended()
    assert page.tab.locator(".log script, .log img").count() == 0
    assert page.tab.evaluate("window.hit === undefined")


def keeps_the_text_on_an_error(page):
    page.limit(16)
    page.fresh()
    before = len(page.errors)
    page.tab.route("**/v1/chat/completions", lambda route: route.abort())
    page.send("This text must stay")
    expect(page.tab.get_by_text("The server does not answer.").last).to_be_visible()
    page.tab.reload()
    expect(page.tab.locator(".message.user .bubble")).to_have_text("This text must stay")
    page.tab.unroute("**/v1/chat/completions")
    page.tab.get_by_role("button", name="Try again").last.click()
    until(page.answer, 30, "an answer to the second try")
    page.ended()
    # The browser itself logs the request that this check broke.
    del page.errors[before:]


def leaves_out_the_oldest_turns(page):
    page.view("settings")
    page.tab.fill("#max_tokens", "")
    expect(page.tab.locator("#max_tokens")).to_have_attribute("placeholder", "256")
    page.tab.fill("#system", "It was the year 1850.")
    page.tab.fill("#seed", "1")
    page.fresh()
    asked = []

    def note(request):
        if "chat/completions" in request.url:
            asked.append(request.post_data_json["messages"])

    page.tab.on("request", note)
    notes = page.tab.locator(".omitted:not([hidden])")
    for turn in range(40):
        page.send(f"Then, on day {turn}, the ship")
        page.ended()
        assert page.answer(), f"no answer to message {turn}"
        tokens = page.tab.locator(".message.answer .stats").last.inner_text()
        assert int(re.search(r"([\d,]+) token(?!s/s)", tokens)[1]) <= 256, tokens
        if notes.count() >= 2:
            break
        assert turn > 2 or notes.count() == 0, "turns are left out that would fit"
    page.tab.remove_listener("request", note)
    expect(notes.last).to_contain_text("left out: the chat no longer fits the model's context.")
    expect(page.tab.locator(".message.answer").last.locator(".omitted")).to_be_visible()
    expect(page.tab.locator(".notice")).to_have_count(0)
    last = asked[-1]
    assert 4 <= len(last) < 2 * turn, f"{len(last)} messages were sent after {turn} turns"
    assert last[0] == {"role": "system", "content": "It was the year 1850."}, last[0]
    assert last[-1] == {"role": "user", "content": f"Then, on day {turn}, the ship"}, last[-1]
    before = len(page.errors)
    page.send("The sea was calm. " * 1000)
    page.ended()
    notice = page.tab.locator(".notice")
    expect(notice).to_contain_text("Too long for the model")
    said = notice.inner_text().lower()
    assert "2048" in said and said.count("shorten") <= 1 and "new chat" not in said, said
    # The browser itself logs the request that was refused.
    del page.errors[before:]
    page.view("settings")
    page.tab.fill("#system", "")
    page.tab.fill("#seed", "")


def edits_and_sends_again(page):
    page.limit(16)
    page.fresh()
    page.tab.fill("#ask", "First")
    page.tab.press("#ask", "Shift+Enter")
    page.tab.keyboard.type("second line")
    assert page.tab.input_value("#ask") == "First\nsecond line"
    page.tab.press("#ask", "Enter")
    page.ended()
    page.tab.get_by_role("button", name="Edit").click()
    page.tab.fill(".editor textarea", "Other words")
    page.tab.press(".editor textarea", "Enter")
    page.ended()
    expect(page.tab.locator(".message.user .bubble")).to_have_text(["Other words"])
    expect(page.tab.locator(".message.answer")).to_have_count(1)


def keeps_chats(page):
    page.view("chat")
    shown = page.tab.locator(".column").inner_text()
    entries = page.tab.locator(".entry").count()
    assert entries >= 2
    for _ in range(2):
        page.tab.reload()
        expect(page.tab.locator("#health.ready")).to_be_visible()
        assert page.tab.locator(".column").inner_text() == shown
        assert page.tab.locator(".entry").count() == entries
    with page.tab.expect_download() as download:
        page.tab.get_by_role("button", name="Export chat as JSON").click()
    with open(download.value.path(), encoding="utf-8") as file:
        exported = json.load(file)
    assert exported["chats"][0]["messages"][0]["content"] == "Other words"


def draws_the_timeline(page):
    page.limit(900)
    page.fresh()
    page.send("The old house stood at the end of the lane, and")
    page.view("devices")
    spans = page.tab.locator("table.data").first.locator("td[data-head=Spans]")
    until(
        lambda: any(int(count.replace(",", "")) > 0 for count in spans.all_inner_texts()),
        20,
        "a span in a lane",
    )
    assert page.tab.locator("table.data").first.locator("tbody tr").count() >= 1
    until(lambda: page.tab.locator(".legend li").count() >= 1, 5, "a name in the legend")
    canvas = page.tab.locator(".timeline canvas")
    one = canvas.screenshot()
    time.sleep(0.4)
    assert canvas.screenshot() != one, "the timeline stands still"
    canvas.focus()
    page.tab.keyboard.press("ArrowLeft")
    expect(page.tab.locator(".tip")).to_be_visible()
    expect(page.tab.get_by_role("button", name="Go on")).to_be_visible()
    held = canvas.screenshot()
    time.sleep(0.4)
    assert canvas.screenshot() == held, "a paused timeline moves"
    page.tab.get_by_role("button", name="Go on").click()
    figures = page.tab.locator(".figures").inner_text()
    for name in ["Decode", "Prefill", "Pages", "Requests", "busy"]:
        assert name in figures, f"{name} is missing: {figures}"
    page.view("chat")
    page.tab.keyboard.press("Escape")
    page.ended()


def shows_a_broken_model(page):
    page.open()
    page.view("devices")
    row = page.tab.locator("table.data tr", has=page.tab.get_by_role("rowheader", name="broken"))
    state = row.locator("[data-head=State]")
    expect(state).to_have_text("loads when asked")
    try:
        plan = urllib.parse.urljoin(page.url, "troika/plan?model=broken")
        urllib.request.urlopen(plan, timeout=20).close()
        raise AssertionError("the broken model was opened")
    except urllib.error.HTTPError as error:
        assert error.code >= 500, error
    expect(state).to_contain_text(re.compile(r"failed: .*broken\.gguf"))
    good = page.tab.locator("table.data [data-head=State]").get_by_text("ready")
    expect(good).to_have_count(1)
    lanes = page.tab.locator("table.data").first.get_by_role("rowheader").all_inner_texts()
    assert "cpu" in lanes, lanes
    assert "undefined" not in page.tab.locator(".devices-view").inner_text()
    assert not page.errors, page.errors


def shows_the_plan(page):
    page.view("plan")
    row = page.tab.locator(".plan-view tbody tr").first
    expect(row).to_be_visible(timeout=20000)
    for head in ["Phase", "Layers", "Parts", "Device", "Why"]:
        assert row.locator(f"[data-head={head}]").inner_text().strip(), f"{head} is empty"
    expect(page.tab.locator(".plan-view .refusals, .plan-view .card .hint").first).to_be_visible()


def works_by_keyboard(page):
    page.open()
    page.tab.evaluate("document.activeElement.blur()")
    keys = page.tab.keyboard
    focus = "(() => { const node = document.activeElement; return node.id || node.hash || node.textContent; })()"
    seen = []

    def tab_to(wanted):
        for _ in range(30):
            keys.press("Tab")
            seen.append(page.tab.evaluate(focus))
            if seen[-1] == wanted:
                return
        raise AssertionError(f"Tab does not reach {wanted}: {seen}")

    tab_to("skip")
    tab_to("#settings")
    outline = page.tab.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none", "the focus is not visible"
    keys.press("Enter")
    expect(page.tab.locator(".settings-view")).to_be_visible()
    tab_to("key")
    keys.type("a-key")
    kept = page.tab.evaluate("JSON.parse(localStorage.getItem('troika.settings')).key")
    assert kept == "a-key", kept
    page.tab.fill("#key", "")


def has_a_dark_scheme(light, dark):
    dark.open()
    by_system = dark.background()
    assert by_system != light.background(), "dark and light look alike"
    for _ in range(2):
        light.tab.click("#theme")
    assert light.background() == by_system, "the switch does not bring the dark scheme"
    light.tab.click("#theme")


def fits_a_phone(page):
    page.open()
    page.limit(16)
    page.send(
        f"A word: {'w' * 200}\n\n```\n{'code ' * 60}\n```\n\n| {'wide | ' * 12}\n|{' - |' * 12}"
    )
    page.ended()
    for name in VIEWS:
        page.view(name)
        time.sleep(0.5)
        wide = page.tab.evaluate(
            "[document.documentElement, ...document.querySelectorAll('.view:not([hidden]), .log')]"
            ".filter((node) => node.scrollWidth > node.clientWidth).map((node) => node.className || node.tagName)"
        )
        assert not wide, f"{name} scrolls sideways: {wide}"


def stays_quiet(pages):
    """Last: nothing was logged, and nothing went to another address."""
    for page in pages:
        assert not page.errors, page.errors
        home = urllib.parse.urlsplit(page.url).netloc
        strange = [
            url
            for url in page.requests
            if not url.startswith(("blob:", "data:")) and urllib.parse.urlsplit(url).netloc != home
        ]
        assert not strange, strange


def main():
    [url, broken], chromium = [sys.argv[at].rstrip("/") + "/" for at in (1, 3)], sys.argv[2]
    passed = failed = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which(chromium), args=["--no-sandbox"])
        light = Page(browser, url)
        dark = Page(browser, url, scheme="dark")
        keyboard = Page(browser, url)
        phone = Page(browser, url, size=(360, 740))
        beside = Page(browser, broken)
        checks = [
            ("the page loads without errors", lambda: loads(light)),
            ("an answer streams in, with its figures", lambda: streams(light)),
            ("Escape ends an answer, on the server too", lambda: stops(light)),
            ("Markdown is rendered", lambda: renders(light)),
            ("markup in a message is text", lambda: shows_markup_as_text(light)),
            (
                "an error keeps the text, and a second try answers",
                lambda: keeps_the_text_on_an_error(light),
            ),
            (
                "a long chat goes on without its oldest turns, and says so",
                lambda: leaves_out_the_oldest_turns(light),
            ),
            ("the last message is edited and sent again", lambda: edits_and_sends_again(light)),
            ("two reloads keep the chats, and export gives them", lambda: keeps_chats(light)),
            ("the timeline shows spans, moves and pauses", lambda: draws_the_timeline(light)),
            ("a broken model beside a good one is told", lambda: shows_a_broken_model(beside)),
            ("the plan shows rules and reasons", lambda: shows_the_plan(light)),
            ("the key is entered by keyboard alone", lambda: works_by_keyboard(keyboard)),
            ("the dark scheme changes colours", lambda: has_a_dark_scheme(light, dark)),
            ("360 pixels are wide enough", lambda: fits_a_phone(phone)),
            (
                "nothing is logged or sent elsewhere",
                lambda: stays_quiet([light, dark, keyboard, phone, beside]),
            ),
        ]
        for name, check in checks:
            try:
                check()
                passed += 1
                print(f"ok    {name}", flush=True)
            except Exception as error:  # A failed check must not hide the others.
                failed += 1
                reason = " ".join(str(error).split())[:300]
                print(f"FAIL  {name}: {reason}", flush=True)
        browser.close()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
