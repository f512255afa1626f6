from __future__ import annotations

import pytest

from octavo_cpu.build import supported_isas
from octavo_cpu.library import Kernels, load_kernels


@pytest.fixture(params=supported_isas())
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The kernels of each instruction set that this machine has, on three threads."""
    kernels = load_kernels(request.param)
    kernels.set_num_threads(3)
    return kernels
