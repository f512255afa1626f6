"""An attention backend as it should be, and ones that are each wrong in one way, under their suite."""

from __future__ import annotations

from octavo.hookspecs import hookimpl
from octavo.spec import AttentionBackendEntry, AttentionCapabilities
from octavo.testing import AttentionBackendSuite
from octavo.testing.dense_attention import dense_attention


class Backend:
    """Gathers and attends."""

    def kv_shape(self, spec, num_blocks):
        return (num_blocks, spec.block_size, 2, spec.num_kv_heads, spec.head_dim)

    def build_metadata(self, inputs):
        return inputs

    def forward(self, layer, query, key, value, kv_cache, metadata, sinks=None):
        slots = kv_cache.flatten(0, 1)
        slots[metadata.slot_mapping, 0], slots[metadata.slot_mapping, 1] = key, value
        output = query.clone()
        starts = metadata.query_start_loc.tolist()
        for i, length in enumerate(metadata.seq_lens.tolist()):
            rows = slice(starts[i], starts[i + 1])
            history = self.history(kv_cache, metadata.block_table[i], length, metadata.block_size)
            output[rows] = dense_attention(layer, query[rows], history[:, 0], history[:, 1])
        return output

    def history(self, kv_cache, table, length, block_size):
        num_blocks = -(-length // block_size)
        return kv_cache[table[:num_blocks].long()].flatten(0, 1)[:length]


class OffByOne(Backend):
    """Takes a sequence that fills its last block for one that has another block."""

    def history(self, kv_cache, table, length, block_size):
        history = super().history(kv_cache, table, length, block_size)
        if length % block_size == 0 and length > block_size:
            history = history.clone()
            history[-block_size] = history[-block_size - 1]
        return history


class Unclean(Backend):
    """Reads what nobody wrote, times zero."""

    def history(self, kv_cache, table, length, block_size):
        return super().history(kv_cache, table, length, block_size) + 0 * kv_cache[0, 0]


class Overwriting(Backend):
    """Writes the null block."""

    def forward(self, layer, query, key, value, kv_cache, metadata, sinks=None):
        kv_cache[0] = 0
        return super().forward(layer, query, key, value, kv_cache, metadata, sinks)


def plugin_of(backend):
    can = AttentionCapabilities(devices=frozenset({"cpu"}), dtypes=frozenset({"float32"}))

    class Plugin:
        @hookimpl
        def octavo_register_attention_backends(self):
            return [AttentionBackendEntry(name="plain", factory=lambda options: backend(), capabilities=can)]

    return Plugin()


class TestRight(AttentionBackendSuite):
    plugin = plugin_of(Backend)


class TestOffByOne(AttentionBackendSuite):
    plugin = plugin_of(OffByOne)


class TestUnclean(AttentionBackendSuite):
    plugin = plugin_of(Unclean)


class TestOverwriting(AttentionBackendSuite):
    plugin = plugin_of(Overwriting)
