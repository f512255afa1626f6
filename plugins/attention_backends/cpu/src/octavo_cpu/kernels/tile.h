// The one product that everything is made of: a few rows times a few panels of columns, summed over k in order.
//
// Owns: the inner loop. Must never know: where rows and panels come from.
// Every element of a result is summed in the same order whatever the number of rows and panels around it, so a row's
// result does not depend on its neighbours.

#pragma once

#include "simd.h"

namespace octavo {

/// A panel of float32: row k is a few vectors at `data + k * stride`.
struct FloatPanel {
  using Element = float;
  static constexpr int kGroup = 1;  // rows of k that lie together

  template <int kRows, int kVectors>
  static inline void step(const float* const (&a)[kRows], long k, const float* b, Floats (&sums)[kRows][kVectors]) {
    Floats columns[kVectors];
    OCTAVO_FOR (v, kVectors) columns[v] = load(b + v * kLanes);
    OCTAVO_FOR (r, kRows)
      OCTAVO_FOR (v, kVectors) sums[r][v] += a[r][k] * columns[v];
  }
};

/// A panel of bfloat16 in pairs: rows k and k + 1 lie interleaved, column by column, so that a 32-bit lane holds both.
struct BFloat16Panel {
  using Element = BFloat16;
  static constexpr int kGroup = 2;

  template <int kRows, int kVectors>
  static inline void step(const float* const (&a)[kRows], long k, const BFloat16* b, Floats (&sums)[kRows][kVectors]) {
    Floats even[kVectors], odd[kVectors];
    OCTAVO_FOR (v, kVectors) {
      const Ints pairs = load_as<Ints>(b + v * 2 * kLanes);
      even[v] = (Floats)(pairs << 16);
      odd[v] = (Floats)(pairs & int32_t(0xffff0000));
    }
    OCTAVO_FOR (r, kRows)
      OCTAVO_FOR (v, kVectors) {
        sums[r][v] += a[r][k] * even[v];
        sums[r][v] += a[r][k + 1] * odd[v];
      }
  }

#if defined(__AVX512BF16__)
  template <int kRows, int kVectors>
  static inline void step(const BFloat16* const (&a)[kRows], long k, const BFloat16* b,
                          Floats (&sums)[kRows][kVectors]) {
    __m512bh columns[kVectors];
    OCTAVO_FOR (v, kVectors) columns[v] = (__m512bh)_mm512_loadu_si512(b + v * 2 * kLanes);
    OCTAVO_FOR (r, kRows) {
      const __m512bh both = (__m512bh)_mm512_set1_epi32(load_as<int32_t>(a[r] + k));
      OCTAVO_FOR (v, kVectors) sums[r][v] = (Floats)_mm512_dpbf16_ps((__m512)sums[r][v], both, columns[v]);
    }
  }
#endif
};

/// A panel of int8 in groups of 4 rows of k where the target multiplies unsigned with signed bytes, else of 2.
///
/// For the former 128 is added to the weights; rows, which are int8 too, are kept as what the multiplication wants.
struct Int8Panel {
  using Element = uint8_t;
#if defined(__AVX512VNNI__)
  using Row = int8_t;
  static constexpr int kGroup = 4, kOffset = 128;
#else
  using Row = int16_t;
  static constexpr int kGroup = 2, kOffset = 0;
#endif

  template <int kRows, int kVectors>
  static inline void step(const Row* const (&a)[kRows], long k, const uint8_t* b, Ints (&sums)[kRows][kVectors]) {
    OCTAVO_FOR (v, kVectors) {
      const uint8_t* column = b + v * kGroup * kLanes;
#if defined(__AVX512VNNI__)
      const __m512i weights = _mm512_loadu_si512(column);
#elif defined(__AVX512F__)
      const __m512i weights = _mm512_cvtepi8_epi16(load_as<__m256i>(column));
#elif defined(__AVX2__)
      const __m256i weights = _mm256_cvtepi8_epi16(load_as<__m128i>(column));
#else
      typedef int16_t Shorts __attribute__((vector_size(kLanes * 2)));
      const Ints pairs = __builtin_convertvector(load_as<Shorts>(column), Ints);
      const Ints even = pairs << 24 >> 24, odd = pairs >> 8;
#endif
      OCTAVO_FOR (r, kRows) {
#if defined(__AVX512VNNI__)
        const __m512i row = _mm512_set1_epi32(load_as<int32_t>(a[r] + k));
        sums[r][v] = (Ints)_mm512_dpbusd_epi32((__m512i)sums[r][v], weights, row);
#elif defined(__AVX512F__)
        const __m512i row = _mm512_set1_epi32(load_as<int32_t>(a[r] + k));
        sums[r][v] += (Ints)_mm512_madd_epi16(row, weights);
#elif defined(__AVX2__)
        const __m256i row = _mm256_set1_epi32(load_as<int32_t>(a[r] + k));
        sums[r][v] += (Ints)_mm256_madd_epi16(row, weights);
#else
        sums[r][v] += a[r][k] * even + a[r][k + 1] * odd;
#endif
      }
    }
  }
};

/// What rows that meet a panel of `Element` are made of: bfloat16 only where the target multiplies it.
#if defined(__AVX512BF16__)
template <class Panel>
using RowElement = typename Panel::Element;
#else
template <class Panel>
using RowElement = float;
#endif

constexpr long kAhead = 4096;  // bytes; the processor's own prefetching stops at the end of a page

inline void prefetch(const void* from) { __builtin_prefetch(static_cast<const char*>(from) + kAhead); }

/// sums[i][r] += a[r][0 … depth) · panel i. `stride`: elements from one row of a panel to the next.
template <class Panel, class A, class Sum, int kRows, int kPanels, int kVectors>
inline void multiply(const A* const (&a)[kRows], const typename Panel::Element* const (&panels)[kPanels], long depth,
                     long stride, Sum (&sums)[kPanels][kRows][kVectors]) {
  for (long k = 0; k < depth; k += Panel::kGroup)
    OCTAVO_FOR (i, kPanels) {
      const auto* row = panels[i] + k * stride;
      OCTAVO_FOR (v, kVectors) prefetch(row + v * Panel::kGroup * kLanes);
      Panel::template step<kRows, kVectors>(a, k, row, sums[i]);
    }
}

constexpr int kRegisters = kLanes == 16 ? 32 : 16;

/// Rows whose sums fit into registers with one panel of so many vectors, and a row's number; int8 has two sums.
constexpr int most_rows(int num_vectors, int num_sums = 1) {
  return (kRegisters - num_vectors - 2) / (num_vectors * num_sums);
}

/// The next smaller number of rows that there is a tile for: not all, since each costs time to compile.
constexpr int fewer_rows(int num_rows) { return num_rows > 8 ? 8 : num_rows > 4 ? num_rows - 2 : num_rows - 1; }

}  // namespace octavo
