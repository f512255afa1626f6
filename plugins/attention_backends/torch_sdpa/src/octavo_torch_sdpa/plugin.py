"""What this plugin offers. Owns: the registration. Must never know: torch."""

from __future__ import annotations

from octavo.hookspecs import hookimpl
from octavo.spec import AttentionBackendEntry, AttentionCapabilities


@hookimpl
def octavo_register_attention_backends() -> list[AttentionBackendEntry]:
    return [
        AttentionBackendEntry(
            name="torch_sdpa",
            factory="octavo_torch_sdpa.backend:TorchSDPABackend",
            capabilities=AttentionCapabilities(
                devices=frozenset({"cpu", "cuda"}),
                dtypes=frozenset({"float32", "bfloat16", "float16"}),
                sliding_window=True,
                soft_cap=True,
                alibi=True,
                sinks=True,
            ),
        )
    ]
