"""A program that serves one GGUF file with llama.cpp's own HTTP server on loopback until its standard input ends.

It prints its address once it listens. Its parent holds the other end of standard input, so it cannot outlive the
parent.
"""

from __future__ import annotations

import argparse
import os
import sys


def main() -> None:
    """Serve as the arguments say; each of `--slots` has a window of `--window` tokens."""
    import xllamacpp  # type: ignore[import-untyped]  # noqa: PLC0415 - untyped, and not needed for --help

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--window", type=int, default=4096)
    chosen = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = chosen.model
    params.hostnames = ["127.0.0.1"]
    params.port = chosen.port
    params.n_parallel = chosen.slots
    params.n_ctx = chosen.slots * chosen.window
    params.cpuparams.n_threads = 1
    # With one narrow head, flash attention takes two to four times as long (measured at 32,000 tokens).
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.warmup = False
    params.endpoint_slots = True
    params.endpoint_metrics = True
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    # The engine's threads do not end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main()
