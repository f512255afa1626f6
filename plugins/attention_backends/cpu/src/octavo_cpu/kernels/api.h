// The library's C interface. Sizes and strides count elements; a row is contiguous within itself.
//
// Owns: names and signatures, which octavo_cpu/library.py repeats. Must never know: how anything is computed.
//
// A kernel takes one structure of fields of eight bytes, so that whole passes can be kept and replayed (replay.cpp).

#pragma once

#include <cstdint>

enum { OCTAVO_FLOAT32 = 0, OCTAVO_BFLOAT16 = 1, OCTAVO_INT8 = 2, OCTAVO_INT8_WEIGHT_ONLY = 3, OCTAVO_INT4 = 4 };

/// One layer's attention in one step: write its keys and values to their slots, then attend. `head_dim` and
/// `block_size` are multiples of 16.
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
  int64_t dtype;
  double scale, soft_cap;  // soft_cap 0: none
};

/// out [num_rows, num_columns] = x [num_rows, depth] · weightᵀ + bias.
///
/// Int8 and int4: rows of x are turned into int8 on the way, each stretch of 32 numbers with the scale of its largest.
/// "Weight only": x stays as it is.
struct OctavoLinear {
  void* out;
  const void* x;
  const void* weight;   // packed
  const float* scales;  // int8: of each column, [octavo_packed_columns(num_columns)]
  const float* bias;    // [num_columns], or null
  int64_t out_dtype, dtype, weight_dtype;
  int64_t num_rows, num_columns, depth, out_stride, x_stride;
};

/// out [num_rows, size] = sum / rms(sum) · weight, where sum [num_rows, size] = x + residual; without a residual
/// (null, and then `sum` too) x itself is normalised. `residual` is contiguous; in x, `group` rows lie together, and
/// the next ones `x_stride` further.
struct OctavoRMSNorm {
  void* out;
  void* sum;
  const void* x;
  const void* residual;
  const void* weight;
  int64_t dtype, num_rows, size, group, x_stride;
  double eps;
};

/// out [num_rows, size] = silu(x[:, :size]) · x[:, size:]
struct OctavoSiluAndMul {
  void* out;
  const void* x;
  int64_t dtype, num_rows, size, x_stride;
};

/// Rotate heads in place by the angles of their tokens; `cos` and `sin` are [num_tokens, half].
struct OctavoRotate {
  void* query;
  void* key;
  const float* cos;
  const float* sin;
  int64_t dtype, num_tokens, num_heads, num_kv_heads, head_dim, half, query_stride, key_stride;
};

/// out [num_rows, row_bytes] = table[indices]
struct OctavoGather {
  void* out;
  const void* table;
  const int64_t* indices;  // [num_rows]
  int64_t num_rows, row_bytes;
};

/// A call that is kept: which kernel, and its structure.
enum {
  OCTAVO_CALL_ATTENTION,
  OCTAVO_CALL_LINEAR,
  OCTAVO_CALL_RMS_NORM,
  OCTAVO_CALL_SILU_AND_MUL,
  OCTAVO_CALL_ROTATE,
  OCTAVO_CALL_GATHER
};

struct OctavoCall {
  int64_t kernel;
  const void* arguments;
};

/// A field of a kept call that is another in each pass: bases[base] + constant + per_token · num_tokens.
struct OctavoPatch {
  int64_t* field;
  int64_t base, constant, per_token;
};

extern "C" {

/// How many threads work on one call, the caller included; 1 until this is called.
void octavo_set_num_threads(int64_t num_threads);

/// Numbers in one vector of the target: the `size` of a norm, and `half` above, are multiples of it.
int64_t octavo_lanes();

/// Ask the system to back memory that was not touched yet by pages of megabytes, where it can.
void octavo_advise_huge_pages(void* memory, int64_t num_bytes);

/// Columns that a packed weight has: `num_columns`, rounded up to whole panels.
int64_t octavo_packed_columns(int64_t num_columns);

/// Size of a packed weight.
int64_t octavo_packed_bytes(int64_t weight_dtype, int64_t num_columns, int64_t depth);

/// `weight` [num_columns, depth] into `packed`. Bfloat16: depth is even. Int8, unless it is weight only: depth is a
/// multiple of 4. Int4: see octavo_pack_int4.
void octavo_pack(const void* weight, int64_t weight_dtype, int64_t num_columns, int64_t depth, void* packed);

/// Weights of 4 bits, scale · number + offset: `numbers` [num_columns, depth] from 0 to 15, and `factors` [num_columns,
/// depth / 32], for each stretch of 32 numbers its scale and its offset as float16, the scale in the upper half. Depth
/// is a multiple of 32.
void octavo_pack_int4(const uint8_t* numbers, const uint32_t* factors, int64_t num_columns, int64_t depth,
                      uint8_t* packed);

void octavo_attention(const OctavoAttention*);
void octavo_linear(const OctavoLinear*);
void octavo_rms_norm(const OctavoRMSNorm*);
void octavo_silu_and_mul(const OctavoSiluAndMul*);
void octavo_rotate(const OctavoRotate*);
void octavo_gather(const OctavoGather*);

/// Fill in the patches, then do the calls one after the other.
void octavo_replay(const OctavoCall* calls, int64_t num_calls, const OctavoPatch* patches, int64_t num_patches,
                   const int64_t* bases, int64_t num_tokens);
}
