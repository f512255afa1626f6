// What stands between the products of a decoder layer: norm, rotation, gated activation.
//
// Owns: these functions. Must never know: models. Computed in float32; rows never influence each other.

#include <algorithm>

#include "api.h"
#include "pool.h"
#include "simd.h"

namespace octavo {
namespace {

constexpr long kItemElements = 1 << 14;  // for less, waking a thread costs more than it saves

/// `function(row)` for all rows of `size` elements each.
template <class Function>
void for_rows(long num_rows, long size, const Function& function) {
  const long rows = std::max<long>(1, kItemElements / size);
  parallel((num_rows + rows - 1) / rows, [&](long item) {
    for (long row = item * rows; row < std::min((item + 1) * rows, num_rows); row++) function(row);
  });
}

template <class T>
Floats rounded(Floats x) {
  if constexpr (sizeof(T) == 4) return x;
  T halves[kLanes];
  store(halves, x);
  return load(halves);
}

/// One row of `octavo_rms_norm`; `size` is a multiple of `kLanes`.
template <class T>
void norm_row(T* out, T* sum_out, const T* x, const T* residual, const T* weight, long size, float eps) {
  Floats squares = {};
  const T* wide = residual ? sum_out : x;
  if (residual)
    for (long i = 0; i < size; i += kLanes) store(sum_out + i, load(x + i) + load(residual + i));
  for (long i = 0; i < size; i += kLanes) {
    const Floats v = load(wide + i);
    squares += v * v;
  }
  const float scale = 1.0f / std::sqrt(sum(squares) / float(size) + eps);
  for (long i = 0; i < size; i += kLanes) store(out + i, load(weight + i) * rounded<T>(load(wide + i) * scale));
}

template <class T>
void rms_norm(void* out, void* sum_out, const void* x, const void* residual, const void* weight, long num_rows,
              long size, long x_stride, float eps) {
  for_rows(num_rows, size, [=](long row) {
    norm_row(static_cast<T*>(out) + row * size, static_cast<T*>(sum_out) + row * size,
             static_cast<const T*>(x) + row * x_stride,
             residual ? static_cast<const T*>(residual) + row * size : nullptr, static_cast<const T*>(weight), size,
             eps);
  });
}

template <class T>
void silu_and_mul(void* out, const void* x, long num_rows, long size, long x_stride) {
  for_rows(num_rows, size, [=](long row) {
    const T* gate = static_cast<const T*>(x) + row * x_stride;
    T* to = static_cast<T*>(out) + row * size;
    for (long i = 0; i < size; i += kLanes) {
      const Floats g = load(gate + i);
      store(to + i, rounded<T>(g / (1.0f + exp(-g))) * load(gate + size + i));
    }
  });
}

/// Rotate the heads of one token in place: feature i pairs with i + half.
template <class T>
void rotate_heads(T* heads, long num_heads, long head_dim, const float* cos, const float* sin, long half) {
  for (long h = 0; h < num_heads; h++) {
    T* first = heads + h * head_dim;
    T* second = first + half;
    for (long i = 0; i < half; i += kLanes) {
      const Floats a = load(first + i), b = load(second + i), c = load(cos + i), s = load(sin + i);
      store(first + i, a * c - b * s);
      store(second + i, b * c + a * s);
    }
  }
}

template <class T>
void rotate(void* query, void* key, const float* cos, const float* sin, long num_tokens, long num_heads,
            long num_kv_heads, long head_dim, long half, long query_stride, long key_stride) {
  for_rows(num_tokens, (num_heads + num_kv_heads) * head_dim, [=](long token) {
    const float *c = cos + token * half, *s = sin + token * half;
    rotate_heads(static_cast<T*>(query) + token * query_stride, num_heads, head_dim, c, s, half);
    rotate_heads(static_cast<T*>(key) + token * key_stride, num_kv_heads, head_dim, c, s, half);
  });
}

}  // namespace
}  // namespace octavo

using octavo::BFloat16;

extern "C" int64_t octavo_lanes() { return octavo::kLanes; }

extern "C" void octavo_rms_norm(void* out, void* sum, const void* x, const void* residual, const void* weight,
                                int dtype, int64_t num_rows, int64_t size, int64_t x_stride, float eps) {
  auto* run = dtype == OCTAVO_BFLOAT16 ? octavo::rms_norm<BFloat16> : octavo::rms_norm<float>;
  run(out, sum, x, residual, weight, num_rows, size, x_stride, eps);
}

extern "C" void octavo_silu_and_mul(void* out, const void* x, int dtype, int64_t num_rows, int64_t size,
                                    int64_t x_stride) {
  auto* run = dtype == OCTAVO_BFLOAT16 ? octavo::silu_and_mul<BFloat16> : octavo::silu_and_mul<float>;
  run(out, x, num_rows, size, x_stride);
}

extern "C" void octavo_rotate(void* query, void* key, const float* cos, const float* sin, int dtype, int64_t num_tokens,
                              int64_t num_heads, int64_t num_kv_heads, int64_t head_dim, int64_t half,
                              int64_t query_stride, int64_t key_stride) {
  auto* run = dtype == OCTAVO_BFLOAT16 ? octavo::rotate<BFloat16> : octavo::rotate<float>;
  run(query, key, cos, sin, num_tokens, num_heads, num_kv_heads, head_dim, half, query_stride, key_stride);
}
