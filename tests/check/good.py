"""Random answers that keep the contract, spelled by the package's own encoders.

`good_exchange` makes a request and the answer to it, streamed or not, from one random generator:
whatever the checker has against it is a false alarm, or a fault of the encoders.
"""

import json
import math
import random
from typing import Any

from rejoinder.check.exchange import DialectName, Exchange, Read, Request, Response
from rejoinder.dialects import DEEPINFRA, OPENAI, RequestPolicy, sse
from rejoinder.events import (
    ContentDelta,
    Done,
    Event,
    Finished,
    Moderated,
    ReasoningDelta,
    RefusalDelta,
    Started,
    ToolCallDelta,
    ToolCallStart,
    collect,
)
from rejoinder.types import (
    AnswerOptions,
    FinishReason,
    Moderation,
    ModerationFailure,
    ModerationResult,
    ModerationResults,
    TokenLogprob,
    TopLogprob,
    Usage,
)

POLICY = RequestPolicy()
NOW = 1_790_000_000

WORDS = (
    *("the", " sea", "\n", "\t", '"', "\\", "</s>", "é", "東京", "😊", "👩‍👩‍👧", "\u2028", "\x00"),
    *(
        "data: [DONE]\n\n",
        "null",
        '":null',
        "{}",
        "[DONE]",
        " ",
        "ﷺ",
        "\ufeff",
        "e\u0301",
        "\u0085",
    ),
)


def good_exchange(rng: random.Random, dialect: DialectName) -> Exchange:
    return GoodAnswer(rng, dialect).exchange()


class GoodAnswer:
    """One request and its events."""

    def __init__(self, rng: random.Random, dialect: DialectName) -> None:
        self.rng = rng
        self.dialect = dialect
        self.o = dialect == "O"
        self.asked = self._request()
        self.num_tokens = 0
        self.reasoning_tokens = 0
        choices = [self._choice(index) for index in range(self.asked.get("n", 1))]
        self.events = self._interleaved(choices)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    # ------------------------------------------------------------ the request

    def _request(self) -> dict[str, Any]:
        asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        if self.chance(0.75):
            asked["stream"] = True
            self._stream_options(asked)
        if self.chance(0.3):
            asked["n"] = self.rng.randint(1, 3)
        if self.chance(0.3):
            asked["logprobs"] = True
            if self.o and self.chance(0.7):
                asked["top_logprobs"] = self.rng.randint(0, 20)
        if self.chance(0.3):
            self._tools(asked)
        if self.o and self.chance(0.2):
            asked["moderation"] = {"model": "omni-moderation-latest"}
        if self.chance(0.2):
            asked["service_tier"] = self.rng.choice(["default", "priority"])
        if self.o and self.chance(0.1):
            asked["prediction"] = {"type": "content", "content": "x"}
        if self.chance(0.2):
            asked["stop"] = "STOP"
        return asked

    def _stream_options(self, asked: dict[str, Any]) -> None:
        options: dict[str, Any] = {}
        if self.chance(0.5):
            options["include_usage"] = self.chance(0.7)
        if self.o and self.chance(0.1):
            options["include_obfuscation"] = True
        if not self.o and self.chance(0.2):
            options["continuous_usage_stats"] = True
        if options:
            asked["stream_options"] = options

    def _tools(self, asked: dict[str, Any]) -> None:
        names = ["alpha", "beta", "gamma"]
        if self.o and self.chance(0.2):
            asked["functions"] = [{"name": name, "parameters": {}} for name in names]
            return
        asked["tools"] = [
            {"type": "function", "function": {"name": name, "parameters": {}}} for name in names
        ]
        if self.chance(0.3):
            asked["tool_choice"] = self.rng.choice(
                ["auto", "required", {"type": "function", "function": {"name": "beta"}}]
            )
        if self.o and self.chance(0.2):
            asked["parallel_tool_calls"] = False

    # ------------------------------------------------------------ one choice

    def _choice(self, index: int) -> list[Event]:
        events: list[Event] = []
        if self.chance(0.25):
            for _ in range(self.rng.randint(1, 5)):
                events.append(ReasoningDelta(index, self._word()))
                self.num_tokens += 1
                self.reasoning_tokens += 1
        has_tools = "tools" in self.asked or "functions" in self.asked
        if has_tools and self.chance(0.7):
            return [*events, *self._calls(index)]
        if self.o and self.chance(0.1):
            return [*events, *self._text(index, RefusalDelta), Finished(index, "stop")]
        reason: FinishReason = self.rng.choice(["stop", "stop", "length", "content_filter"])
        return [*events, *self._text(index, ContentDelta), Finished(index, reason)]

    def _calls(self, index: int) -> list[Event]:
        events: list[Event] = []
        single = "functions" in self.asked or self.asked.get("parallel_tool_calls") is False
        if not single and self.chance(0.2):
            events += self._text(index, ContentDelta)
        named = isinstance(self.asked.get("tool_choice"), dict)
        for call in range(1 if single or named else self.rng.randint(1, 3)):
            name = "beta" if named else self.rng.choice(["alpha", "beta", "gamma"])
            events.append(ToolCallStart(index, call, f"call_{index}{call}", name))
            text = json.dumps({self._word(): self._word()}, ensure_ascii=self.chance(0.5))
            for piece in self._cut(text):
                events.append(ToolCallDelta(index, call, piece))
                self.num_tokens += 1
        return [*events, Finished(index, "tool_calls")]

    def _cut(self, text: str) -> list[str]:
        cuts = sorted(self.rng.randint(0, len(text)) for _ in range(self.rng.randint(0, 4)))
        return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def _word(self) -> str:
        return self.rng.choice(WORDS)

    def _text(
        self, index: int, kind: type[ContentDelta] | type[RefusalDelta]
    ) -> list[ContentDelta | RefusalDelta]:
        deltas = []
        for _ in range(self.rng.randint(0 if kind is ContentDelta else 1, 6)):
            word = self._word()
            entries = self._entries(word)
            self.num_tokens += len(entries)
            deltas.append(kind(index, word, tuple(entries) if "logprobs" in self.asked else None))
        return deltas

    def _entries(self, word: str) -> list[TokenLogprob]:
        """The tokens of a word: itself, or its bytes one by one."""
        data = word.encode()
        if len(data) > 1 and self.chance(0.2):
            return [self._entry(_shown(bytes([b])), bytes([b])) for b in data]
        return [self._entry(word, data)]

    def _entry(self, token: str, data: bytes) -> TokenLogprob:
        rank = self.rng.choice([1, 1, 1, 2, 3, 25])
        tops = []
        left = 1.0
        for place in range(1, 21):
            share = left * self.rng.uniform(0.3, 0.9)
            left -= share
            other = f"~{place}"
            tops.append([other, other.encode(), share])
        tops.sort(key=lambda one: -one[2])  # type: ignore[operator]
        if rank <= 20:
            tops[rank - 1][:2] = [token, data]
            share = tops[rank - 1][2]  # type: ignore[assignment]
        else:
            share = 1e-12
        return TokenLogprob(
            token=token,
            logprob=_log(share),
            bytes=data,
            rank=rank,
            top=tuple(TopLogprob(str(t), _log(float(p)), bytes(d)) for t, d, p in tops),  # type: ignore[arg-type]
        )

    # ------------------------------------------------------------ the whole

    def _interleaved(self, choices: list[list[Event]]) -> list[Event]:
        events: list[Event] = [
            Started(
                model="m",
                id=f"chatcmpl-{self.rng.getrandbits(60):x}",
                created=NOW,
                service_tier=self.asked.get("service_tier", "default"),
                system_fingerprint="fp_1" if self.chance(0.8) else None,
            )
        ]
        begun = 0
        waiting = [list(choice) for choice in choices]
        while any(waiting):
            index = self.rng.choice([i for i, w in enumerate(waiting) if w and i <= begun])
            begun = max(begun, index + 1)
            events.append(waiting[index].pop(0))
        if "moderation" in self.asked:
            events.append(Moderated(self._moderation()))
        return [*events, Done(self._usage())]

    def _usage(self) -> Usage:
        prompt = self.rng.randint(1, 500)
        cached = self.rng.randint(0, prompt)
        left = self.num_tokens - self.reasoning_tokens
        accepted = self.rng.randint(0, left) if "prediction" in self.asked else 0
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=self.num_tokens,
            cached_tokens=cached,
            cache_write_tokens=self.rng.randint(0, prompt - cached),
            reasoning_tokens=self.reasoning_tokens,
            accepted_prediction_tokens=accepted,
        )

    def _moderation(self) -> Moderation:
        if self.chance(0.2):
            failed = ModerationFailure("moderation_unavailable", "It could not be run.")
            return Moderation(input=failed, output=failed)
        violent = self.chance(0.3)
        result = ModerationResult(
            flagged=violent,
            categories={"hate": False, "violence": violent},
            category_scores={"hate": 0.0, "violence": self.rng.random()},
            category_applied_input_types={"hate": ["text"], "violence": ["text"]},
        )
        results = ModerationResults("omni-moderation-latest", (result,))
        return Moderation(input=results, output=results)

    def exchange(self) -> Exchange:
        dialect = OPENAI if self.o else DEEPINFRA
        stream_options = self.asked.get("stream_options", {})
        options = AnswerOptions(
            stream="stream" in self.asked,
            include_usage=stream_options.get("include_usage", not self.o),
            continuous_usage="continuous_usage_stats" in stream_options,
            include_obfuscation="include_obfuscation" in stream_options,
            logprobs="logprobs" in self.asked,
            num_top_logprobs=self.asked.get("top_logprobs", 0),
            named_tool=isinstance(self.asked.get("tool_choice"), dict),
            legacy_functions="functions" in self.asked,
            moderation="moderation" in self.asked,
        )
        if options.stream:
            encoder = dialect.chunk_encoder(options, POLICY, lambda: "x7Kq2")
            usage = Usage(prompt_tokens=1) if options.continuous_usage else None
            parts = [encoder.feed(event, usage) for event in self.events] + [sse.DONE]
            kind = "text/event-stream"
        else:
            parts = [dialect.encode_completion(collect(self.events), options, POLICY)]
            kind = "application/json"
        body = b"".join(parts)
        return Exchange(
            probe="good",
            dialect=self.dialect,
            request=Request(
                url="http://h/v1/chat/completions", body=json.dumps(self.asked).encode()
            ),
            response=Response(
                headers=(("content-type", kind), ("cache-control", "no-cache")),
                body=body,
                reads=(Read(0, 0.01),),
            ),
            at=NOW,
        )


def _log(share: float) -> float:
    return math.log(share)


def _shown(data: bytes) -> str:
    """A token that is no text by itself, as servers show it."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{b:02x}" for b in data)
