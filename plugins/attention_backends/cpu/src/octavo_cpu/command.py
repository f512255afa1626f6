"""`octavo cpu build`: compile the kernels ahead of their first use, and say where they are.

Owns: the command. Must never know: how libraries are made.
"""

from __future__ import annotations

import argparse
import time

from octavo_cpu.build import ISAS, library


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--isa",
        choices=["auto", *ISAS],
        default="auto",
        help="instruction set; default: what plugins.cpu.isa = auto takes",
    )


def run(arguments: argparse.Namespace) -> int:
    """Raises `BuildError` if the kernels cannot be had."""
    start = time.perf_counter()
    path = library(arguments.isa)
    print(f"{path} ({time.perf_counter() - start:.1f} s)")
    return 0
