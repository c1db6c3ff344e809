"""A request body → a DecodedRequest: the rules between parameters, and the core's terms.

The table of single parameters is in `parameters`. This module must not know: HTTP, backends.
"""

from collections.abc import Callable
from functools import cache

from rejoinder.dialects.json_body import parse_object
from rejoinder.dialects.messages import check_tool_answers, mentions_json, modern
from rejoinder.dialects.parameters import Parameters, parameters_shape
from rejoinder.dialects.profile import Profile
from rejoinder.dialects.shapes import Ignored, Shape
from rejoinder.dialects.violation import MAX_PARAM, Violation, clean
from rejoinder.types import (
    AnswerOptions,
    AssistantMessage,
    ChatRequest,
    DecodedRequest,
    JsonObjectFormat,
    PromptCache,
    Reasoning,
    ReasoningEffort,
    ToolChoice,
)

_MAX_IGNORED = 32

_ADVICE = ' A server whose configuration has server.extra_parameters = "accept" lets it through.'

_shape_of: Callable[[Profile], Shape] = cache(parameters_shape)


def decode(body: bytes, profile: Profile) -> DecodedRequest:
    """Raises a ChatError that names the parameter."""
    try:
        return _decode(body, profile)
    except Violation as violation:
        if violation.code == "unknown_parameter":
            violation.rest += _ADVICE
        raise violation.chat_error(profile.spell) from None


def _decode(body: bytes, profile: Profile) -> DecodedRequest:
    ignored: Ignored = []
    parameters: Parameters = _shape_of(profile)(parse_object(body), ignored)
    for rule in _RULES[profile.dialect]:
        rule(parameters)
    return DecodedRequest(
        chat=_chat(parameters, profile),
        answer=_answer(parameters, profile),
        ignored=tuple(_header_text(profile.spell(path)) for path in ignored[:_MAX_IGNORED]),
    )


def _header_text(name: str) -> str:
    """A client's own key, harmless in an HTTP header."""
    return clean(name, MAX_PARAM).encode("ascii", "backslashreplace").decode()


# ---------------------------------------------------------------- rules between parameters

Rule = Callable[[Parameters], None]


def _fault(param: str, text: str, code: str | None = None) -> Violation:
    return Violation(code, text, path=(param,))


def _stream_options_need_stream(p: Parameters) -> None:  # R28
    if p.stream_options is not None and not p.stream:
        raise _fault(
            "stream_options", "The 'stream_options' parameter is only allowed with 'stream': true."
        )


def _top_logprobs_need_logprobs(p: Parameters) -> None:  # R27
    if p.top_logprobs is not None and not p.logprobs:
        raise _fault(
            "top_logprobs", "The 'top_logprobs' parameter is only allowed with 'logprobs': true."
        )


def _one_token_limit(p: Parameters) -> None:  # R32
    if p.max_tokens is not None and p.max_completion_tokens is not None:
        raise _fault(
            "max_tokens",
            "Only one of 'max_tokens' and 'max_completion_tokens' may be set.",
            "invalid_parameter_combination",
        )


def _tool_options_need_tools(p: Parameters) -> None:  # R35
    if not p.tools:
        for name, value in (
            ("tool_choice", p.tool_choice),
            ("parallel_tool_calls", p.parallel_tool_calls),
        ):
            if value is not None:
                raise _fault(name, f"The '{name}' parameter is only allowed with 'tools'.")


def _tool_choice_names_a_tool(p: Parameters) -> None:  # R37
    choice = p.tool_choice
    if choice is None or choice.mode == "none":
        return
    if choice.mode == "required" and not p.tools:
        raise _fault("tool_choice", "There are no 'tools' that 'tool_choice' could require.")
    _require_given("tool_choice", "tools", choice, {tool.name for tool in p.tools or ()})


def _function_call_names_a_function(p: Parameters) -> None:
    if p.function_call is None:
        return
    if p.functions is None:
        raise _fault(
            "function_call", "The 'function_call' parameter is only allowed with 'functions'."
        )
    given = {function.name for function in p.functions}
    _require_given("function_call", "functions", p.function_call, given)


def _require_given(param: str, among: str, choice: ToolChoice, given: set[str]) -> None:
    for name in choice.allowed or ():
        if name not in given:
            raise _fault(
                param,
                f"Invalid value for '{param}': no tool named '{name[:64]}' is in '{among}'.",
                "invalid_value",
            )


def _tools_or_functions(p: Parameters) -> None:
    if p.tools is not None and p.functions is not None:
        raise _fault(
            "functions",
            "The deprecated parameter 'functions' is not allowed together with 'tools'.",
            "invalid_parameter_combination",
        )


def _json_object_needs_the_word(p: Parameters) -> None:  # R42
    if isinstance(p.response_format, JsonObjectFormat) and not mentions_json(p.messages):
        raise _fault(
            "messages",
            "With 'response_format' of type 'json_object' the messages must contain the word "
            "'json' in some form.",
        )


def _tool_messages_answer_calls(p: Parameters) -> None:  # R45, R46
    check_tool_answers(p.messages)


def _continuing_needs_a_beginning(p: Parameters) -> None:  # R66
    if p.continue_final_message and not isinstance(p.messages[-1], AssistantMessage):
        raise _fault(
            "continue_final_message",
            "'continue_final_message' needs a last message with role 'assistant'.",
        )


_RULES: dict[str, tuple[Rule, ...]] = {
    "openai": (
        _stream_options_need_stream,
        _top_logprobs_need_logprobs,
        _one_token_limit,
        _tools_or_functions,
        _tool_options_need_tools,
        _tool_choice_names_a_tool,
        _function_call_names_a_function,
        _tool_messages_answer_calls,
        _json_object_needs_the_word,
        _continuing_needs_a_beginning,
    ),
    "deepinfra": (
        _tool_choice_names_a_tool,
        _continuing_needs_a_beginning,
    ),
}


# ---------------------------------------------------------------- the core's terms


def _chat(p: Parameters, profile: Profile) -> ChatRequest:
    is_legacy = p.functions is not None
    return ChatRequest(
        model=p.model,
        messages=modern(p.messages),
        n=p.n,
        temperature=p.temperature,
        top_p=p.top_p,
        top_k=p.top_k,
        min_p=p.min_p,
        presence_penalty=p.presence_penalty,
        frequency_penalty=p.frequency_penalty,
        repetition_penalty=p.repetition_penalty,
        seed=p.seed,
        logit_bias=p.logit_bias,
        logprobs=p.logprobs,
        num_top_logprobs=p.top_logprobs or 0,
        max_tokens=p.max_tokens if p.max_completion_tokens is None else p.max_completion_tokens,
        max_tokens_param=(
            "max_tokens" if p.max_completion_tokens is None else "max_completion_tokens"
        ),
        stop=p.stop,
        stop_token_ids=p.stop_token_ids,
        tools=(p.functions if is_legacy else p.tools) or (),
        tool_choice=_tool_choice(p),
        parallel_tool_calls=p.parallel_tool_calls is not False and not is_legacy,
        legacy_functions=is_legacy,
        return_malformed_calls=not profile.is_deepinfra,
        response_format=p.response_format,
        reasoning=Reasoning(_effort(p)),
        chat_template_kwargs=p.chat_template_kwargs,
        continue_final_message=p.continue_final_message,
        prediction=p.prediction,
        service_tier=p.service_tier,
        moderation=p.moderation,
        store=p.store,
        metadata=p.metadata,
        prompt_cache=_prompt_cache(p),
        user=p.user,
        safety_identifier=p.safety_identifier,
        verbosity=p.verbosity,
    )


def _tool_choice(p: Parameters) -> ToolChoice:
    """Without one: none where there are no tools, else auto."""
    given = p.function_call if p.functions is not None else p.tool_choice
    if given is not None:
        return given
    return ToolChoice("auto" if p.tools or p.functions else "none")


def _effort(p: Parameters) -> ReasoningEffort | None:
    """`enabled: false` wins, then `reasoning.effort`, then `reasoning_effort` (A23)."""
    reasoning = p.reasoning
    if reasoning is None:
        return p.reasoning_effort
    if reasoning.enabled is False:
        return "none"
    return reasoning.effort if reasoning.effort is not None else p.reasoning_effort


def _prompt_cache(p: Parameters) -> PromptCache:
    options = p.prompt_cache_options
    ttl = options.ttl if options is not None else None
    if ttl is None and p.prompt_cache_retention == "24h":
        ttl = "24h"
    return PromptCache(
        key=p.prompt_cache_key,
        mode=options.mode if options is not None else "implicit",
        ttl=ttl,
    )


def _answer(p: Parameters, profile: Profile) -> AnswerOptions:
    options = p.stream_options
    include_usage = options.include_usage if options is not None else None
    choice = _tool_choice(p)
    return AnswerOptions(
        stream=p.stream,
        include_usage=profile.is_deepinfra if include_usage is None else include_usage,
        continuous_usage=options is not None and options.continuous_usage_stats,
        include_obfuscation=options is not None and options.include_obfuscation,
        logprobs=p.logprobs,
        num_top_logprobs=p.top_logprobs or 0,
        named_tool=choice.named,
        legacy_functions=p.functions is not None,
        moderation=p.moderation is not None,
    )
