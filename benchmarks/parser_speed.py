"""How many characters a second does the text parser read, one core, pieces of 4 characters?

    python benchmarks/parser_speed.py

For every format: an answer with a thought, prose and calls with long arguments, through the whole
`ChoiceDecoder` (bytes → text → parser → stop strings → events). CPU time, which a busy machine
distorts less; the median of five runs.
"""

import json
import statistics
import time

from rejoinder.text.choice import ChoiceDecoder, ChoiceSpec
from rejoinder.text.formats import TOOL_FORMATS, detect_formats
from rejoinder.types import Step, Tool

TEXT = "def f(x):\n    return {'a': [x, \"q\"]}  # é, <b>, 10 % of it\n" * 12
PROSE = "Here is a paragraph of plain words, a < b, [1], {x} and so on. " * 10
TOOL = Tool(
    "write_file",
    None,
    {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}},
)
ARGUMENTS = {"path": "src/a.py", "text": TEXT}
JSON = json.dumps(ARGUMENTS)
CALLS = {
    "hermes": f'<tool_call>\n{{"name": "write_file", "arguments": {JSON}}}\n</tool_call>\n',
    "granite": f'<|tool_call|>[{{"name": "write_file", "arguments": {JSON}}}]',
    "llama3_json": f'\n{{"name": "write_file", "parameters": {JSON}}}; ',
    "json": f'\n{{"name": "write_file", "arguments": {JSON}}}\n',
    "mistral": f"[TOOL_CALLS]write_file[ARGS]{JSON}",
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0"
        f"<|tool_call_argument_begin|>{JSON}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "deepseek_v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write_file\n```json\n"
        f"{JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=write_file>\n<parameter=path>\na\n</parameter>\n"
        f"<parameter=text>\n{TEXT}\n</parameter>\n</function>\n</tool_call>\n"
    ),
    "glm4": (
        "<tool_call>write_file\n<arg_key>path</arg_key>\n<arg_value>a</arg_value>\n"
        f"<arg_key>text</arg_key>\n<arg_value>{TEXT}</arg_value>\n</tool_call>\n"
    ),
    "pythonic": f"\n[write_file(path='a', text={TEXT!r})]\n",
    "harmony": (
        "<|start|>assistant<|channel|>commentary to=functions.write_file <|constrain|>json"
        f"<|message|>{JSON}<|call|>"
    ),
    "none": TEXT,
}


def answer(format: str) -> str:
    if format == "harmony":
        thought = f"<|channel|>analysis<|message|>{PROSE}<|end|>"
        return (
            thought
            + f"<|start|>assistant<|channel|>final<|message|>{PROSE}<|end|>"
            + CALLS[format] * 8
        )
    return f"<think>{PROSE}</think>\n\n{PROSE}" + CALLS[format] * 8


def measure(format: str) -> tuple[float, int]:
    """Characters a second, and how many calls came out."""
    text = answer(format)
    tokens = [text[i : i + 4].encode() for i in range(0, len(text), 4)]
    steps = [Step((i,)) for i in range(len(tokens))]
    _, reasoning = detect_formats("", format, "harmony" if format == "harmony" else "qwen3")
    spec = ChoiceSpec(
        tools=(TOOL,),
        tool_format=format,
        reasoning_format=reasoning,
        stop=("\nHuman:", "###"),
        new_call_id=lambda: "call_0",
    )
    speeds = []
    num_calls = 0
    for _ in range(5):
        decoder = ChoiceDecoder(index=0, token_bytes=tokens.__getitem__, spec=spec)
        start = time.process_time()
        events = [event for step in steps for event in decoder.feed(step)]
        events += decoder.flush("stop")
        speeds.append(len(text) / (time.process_time() - start))
        num_calls = sum(type(event).__name__ == "ToolCallStart" for event in events)
    return statistics.median(speeds), num_calls


def main() -> None:
    print(f"{'format':<14}{'characters/s':>14}{'calls':>7}")
    for format in TOOL_FORMATS:
        speed, num_calls = measure(format)
        print(f"{format:<14}{speed:>14,.0f}{num_calls:>7}")


if __name__ == "__main__":
    main()
