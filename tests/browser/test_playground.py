"""The playground as people use it: in a browser, with the keyboard, on a phone."""

import json
from typing import Any

import pytest

from tests.browser.conftest import (
    HAIKU,
    PHONE,
    OpenPage,
    answered,
    ask,
    choose_dialect,
    inspect,
    set_parameter,
    shot,
    until,
)


def answer_text(page: Any) -> str:
    text: str = page.locator(".turn.assistant").last.locator(".choice > .text").first.inner_text()
    return text


# ---------------------------------------------------------------- chat


def test_a_message_is_answered_as_it_streams(open_page: OpenPage) -> None:
    page = open_page()
    ask(page, "Write a haiku about rain.")
    page.wait_for_selector(".turn.assistant")
    seen = set()
    for _ in range(200):
        seen.add(len(answer_text(page)))
        if page.is_visible("#send"):
            break
        page.wait_for_timeout(10)
    answered(page)
    assert answer_text(page) == HAIKU
    assert len(seen) > 3, "the answer should grow while it arrives"
    assert "Answer complete, 17 tokens" in page.inner_text("#status")


def test_the_body_has_what_was_set(open_page: OpenPage) -> None:
    page = open_page()
    page.wait_for_selector("#p-model option:text('scripted')", state="attached")
    for name, value in (
        ("temperature", "0.5"),
        ("top_p", "0.9"),
        ("seed", "7"),
        ("max_tokens", "50"),
        ("stop", "END\\n\nSTOP"),
        ("frequency_penalty", "-0.5"),
        ("logit_bias", '{"5": -100}'),
        ("metadata", '{"topic": "test"}'),
        ("user", "someone"),
    ):
        set_parameter(page, name, value)
    page.select_option("#p-service_tier", "flex")
    page.select_option("#p-reasoning_effort", "low")
    page.fill("#p-system", "Be short.")
    with page.expect_request("**/v1/chat/completions") as sent:
        ask(page, "Hello")
    body = json.loads(sent.value.post_data)
    answered(page)
    assert body == {
        "model": "scripted",
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "Hello"},
        ],
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "max_completion_tokens": 50,
        "stop": ["END\n", "STOP"],
        "frequency_penalty": -0.5,
        "logit_bias": {"5": -100},
        "metadata": {"topic": "test"},
        "user": "someone",
        "service_tier": "flex",
        "reasoning_effort": "low",
        "logprobs": True,
        "top_logprobs": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_other_dialect_has_its_own_parameters(open_page: OpenPage) -> None:
    page = open_page()
    choose_dialect(page, "deepinfra")
    assert page.locator("#p-logit_bias").count() == 0
    set_parameter(page, "top_k", "40")
    set_parameter(page, "max_tokens", "9")
    with page.expect_request("**/v1/openai/chat/completions") as sent:
        ask(page, "Hello")
    body = json.loads(sent.value.post_data)
    answered(page)
    assert (body["top_k"], body["max_tokens"]) == (40, 9)
    assert "stream_options" not in body
    inspect(page, "stream")
    assert "No rule broken" in page.inner_text(".rules")
    assert page.locator(".usage tr", has_text="cost").inner_text().split()[-1].startswith("$0.0000")


def test_stop_keeps_what_came(open_page: OpenPage) -> None:
    page = open_page()
    ask(page, "slow")
    until(page, "document.querySelector('.choice > .text')?.textContent.length > 20")
    page.keyboard.press("Escape")
    answered(page)
    text = answer_text(page)
    assert text.startswith("tick tick")
    page.wait_for_timeout(150)
    assert answer_text(page) == text
    assert "stopped by you" in page.inner_text(".turn.assistant .turn-actions")
    assert page.inner_text("#status") == "Stopped."
    ask(page, "Write a haiku about rain.")
    answered(page)
    assert page.locator(".turn.assistant").count() == 2


def test_without_a_stream(open_page: OpenPage) -> None:
    page = open_page()
    page.uncheck("#p-stream")
    ask(page, "Write a haiku about rain.")
    answered(page)
    assert answer_text(page) == HAIKU
    inspect(page, "stream")
    assert "No rule broken" in page.inner_text(".rules")


def test_choices_side_by_side_and_the_chosen_one_goes_on(open_page: OpenPage) -> None:
    page = open_page()
    set_parameter(page, "n", "3")
    ask(page, "Hello")
    answered(page)
    boxes = [one.bounding_box() for one in page.locator(".choice").all()]
    assert len(boxes) == 3
    assert boxes[0]["y"] == boxes[1]["y"] == boxes[2]["y"]
    assert boxes[0]["x"] < boxes[1]["x"] < boxes[2]["x"]
    page.locator(".choice input[type=radio]").nth(2).check()
    shot(page, "choices")
    ask(page, "And now")
    answered(page)
    assert page.locator(".turn.assistant").count() == 2


def test_markup_of_a_model_stays_text(open_page: OpenPage) -> None:
    page = open_page()
    ask(page, "markup")
    answered(page)
    assert answer_text(page) == "<img src=x onerror=alert(1)><b>bold</b>"
    assert page.locator("#transcript img, #transcript b, #panel-tokens img").count() == 0


def test_reasoning_is_folded(open_page: OpenPage) -> None:
    page = open_page()
    choose_dialect(page, "deepinfra")
    ask(page, "think")
    answered(page)
    thoughts = page.locator(".thoughts")
    assert "First I look at it." in thoughts.locator(".text").text_content()
    assert not thoughts.locator(".text").is_visible()
    thoughts.locator("summary").click()
    assert thoughts.locator(".text").is_visible()
    assert answer_text(page) != ""
    assert page.locator(".choice > .text").inner_text() == "Done."


def test_a_refusal_is_told_apart(open_page: OpenPage) -> None:
    page = open_page()
    ask(page, "refuse")
    answered(page)
    assert "I cannot help with that." in page.inner_text(".refusal")


def test_edit_and_regenerate(open_page: OpenPage) -> None:
    page = open_page()
    ask(page, "Hello")
    answered(page)
    page.click("text=Regenerate")
    answered(page)
    assert page.locator(".turn.assistant").count() == 1
    page.hover(".turn.user")
    page.click("text=Edit")
    assert page.input_value("#prompt") == "Hello"
    assert page.locator(".turn").count() == 0


# ---------------------------------------------------------------- tools and schemas


def test_a_call_is_answered_by_hand(open_page: OpenPage) -> None:
    page = open_page()
    page.click("summary:has-text('Tools')")
    page.click("#tools-example")
    assert "1 tool: get_weather" in page.inner_text("#p-tools-state")
    page.press("#prompt", "Enter")
    answered(page)
    assert "get_weather" in page.inner_text(".call-name")
    assert '"city": "Oslo"' in page.inner_text(".call pre")
    shot(page, "tools")
    ask(page, "Never mind")
    assert "waits for the result" in page.inner_text("#status")
    page.fill("#prompt", "")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.click("text=Answer and go on")
    messages = json.loads(sent.value.post_data)["messages"]
    answered(page)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"]
    assert answer_text(page) == "It is 4 degrees in Oslo, with rain."
    inspect(page, "stream")
    assert "No rule broken" in page.inner_text(".rules")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[", "not JSON"),
        ("{}", "not a list"),
        ('[{"type": "function", "function": {"name": "a b"}}]', "1 to 64 letters"),
        ('[{"type": "function"}]', '"function" is missing'),
        (
            '[{"function": {"name": "f", "strict": true, "parameters": {"type": "object"}}}]',
            "additionalProperties",
        ),
    ],
)
def test_faults_in_tools_are_named_as_one_types(open_page: OpenPage, text: str, fault: str) -> None:
    page = open_page()
    page.click("summary:has-text('Tools')")
    page.fill("#p-tools", text)
    assert fault in page.inner_text("#p-tools-state")


def test_an_answer_is_held_to_its_schema(open_page: OpenPage) -> None:
    page = open_page()
    page.click("summary:has-text('Answer format')")
    page.click("#schema-example")
    ask(page, "a person")
    answered(page)
    assert page.inner_text(".choice .verdict") == "Fits the schema"
    schema = json.loads(page.input_value("#p-schema"))
    schema["properties"]["age"] = {"type": "string"}
    page.fill("#p-schema", json.dumps(schema))
    page.click("text=Regenerate")
    answered(page)
    assert ".age string expected, number found" in page.inner_text(".choice .verdict")
    page.fill("#p-schema", '{"type": "objekt"}')
    assert 'unknown type "objekt"' in page.inner_text("#p-schema-state")


# ---------------------------------------------------------------- looking inside


def test_token_view(open_page: OpenPage) -> None:
    page = open_page()
    ask(page, "Write a haiku about rain.")
    answered(page)
    tokens = page.locator(".tokens [role=option]")
    assert tokens.count() == 17
    classes = [one.get_attribute("class") for one in tokens.all()[:6]]
    assert classes == ["p0", "p1", "p3", "p4", "p0", "p5"]
    tokens.nth(3).click()
    detail = page.locator(".token-detail")
    assert "20 74 69 6e" in detail.inner_text()
    assert "20.2 %" in detail.inner_text()
    rows = detail.locator("tbody tr")
    assert rows.count() == 6
    assert "is-chosen" in (rows.nth(1).get_attribute("class") or "")
    widths = [one.bounding_box()["width"] for one in rows.locator(".bar").all()[:5]]
    assert widths == sorted(widths, reverse=True)
    shot(page, "tokens")
    page.focus(".tokens")
    page.keyboard.press("ArrowRight")
    assert "token 5 of 17" in detail.inner_text()
    page.keyboard.press("s")
    assert "token 6 of 17" in detail.inner_text()


def test_token_view_offers_to_ask_for_probabilities(open_page: OpenPage) -> None:
    page = open_page()
    page.uncheck("#p-logprobs")
    ask(page, "Hello")
    answered(page)
    page.click("text=Ask for them from now on")
    assert page.is_checked("#p-logprobs")


def test_stream_view(open_page: OpenPage) -> None:
    page = open_page()
    ask(page, "Write a haiku about rain.")
    answered(page)
    inspect(page, "stream")
    text = page.inner_text("#panel-stream")
    for part in ("first text", "gap, median", "prompt", "from cache", "written to cache", "req_"):
        assert part in text.lower()
    assert "No rule broken" in text
    assert page.locator(".timeline line.gap").count() >= 17
    kinds = [one.inner_text() for one in page.locator(".frame .kind").all()]
    assert kinds[:2] == ["role", "text"]
    page.locator(".virtual").focus()
    page.keyboard.press("End")
    page.wait_for_selector(".frame[aria-selected=true]")
    assert page.locator(".frame .kind").last.inner_text() == "done"
    assert "[DONE]" in page.inner_text(".frame-detail")
    page.keyboard.press("ArrowUp")
    until(page, "document.querySelector('.frame-detail pre').textContent.includes('total_tokens')")
    shot(page, "stream")


BROKEN = [
    {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"id": "other", "choices": [{"index": 0, "delta": {"content": "b"}, "finish_reason": None}]},
    {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 3}},
]


def test_broken_rules_are_named(open_page: OpenPage) -> None:
    page = open_page()
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1790000000, "model": "m"}
    frames = [f"data: {json.dumps({**head, **one})}\n\n" for one in BROKEN]
    answer = {"content_type": "text/event-stream", "body": "".join(frames)}
    page.route("**/v1/chat/completions", lambda route: route.fulfill(status=200, **answer))
    ask(page, "Hello")
    page.wait_for_selector("#send:not([hidden])")
    inspect(page, "stream")
    rules = {one.inner_text() for one in page.locator(".findings strong").all()}
    assert {"R7", "R95", "R102", "R108", "R171"} <= rules
    page.locator(".findings li", has_text="R108").locator("button").click()
    assert '"content": "b"' in page.inner_text(".frame-detail")


def test_code_can_be_copied(open_page: OpenPage) -> None:
    page = open_page()
    ask(page, 'It\'s a "test"')
    answered(page)
    inspect(page, "code")
    curl = page.inner_text(".code-block")
    assert "v1/chat/completions" in curl and "$REJOINDER_API_KEY" in curl
    assert "It'\\''s" in curl
    page.click("button:has-text('Python')")
    python = page.inner_text(".code-block")
    compile(python, "copied.py", "exec")
    assert "stream=True" in python
    page.click("button:has-text('JavaScript')")
    assert "for await (const chunk of answer)" in page.inner_text(".code-block")
    shot(page, "code")
    page.click("button:has-text('Prompt')")
    until(page, "document.querySelector('.code-block').textContent.includes('<|im_start|>user')")
    assert 'It\'s a "test"' in page.inner_text(".code-block")


# ---------------------------------------------------------------- errors


def test_a_refused_request_names_its_parameter(open_page: OpenPage) -> None:
    page = open_page()
    page.watched.allowed = ("status of 400",)
    set_parameter(page, "metadata", '{"topic": 5}')
    ask(page, "Hello")
    page.wait_for_selector(".error")
    text = page.inner_text(".error")
    assert "Error 400" in text and "metadata" in text and "req_" in text
    shot(page, "error")
    page.click(".error button:has-text('Show')")
    focused = page.evaluate("document.activeElement.id")
    assert focused == "p-metadata"
    page.fill("#p-metadata", "")
    page.click("text=Try again")
    answered(page)
    assert page.locator(".error").count() == 0


def test_a_value_out_of_range_is_told_before_it_is_sent(open_page: OpenPage) -> None:
    page = open_page()
    set_parameter(page, "temperature", "3")
    assert page.inner_text("#p-temperature-note") == "at most 2"
    assert page.get_attribute("#p-temperature", "aria-invalid") == "true"


def test_an_answer_that_breaks_off(open_page: OpenPage) -> None:
    page = open_page()
    ask(page, "break")
    page.wait_for_selector(".error")
    assert "The answer broke off" in page.inner_text(".error")
    assert "Half an answer" in page.inner_text(".turn.assistant")
    inspect(page, "stream")
    assert "error" in [one.inner_text() for one in page.locator(".frame .kind").all()]


def test_a_server_that_is_away(open_page: OpenPage) -> None:
    page = open_page()
    page.watched.allowed = ("ERR_CONNECTION_REFUSED", "Failed to load resource")
    page.route("**/v1/chat/completions", lambda route: route.abort("connectionrefused"))
    ask(page, "Hello")
    page.wait_for_selector(".error")
    assert "cannot be reached" in page.inner_text(".error")


# ---------------------------------------------------------------- what is kept


def test_history_is_in_the_browser(open_page: OpenPage) -> None:
    page = open_page()
    ask(page, "Write a haiku about rain.")
    answered(page)
    page.click("#new-chat")
    assert page.is_visible(".welcome")
    page.reload()
    page.click("#tab-history")
    page.click(".list-main:has-text('haiku')")
    assert answer_text(page) == HAIKU
    page.click("[aria-label^='Forget Write']")
    assert "in this browser only" in page.inner_text("#panel-history")


def test_stored_completions(open_page: OpenPage) -> None:
    page = open_page()
    page.click("summary:has-text('More')")
    page.check("#p-store")
    page.fill("#p-metadata", '{"topic": "stored"}')
    ask(page, "Write a haiku about rain.")
    answered(page)
    page.click("#tab-stored")
    page.fill("#stored-filter", "topic=stored")
    page.click("#panel-stored button:has-text('Look')")
    page.click("#panel-stored .list-main:has-text('Rain')")
    page.wait_for_selector(".stored-message.answer")
    assert "Write a haiku about rain." in page.inner_text(".stored-one")
    page.click("text=Delete from the server")
    page.wait_for_selector(".stored-one", state="hidden")
    assert page.locator("#panel-stored .list-main").count() == 0


def test_a_key_is_only_in_memory(open_page: OpenPage) -> None:
    page = open_page()
    page.click("#key-button")
    page.fill("#key", "sk-secret")
    with page.expect_request("**/v1/models") as sent:
        page.press("#key", "Enter")
    assert sent.value.headers["authorization"] == "Bearer sk-secret"
    ask(page, "Hello")
    answered(page)
    kept = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert "sk-secret" not in kept
    assert "sk-secret" not in page.content()


# ---------------------------------------------------------------- looks


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(open_page: OpenPage, scheme: str) -> None:
    page = open_page(color_scheme=scheme)
    ask(page, "Write a haiku about rain.")
    answered(page)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    levels = [int(part) for part in ground.removeprefix("rgb(").removesuffix(")").split(",")]
    assert (sum(levels) < 200) == (scheme == "dark")
    shot(page, scheme)
    page.click("#theme-button")
    page.click("#theme-button")
    assert page.inner_text("#theme-button") == "Dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_on_a_phone(open_page: OpenPage) -> None:
    page = open_page(viewport=PHONE, has_touch=True, is_mobile=True)
    ask(page, "Write a haiku about rain.")
    answered(page)
    shot(page, "phone")
    page.click(".turn.assistant button:has-text('Inspect')")
    assert page.is_visible(".pane.inspect") and not page.is_visible(".pane.chat")
    for view in ("settings", "chat", "inspect"):
        page.click(f".views [data-view={view}]")
        assert page.is_visible(f".pane.{view}")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= PHONE["width"], view
        assert page.locator(f".pane.{view}").bounding_box()["width"] == PHONE["width"]
    page.locator(".tokens [role=option]").nth(2).click()
    assert "token 3 of 17" in page.inner_text(".token-detail")


def test_by_keyboard_alone(open_page: OpenPage) -> None:
    page = open_page()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.type("Hello")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("there")
    assert page.input_value("#prompt") == "Hello\nthere"
    page.keyboard.press("Enter")
    answered(page)
    page.focus("#tab-tokens")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#tab-stream", "aria-selected") == "true"
    assert page.is_visible("#panel-stream") and not page.is_visible("#panel-tokens")


# ---------------------------------------------------------------- speed

LONG_FRAMES = """() => {
  window.frames_ = [];
  window.tasks_ = [];
  let last = performance.now();
  const tick = (now) => {
    window.frames_.push(now - last);
    last = now;
    requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
  const note = (list) => window.tasks_.push(...list.getEntries().map((one) => one.duration));
  new PerformanceObserver(note).observe({ type: "longtask" });
}"""


MAX_TASK_MS = 50
MAX_PAINT_MS = 300
TRIES = 4
"""Other processes stretch tasks too: the best of a few tries is the page's own."""


def test_two_thousand_tokens_without_a_long_task(open_page: OpenPage) -> None:
    page = open_page()
    longest = []
    for _ in range(TRIES):
        page.reload()
        page.wait_for_selector("#p-model option", state="attached")
        page.evaluate(LONG_FRAMES)
        ask(page, "long")
        answered(page)
        until(page, "document.querySelectorAll('.tokens [role=option]').length === 2000")
        frames = page.evaluate("window.frames_")
        assert len(frames) > 10
        longest.append(max([0, *page.evaluate("window.tasks_")]))
        if longest[-1] < MAX_TASK_MS:
            break
    assert min(longest) < MAX_TASK_MS, longest


def test_first_paint(open_page: OpenPage) -> None:
    page = open_page()
    paints = []
    for _ in range(TRIES):
        page.reload()
        until(page, "performance.getEntriesByName('first-contentful-paint').length > 0")
        entry = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        paints.append(page.evaluate(entry))
        if paints[-1] < MAX_PAINT_MS:
            break
    assert min(paints) < MAX_PAINT_MS, paints
