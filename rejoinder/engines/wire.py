"""What the wires of engine servers share: data lines, error bodies, deltas, ranks.

Pure. It must not know: sockets, time, which server it is.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

import msgspec
from msgspec import Struct

from rejoinder.errors import (
    ChatError,
    ContextLengthExceeded,
    InvalidRequest,
    Overloaded,
    ProviderFailed,
)
from rejoinder.types import (
    MAX_TOP_LOGPROBS,
    EngineFinishReason,
    Prompt,
    SamplingParams,
    TokenIdLogprob,
)

MAX_LINE_BYTES = 16 * 1024 * 1024

SMALLEST_TOP_P = 1e-6
"""Both servers refuse 0, which the contract allows: it leaves only the most likely token."""

PRIVATE_STATUSES = {
    401: "The replica refused the key that it was sent.",
    403: "The replica refused the request: the key or a server option forbids it.",
    404: "The replica does not have this model or route.",
    405: "The replica does not have this route.",
}
"""Refusals that are our configuration's fault, not the client's: the server's words stay here."""

NO_CAPACITY = frozenset((408, 425, 429, 503))


def is_given(member: msgspec.Raw) -> bool:
    """Whether an event has this member, as something else than null."""
    return bytes(member) not in (b"", b"null")


class Refused(Exception):
    """The server answered with an error, as a status or within the stream."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message
        self.param = param

    def chat_error(self) -> ChatError:
        """What our client is told: its own faults in the server's words, others in ours (R215)."""
        if self.status in PRIVATE_STATUSES:
            return ProviderFailed(PRIVATE_STATUSES[self.status])
        if self.status in NO_CAPACITY:
            return Overloaded("The replica has no capacity now.")
        if 400 <= self.status < 500:
            if "longer than the max" in self.message or "context length" in self.message:
                return ContextLengthExceeded(self.message, param="messages")
            return InvalidRequest(self.message, param=self.param)
        return ProviderFailed(f"The replica failed with status {self.status}.")


NOTHING = msgspec.Raw()
"""The default of a member whose value is only looked at where it is there."""


class _ErrorBody(Struct):
    message: str = ""
    param: str | None = None
    code: int | str | None = None


class _AnyError(Struct):
    """The shapes that occur: `{"error": {…}}`, `{"error": "…"}`, `{"detail": …}`,
    `{"object": "error", "message": …}`."""

    error: _ErrorBody | str | None = None
    detail: msgspec.Raw = NOTHING
    message: str = ""


_read_error = msgspec.json.Decoder(_AnyError)


def refusal(status: int, body: bytes) -> Refused:
    """The error that a server's answer stands for."""
    try:
        seen = _read_error.decode(body)
    except msgspec.DecodeError:
        return Refused(status, body[:500].decode(errors="replace").strip() or "no message")
    match seen.error:
        case _ErrorBody(message=message, param=param, code=code):
            with suppress(TypeError, ValueError):
                status = int(code) if code is not None and 400 <= int(code) < 600 else status
            return Refused(status, message or "no message", param)
        case str(message):
            return Refused(status, message)
    detail = bytes(seen.detail).decode(errors="replace").strip('"')
    return Refused(status, seen.message or detail or "no message")


class DataLines:
    """The payloads of SSE `data:` lines out of any split of the bytes.

    Engine servers write one line an event; comments, other fields and blank lines are skipped.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The complete payloads so far. Raises ProviderFailed for an endless line."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise ProviderFailed("The replica sent a line that is too long.")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class Delta(Struct, frozen=True):
    """What one event says about one sequence. `token_ids` are without a stop token, `num_tokens`
    counts it. None: the event does not say."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenIdLogprob, ...] | None = None
    num_tokens: int = 0
    finish_reason: EngineFinishReason | None = None
    cached_tokens: int | None = None


DecodeEvent: TypeAlias = Callable[[bytes], Delta]
"""Reads the events of one stream. Raises Refused for an error event, ProviderFailed for what
cannot be an answer to our request."""


class Wire(Protocol):
    """One endpoint for sequences: how it is asked, how it answers."""

    path: str

    def encode(
        self, request_id: str, model: str, prompt: Prompt, params: SamplingParams
    ) -> bytes: ...

    def decoder(self, params: SamplingParams) -> DecodeEvent: ...


def ranked(
    token_id: int, logprob: float, top: Sequence[tuple[int, float]], num_top: int
) -> TokenIdLogprob:
    """A logprob whose rank is its place among the server's best 20 (+ the sampled one itself).

    Not among them: 21, which is all that the contract's sentinel needs (4.1).
    """
    best = sorted(top, key=lambda entry: -entry[1])
    rank = 1 + sum(1 for other, value in best if value > logprob and other != token_id)
    best = [entry for place, entry in enumerate(best, 1) if place <= MAX_TOP_LOGPROBS]
    return TokenIdLogprob(token_id, logprob, min(rank, MAX_TOP_LOGPROBS + 1), tuple(best[:num_top]))


def refuse_long_prompt(
    prompt: Prompt, params: SamplingParams, context_length: int
) -> SamplingParams:
    """The params with no more tokens than fit. Raises ContextLengthExceeded: servers clamp in
    silence, and some refuse a long prompt only within a stream that has begun."""
    room = context_length - len(prompt.token_ids)
    if room < 1:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {context_length} tokens, but the messages "
            f"have {len(prompt.token_ids)} tokens.",
            param="messages",
        )
    if params.max_tokens <= room:
        return params
    return msgspec.structs.replace(params, max_tokens=room)


def naming_grammar(error: InvalidRequest, params: SamplingParams) -> InvalidRequest:
    """The error with the request field that a refused grammar was made from."""
    about_grammar = error.param == "structured_outputs" or "grammar" in error.message.lower()
    if params.grammar is None or not about_grammar:
        return error
    return InvalidRequest(error.message, param=params.grammar.param)
