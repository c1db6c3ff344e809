"""How exact is a replay in time? 500 parts, 10 ms apart, against a raw socket client.

    python benchmarks/check_replay.py [COUNT]

Prints the percentiles of how late each part was; p99 must stay below 2 ms on a quiet machine.
"""

import asyncio
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from rejoinder.check.exchange import Read, Request, Response
from rejoinder.check.replay import Replayer
from rejoinder.check.tape import Recorded

PART = b"data: %06d\n\n"
GAP = 0.01


def tape(count: int) -> Recorded:
    body = b"".join(PART % n for n in range(count))
    reads = tuple(Read(n * len(PART % 0), 0.02 + n * GAP) for n in range(count))
    return Recorded(Request(url="http://x/v1", body=b"{}"), Response(body=body, reads=reads))


async def lateness(count: int) -> list[float]:
    recorded = tape(count)
    server = await Replayer([recorded]).start("127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        started = time.perf_counter()
        writer.write(b"POST /v1 HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        await reader.readuntil(b"\r\n\r\n")
        late = []
        got = bytearray()
        for read in recorded.response.reads:
            size = int(await reader.readuntil(b"\r\n"), 16)
            got += (await reader.readexactly(size + 2))[:-2]
            late.append(time.perf_counter() - started - read.seconds)
        writer.close()
    assert bytes(got) == recorded.response.body, "the bytes differ"
    return sorted(late)


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    late = asyncio.run(lateness(count))
    p50, p99, worst = late[count // 2], late[count * 99 // 100], late[-1]
    print(f"late by p50 {p50 * 1e3:.3f} ms, p99 {p99 * 1e3:.3f} ms, worst {worst * 1e3:.3f} ms")
    return 0 if p99 <= 0.002 else 1


if __name__ == "__main__":
    sys.exit(main())
