"""The kinds of device that torch gives out of the box: CPU and CUDA.

Owns: what the machine has (memory, cores, dtypes) and what the process may use of it. Must never know: models,
batches, or how much of the memory somebody wants to take.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil
import torch

from octavo.errors import ConfigError
from octavo.spec import MemoryInfo

_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2^63."""


class CPUPlatform:
    """The processor, as far as this process may use it: affinity and container limits count."""

    device_type = "cpu"

    def __init__(self, root: Path | str = "/") -> None:
        """`root` is where `proc` and `sys` are looked for."""
        self._root = Path(root)

    def unavailable(self) -> str | None:
        return None

    def device(self) -> torch.device:
        return torch.device("cpu")

    def preferred_dtype(self) -> tuple[str, str]:
        """bfloat16 only where the processor multiplies it in hardware: emulated it is several times slower."""
        feature = self._bfloat16_feature()
        if feature:
            return "bfloat16", f"the CPU has bfloat16 instructions ({feature})"
        return "float32", "the CPU has no bfloat16 instructions"

    def supported_dtypes(self) -> frozenset[str]:
        """All three: torch computes float16 and bfloat16 on any CPU, but slowly where the CPU itself cannot."""
        return frozenset({"float32", "bfloat16", "float16"})

    def memory(self) -> MemoryInfo:
        """The machine's memory, or what the tightest enclosing cgroup still allows, whichever is less."""
        machine = psutil.virtual_memory()
        total, available = machine.total, machine.available
        for limit, used in self._memory_limits():
            total, available = min(total, limit), min(available, max(0, limit - used))
        return MemoryInfo(total=total, available=available)

    def peak_memory(self) -> None:
        """Not told: a full-size step just to find out would take seconds, and half of the memory is left alone."""

    def reset_peak_memory(self) -> None: ...

    def configure(self, num_threads: int | None) -> None:
        """Let torch use `num_threads`; else what OMP_NUM_THREADS says; else one for each physical core."""
        if num_threads or "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(num_threads or self.num_cores())

    def synchronize(self) -> None:
        """Nothing to wait for: torch returns when the CPU is done."""

    def num_cores(self) -> int:
        """Physical cores that this process may run on, at most its cgroup's CPU quota; at least 1."""
        affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        topology = self._root / "sys/devices/system/cpu"
        siblings = [self._read(topology / f"cpu{cpu}/topology/thread_siblings_list").strip() for cpu in affinity]
        if siblings and all(siblings):
            cores = len(set(siblings))
        else:
            cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
            cores = min(cores, len(affinity)) if affinity else cores
        return max(1, min([cores, *(int(quota) for quota in self._cpu_quotas())]))

    def _bfloat16_feature(self) -> str | None:
        if platform.machine().lower() in ("arm64", "aarch64"):
            lines = self._read("proc/cpuinfo").splitlines()
            flags = {flag for line in lines if line.startswith("Features") for flag in line.split()}
            return "Arm bf16" if "bf16" in flags else None
        probes = (("_is_amx_tile_supported", "AMX"), ("_is_avx512_bf16_supported", "AVX512-BF16"))
        for name, feature in probes:  # torch keeps them under private names, so they may move
            if getattr(torch.cpu, name, bool)():
                return feature
        return None

    def _read(self, path: Path | str) -> str:
        try:
            return (self._root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _cgroup_folders(self, controller: str) -> list[Path]:
        """The process's own cgroup and those around it. `controller` is "" for version 2.

        Inside a container the path in /proc may belong to the host, so folders that do not exist are left out.
        """
        mount = self._root / "sys/fs/cgroup" / controller
        for line in self._read("proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(","):
                own = mount / path.lstrip("/")
                return [f for f in (own, *own.parents) if f.is_relative_to(mount) and f.is_dir()]
        return []

    def _memory_limits(self) -> list[tuple[int, int]]:
        """(limit, bytes in use that cannot be reclaimed) of each cgroup that has a limit."""
        limits = []
        for controller, limit_file, usage_file, cache_key in (
            ("", "memory.max", "memory.current", "inactive_file"),
            ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            for folder in self._cgroup_folders(controller):
                limit = self._read(folder / limit_file).strip()
                if not limit.isdigit() or int(limit) >= _UNLIMITED:
                    continue
                stat = dict(line.split() for line in self._read(folder / "memory.stat").splitlines())
                used = int(self._read(folder / usage_file) or 0) - int(stat.get(cache_key, 0))
                limits.append((int(limit), used))
        return limits

    def _cpu_quotas(self) -> list[float]:
        """Processors' worth of time that each cgroup allows."""
        pairs = [self._read(f / "cpu.max").split() for f in self._cgroup_folders("")]
        pairs += [
            [self._read(f / "cpu.cfs_quota_us").strip(), self._read(f / "cpu.cfs_period_us").strip()]
            for f in self._cgroup_folders("cpu")
        ]
        return [int(p[0]) / int(p[1]) for p in pairs if len(p) == 2 and p[0].isdigit() and p[1].isdigit()]


class CUDAPlatform:
    """An NVIDIA GPU, or an AMD one under torch's ROCm build: the one that torch calls current."""

    device_type = "cuda"

    def unavailable(self) -> str | None:
        if torch.version.cuda is None and torch.version.hip is None:
            return "this torch is built without CUDA; install a CUDA build of torch"
        if not torch.cuda.is_available():
            return "torch finds no CUDA device; check the driver and CUDA_VISIBLE_DEVICES"
        return None

    def device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device())

    def preferred_dtype(self) -> tuple[str, str]:
        name = torch.cuda.get_device_name()
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bfloat16", f"{name} computes in bfloat16"
        return "float16", f"{name} has no bfloat16"

    def supported_dtypes(self) -> frozenset[str]:
        with_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        return frozenset({"float32", "float16"} | ({"bfloat16"} if with_bfloat16 else set()))

    def memory(self) -> MemoryInfo:
        available, total = torch.cuda.mem_get_info()
        # What torch's allocator holds in reserve is free for our own tensors.
        available += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return MemoryInfo(total=total, available=available)

    def peak_memory(self) -> int:
        """Bytes of tensors at the highest since the reset; other processes' memory is not in it."""
        return torch.cuda.max_memory_allocated()

    def reset_peak_memory(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def configure(self, num_threads: int | None) -> None:
        """Set the threads of the host's share of the work. Raises `ConfigError` without a usable device."""
        reason = self.unavailable()
        if reason:
            raise ConfigError(f"device cuda: {reason}, or set model.device to cpu")
        if num_threads:
            torch.set_num_threads(num_threads)

    def synchronize(self) -> None:
        torch.cuda.synchronize()
