"""The core types: what a chat request, a prompt, an engine step and a finished answer are.

Frozen values without live objects. `UNSET` means absent and `None` means null; no field uses both.
This module must not know: HTTP, JSON spelling, dialects, any engine.
"""

from collections.abc import AsyncGenerator
from decimal import Decimal
from typing import Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""A parsed JSON value. Objects keep the order of their keys."""

JsonObject: TypeAlias = dict[str, Json]

Tier = Literal["default", "priority", "flex"]
"""The service tiers that exist here; what a request may ask for is wider (`ServiceTierChoice`)."""

ServiceTierChoice = Literal["auto", "default", "flex", "scale", "priority", "fast"]

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "malformed_function_call"]
"""Why a choice ended. A legacy function call is `tool_calls` here; the dialect spells it."""

EngineFinishReason = Literal["stop", "length"]

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


# ---------------------------------------------------------------- messages


class TextPart(Struct, frozen=True, tag="text"):
    """A text content part. `cache_breakpoint`: a reusable prefix of the prompt ends here."""

    text: str
    cache_breakpoint: bool = False


class ImagePart(Struct, frozen=True, tag="image_url"):
    url: str
    detail: str = "auto"


class AudioPart(Struct, frozen=True, tag="input_audio"):
    data: str
    format: str = "wav"


class FilePart(Struct, frozen=True, tag="file"):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class VideoPart(Struct, frozen=True, tag="video_url"):
    url: str


class RefusalPart(Struct, frozen=True, tag="refusal"):
    refusal: str


ContentPart: TypeAlias = TextPart | ImagePart | AudioPart | FilePart | VideoPart | RefusalPart

Content: TypeAlias = str | tuple[ContentPart, ...]
"""A message's content: one string, or parts in order."""


class ToolCall(Struct, frozen=True):
    """A complete call. `arguments` is the model's own spelling, for a custom tool its free text."""

    id: str
    name: str
    arguments: str
    kind: Literal["function", "custom"] = "function"


class SystemMessage(Struct, frozen=True, tag="system"):
    content: Content
    name: str | None = None
    cache_breakpoint: bool = False


class DeveloperMessage(Struct, frozen=True, tag="developer"):
    content: Content
    name: str | None = None
    cache_breakpoint: bool = False


class UserMessage(Struct, frozen=True, tag="user"):
    content: Content
    name: str | None = None
    cache_breakpoint: bool = False


class AssistantMessage(Struct, frozen=True, tag="assistant"):
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    cache_breakpoint: bool = False


class ToolMessage(Struct, frozen=True, tag="tool"):
    content: Content
    tool_call_id: str
    cache_breakpoint: bool = False


class FunctionMessage(Struct, frozen=True, tag="function"):
    """The deprecated answer to a legacy function call."""

    content: str | None
    name: str


Message: TypeAlias = (
    SystemMessage
    | DeveloperMessage
    | UserMessage
    | AssistantMessage
    | ToolMessage
    | FunctionMessage
)


# ---------------------------------------------------------------- tools and formats


class Tool(Struct, frozen=True):
    """A function. `parameters` is a JSON Schema; None: the function takes no arguments."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool = False
    cache_breakpoint: bool = False


class CustomTool(Struct, frozen=True):
    """A tool whose argument is free text, held to a grammar when `syntax` is set."""

    name: str
    description: str | None = None
    syntax: Literal["text", "lark", "regex"] = "text"
    definition: str = ""


AnyTool: TypeAlias = Tool | CustomTool


class ToolChoice(Struct, frozen=True):
    """`mode` none, auto or required; `allowed`: only these names (one name: a named choice).

    `named` tells a choice of one given tool from a set of allowed tools with one member (A14).
    """

    mode: Literal["none", "auto", "required"] = "auto"
    allowed: tuple[str, ...] | None = None
    named: bool = False


class TextFormat(Struct, frozen=True, tag="text"):
    pass


class JsonObjectFormat(Struct, frozen=True, tag="json_object"):
    pass


class JsonSchemaFormat(Struct, frozen=True, tag="json_schema"):
    """`enforced`: the answer is held to the schema; otherwise it is a hint to the model (4.8)."""

    name: str
    schema: JsonObject | None = None
    description: str | None = None
    strict: bool = False
    enforced: bool = False


class RegexFormat(Struct, frozen=True, tag="regex"):
    regex: str


ResponseFormat: TypeAlias = TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat


class Reasoning(Struct, frozen=True):
    """`effort` None: not asked for. "none": no reasoning tokens at all (R57)."""

    effort: ReasoningEffort | None = None


class ModerationRequest(Struct, frozen=True):
    """Moderation asked for by the request (contract 2.8, 4.10)."""

    model: str
    input_mode: Literal["score", "block"] = "score"
    output_mode: Literal["score", "block"] = "score"


class PromptCache(Struct, frozen=True):
    """`key` routes equal prefixes together (A22); mode explicit: reuse only at breakpoints."""

    key: str | None = None
    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: str | None = None


# ---------------------------------------------------------------- the request


class ChatRequest(Struct, frozen=True, kw_only=True):
    """One validated request, the same for both dialects.

    Sampling fields have the contract's ranges (1.3); None means the client did not set it and
    the engine's or provider's default applies. `account` and `tier` are set by admission.
    """

    model: str
    messages: tuple[Message, ...]
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: bool = False
    num_top_logprobs: int = 0
    max_tokens: int | None = None
    max_tokens_param: str = "max_tokens"
    """The name the client used for the limit, to name it in errors."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    tools: tuple[AnyTool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    legacy_functions: bool = False
    """The request used `functions` / `function_call`; at most one call (R150)."""
    return_malformed_calls: bool = False
    """A call that cannot be parsed comes back as text (A16) instead of being dropped (4.12)."""
    response_format: ResponseFormat = TextFormat()
    reasoning: Reasoning = Reasoning()
    chat_template_kwargs: JsonObject = msgspec.field(default_factory=dict)
    continue_final_message: bool = False
    prediction: str | None = None
    service_tier: ServiceTierChoice | None = None
    moderation: ModerationRequest | None = None
    store: bool = False
    metadata: tuple[tuple[str, str], ...] = ()
    prompt_cache: PromptCache = PromptCache()
    user: str | None = None
    safety_identifier: str | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    account: str = ""
    tier: Tier = "default"


class AnswerOptions(Struct, frozen=True, kw_only=True):
    """How the answer to one request is spelled; nothing an engine or backend needs."""

    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    include_obfuscation: bool = False
    logprobs: bool = False
    num_top_logprobs: int = 0
    named_tool: bool = False
    legacy_functions: bool = False
    moderation: bool = False


class DecodedRequest(Struct, frozen=True):
    """A request body after its dialect: what is asked, and how the answer is spelled.

    `ignored`: parameters that the dialect or the configuration ignores, to be named in the
    header `x-ignored-parameters`.
    """

    chat: ChatRequest
    answer: AnswerOptions
    ignored: tuple[str, ...] = ()


# ---------------------------------------------------------------- engine level


class Grammar(Struct, frozen=True):
    """A declarative constraint on the generated text, applied by the engine.

    `lark`: llguidance's Lark dialect, in which special tokens are written `<|name|>`;
    `json_schema`: the schema as JSON text; `regex`: a regular expression over the whole text.
    `param`: the request field it was made from, to be named when it cannot be compiled.
    """

    kind: Literal["lark", "json_schema", "regex"]
    text: str
    param: str | None = None


MAX_TOP_LOGPROBS = 20
"""The most alternatives that the contract knows; behind them a rank is not told (A10, R156)."""


class SamplingParams(Struct, frozen=True, kw_only=True):
    """What an engine needs to pick tokens (contract 4.3). `seed` is the choice's own (4.2)."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    num_top_logprobs: int | None = None
    """None: no logprobs; 0: of the sampled token only."""
    stop_token_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None
    prediction: tuple[int, ...] = ()
    """Token ids of the predicted output (contract 4.5), empty without one."""
    tier: Tier = "default"


class Prompt(Struct, frozen=True, kw_only=True):
    """Token ids and what the prefix cache may do with them.

    `cache_salt`: one per account; nothing is shared, counted or timed across salts.
    `cache_breakpoints`: lengths of prefixes to keep; `cache_explicit`: keep nothing else (4.6).
    """

    token_ids: tuple[int, ...]
    cache_salt: str = ""
    cache_key: str = ""
    cache_breakpoints: tuple[int, ...] = ()
    cache_explicit: bool = False


class TokenIdLogprob(Struct, frozen=True):
    """Natural log of the raw probability of one sampled token, its rank (1 = most likely) and
    the best alternatives as (token id, logprob), most likely first (contract 4.1, A10)."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


class Step(Struct, frozen=True):
    """Tokens of one sequence, in order. A stop token id is not among them; it is in the counts.

    `logprobs`: one per token id when asked. `finish_reason` only on the last step.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenIdLogprob, ...] | None = None
    finish_reason: EngineFinishReason | None = None


class Counts:
    """What one sequence has cost so far; the engine writes, everybody else reads at any time.

    It is right also when the sequence is closed early: that is why it is not in the steps.
    Units: tokens.
    """

    __slots__ = (
        "accepted_prediction_tokens",
        "cache_write_tokens",
        "cached_tokens",
        "completion_tokens",
        "prompt_tokens",
        "rejected_prediction_tokens",
    )

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.cache_write_tokens = 0
        self.completion_tokens = 0
        self.accepted_prediction_tokens = 0
        self.rejected_prediction_tokens = 0


class Usage(Struct, frozen=True, kw_only=True):
    """The counters of one request, in tokens (contract 2.6). The prompt counts once for any n.

    `completion_tokens` includes reasoning and rejected prediction tokens. `estimated`: a provider
    did not report them and they were counted from its stream.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    estimated: bool = False

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Meter:
    """The running counts of one request: one `Counts` a sequence, plus what only text tells.

    Made by the service, written by backends, read by the service at the end of the request
    however it ends. A backend without tokens of its own sets `reported`.
    """

    __slots__ = ("reasoning_tokens", "reported", "sequences")

    def __init__(self) -> None:
        self.sequences: list[Counts] = []
        self.reasoning_tokens = 0
        self.reported: Usage | None = None

    def sequence(self) -> Counts:
        """A new sequence's counts."""
        counts = Counts()
        self.sequences.append(counts)
        return counts

    def usage(self) -> Usage:
        """The counts so far. Sequences of one request share their prompt: it counts once, as
        cached only where it was before the first of them, as written only once."""
        if self.reported is not None:
            return self.reported
        started = [c for c in self.sequences if c.prompt_tokens]
        if not started:
            return Usage()
        cached = min(c.cached_tokens for c in started)
        prompt_tokens = max(c.prompt_tokens for c in started)
        completion_tokens = sum(c.completion_tokens for c in started)
        written = max(c.cache_write_tokens for c in started)
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cached_tokens=cached,
            cache_write_tokens=min(written, prompt_tokens - cached),
            reasoning_tokens=min(self.reasoning_tokens, completion_tokens),
            accepted_prediction_tokens=sum(c.accepted_prediction_tokens for c in started),
            rejected_prediction_tokens=sum(c.rejected_prediction_tokens for c in started),
        )


class Engine(Protocol):
    """Prompt → steps, at token level. One call is one sequence; closing the generator aborts it."""

    @property
    def context_length(self) -> int:
        """The most tokens, prompt and answer together, that one sequence may have."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes iff weights, tokenizer, sampler or numeric backend change (contract 4.2)."""
        ...

    def generate(
        self, prompt: Prompt, params: SamplingParams, counts: Counts
    ) -> AsyncGenerator[Step, None]: ...

    async def close(self) -> None: ...


class Tokenizer(Protocol):
    """Token ids ⇄ bytes of one model."""

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Ids that end a turn; they are never part of the answer."""
        ...

    @property
    def control_tokens(self) -> dict[str, int]:
        """Every control token of the model by its text."""
        ...

    def encode(self, text: str, *, special: bool) -> list[int]:
        """`special`: control tokens written in the text become their ids (template markup only)."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text; empty for a control token.

        Raises InvalidParameter for an id outside the vocabulary.
        """
        ...


# ---------------------------------------------------------------- text level logprobs, completion


class TopLogprob(Struct, frozen=True):
    token: str
    logprob: float
    bytes: bytes | None


class TokenLogprob(Struct, frozen=True):
    """One token of the answer. `rank` is 1 for the most likely, None where a provider hides it."""

    token: str
    logprob: float
    bytes: bytes | None
    rank: int | None = None
    top: tuple[TopLogprob, ...] = ()


class ModerationResult(Struct, frozen=True):
    """One scored text. The three maps have the same keys; scores are in [0, 1] (R195)."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[Literal["text", "image"]]]


class ModerationResults(Struct, frozen=True, tag="moderation_results"):
    model: str
    results: tuple[ModerationResult, ...]


class ModerationFailure(Struct, frozen=True, tag="error"):
    code: str
    message: str


ModerationOutcome: TypeAlias = ModerationResults | ModerationFailure


class Moderation(Struct, frozen=True):
    """Both halves of a moderation; they fail independently (contract 2.8)."""

    input: ModerationOutcome
    output: ModerationOutcome


class Choice(Struct, frozen=True, kw_only=True):
    """One finished choice. `content` None: there was no text at all."""

    index: int
    finish_reason: FinishReason
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    content_logprobs: tuple[TokenLogprob, ...] | None = None
    refusal_logprobs: tuple[TokenLogprob, ...] | None = None


class Completion(Struct, frozen=True, kw_only=True):
    """The fold of one event stream."""

    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: Usage
    service_tier: str = "default"
    system_fingerprint: str | None = None
    moderation: Moderation | None = None
    estimated_cost: Decimal | None = None
