"""What do the checks inside the service cost?

    python benchmarks/check_cost.py

Medians of 7 rounds, in one process: the always-on check of a frame (must stay below 5 µs), the
event grammar next to it, encoding a frame for comparison, and all rules on one sampled answer.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from rejoinder.check.live import LiveCheck, Sample, check_sample
from rejoinder.dialects import DIALECTS, RequestPolicy, sse
from rejoinder.events import ContentDelta, Done, Event, EventGrammar, Finished, Started
from rejoinder.types import AnswerOptions, TokenLogprob, TopLogprob, Usage

COUNT = 5_000
REQUEST = b'{"model":"m","stream":true,"messages":[]%s}'


def events(*, logprobs: bool) -> list[Event]:
    top = tuple(TopLogprob(f"t{n}", -1.0 - n, b"t%d" % n) for n in range(5))
    tokens = (TokenLogprob(" token", -1.0, b" token", 1, top),) if logprobs else None
    return [
        Started(model="m", id="chatcmpl-1", created=1_790_000_000),
        *(ContentDelta(0, " token", tokens) for _ in range(COUNT)),
        Finished(0, "stop"),
        Done(Usage(prompt_tokens=5, completion_tokens=COUNT)),
    ]


def median_us(run: Callable[[], object], per: int) -> float:
    times = []
    for _ in range(7):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return statistics.median(times) / per * 1e6


def main() -> int:
    worst = 0.0
    for name in DIALECTS:
        for logprobs in (False, True):
            stream = events(logprobs=logprobs)
            options = AnswerOptions(
                stream=True,
                include_usage=name == "deepinfra",
                logprobs=logprobs,
                num_top_logprobs=5 if logprobs and name == "openai" else 0,
            )

            def encode(
                stream: list[Event] = stream, options: AnswerOptions = options, d: str = name
            ) -> list[bytes]:
                encoder = DIALECTS[d].chunk_encoder(options, RequestPolicy(), lambda: "x")
                return [frame for event in stream if (frame := encoder.feed(event))]

            frames = [*encode(), sse.DONE]

            def check(frames: list[bytes] = frames, d: str = name) -> None:
                live = LiveCheck(d)
                for frame in frames:
                    assert not live.feed(frame)
                assert not live.close()

            def grammar(stream: list[Event] = stream) -> None:
                feed = EventGrammar().feed
                for event in stream:
                    feed(event)

            live_us = median_us(check, len(frames))
            worst = max(worst, live_us)
            kind = "with logprobs" if logprobs else "plain"
            print(
                f"{name:9} {kind:13} live check {live_us:.2f} µs, event grammar "
                f"{median_us(grammar, len(stream)):.2f} µs, encoding "
                f"{median_us(encode, len(frames)):.2f} µs a frame"
            )
            sample = Sample()
            for frame in frames[:300]:
                sample.add(frame, 0.1)
            extra = b',"logprobs":true,"top_logprobs":5' if logprobs else b""

            def whole(sample: Sample = sample, extra: bytes = extra, d: str = name) -> None:
                check_sample(
                    sample,
                    dialect=d,
                    request=REQUEST % extra,
                    status=200,
                    headers={"content-type": "text/event-stream", "cache-control": "no-cache"},
                    path="/v1/chat/completions",
                )

            print(f"{'':9} all rules on 300 frames: {median_us(whole, 1) / 1000:.1f} ms")
    print(f"worst live check: {worst:.2f} µs a frame (limit 5)")
    return 0 if worst <= 5 else 1


if __name__ == "__main__":
    sys.exit(main())
