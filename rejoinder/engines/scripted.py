"""The scripted engine: deterministic answers, delays and faults from a JSON-lines script.

It is part of the product: users test their applications with it (docs/scripted.md). Its tokenizer
has one token per byte of the prompt and one per piece of the answer. It must not know: messages,
formats, HTTP.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from rejoinder.errors import ContextLengthExceeded, EngineFailed, InvalidParameter
from rejoinder.types import (
    Counts,
    EngineFinishReason,
    Prompt,
    SamplingParams,
    Step,
    TokenIdLogprob,
)

NUM_BYTE_TOKENS = 256
END_TOKEN_ID = 256
FIRST_PIECE_ID = 257


class ScriptError(Exception):
    """The script cannot be used; the text names the file and the line."""


class When(Struct, frozen=True, forbid_unknown_fields=True):
    """What a line answers: every given member must hold."""

    model: str | None = None
    contains: str | None = None


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """After this many tokens: an error, silence, or the end of the engine."""

    after: int
    kind: Literal["engine_error", "stall", "die"]


class ScriptedLogprob(Struct, frozen=True, forbid_unknown_fields=True):
    logprob: float
    rank: int = 1
    top: tuple[tuple[str, float], ...] = ()


class ScriptLine(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the script; one of `pieces` and `tokens_bytes` is given."""

    when: When | None = None
    pieces: tuple[str, ...] | None = None
    tokens_bytes: tuple[tuple[int, ...], ...] | None = None
    end: EngineFinishReason = "stop"
    prompt_opens_think: bool | None = None
    delay_ms: float = 0
    fault: Fault | None = None
    logprobs: tuple[ScriptedLogprob, ...] | None = None
    refusal: bool = False
    """The answer is a refusal: its text is shown as one where the dialect has refusals."""


class _Answer(Struct, frozen=True):
    """A script line with its tokens numbered."""

    line: ScriptLine
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenIdLogprob, ...]


class ScriptedTokenizer:
    """Ids 0–255 are bytes, one is the end of the turn, the rest are the script's own pieces."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._ids: dict[bytes, int] = {}

    @property
    def end_token_ids(self) -> frozenset[int]:
        return frozenset((END_TOKEN_ID,))

    @property
    def control_tokens(self) -> dict[str, int]:
        return {}

    def encode(self, text: str, *, special: bool) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        if 0 <= token_id < NUM_BYTE_TOKENS:
            return bytes((token_id,))
        if token_id == END_TOKEN_ID:
            return b""
        if FIRST_PIECE_ID <= token_id < FIRST_PIECE_ID + len(self._pieces):
            return self._pieces[token_id - FIRST_PIECE_ID]
        raise InvalidParameter(f"Token id {token_id} is not in the vocabulary.", param="tokens")

    def piece_id(self, piece: bytes) -> int:
        """The id of a piece of the script; a new one the first time."""
        if piece not in self._ids:
            self._ids[piece] = FIRST_PIECE_ID + len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]


class ScriptedEngine:
    """Answers every prompt from its script, token by token, the same way each time."""

    def __init__(
        self,
        script: str,
        *,
        model: str = "",
        context_length: int = 131_072,
    ) -> None:
        """`script`: the text of the script, one JSON object a line. Raises ScriptError."""
        self.tokenizer = ScriptedTokenizer()
        self._model = model
        self._context_length = context_length
        self._answers = [self._number(line) for line in parse_script(script)]
        self._fingerprint = "fp_" + hashlib.sha256(script.encode()).hexdigest()[:10]
        self._dead = False

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def failure(self) -> str | None:
        """Why the engine can serve no longer, after a fault of kind `die`."""
        return "the scripted engine has died" if self._dead else None

    def opens_thinking(self, prompt: Prompt) -> bool | None:
        """Whether the script says that this prompt ends inside a thought; None: it does not say."""
        return self._choose(prompt).line.prompt_opens_think

    def refuses(self, prompt: Prompt) -> bool:
        """Whether the script's answer to this prompt is a refusal."""
        return self._choose(prompt).line.refusal

    async def generate(
        self, prompt: Prompt, params: SamplingParams, counts: Counts
    ) -> AsyncGenerator[Step, None]:
        if self._dead:
            raise EngineFailed("The scripted engine has died.")
        if len(prompt.token_ids) >= self._context_length:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {self._context_length} tokens, but the "
                f"messages have {len(prompt.token_ids)} tokens.",
                param="messages",
            )
        answer = self._choose(prompt)
        line = answer.line
        counts.prompt_tokens = len(prompt.token_ids)
        room = min(params.max_tokens, self._context_length - len(prompt.token_ids))
        for number, token_id in enumerate(answer.token_ids):
            await self._wait_or_fail(line, number)
            if number == room:
                yield Step((), finish_reason="length")
                return
            if token_id in params.stop_token_ids:
                counts.completion_tokens += 1
                yield Step((), finish_reason="stop")
                return
            counts.completion_tokens += 1
            logprobs = None
            if params.num_top_logprobs is not None:
                entry = answer.logprobs[number]
                shown = entry.top[: params.num_top_logprobs]
                logprobs = (msgspec.structs.replace(entry, top=shown),)
            yield Step((token_id,), logprobs=logprobs)
        await self._wait_or_fail(line, len(answer.token_ids))
        yield Step((), finish_reason="length" if room <= len(answer.token_ids) else line.end)

    async def close(self) -> None:
        self._dead = True

    async def _wait_or_fail(self, line: ScriptLine, number: int) -> None:
        if line.delay_ms:
            await asyncio.sleep(line.delay_ms / 1000)
        fault = line.fault
        if fault is None or fault.after != number:
            return
        match fault.kind:
            case "stall":
                await asyncio.Event().wait()
            case "die":
                self._dead = True
                raise EngineFailed("The scripted engine has died.")
            case "engine_error":
                raise EngineFailed("The scripted engine failed, as its script says.")

    def _choose(self, prompt: Prompt) -> _Answer:
        text = bytes(i for i in prompt.token_ids if i < NUM_BYTE_TOKENS).decode(errors="replace")
        default: _Answer | None = None
        for answer in self._answers:
            when = answer.line.when
            if when is None:
                default = answer
            elif when.model in (None, self._model) and (when.contains or "") in text:
                return answer
        if default is None:
            raise EngineFailed("No line of the script answers this prompt, and none is a default.")
        return default

    def _number(self, line: ScriptLine) -> _Answer:
        pieces = [bytes(token) for token in line.tokens_bytes or ()]
        pieces += [piece.encode() for piece in line.pieces or ()]
        ids = tuple(self.tokenizer.piece_id(piece) for piece in pieces)
        if line.logprobs is None:
            return _Answer(line, ids, tuple(TokenIdLogprob(i, 0.0, 1, ((i, 0.0),)) for i in ids))
        logprobs = tuple(
            TokenIdLogprob(
                token_id,
                entry.logprob,
                entry.rank,
                tuple((self.tokenizer.piece_id(t.encode()), value) for t, value in entry.top),
            )
            for token_id, entry in zip(ids, line.logprobs, strict=True)
        )
        return _Answer(line, ids, logprobs)


def read_script(path: Path) -> str:
    """The text of a script file. Raises ScriptError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScriptError(f"{path}: cannot be read: {error}") from None


def parse_script(text: str) -> list[ScriptLine]:
    """Raises ScriptError that names the line."""
    lines = []
    for number, raw in enumerate(text.split("\n"), 1):
        if not raw.strip():
            continue
        try:
            line = msgspec.json.decode(raw.encode(), type=ScriptLine)
            _check(line)
        except (msgspec.DecodeError, ValueError) as error:
            raise ScriptError(f"line {number}: {error}") from None
        lines.append(line)
    if not lines:
        raise ScriptError("the script has no line")
    return lines


def _check(line: ScriptLine) -> None:
    if (line.pieces is None) == (line.tokens_bytes is None):
        raise ValueError("give either `pieces` or `tokens_bytes`")
    for token in line.tokens_bytes or ():
        if not all(0 <= byte <= 255 for byte in token):
            raise ValueError("`tokens_bytes` holds a number that is not a byte")
    tokens = line.pieces if line.pieces is not None else line.tokens_bytes
    if line.logprobs is not None and len(line.logprobs) != len(tokens or ()):
        raise ValueError("`logprobs` needs one entry a token")
