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
typedef int8_t Bytes __attribute__((vector_size(kLanes)));

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

inline Floats load(const int8_t* from) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_as<__m128i>(from)));
#elif defined(__AVX2__)
  return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
  return __builtin_convertvector(load_as<Bytes>(from), Floats);
#endif
}

/// IEEE 754 numbers of 16 bits, each in the lower half of a lane.
inline Floats from_float16(Ints bits) {
#if defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)bits));
#else
  const Ints magnitude = bits & 0x7fff;
  const Floats finite = (Floats)(magnitude << 13) * 0x1p112f;  // the exponents' biases differ by 112
  const Ints number = magnitude < 0x7c00 ? (Ints)finite : magnitude << 13 | 0x7f800000;
  return (Floats)(number | (bits & 0x8000) << 16);
#endif
}

inline void store(float* to, Floats v) { std::memcpy(to, &v, sizeof(v)); }

inline void store(BFloat16* to, Floats v) {
  Ints bits = (Ints)v;
  Ints rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  Ints is_nan = v != v;
  Halves halves = __builtin_convertvector((is_nan & ((bits >> 16) | 0x40)) | (~is_nan & rounded), Halves);
  std::memcpy(to, &halves, sizeof(halves));
}

/// a[0], b[0], a[1], b[1] and so on; `count` is a multiple of `kLanes`.
inline void interleave(const BFloat16* a, const BFloat16* b, long count, BFloat16* to) {
  for (long i = 0; i < count; i += kLanes) {
    const Ints both = __builtin_convertvector(load_as<Halves>(a + i), Ints) |
                      __builtin_convertvector(load_as<Halves>(b + i), Ints) << 16;
    std::memcpy(to + 2 * i, &both, sizeof(both));
  }
}

inline Floats choose(Ints mask, Floats yes, Floats no) { return mask ? yes : no; }

/// The larger number; `b` where either is none.
inline Floats max(Floats a, Floats b) { return a > b ? a : b; }
inline Floats min(Floats a, Floats b) { return a < b ? a : b; }

/// All lanes joined by `join`, halves with halves.
template <class Number, int kCount = kLanes, class Vector, class Join>
inline Number reduce(const Vector& v, const Join& join) {
  if constexpr (kCount == 1) {
    return v[0];
  } else {
    typedef Number Half __attribute__((vector_size(sizeof(Vector) / 2)));
    Half halves[2];
    std::memcpy(halves, &v, sizeof(v));
    return reduce<Number, kCount / 2>(join(halves[0], halves[1]), join);
  }
}

inline float sum(Floats v) {
  return reduce<float>(v, [](auto a, auto b) { return a + b; });
}

inline int32_t total(Ints v) {
  return reduce<int32_t>(v, [](auto a, auto b) { return a + b; });
}

inline float largest(Floats v) {
  return reduce<float>(v, [](auto a, auto b) { return a > b ? a : b; });
}

/// e^x, within 2 units in the last place for -87 <= x <= 88; exactly 0 for -88 and below.
///
/// Cody and Waite's reduction x = n ln 2 + r with ln 2 in two parts, and the Taylor polynomial of degree 7 in r.
inline Floats exp(Floats x) {
  const Floats magic = splat(12582912.0f);                          // 1.5 * 2^23: adding it rounds to an integer
  const Floats bounded = max(splat(-88.0f), min(splat(88.0f), x));  // NaN stays NaN
  const Floats shifted = bounded * 1.44269504088896341f + magic;
  const Floats n = shifted - magic;
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
  const Ints exponent = ((Ints)shifted - (Ints)magic + 127) << 23;  // 0 for n = -127
  return p * (Floats)exponent;
}

}  // namespace octavo
