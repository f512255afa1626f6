// The one product that everything is made of: a few rows times a few panels of columns, summed over k in order.
//
// Owns: the inner loop, the cut of rows into tiles. Must never know: where rows and panels come from.
// Every element of a result is summed in the same order whatever the number of rows and panels around it, so a row's
// result does not depend on its neighbours.

#pragma once

#include <algorithm>
#include <type_traits>

#include "simd.h"

namespace octavo {

/// A tile's rows, `kGroup` numbers of each in turn: [depth / kGroup, kRows, kGroup]. One address for all rows.
template <class T, int kRows, int kGroup>
struct PackedRows {
  using Number = T;
  const T* data;
  const T* at(int row, long k) const { return data + k * kRows + row * kGroup; }
};

/// Rows at a fixed distance from each other.
template <class T, int kDistance>
struct SpacedRows {
  using Number = T;
  const T* data;
  const T* at(int row, long k) const { return data + row * kDistance + k; }
};

/// A panel of float32: row k is a few vectors at `data + k * stride`.
struct FloatPanel {
  using Element = float;
  static constexpr int kGroup = 1;  // rows of k that lie together

  template <class Rows, int kRows, int kVectors>
  static inline void step(const Rows& a, long k, const float* b, Floats (&sums)[kRows][kVectors]) {
    Floats columns[kVectors];
    OCTAVO_FOR (v, kVectors) columns[v] = load(b + v * kLanes);
    OCTAVO_FOR (r, kRows)
      OCTAVO_FOR (v, kVectors) sums[r][v] += *a.at(r, k) * columns[v];
  }
};

/// A panel of bfloat16 in pairs: rows k and k + 1 lie interleaved, column by column, so that a 32-bit lane holds both.
struct BFloat16Panel {
  using Element = BFloat16;
  static constexpr int kGroup = 2;

  template <class Rows, int kRows, int kVectors>
  static inline void step(const Rows& a, long k, const BFloat16* b, Floats (&sums)[kRows][kVectors]) {
    if constexpr (std::is_same_v<typename Rows::Number, float>)
      widened(a, k, b, sums);
    else
      dot(a, k, b, sums);
  }

  template <class Rows, int kRows, int kVectors>
  static inline void widened(const Rows& a, long k, const BFloat16* b, Floats (&sums)[kRows][kVectors]) {
    Floats even[kVectors], odd[kVectors];
    OCTAVO_FOR (v, kVectors) {
      const Ints pairs = load_as<Ints>(b + v * 2 * kLanes);
      even[v] = (Floats)(pairs << 16);
      odd[v] = (Floats)(pairs & int32_t(0xffff0000));
    }
    OCTAVO_FOR (r, kRows)
      OCTAVO_FOR (v, kVectors) {
        sums[r][v] += a.at(r, k)[0] * even[v];
        sums[r][v] += a.at(r, k)[1] * odd[v];
      }
  }

#if defined(__AVX512BF16__)
  template <class Rows, int kRows, int kVectors>
  static inline void dot(const Rows& a, long k, const BFloat16* b, Floats (&sums)[kRows][kVectors]) {
    __m512bh columns[kVectors];
    OCTAVO_FOR (v, kVectors) columns[v] = (__m512bh)_mm512_loadu_si512(b + v * 2 * kLanes);
    OCTAVO_FOR (r, kRows) {
      const __m512bh both = (__m512bh)_mm512_set1_epi32(load_as<int32_t>(a.at(r, k)));
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

  template <class Rows, int kRows, int kVectors>
  static inline void step(const Rows& a, long k, const uint8_t* b, Ints (&sums)[kRows][kVectors]) {
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
        const __m512i row = _mm512_set1_epi32(load_as<int32_t>(a.at(r, k)));
        sums[r][v] = (Ints)_mm512_dpbusd_epi32((__m512i)sums[r][v], weights, row);
#elif defined(__AVX512F__)
        const __m512i row = _mm512_set1_epi32(load_as<int32_t>(a.at(r, k)));
        sums[r][v] += (Ints)_mm512_madd_epi16(row, weights);
#elif defined(__AVX2__)
        const __m256i row = _mm256_set1_epi32(load_as<int32_t>(a.at(r, k)));
        sums[r][v] += (Ints)_mm256_madd_epi16(row, weights);
#else
        sums[r][v] += a.at(r, k)[0] * even + a.at(r, k)[1] * odd;
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

/// sums[i][r] += row r of a, from its start, times panel i. `stride`: elements from one row of a panel to the next.
/// On the way the same stretches of `ahead` are fetched into the cache: what is multiplied next.
template <class Panel, class Rows, class Sum, int kRows, int kPanels, int kVectors>
inline void multiply(const Rows& a, const typename Panel::Element* const (&panels)[kPanels],
                     const typename Panel::Element* const (&ahead)[kPanels], long depth, long stride,
                     Sum (&sums)[kPanels][kRows][kVectors]) {
  for (long k = 0; k < depth; k += Panel::kGroup)
    OCTAVO_FOR (i, kPanels) {
      OCTAVO_FOR (v, kVectors) __builtin_prefetch(ahead[i] + k * stride + v * Panel::kGroup * kLanes);
      Panel::step(a, k, panels[i] + k * stride, sums[i]);
    }
}

constexpr int kRegisters = kLanes == 16 ? 32 : 16;

/// Rows whose sums fit into registers with one panel of so many vectors, and a row's number; int8 has two sums.
constexpr int most_rows(int num_vectors, int num_sums = 1) {
  return (kRegisters - num_vectors - 2) / (num_vectors * num_sums);
}

/// Rows cut into as few tiles of at most `kMaxRows` as can be, none more than a row larger than another.
template <int kMaxRows>
struct Tiles {
  explicit Tiles(long num_rows) : count((num_rows + kMaxRows - 1) / kMaxRows), num_rows_(num_rows) {}

  long start(long tile) const { return tile * (num_rows_ / count) + std::min(tile, num_rows_ % count); }

  /// `function(row, number)` for each tile from `first` to `last`: its first row, and how many it has as a constant.
  template <class Function>
  void each(long first, long last, const Function& function) const {
    for (long tile = first; tile < last; tile++)
      with_constant<kMaxRows>(int(start(tile + 1) - start(tile)), [&](auto n) { function(start(tile), n); });
  }

  const long count;

 private:
  template <int kRows, class Function>
  static void with_constant(int num_rows, const Function& function) {
    if constexpr (kRows > 1)
      if (num_rows < kRows) return with_constant<kRows - 1>(num_rows, function);
    function(std::integral_constant<int, kRows>());
  }

  const long num_rows_;
};

}  // namespace octavo
