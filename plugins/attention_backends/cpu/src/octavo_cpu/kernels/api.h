// The library's C interface. Sizes and strides count elements; a row is contiguous within itself.
//
// Owns: names and signatures, which octavo_cpu/library.py repeats. Must never know: how anything is computed.

#pragma once

#include <cstdint>

enum { OCTAVO_FLOAT32 = 0, OCTAVO_BFLOAT16 = 1 };

/// One layer's attention in one step.
struct OctavoAttention {
  void* out;                                                   // [num_tokens, num_heads, head_dim]
  const void* query;                                           // [num_tokens, num_heads, head_dim]
  const void* key;                                             // [num_tokens, num_kv_heads, head_dim]
  const void* value;                                           // [num_tokens, num_kv_heads, head_dim]
  void* kv_cache;                                              // see attention.cpp
  const float* alibi_slopes;                                   // [num_heads], or null
  const float* sinks;                                          // [num_heads], or null
  const int64_t* slot_mapping;                                 // [num_tokens]
  const int32_t* block_table;                                  // [num_seqs, block_table_stride]
  const int32_t* query_start;                                  // [num_seqs + 1]
  const int32_t* seq_lens;                                     // [num_seqs]
  int64_t out_stride, query_stride, key_stride, value_stride;  // from token to token
  int64_t block_table_stride;
  int64_t num_tokens, num_seqs, num_blocks;
  int64_t num_heads, num_kv_heads, head_dim, block_size;
  int64_t sliding_window;  // 0: none
  float scale, soft_cap;   // soft_cap 0: none
  int dtype;
};

extern "C" {

/// How many threads work on one call, the caller included; 1 until this is called.
void octavo_set_num_threads(int64_t num_threads);

/// Write the step's keys and values to their slots, then attend.
void octavo_attention(const OctavoAttention* attention);

/// Columns that a packed weight has: `num_columns`, rounded up to whole panels.
int64_t octavo_packed_columns(int64_t num_columns);

/// `weight` [num_columns, depth] into `packed` [octavo_packed_columns(num_columns) * depth]. Bfloat16: depth is even.
void octavo_pack(const void* weight, int dtype, int64_t num_columns, int64_t depth, void* packed);

/// out [num_rows, num_columns] = x [num_rows, depth] · weightᵀ + bias [num_columns]; `bias` may be null.
void octavo_linear(void* out, const void* x, int dtype, const void* weight, int weight_dtype, const float* bias,
                   int64_t num_rows, int64_t num_columns, int64_t depth, int64_t out_stride, int64_t x_stride);

/// The same for int8; depth is a multiple of 4.
void octavo_pack_int8(const int8_t* weight, int64_t num_columns, int64_t depth, uint8_t* packed);

/// `octavo_linear` in int8: weights with a scale for each column, `scales` [octavo_packed_columns(num_columns)]; rows
/// of x are turned into int8 on the way, each stretch of 32 numbers with the scale of its largest.
void octavo_linear_int8(void* out, const void* x, int dtype, const uint8_t* weight, const float* scales,
                        const float* bias, int64_t num_rows, int64_t num_columns, int64_t depth, int64_t out_stride,
                        int64_t x_stride);

/// Numbers in one vector of the target: sizes of the functions below are multiples of it.
int64_t octavo_lanes();

/// out [num_rows, size] = sum / rms(sum) · weight, where sum [num_rows, size] = x + residual; without a residual
/// (null, and then `sum` too) x itself is normalised. `residual` is contiguous.
void octavo_rms_norm(void* out, void* sum, const void* x, const void* residual, const void* weight, int dtype,
                     int64_t num_rows, int64_t size, int64_t x_stride, float eps);

/// out [num_rows, size] = silu(x[:, :size]) · x[:, size:]
void octavo_silu_and_mul(void* out, const void* x, int dtype, int64_t num_rows, int64_t size, int64_t x_stride);

/// Rotate heads in place by the angles of their tokens; `cos` and `sin` are [num_tokens, half].
void octavo_rotate(void* query, void* key, const float* cos, const float* sin, int dtype, int64_t num_tokens,
                   int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t half, int64_t query_stride,
                   int64_t key_stride);
}
