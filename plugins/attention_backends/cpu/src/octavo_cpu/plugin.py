"""What this plugin offers, and its options. Owns: those. Must never know: torch, the kernels."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from octavo.config import Section
from octavo.hookspecs import hookimpl
from octavo.spec import AttentionBackendEntry, AttentionCapabilities, Command, ModelTransform
from octavo_cpu.build import unavailable


class CPUOptions(Section, frozen=True):
    """`plugins.cpu.…`"""

    isa: Annotated[
        Literal["auto", "avx512_bf16", "avx512_vnni", "avx512", "avx2", "portable"],
        Meta(description="Instruction set of the kernels; auto: the best that the processor has."),
    ] = "auto"
    kernels: Annotated[
        bool, Meta(description="Pack weights after loading, and use the kernels for all layers that they serve.")
    ] = True
    capture: Annotated[
        bool, Meta(description="Record a forward pass that consists of kernels, and replay it without Python.")
    ] = True
    quantization: Annotated[
        Literal["none", "int8", "int8_weight_only", "int4"],
        Meta(
            description="int8: weights and the inputs of linear layers in 8 bits; int4: likewise, the weights in 4. "
            "Smaller and faster, less exact. int8_weight_only: inputs as they are; faster for small batches only."
        ),
    ] = "none"


@hookimpl
def octavo_options() -> type[Section]:
    return CPUOptions


@hookimpl
def octavo_register_attention_backends() -> list[AttentionBackendEntry]:
    return [
        AttentionBackendEntry(
            name="cpu",
            factory="octavo_cpu.attention:CPUAttentionBackend",
            capabilities=AttentionCapabilities(
                devices=frozenset({"cpu"}),
                dtypes=frozenset({"float32", "bfloat16"}),
                head_dim_multiple=16,
                block_size_multiple=16,
                sliding_window=True,
                soft_cap=True,
                alibi=True,
                sinks=True,
            ),
            priority=100,
            unavailable=unavailable,
        )
    ]


@hookimpl
def octavo_transform_models() -> list[ModelTransform]:
    return [ModelTransform(name="cpu_kernels", apply="octavo_cpu.transform:use_kernels", priority=100)]


@hookimpl
def octavo_register_commands() -> list[Command]:
    return [
        Command(
            name="cpu build",
            help="compile the CPU kernels, unless that is done already",
            configure="octavo_cpu.command:configure",
            run="octavo_cpu.command:run",
        )
    ]
