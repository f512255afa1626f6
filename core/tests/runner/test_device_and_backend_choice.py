"""Which device, dtype and attention backend are taken, and what is said when none can be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from octavo.config import EngineConfig, ModelConfig
from octavo.errors import ConfigError, PluginError
from octavo.extensions import Extensions, Offer, Origin, Registry
from octavo.hookspecs import hookimpl
from octavo.nn import Attention
from octavo.plugins import load_extensions
from octavo.runner.attention import bind_kv_cache, choose_backend
from octavo.runner.devices import DeviceChoice, choose_device
from octavo.spec import (
    AttentionBackendEntry,
    AttentionCapabilities,
    AttentionLayerParams,
    FullAttentionSpec,
    KVCacheLayout,
    MemoryInfo,
    PlatformEntry,
)

SPEC = FullAttentionSpec(block_size=4, num_kv_heads=2, head_dim=16, dtype="float32")


def layer(**changes: Any) -> AttentionLayerParams:
    return AttentionLayerParams(**({"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "scale": 0.25} | changes))


class Backend:
    def __init__(self, options: Any) -> None:
        self.options = options

    def kv_shape(self, spec: FullAttentionSpec, num_blocks: int) -> tuple[int, ...]:
        return (2, num_blocks, spec.block_size, spec.num_kv_heads, spec.head_dim)


class Backends:
    """A plugin that offers backends by name: (priority, capabilities, why it is unavailable)."""

    def __init__(self, chosen: Any = None, factory: Any = Backend, **offers: tuple[int, dict[str, Any], str | None]):
        self.chosen, self.factory, self.offers = chosen, factory, offers
        self.asked: list[Any] = []

    @hookimpl
    def octavo_register_attention_backends(self) -> list[AttentionBackendEntry]:
        base: dict[str, Any] = {"devices": frozenset({"cpu"}), "dtypes": frozenset({"float32"})}
        return [
            AttentionBackendEntry(
                name=name,
                factory=self.factory,
                capabilities=AttentionCapabilities(**(base | can)),
                priority=priority,
                unavailable=lambda why=why: why,
            )
            for name, (priority, can, why) in self.offers.items()
        ]

    @hookimpl
    def octavo_choose_attention_backend(self, layer, spec, device, dtype, candidates):
        self.asked.append((layer, spec, device, dtype, candidates))
        if isinstance(self.chosen, Exception):
            raise self.chosen
        return self.chosen


class FakePlatform:
    def __init__(self, device_type: str = "cpu", reason: str | None = None) -> None:
        self.device_type, self._reason = device_type, reason

    def unavailable(self) -> str | None:
        return self._reason

    def device(self) -> torch.device:
        return torch.device("cpu")

    def preferred_dtype(self) -> tuple[str, str]:
        return "bfloat16", "it is quick"

    def supported_dtypes(self) -> frozenset[str]:
        return frozenset({"float32", "bfloat16"})

    def memory(self) -> MemoryInfo:
        return MemoryInfo(total=1, available=1)


def choice(dtype: str = "float32") -> DeviceChoice:
    return DeviceChoice(FakePlatform(), torch.device("cpu"), getattr(torch, dtype), dtype, {})  # type: ignore[arg-type]


def extensions_with(*plugins: Any) -> Extensions:
    return load_extensions(EngineConfig(autoload_plugins=False), plugins=plugins)


def chosen(plugin: Backends, configured: str = "auto", *layers: AttentionLayerParams) -> tuple[str, str]:
    offer, why = choose_backend(list(layers) or [layer()], SPEC, configured, extensions_with(plugin), choice())
    return offer.entry.name, why


def test_the_highest_priority_that_can_serve_is_taken_and_the_others_reasons_are_told() -> None:
    plugin = Backends(
        reference=(0, {}, None),
        native=(100, {}, None),
        gpu=(200, {"devices": frozenset({"cuda"})}, None),
        compiled=(300, {}, "needs a compiler"),
    )
    name, why = chosen(plugin)
    assert name == "native"
    assert "gpu runs on cuda, not cpu" in why
    assert "compiled needs a compiler" in why


@pytest.mark.parametrize(
    ("can", "asks", "reason"),
    [
        ({"dtypes": frozenset({"bfloat16"})}, {}, "computes in bfloat16, not float32"),
        ({"head_dim_multiple": 32}, {}, "needs head sizes that 32 divides"),
        ({"max_head_dim": 8}, {}, "has no head size 16 (at most 8)"),
        ({"block_size_multiple": 16}, {}, "needs block sizes that 16 divides, not 4"),
        ({}, {"sliding_window": 8}, "has no sliding window"),
        ({}, {"soft_cap": 30.0}, "has no logit soft cap"),
        ({}, {"alibi_slopes": (0.5, 0.25, 0.1, 0.05)}, "has no alibi"),
        ({}, {"has_sinks": True}, "has no attention sinks"),
    ],
)
@pytest.mark.parametrize("configured", ["auto", "only"])
def test_a_refusal_names_what_is_lacking(can: dict, asks: dict, reason: str, configured: str) -> None:
    """One layer among many is enough."""
    with pytest.raises(ConfigError) as caught:
        chosen(Backends(only=(0, can, None)), configured, layer(), layer(**asks))
    assert str(caught.value).startswith("attention.backend: none can serve this model: only ")
    assert reason in str(caught.value)


def test_the_configured_one_is_taken_whatever_the_priority() -> None:
    plugin = Backends("b", a=(0, {}, None), b=(9, {}, None))
    assert chosen(plugin, "a") == ("a", "as configured")
    assert not plugin.asked


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(PluginError, match=r"'flsh'; did you mean 'flash'.*flash \["):
        chosen(Backends(flash=(0, {}, None)), "flsh")


def test_without_any_backend_the_error_says_so() -> None:
    with pytest.raises(ConfigError, match="no installed plugin offers any attention backend"):
        choose_backend([layer()], SPEC, "auto", extensions_with(), choice())


def test_a_plugin_may_choose_among_those_that_can_serve() -> None:
    plugin = Backends("slow", slow=(0, {}, None), quick=(9, {}, None), unfit=(99, {"max_head_dim": 1}, None))
    name, why = chosen(plugin)
    assert name == "slow"
    assert why.startswith("chosen by ")
    ((asked, spec, device, dtype, candidates),) = plugin.asked
    assert (asked, spec, device, dtype) == (layer(), SPEC, "cpu", "float32")
    assert set(candidates) == {"slow", "quick"}


def test_a_choice_that_cannot_serve_or_fails_is_the_plugins_error() -> None:
    with pytest.raises(PluginError, match="chose attention backend 'unfit', which cannot serve"):
        chosen(Backends("unfit", fit=(0, {}, None), unfit=(99, {"max_head_dim": 1}, None)))
    with pytest.raises(PluginError, match="failed to choose an attention backend: ValueError"):
        chosen(Backends(ValueError("no idea"), fit=(0, {}, None)))


def test_each_layer_gets_its_groups_backend_and_its_own_memory() -> None:
    wide = FullAttentionSpec(block_size=8, num_kv_heads=1, head_dim=16, dtype="float32")
    specs = {"a": SPEC, "b": SPEC, "c": wide}
    layers = {name: Attention(name, layer(num_kv_heads=s.num_kv_heads), s) for name, s in specs.items()}
    backends, lines = bind_kv_cache(
        layers,
        specs,
        KVCacheLayout((("a", "b"), ("c",)), (5, 7), (4, 4)),
        "auto",
        extensions_with(Backends(only=(0, {}, None))),
        choice(),
    )
    assert len(backends) == len(lines) == 2
    assert lines[0].startswith("only for 2 layers of FullAttentionSpec")
    caches = [layers[name].kv_cache for name in "abc"]
    assert [tuple(c.shape) for c in caches] == [(2, 5, 4, 2, 16)] * 2 + [(2, 7, 8, 1, 16)]
    assert [layers[name].group_id for name in "abc"] == [0, 0, 1]
    caches[0].fill_(1)
    assert caches[1].abs().max() == 0
    for cache, spec, num_blocks in zip(caches, specs.values(), (5, 5, 7), strict=True):
        assert cache.numel() * cache.element_size() == num_blocks * spec.page_size_bytes


def test_a_backend_that_cannot_be_made_is_the_plugins_error() -> None:
    def fail(options: Any) -> Any:
        raise OSError("no library")

    module = Attention("a", layer(), SPEC)
    with pytest.raises(PluginError, match="cannot make 'only': OSError"):
        bind_kv_cache(
            {"a": module},
            {"a": SPEC},
            KVCacheLayout((("a",),), (3,), (2,)),
            "auto",
            extensions_with(Backends(factory=fail, only=(0, {}, None))),
            choice(),
        )


def platforms(**offers: tuple[int, FakePlatform]) -> Registry[PlatformEntry]:
    origin = Origin("fake", "fake", "1")
    entries = {n: PlatformEntry(name=n, factory=lambda p=p: p, priority=i) for n, (i, p) in offers.items()}
    return Registry("platform", {n: Offer(e, origin) for n, e in entries.items()})


def test_auto_takes_the_best_platform_that_the_machine_has() -> None:
    there = platforms(cpu=(0, FakePlatform()), cuda=(10, FakePlatform("cuda", "no driver")))
    found = choose_device(ModelConfig(), there)
    assert found.platform.device_type == "cpu"
    assert found.reasons["device"] == "cpu (no cuda: no driver)"
    assert (found.dtype, found.reasons["dtype"]) == (torch.bfloat16, "bfloat16 (it is quick)")
    found = choose_device(ModelConfig(), platforms(cpu=(0, FakePlatform()), cuda=(10, FakePlatform("cuda"))))
    assert found.reasons["device"] == "cuda (highest priority)"


def test_what_is_configured_is_taken_or_refused_with_the_reason() -> None:
    there = platforms(cpu=(0, FakePlatform()), cuda=(10, FakePlatform("cuda", "no driver")))
    found = choose_device(ModelConfig(device="cpu", dtype="float32"), there)
    assert found.reasons == {"device": "cpu (as configured)", "dtype": "float32 (as configured)"}
    with pytest.raises(ConfigError, match=r"^model.device: no cuda: no driver$"):
        choose_device(ModelConfig(device="cuda"), there)
    with pytest.raises(ConfigError, match=r"^model.dtype: cpu has no float16; it has bfloat16, float32$"):
        choose_device(ModelConfig(dtype="float16"), there)
    with pytest.raises(PluginError, match="'cuda'"):
        choose_device(ModelConfig(device="cuda"), platforms(cpu=(0, FakePlatform())))
