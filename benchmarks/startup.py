"""How long from the command to the first served request, model load included?

    python benchmarks/startup.py [--rounds 5]

Starts `rejoinder serve` with the embedded model, asks for one token until it is served, and stops
it. Prints the median, and the time of `rejoinder --help`.
"""

import argparse
import http.client
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def first_answer(port: int) -> None:
    body = {"model": "default", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request(
                "POST",
                "/v1/chat/completions",
                json.dumps(body),
                {"Content-Type": "application/json"},
            )
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.02)
        finally:
            connection.close()


def start_once() -> float:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        server = subprocess.Popen(
            [sys.executable, "-m", "rejoinder", "serve", "--port", str(port)],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        first_answer(port)
        seconds = time.perf_counter() - began
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    return seconds


def help_once() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "rejoinder", "--help"], capture_output=True, check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    first = statistics.median(start_once() for _ in range(rounds))
    shown = statistics.median(help_once() for _ in range(rounds))
    print(f"first served request after {first:.2f} s, --help after {shown:.2f} s (medians)")


if __name__ == "__main__":
    main()
