from __future__ import annotations

import pytest

from octavo_cpu.build import ISAS, detect_isa
from octavo_cpu.library import Kernels, load_kernels

_BEST = list(ISAS).index(detect_isa())


@pytest.fixture(params=list(ISAS)[_BEST:])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The kernels of each instruction set that this machine has, on three threads."""
    kernels = load_kernels(request.param)
    kernels.set_num_threads(3)
    return kernels
