import asyncio
import contextlib
import json
import threading
import time

import jsonschema_rs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rejoinder.engines.llama import constraint as module
from rejoinder.engines.llama.constraint import Constraint, ConstraintCompiler
from rejoinder.errors import EngineFailed, InvalidRequest, Overloaded
from rejoinder.text import lark
from rejoinder.text.schema import Place, check_supported, plain_schema
from rejoinder.types import Grammar, JsonObject
from tests.engines.vocabulary import Vocabulary, byte_vocabulary, model_vocabulary, write
from tests.text.schemas import schemas

PLACE = Place("response_format 'x'", "response_format")
RELAXED = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@pytest.fixture(scope="module", params=["bytes", pytest.param("model", marks=pytest.mark.llama)])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return byte_vocabulary() if request.param == "bytes" else model_vocabulary()


@pytest.fixture(scope="module")
def compiler(vocabulary: Vocabulary) -> ConstraintCompiler:
    return vocabulary.compiler()


def of_schema(schema: JsonObject) -> Grammar:
    check_supported(schema, place=PLACE)
    return Grammar("lark", f"start: {lark.schema(plain_schema(schema))}", "response_format")


def text(start: str) -> Grammar:
    return Grammar("lark", f"start: {start}", "tools")


PERSON: JsonObject = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


# ---------------------------------------------------------------- answers fit


@pytest.mark.llama
def test_answers_fit_200_random_schemas() -> None:
    vocabulary = model_vocabulary()
    compiler = vocabulary.compiler()
    complete = 0

    @given(schemas(), st.integers(0, 2**32))
    @RELAXED
    def check(schema: JsonObject, seed: int) -> None:
        nonlocal complete
        try:
            constraint = compiler.constraint(of_schema(schema))
        except InvalidRequest as refusal:
            # Found out only while compiling: a rule that leaves no answer, or a limit.
            assert refusal.param == "response_format"
            return
        token_ids, ended = write(vocabulary, constraint, seed)
        if ended:
            complete += 1
            answer = vocabulary.text(token_ids)
            jsonschema_rs.validator_for(schema).validate(json.loads(answer))

    check()
    assert complete > 150


@pytest.mark.llama
def test_keys_come_in_the_order_of_the_schema_in_one_spelling() -> None:
    vocabulary = model_vocabulary()
    constraint = vocabulary.compiler().constraint(of_schema(PERSON))
    token_ids, ended = write(vocabulary, constraint, 1)
    answer = vocabulary.text(token_ids)
    assert ended
    assert answer == json.dumps(json.loads(answer), ensure_ascii=False)
    assert list(json.loads(answer)) == ["name", "age"]


def test_a_grammar_of_every_kind(vocabulary: Vocabulary, compiler: ConstraintCompiler) -> None:
    for grammar, wanted in [
        (Grammar("regex", "(yes|no)"), {"yes", "no"}),
        (Grammar("json_schema", '{"enum": ["a", 1]}'), {'"a"', "1"}),
        (text('"x" | "y"'), {"x", "y"}),
    ]:
        answers = set()
        for seed in range(20):
            token_ids, ended = write(vocabulary, compiler.constraint(grammar), seed)
            assert ended
            answers.add(vocabulary.text(token_ids))
        assert answers == wanted


# ---------------------------------------------------------------- one sequence


def test_the_mask_says_what_may_come_next(
    vocabulary: Vocabulary, compiler: ConstraintCompiler
) -> None:
    constraint = compiler.constraint(text('"a" /[xy]/'))
    a, x, z = (vocabulary.tokens.index(char) for char in (b"a", b"x", b"z"))
    assert a in vocabulary.allowed(constraint)
    assert x not in vocabulary.allowed(constraint)
    constraint.advance(a)
    assert set(vocabulary.allowed(constraint)) == {x, vocabulary.tokens.index(b"y")}
    assert not constraint.may_end and not constraint.ended
    with pytest.raises((EngineFailed, InvalidRequest)):
        constraint.advance(z)
    assert vocabulary.allowed(constraint) == []


def test_the_end(vocabulary: Vocabulary, compiler: ConstraintCompiler) -> None:
    ends = set(vocabulary.end_token_ids)
    a = vocabulary.tokens.index(b"a")
    constraint = compiler.constraint(text('"a" "a"?'))
    assert not ends & set(vocabulary.allowed(constraint))
    constraint.advance(a)
    assert constraint.may_end and not constraint.ended
    assert ends <= set(vocabulary.allowed(constraint))
    other = constraint.clone()
    other.advance(min(ends))
    assert other.ended
    constraint.advance(a)
    assert constraint.ended and constraint.may_end
    assert set(vocabulary.allowed(constraint)) == ends
    assert constraint.forced() == []


def test_masks_can_be_written_where_the_caller_wants(compiler: ConstraintCompiler) -> None:
    constraint = compiler.constraint(of_schema(PERSON))
    rows = np.zeros((2, constraint.mask_words), np.int32)
    assert constraint.mask(rows[1]).base is rows
    assert (rows[1] == constraint.mask()).all() and not rows[0].any()
    for wrong in (rows[0][:-1], rows[0].astype(np.int64), np.zeros((1, 4), np.int32)):
        with pytest.raises(ValueError):
            constraint.mask(wrong)


@pytest.mark.llama
def test_forced_tokens_are_allowed_and_all_there_is() -> None:
    """Each is in its mask; where a mask leaves one token it is forced; and the forced text is the
    only text: another way of writing it gives the same bytes."""
    vocabulary = model_vocabulary()
    compiler = vocabulary.compiler()

    @given(schemas(), st.integers(0, 2**32))
    @settings(RELAXED, max_examples=25)
    def check(schema: JsonObject, seed: int) -> None:
        try:
            constraint = compiler.constraint(of_schema(schema))
        except InvalidRequest:
            return
        random = np.random.default_rng(seed)
        for _ in range(25):
            if constraint.ended:
                break
            allowed = vocabulary.allowed(constraint)
            forced = constraint.forced()
            if len(allowed) == 1 and allowed[0] not in vocabulary.end_token_ids:
                assert forced[:1] == allowed
            if forced:
                wanted = b"".join(vocabulary.tokens[i] for i in forced)
                for token_id in allowed:
                    token = vocabulary.tokens[token_id]
                    assert wanted.startswith(token) or token.startswith(wanted)
            ahead = constraint.clone()
            for token_id in forced:
                assert token_id in vocabulary.allowed(ahead)
                ahead.advance(token_id)
            token_id = int(random.choice(allowed))
            if token_id in vocabulary.end_token_ids:
                break
            constraint.advance(token_id)

    check()


@pytest.mark.llama
def test_a_schema_forces_a_good_part_of_its_answer() -> None:
    vocabulary = model_vocabulary()
    constraint = vocabulary.compiler().constraint(of_schema(PERSON))
    assert vocabulary.text(constraint.forced()).strip() == '{"name":'
    constraint.advance(*vocabulary.encode('{"name": "Bo",'))
    assert vocabulary.text(constraint.forced()).strip() == '"age":'


def test_forced_control_tokens(vocabulary: Vocabulary, compiler: ConstraintCompiler) -> None:
    name = next(iter(vocabulary.control_tokens))
    token_id = vocabulary.control_tokens[name]
    if token_id in vocabulary.end_token_ids:
        name, token_id = list(vocabulary.control_tokens.items())[1]
    constraint = compiler.constraint(text(f'"a" <[{token_id}]> "b"'))
    forced = constraint.forced()
    assert forced == [*vocabulary.encode("a"), token_id, *vocabulary.encode("b")]
    constraint.advance(*forced)
    assert constraint.ended


def test_text_cannot_be_mistaken_for_control_tokens(
    vocabulary: Vocabulary, compiler: ConstraintCompiler
) -> None:
    allowed = set(vocabulary.allowed(compiler.constraint(text("/(?s:.+)/"))))
    assert allowed and not allowed & set(vocabulary.control_tokens.values())


def test_clones_and_rollback(vocabulary: Vocabulary, compiler: ConstraintCompiler) -> None:
    constraint = compiler.constraint(of_schema(PERSON))
    start = constraint.mask().copy()
    token_ids = vocabulary.encode('{"name": "B')
    constraint.advance(*token_ids)
    inside = constraint.mask().copy()
    copy = constraint.clone()
    copy.advance(*vocabulary.encode('o", "a'))
    assert (constraint.mask() == inside).all()
    copy.rollback(len(vocabulary.encode('o", "a')))
    assert (copy.mask() == inside).all()
    copy.rollback(len(token_ids))
    assert (copy.mask() == start).all()
    with pytest.raises(ValueError):
        copy.rollback(1)
    assert constraint.accepts(vocabulary.encode("o")) == 1
    assert constraint.accepts(vocabulary.encode("\n")) == 0
    assert (constraint.mask() == inside).all()


# ---------------------------------------------------------------- compiling

UNCOMPILABLE: dict[str, Grammar] = {
    "lookaround": Grammar("regex", "(?=a)b", "response_format"),
    "backreference": Grammar("regex", r"(a)\1", "response_format"),
    "open group": Grammar("regex", "(", "response_format"),
    "lark": text("undefined_rule"),
    "no token": text("<|no_such_token|>"),
    "schema": Grammar("json_schema", '{"type": "nothing"}', "response_format"),
    "not json": Grammar("json_schema", "{", "response_format"),
    "too many words": Grammar(
        "json_schema",
        json.dumps({"enum": [f"{i * 7919}-{i}-word" for i in range(90_000)]}),
        "response_format",
    ),
    "too large": Grammar("regex", "a" * 5_000_000, "response_format"),
    "deep": Grammar("json_schema", '{"items":' * 500 + "{}" + "}" * 500, "response_format"),
}


@pytest.mark.parametrize("name", UNCOMPILABLE)
def test_what_cannot_be_compiled_is_a_400_that_names_its_parameter(
    compiler: ConstraintCompiler, name: str
) -> None:
    grammar = UNCOMPILABLE[name]
    started = time.perf_counter()
    with pytest.raises(InvalidRequest) as caught:
        compiler.constraint(grammar)
    assert time.perf_counter() - started < 5
    assert caught.value.param == grammar.param
    assert len(caught.value.message) < 400 and "start:" not in caught.value.message
    with pytest.raises(InvalidRequest):
        asyncio.run(compiler.prepare(grammar))
    assert compiler.constraint(text('"x"')).forced()


def test_equal_grammars_are_compiled_once(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = vocabulary.compiler()
    compiled: list[str] = []
    compile_ = ConstraintCompiler._compile

    def slowly(self: ConstraintCompiler, grammar: Grammar) -> module.LLMatcher:
        compiled.append(grammar.text)
        time.sleep(0.1)
        return compile_(self, grammar)

    monkeypatch.setattr(ConstraintCompiler, "_compile", slowly)
    found: list[Constraint] = []
    threads = [
        threading.Thread(target=lambda: found.append(compiler.constraint(of_schema(PERSON))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def many() -> list[Constraint]:
        return await asyncio.gather(*(compiler.prepare(of_schema(PERSON)) for _ in range(8)))

    found += asyncio.run(many())
    assert len(compiled) == 1 and len(found) == 16
    found[0].advance(*found[0].forced())
    assert (found[1].mask() == found[2].mask()).all()


def test_a_compilation_that_takes_too_long_is_a_400_and_stops_nobody(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = vocabulary.compiler(compile_seconds=0.05)
    compiler.constraint(text('"warm"'))
    release = threading.Event()
    compile_ = ConstraintCompiler._compile

    def stuck(self: ConstraintCompiler, grammar: Grammar) -> module.LLMatcher:
        if "stuck" in grammar.text:
            release.wait(5)
        return compile_(self, grammar)

    monkeypatch.setattr(ConstraintCompiler, "_compile", stuck)
    with pytest.raises(InvalidRequest) as caught:
        compiler.constraint(text('"stuck 1"'))
    assert caught.value.param == "tools"
    assert compiler.constraint(text('"warm"')).forced()
    assert asyncio.run(compiler.prepare(text('"fresh"'))).forced()
    with pytest.raises(InvalidRequest):
        asyncio.run(compiler.prepare(text('"stuck 2"')))
    with pytest.raises(Overloaded):
        compiler.constraint(text('"waits for a thread"'))
    release.set()
    time.sleep(0.1)
    assert compiler.constraint(text('"stuck 1"')).forced()


def test_the_cache_is_bounded(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_GRAMMARS", 4)
    compiler = vocabulary.compiler()
    for i in range(10):
        compiler.constraint(text(f'"{i}"'))
    assert len(compiler._cache._jobs) == 4
    monkeypatch.setattr(module, "CACHED_CHARACTERS", 200)
    compiler.constraint(text(f'"{"x" * 300}"'))
    assert len(compiler._cache._jobs) == 1
    assert compiler._cache._characters == sum(len(key[1]) for key in compiler._cache._jobs)


def test_closing_ends_the_threads(vocabulary: Vocabulary) -> None:
    compiler = vocabulary.compiler()
    compiler.constraint(text('"x"'))
    compiler.close()
    deadline = time.monotonic() + 5
    while any(t.is_alive() for t in compiler._threads._threads) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(t.is_alive() for t in compiler._threads._threads)


# ---------------------------------------------------------------- limits while generating


def test_a_grammar_that_explodes_fails_its_own_sequence_only(
    vocabulary: Vocabulary, compiler: ConstraintCompiler
) -> None:
    hostile = compiler.constraint(Grammar("lark", 'start: a\na: a a a | "x" a | "x"\n', "tools"))
    healthy = compiler.constraint(of_schema(PERSON))
    x = vocabulary.tokens.index(b"x")
    started = time.perf_counter()
    with pytest.raises(InvalidRequest) as refused:
        for _ in range(5_000):
            if not hostile.mask().any():
                hostile.advance(x)
                raise AssertionError("it goes on though no token was allowed")
            hostile.advance(x)
    assert time.perf_counter() - started < 10
    assert not hostile.mask().any()
    assert refused.value.param == "tools"
    for call in (hostile.forced, lambda: hostile.advance(x)):
        with pytest.raises(InvalidRequest):
            call()
    healthy.advance(*healthy.forced())
    assert not healthy.ended


@pytest.mark.llama
@pytest.mark.parametrize(
    "pattern",
    [
        "^(.*a.{200})$",
        "^(a|b)*a(a|b){60}$",
        "^((a+)+)+$",
        "^(?:[a-z]{0,900}\\d){0,100}$",
        "(\\w{1,64}\\.){1,64}",
        "^(a?){500}a{500}$",
    ],
)
def test_patterns_that_explode_elsewhere_take_bounded_steps(pattern: str) -> None:
    vocabulary = model_vocabulary()
    schema: JsonObject = {"type": "string", "pattern": pattern}
    constraint = vocabulary.compiler().constraint(of_schema(schema))
    slowest = 0.0
    for seed in range(2):
        copy = constraint.clone()
        random = np.random.default_rng(seed)
        try:
            for _ in range(100):
                started = time.perf_counter()
                copy.mask()
                slowest = max(slowest, time.perf_counter() - started)
                allowed = vocabulary.allowed(copy)
                copy.advance(int(random.choice(allowed)) if allowed else 0)
        except InvalidRequest:
            pass
    assert slowest < 0.5


@pytest.mark.llama
def test_the_first_mask_of_50_properties_is_there_in_100_ms() -> None:
    vocabulary = model_vocabulary()
    compiler = vocabulary.compiler()
    kinds: list[JsonObject] = [{"type": "string"}, {"type": "integer"}, {"enum": ["a", "b"]}]
    schema: JsonObject = {
        "type": "object",
        "properties": {f"property_{i}": kinds[i % 3] for i in range(50)},
        "required": [f"property_{i}" for i in range(50)],
    }
    best = min(_first_mask_seconds(compiler, schema, i) for i in range(3))
    assert best < 0.1


def _first_mask_seconds(compiler: ConstraintCompiler, schema: JsonObject, i: int) -> float:
    started = time.perf_counter()
    compiler.constraint(of_schema({**schema, "$defs": {str(i): {}}})).mask()
    return time.perf_counter() - started


@pytest.mark.llama
def test_the_compiler_of_a_tokenizer() -> None:
    vocabulary = model_vocabulary()
    controls = vocabulary.control_tokens

    class Tokenizer:
        end_token_ids = frozenset(vocabulary.end_token_ids)
        control_tokens = controls

        def encode(self, text: str, *, special: bool) -> list[int]:
            assert not special
            return vocabulary.encode(text)

        def token_bytes(self, token_id: int) -> bytes:
            return b"" if token_id in controls.values() else vocabulary.tokens[token_id]

    compiler = ConstraintCompiler.of(Tokenizer(), len(vocabulary.tokens))
    constraint = compiler.constraint(text('<|im_start|> "hello there"'))
    assert constraint.forced() == [controls["<|im_start|>"], *vocabulary.encode("hello there")]


@pytest.mark.parametrize("kind", ["schema", "rules", "terminals"])
def test_long_chains_do_not_run_out_of_stack(compiler: ConstraintCompiler, kind: str) -> None:
    """Longer than any that passes the checks; on an ordinary thread they end the process."""
    number = 4_000
    match kind:
        case "schema":
            defs: JsonObject = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(number)}
            schema: JsonObject = {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{number}": {}}}
            grammar = Grammar("json_schema", json.dumps(schema))
        case "rules":
            lines = [f"r{i}: r{i + 1}" for i in range(number)]
            grammar = Grammar("lark", "\n".join(["start: r0", *lines, f'r{number}: "x"', ""]))
        case _:
            lines = [f'R{i}: R{i + 1} "x"' for i in range(number)]
            grammar = Grammar("lark", "\n".join(["start: R0", *lines, f'R{number}: "x"', ""]))
    with contextlib.suppress(InvalidRequest):
        compiler.constraint(grammar).mask()
