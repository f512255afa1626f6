"""Platforms: what a machine offers, read from fake `proc` and `sys` trees and from the real one."""

from __future__ import annotations

import os
import platform

import psutil
import pytest
import torch

from octavo.errors import ConfigError
from octavo.runner.platforms import CPUPlatform, CUDAPlatform

MIB = 1 << 20


def write(root, **files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def tree(root, files):
    write(root, **files)
    return CPUPlatform(root)


def test_without_a_cgroup_memory_is_the_machines(tmp_path):
    info = CPUPlatform(tmp_path).memory()
    assert info.total == psutil.virtual_memory().total
    assert 0 < info.available <= info.total


def test_cgroup_v2_limit_counts_reclaimable_cache_as_free(tmp_path):
    cpu = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/memory.max": f"{100 * MIB}\n",
            "sys/fs/cgroup/a/memory.current": f"{90 * MIB}\n",
            "sys/fs/cgroup/a/memory.stat": f"anon 1\ninactive_file {30 * MIB}\n",
        },
    )
    assert cpu.memory().total == 100 * MIB
    assert cpu.memory().available == 40 * MIB


def test_cgroup_v1_limit_and_a_group_that_is_over_it(tmp_path):
    cpu = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/host/path\n2:cpu,cpuacct:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{10 * MIB}",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{11 * MIB}",
        },
    )
    assert cpu.memory().available == 0


def test_cgroup_v1_writes_no_limit_as_a_huge_number(tmp_path):
    cpu = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    assert cpu.memory().total == psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("siblings", "affinity", "quota", "cores"),
    [
        (["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"], range(8), "max 100000", 4),
        (["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"], (0, 4, 1), "max 100000", 2),
        (["0", "1", "2", "3"], range(4), "250000 100000", 2),
        (["0", "1", "2", "3"], range(4), "50000 100000", 1),
    ],
)
def test_cores_are_physical_allowed_and_within_the_quota(tmp_path, monkeypatch, siblings, affinity, quota, cores):
    write(tmp_path, **{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": quota})
    for cpu, text in enumerate(siblings):
        write(tmp_path, **{f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": text + "\n"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(affinity), raising=False)
    assert CPUPlatform(tmp_path).num_cores() == cores


def test_cores_under_a_v1_quota_and_without_topology(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 32)
    assert CPUPlatform(tmp_path).num_cores() == 32
    write(
        tmp_path,
        **{
            "proc/self/cgroup": "2:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert CPUPlatform(tmp_path).num_cores() == 3


def test_configure_sets_threads(monkeypatch: pytest.MonkeyPatch):
    before = torch.get_num_threads()
    try:
        CPUPlatform().configure(3)
        assert torch.get_num_threads() == 3
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        CPUPlatform().configure(None)
        assert torch.get_num_threads() == 3, "whoever set the variable is left in peace"
        monkeypatch.delenv("OMP_NUM_THREADS")
        CPUPlatform().configure(None)
        assert torch.get_num_threads() == CPUPlatform().num_cores()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("flag", ["_is_amx_tile_supported", "_is_avx512_bf16_supported", None])
def test_auto_dtype_follows_the_instructions(monkeypatch, flag):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name == flag, raising=False)
    dtype, reason = CPUPlatform().preferred_dtype()
    assert dtype == ("bfloat16" if flag else "float32")
    assert "bfloat16 instructions" in reason


@pytest.mark.parametrize(("features", "dtype"), [("fp asimd bf16 sve", "bfloat16"), ("fp asimd sve", "float32")])
def test_auto_dtype_on_arm(tmp_path, monkeypatch, features, dtype):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    cpu = tree(tmp_path, {"proc/cpuinfo": f"processor : 0\nFeatures : {features}\n"})
    assert cpu.preferred_dtype()[0] == dtype


@pytest.mark.parametrize("name", sorted(CPUPlatform().supported_dtypes()))
def test_every_supported_dtype_really_computes(name):
    dtype = getattr(torch, name)
    weight, x = torch.eye(8, dtype=dtype), torch.arange(8, dtype=dtype)[None]
    assert torch.equal(torch.nn.functional.linear(x, weight), x)
    assert torch.softmax(x, -1).sum().item() == pytest.approx(1, abs=1e-2)


def test_cuda_says_why_it_cannot():
    cuda = CUDAPlatform()
    if cuda.unavailable() is None:
        dtype, reason = cuda.preferred_dtype()
        assert dtype in cuda.supported_dtypes()
        assert reason
        assert 0 < cuda.memory().available <= cuda.memory().total
        cuda.configure(None)
    else:
        with pytest.raises(ConfigError, match=r"device cuda: .*set model\.device to cpu"):
            cuda.configure(None)
