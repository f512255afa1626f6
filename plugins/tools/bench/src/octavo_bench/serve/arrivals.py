"""When requests are sent, if nothing holds them back.

Owns: the schedule. Must never know: clocks, servers, requests.
"""

from __future__ import annotations

import math
import random
import sys
from itertools import accumulate


def arrival_times(num_requests: int, request_rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds after the start, in rising order; the first is 0.

    The gaps are gamma distributed with shape `burstiness`: 1 makes a Poisson process, less makes bursts, more makes
    gaps more alike. They are scaled so that their mean is exactly `1 / request_rate`: that is the process under the
    condition that its last request comes when it is expected, and a run of few requests offers the load that was asked
    for. An infinite rate sends all at once.
    """
    if math.isinf(request_rate):
        return [0.0] * num_requests
    draw = random.Random(f"arrivals {seed}")  # not the numbers that made the prompts
    # gaps of extreme bursts underflow, and all of them must not
    gaps = [max(draw.gammavariate(burstiness, 1.0), sys.float_info.min) for _ in range(num_requests - 1)]
    scale = len(gaps) / request_rate / sum(gaps) if gaps else 0.0
    return [gap * scale for gap in accumulate(gaps, initial=0.0)]
