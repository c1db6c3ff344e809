"""Reasoning: what thoughts look like in each format, and what an effort means (contract 4.4, R57).

Adding a format is one row of `REASONING_FORMATS`. This module must not know: tokens, tools, how
text is split (parser.py does that from these rows).
"""

from msgspec import Struct

from rejoinder.types import Json, JsonObject, ReasoningEffort


class ReasoningFormat(Struct, frozen=True, kw_only=True):
    """`start` and `end` stand around a thought; `end_forms` are further spellings of the end.

    `closing` ends an open thought by force, for a budget that runs out inside it; empty: the format
    cannot be closed so. `skipping` is an empty thought, appended to the prompt when there shall be
    none and the template has no switch. `efforts` are the levels that the template knows by name,
    least first; empty: it takes any name. `template_marks`: a chat template that contains one of
    them writes this format.
    """

    name: str
    start: str = ""
    end: str = ""
    end_forms: tuple[str, ...] = ()
    closing: str = ""
    skipping: str = ""
    efforts: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    template_marks: tuple[str, ...] = ()


_THINK = "<think>"
_END_THINK = "</think>"
_CLOSING = "\n</think>\n\n"
_SKIPPING = "<think>\n\n</think>\n\n"

REASONING_FORMATS: tuple[ReasoningFormat, ...] = (
    ReasoningFormat(
        name="harmony",
        efforts=("low", "medium", "high"),
        skipping="<|channel|>final<|message|>",
        aliases=("gpt_oss", "openai_gptoss", "openai"),
        template_marks=("<|channel|>",),
    ),
    ReasoningFormat(
        name="mistral",
        start="[THINK]",
        end="[/THINK]",
        closing="[/THINK]",
        skipping="[THINK][/THINK]",
        aliases=("magistral",),
        template_marks=("[THINK]",),
    ),
    ReasoningFormat(
        name="granite",
        start="Here is my thought process:",
        end="Here is my response:",
        end_forms=("Here's my response:",),
        closing="\n\nHere is my response:\n",
        aliases=("granite3", "granite_3_2"),
        template_marks=("Here is my thought process:",),
    ),
    ReasoningFormat(
        name="qwen3",
        start=_THINK,
        end=_END_THINK,
        closing=_CLOSING,
        skipping=_SKIPPING,
        aliases=("qwen", "qwen3_5", "glm4", "glm45", "glm4_moe", "kimi_k2", "kimi", "minimax_m2"),
        template_marks=("enable_thinking",),
    ),
    ReasoningFormat(
        name="deepseek_r1",
        start=_THINK,
        end=_END_THINK,
        closing=_CLOSING,
        skipping=_SKIPPING,
        aliases=(
            "deepseek",
            "deepseek_v3",
            "deepseek_v3_1",
            "r1",
            "think",
            "qwq",
            "holo2",
            "step3",
        ),
        template_marks=(_THINK, _END_THINK),
    ),
    ReasoningFormat(name="none", aliases=("plain", "off", "")),
)
"""In the order in which `auto` tries them."""

_BUDGETS: dict[ReasoningEffort, int | None] = {
    "none": 0,
    "minimal": 512,
    "low": 1_024,
    "medium": 4_096,
    "high": 16_384,
    "xhigh": 32_768,
    "max": None,
}


def budget(effort: ReasoningEffort | None) -> int | None:
    """The most tokens that a thought may have; None: no limit of its own."""
    return None if effort is None else _BUDGETS[effort]


def template_kwargs(effort: ReasoningEffort | None, format: ReasoningFormat) -> JsonObject:
    """The variables by which chat templates are told how much to think; none when not asked for.

    Templates read the one that they know: `enable_thinking` (Qwen, GLM), `thinking` (DeepSeek,
    Granite, Kimi), `reasoning_effort` (gpt-oss, Mistral).
    """
    if effort is None or format.name == "none":
        return {}
    thinks = effort != "none"
    level: Json = effort
    if format.efforts:
        order = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
        least, most = order.index(format.efforts[0]), order.index(format.efforts[-1])
        level = order[min(max(order.index(effort), least), most)]
    return {"enable_thinking": thinks, "thinking": thinks, "reasoning_effort": level}


def reasoning_format(name: str) -> ReasoningFormat:
    """The row of a name or alias, in any case, with '-' for '_'. Raises ValueError."""
    plain = plain_name(name)
    for format in REASONING_FORMATS:
        if plain == format.name or plain in format.aliases:
            return format
    names = ", ".join(format.name for format in REASONING_FORMATS)
    raise ValueError(f"unknown reasoning format '{name}'; known: auto, {names}")


def plain_name(name: str) -> str:
    """One spelling of a format's name."""
    return name.strip().lower().replace("-", "_").replace(".", "_")
