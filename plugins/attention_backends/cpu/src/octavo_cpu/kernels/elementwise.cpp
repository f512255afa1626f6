// What stands around the products of a decoder layer: lookup, norm, rotation, gated activation.
//
// Owns: these functions. Must never know: models. Computed in float32; rows never influence each other.

#include <algorithm>
#include <cstring>

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
void rms_norm(const OctavoRMSNorm& p) {
  for_rows(p.num_rows, p.size, [&](long row) {
    const T* residual = p.residual ? static_cast<const T*>(p.residual) + row * p.size : nullptr;
    norm_row(static_cast<T*>(p.out) + row * p.size, p.sum ? static_cast<T*>(p.sum) + row * p.size : nullptr,
             static_cast<const T*>(p.x) + row / p.group * p.x_stride + row % p.group * p.size, residual,
             static_cast<const T*>(p.weight), p.size, float(p.eps));
  });
}

template <class T>
void silu_and_mul(const OctavoSiluAndMul& p) {
  auto vector = [](const T* gate, const T* up, T* to) {
    const Floats g = load(gate);
    store(to, rounded<T>(g / (1.0f + exp(-g))) * load(up));
  };
  for_rows(p.num_rows, p.size, [&](long row) {
    const T *gate = static_cast<const T*>(p.x) + row * p.x_stride, *up = gate + p.size;
    T* to = static_cast<T*>(p.out) + row * p.size;
    long i = 0;
    for (; i + kLanes <= p.size; i += kLanes) vector(gate + i, up + i, to + i);
    if (i == p.size) return;
    T rest[3][kLanes] = {};  // what does not fill a vector is computed as one too, or the bits could be others
    std::copy_n(gate + i, p.size - i, rest[0]);
    std::copy_n(up + i, p.size - i, rest[1]);
    vector(rest[0], rest[1], rest[2]);
    std::copy_n(rest[2], p.size - i, to + i);
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
void rotate(const OctavoRotate& p) {
  for_rows(p.num_tokens, (p.num_heads + p.num_kv_heads) * p.head_dim, [&](long token) {
    const float *cos = p.cos + token * p.half, *sin = p.sin + token * p.half;
    rotate_heads(static_cast<T*>(p.query) + token * p.query_stride, p.num_heads, p.head_dim, cos, sin, p.half);
    rotate_heads(static_cast<T*>(p.key) + token * p.key_stride, p.num_kv_heads, p.head_dim, cos, sin, p.half);
  });
}

}  // namespace
}  // namespace octavo

using octavo::BFloat16;

extern "C" int64_t octavo_lanes() { return octavo::kLanes; }

extern "C" void octavo_rms_norm(const OctavoRMSNorm* p) {
  auto* run = p->dtype == OCTAVO_BFLOAT16 ? octavo::rms_norm<BFloat16> : octavo::rms_norm<float>;
  run(*p);
}

extern "C" void octavo_silu_and_mul(const OctavoSiluAndMul* p) {
  auto* run = p->dtype == OCTAVO_BFLOAT16 ? octavo::silu_and_mul<BFloat16> : octavo::silu_and_mul<float>;
  run(*p);
}

extern "C" void octavo_rotate(const OctavoRotate* p) {
  auto* run = p->dtype == OCTAVO_BFLOAT16 ? octavo::rotate<BFloat16> : octavo::rotate<float>;
  run(*p);
}

extern "C" void octavo_gather(const OctavoGather* p) {
  octavo::for_rows(p->num_rows, p->row_bytes, [=](long row) {
    std::memcpy(static_cast<char*>(p->out) + row * p->row_bytes,
                static_cast<const char*>(p->table) + p->indices[row] * p->row_bytes, p->row_bytes);
  });
}
