"""How fast this machine reads memory and multiplies matrices, at this moment.

Owns: the two measurements. Must never know: models, engines.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional

from octavo_bench.roofline import Machine

BUFFER_BYTES = 2**28
"""More than the last-level cache of the machines that one would measure."""
GEMM_SHAPES = ((512, 1024, 4096), (1024, 1024, 1024), (2048, 2048, 2048))
"""Rows, inner size, columns."""
_SECONDS = 0.1
"""For each operation and shape."""


def measure_machine(
    dtype: str,
    device: str = "cpu",
    *,
    num_bytes: int = BUFFER_BYTES,
    shapes: tuple[tuple[int, int, int], ...] = GEMM_SHAPES,
    seconds: float = _SECONDS,
) -> Machine:
    """Measure with as many threads as torch uses now.

    Bandwidth is the best of a sum over a buffer, a product of a matrix with a vector (both read) and a copy (which
    reads and writes), over `num_bytes` in all. The rate is the best product of two matrices of `dtype` among `shapes`,
    with the second one as it is and transposed, as the weights of a linear layer are. On a CPU products in float32
    count too: nothing keeps an engine from widening its numbers, and where there are no fast instructions for fewer
    bits, or none at all, that is the faster way.
    """
    dtypes = {dtype, "float32"} if device == "cpu" else {dtype}
    with torch.inference_mode():
        rate = max(_gemm_rate(each, device, shapes, seconds) for each in dtypes)
        return Machine(_bandwidth(device, num_bytes, seconds), rate)


def _bandwidth(device: str, num_bytes: int, seconds: float) -> float:
    columns = 1024
    matrix = torch.ones(max(2, num_bytes // 4 // columns), columns, device=device)
    vector, half = torch.ones(columns, device=device), len(matrix) // 2
    source, target = matrix[:half], matrix[half : 2 * half]
    calls: list[tuple[Callable[[], object], int]] = [
        (lambda: matrix.sum(), matrix.nbytes),
        (lambda: torch.mv(matrix, vector), matrix.nbytes),
        (lambda: target.copy_(source), 2 * source.nbytes),
    ]
    return max(amount / _least_seconds(call, device, seconds) for call, amount in calls)


def _gemm_rate(dtype: str, device: str, shapes: tuple[tuple[int, int, int], ...], seconds: float) -> float:
    best = 0.0
    for rows, inner, columns in shapes:
        a = torch.full((rows, inner), 0.5, device=device, dtype=getattr(torch, dtype))
        b = torch.full((inner, columns), 0.5, device=device, dtype=a.dtype)
        weight = b.t().contiguous()
        least = min(
            _least_seconds(lambda a=a, b=b: torch.mm(a, b), device, seconds),
            _least_seconds(lambda a=a, weight=weight: functional.linear(a, weight), device, seconds),
        )
        best = max(best, 2 * rows * inner * columns / least)
    return best


def _least_seconds(call: Callable[[], object], device: str, seconds: float) -> float:
    """The shortest of the calls that fit into `seconds`, at least two after a first one."""
    _timed(call, device)
    end = time.perf_counter() + seconds
    least = min(_timed(call, device), _timed(call, device))
    while time.perf_counter() < end:
        least = min(least, _timed(call, device))
    return least


def _timed(call: Callable[[], object], device: str) -> float:
    started = time.perf_counter()
    call()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return max(time.perf_counter() - started, 1e-9)
