"""`octavo cpu build`: compile the kernels ahead of their first use, and say where they are.

Owns: the command. Must never know: how libraries are made.
"""

from __future__ import annotations

import argparse
import time

from octavo_cpu.build import ISAS, library, supported_isas


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--isa", choices=["auto", *ISAS], default="auto", help="instruction set; default: the best here"
    )


def run(arguments: argparse.Namespace) -> int:
    """Raises `BuildError` if the kernels cannot be had."""
    start = time.perf_counter()
    path = library(arguments.isa)
    isa = supported_isas()[0] if arguments.isa == "auto" else arguments.isa
    print(f"{isa}: {path} ({time.perf_counter() - start:.1f} s)")
    return 0
