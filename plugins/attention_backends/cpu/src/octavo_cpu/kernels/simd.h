// Vectors of the widest kind that the target has, in terms of GCC's and Clang's vector extensions.
//
// Owns: lanes, loads, stores, conversions, exp. Must never know: what is computed with them.
// One source for all targets: -march decides. Without AVX2 or AVX-512 vectors are 16 bytes wide (SSE2, NEON).

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

// A loop over the registers of a tile. It must be unrolled, or the tile lives in memory.
#if defined(__clang__)
#define OCTAVO_UNROLL _Pragma("clang loop unroll(full)")
#else
#define OCTAVO_UNROLL _Pragma("GCC unroll 32")
#endif
#define OCTAVO_FOR(index, count) OCTAVO_UNROLL for (int index = 0; index < (count); index++)

namespace octavo {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));

/// A bfloat16 number: the upper half of a float32.
struct BFloat16 {
  uint16_t bits;
};

inline float widen(float x) { return x; }

inline float widen(BFloat16 x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

/// A number as itself, or wider.
template <class To, class From>
inline To convert(From x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else
    return widen(x);
}

template <class T>
inline T narrow(float x);

template <>
inline float narrow<float>(float x) {
  return x;
}

/// To the nearest, ties to even; NaN stays NaN.
template <>
inline BFloat16 narrow<BFloat16>(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return {uint16_t((bits >> 16) | 0x40)};
  return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

inline Floats splat(float x) { return Floats{} + x; }

template <class V, class T>
inline V load_as(const T* from) {
  V v;
  std::memcpy(&v, from, sizeof(V));
  return v;
}

inline Floats load(const float* from) { return load_as<Floats>(from); }

inline Floats load(const BFloat16* from) {
  return (Floats)(__builtin_convertvector(load_as<Halves>(from), Ints) << 16);
}

inline void store(float* to, Floats v) { std::memcpy(to, &v, sizeof(v)); }

inline void store(BFloat16* to, Floats v) {
  Ints bits = (Ints)v;
  Ints rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  Ints is_nan = v != v;
  Halves halves = __builtin_convertvector((is_nan & ((bits >> 16) | 0x40)) | (~is_nan & rounded), Halves);
  std::memcpy(to, &halves, sizeof(halves));
}

inline Floats choose(Ints mask, Floats yes, Floats no) { return (Floats)((mask & (Ints)yes) | (~mask & (Ints)no)); }

inline Floats max(Floats a, Floats b) { return choose(a > b, a, b); }

inline float sum(Floats v) {
  float total = 0;
  for (int i = 0; i < kLanes; i++) total += v[i];
  return total;
}

inline int32_t total(Ints v) {
  int32_t result = 0;
  for (int i = 0; i < kLanes; i++) result += v[i];
  return result;
}

inline float largest(Floats v) {
  float best = v[0];
  for (int i = 1; i < kLanes; i++) best = v[i] > best ? v[i] : best;
  return best;
}

/// e^x, within 2 units in the last place for -87 <= x <= 88; exactly 0 below -87.
///
/// Cody and Waite's reduction x = n ln 2 + r with ln 2 in two parts, and the Taylor polynomial of degree 7 in r.
inline Floats exp(Floats x) {
  const Floats magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  Floats bounded = choose(x < -87.0f, splat(-87.0f), choose(x > 88.0f, splat(88.0f), x));
  Floats shifted = bounded * 1.44269504088896341f + magic;
  Floats n = shifted - magic;
  Floats r = bounded - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  Floats p = splat(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  Ints exponent = ((Ints)shifted - (Ints)magic + 127) << 23;
  return choose(x < -87.0f, splat(0.0f), choose(x != x, x, p * (Floats)exponent));
}

}  // namespace octavo
