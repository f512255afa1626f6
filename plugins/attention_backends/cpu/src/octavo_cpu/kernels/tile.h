// The one product that everything is made of: a few rows times a few panels of columns, summed over k in order.
//
// Owns: the inner loop, kinds of panels, what fits into registers. Must never know: where rows and panels come from.
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
  const T* data;
  const T* at(int row, long k) const { return data + k * kRows + row * kGroup; }
};

/// Rows at a fixed distance from each other.
template <class T, int kDistance>
struct SpacedRows {
  const T* data;
  const T* at(int row, long k) const { return data + row * kDistance + k; }
};

// A panel is some vectors of columns for each k, row k `k * stride` numbers after its start. It has
//
//   Element      what it consists of, `kPerElement` numbers of a column each
//   kGroup       rows of k that lie together
//   Row          what rows that are multiplied with it consist of
//   Columns      one vector of columns, for a group of k, when it has been loaded: a register for each member

/// A panel of float32, or of int8 that is widened.
template <class T>
struct FloatPanel {
  using Element = T;
  using Row = float;
  static constexpr int kGroup = 1, kPerElement = 1;

  struct Columns {
    Floats numbers;

    static Columns load(const T* b) { return {octavo::load(b)}; }
    void add(const float* row, Floats& sum) const { sum += *row * numbers; }
  };
};

/// A panel of bfloat16 in pairs: rows k and k + 1 lie interleaved, column by column, so that a 32-bit lane holds both.
struct WidenedBFloat16Panel {
  using Element = BFloat16;
  using Row = float;
  static constexpr int kGroup = 2, kPerElement = 1;

  struct Columns {
    Floats even, odd;

    static Columns load(const BFloat16* b) {
      const Ints pairs = load_as<Ints>(b);
      return {(Floats)(pairs << 16), (Floats)(pairs & int32_t(0xffff0000))};
    }
    void add(const float* row, Floats& sum) const {
      sum += row[0] * even;
      sum += row[1] * odd;
    }
  };
};

#if defined(__AVX512BF16__)
/// The same for rows of bfloat16.
struct BFloat16Panel {
  using Element = BFloat16;
  using Row = BFloat16;
  static constexpr int kGroup = 2, kPerElement = 1;

  struct Columns {
    __m512bh pairs;

    static Columns load(const BFloat16* b) { return {(__m512bh)_mm512_loadu_si512(b)}; }
    void add(const BFloat16* row, Floats& sum) const {
      sum = (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(load_as<int32_t>(row)), pairs);
    }
  };
};
#else
using BFloat16Panel = WidenedBFloat16Panel;
#endif

/// A panel of int8 in groups of 4 rows of k where the target multiplies unsigned with signed bytes, else of 2.
///
/// For the former 128 is added to the weights; rows, which are int8 too, are kept as what the multiplication wants.
struct Int8Panel {
  using Element = uint8_t;
#if defined(__AVX512VNNI__)
  using Row = int8_t;
  static constexpr int kGroup = 4, kPerElement = 1, kOffset = 128;
#else
  using Row = int16_t;
  static constexpr int kGroup = 2, kPerElement = 1, kOffset = 0;
#endif

  struct Columns {
#if defined(__AVX512VNNI__)
    __m512i weights;

    static Columns load(const uint8_t* b) { return {_mm512_loadu_si512(b)}; }
    void add(const Row* row, Ints& sum) const {
      sum = (Ints)_mm512_dpbusd_epi32((__m512i)sum, weights, _mm512_set1_epi32(load_as<int32_t>(row)));
    }
#elif defined(__AVX512F__)
    __m512i weights;

    static Columns load(const uint8_t* b) { return {_mm512_cvtepi8_epi16(load_as<__m256i>(b))}; }
    void add(const Row* row, Ints& sum) const {
      sum += (Ints)_mm512_madd_epi16(_mm512_set1_epi32(load_as<int32_t>(row)), weights);
    }
#elif defined(__AVX2__)
    __m256i weights;

    static Columns load(const uint8_t* b) { return {_mm256_cvtepi8_epi16(load_as<__m128i>(b))}; }
    void add(const Row* row, Ints& sum) const {
      sum += (Ints)_mm256_madd_epi16(_mm256_set1_epi32(load_as<int32_t>(row)), weights);
    }
#else
    Ints even, odd;

    static Columns load(const uint8_t* b) {
      typedef int16_t Shorts __attribute__((vector_size(kLanes * 2)));
      const Ints pairs = __builtin_convertvector(load_as<Shorts>(b), Ints);
      return {pairs << 24 >> 24, pairs >> 8};
    }
    void add(const Row* row, Ints& sum) const { sum += row[0] * even + row[1] * odd; }
#endif
  };
};

/// A panel of numbers from 0 to 15: a byte has one of a group of `Int8Panel`, and in the upper half one of the next.
struct Int4Panel {
  using Element = uint8_t;
  using Row = Int8Panel::Row;
  static constexpr int kGroup = 2 * Int8Panel::kGroup, kPerElement = 2, kOffset = 0;

  struct Columns {
    Int8Panel::Columns first, second;

    static Columns load(const uint8_t* b) {
      typedef uint8_t Pairs __attribute__((vector_size(kLanes * Int8Panel::kGroup)));
      const Pairs both = load_as<Pairs>(b), first = both & 15, second = both >> 4;
      return {Int8Panel::Columns::load((const uint8_t*)&first), Int8Panel::Columns::load((const uint8_t*)&second)};
    }
    void add(const Row* row, Ints& sum) const {
      first.add(row, sum);
      second.add(row + Int8Panel::kGroup, sum);
    }
  };
};

/// sums[i][r] += row r of a, from its start, times panel i. `stride`: numbers from one row of a panel to the next.
/// On the way the same stretches of `ahead` are fetched into the cache: what is multiplied next.
template <class Panel, class Rows, class Sum, int kRows, int kPanels, int kVectors>
inline void multiply(const Rows& a, const typename Panel::Element* const (&panels)[kPanels],
                     const typename Panel::Element* const (&ahead)[kPanels], long depth, long stride,
                     Sum (&sums)[kPanels][kRows][kVectors]) {
  using Columns = typename Panel::Columns;
  constexpr int kPerElement = Panel::kPerElement, kVector = Panel::kGroup * kLanes / kPerElement;
  for (long k = 0; k < depth; k += Panel::kGroup) {
    Columns columns[kPanels][kVectors];
    OCTAVO_FOR (i, kPanels)
      OCTAVO_FOR (v, kVectors) {
        const long at = k * stride / kPerElement + v * kVector;
        __builtin_prefetch(ahead[i] + at);
        columns[i][v] = Columns::load(panels[i] + at);
      }
    // Row by row, so that a number of a row is in a register only while all panels need it.
    OCTAVO_FOR (r, kRows)
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (v, kVectors) columns[i][v].add(a.at(r, k), sums[i][r][v]);
  }
}

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif
constexpr int kRowRegisters = kLanes == 16 ? 0 : 1;  // AVX-512 multiplies with a number in memory

/// Vectors of sums that fit into registers beside so many vectors of columns.
template <class Panel>
constexpr int most_sums(int num_vectors) {
  return kRegisters - kRowRegisters - num_vectors * int(sizeof(typename Panel::Columns) / sizeof(Floats));
}

/// Panels of `num_vectors` that so many rows go over at a time, with `num_sums` for each number of the result: with few
/// rows one alone does not keep the multipliers busy.
template <class Panel>
constexpr int panels_at_once(int num_rows, int num_vectors, int num_sums = 1) {
  int panels = 4;
  while (panels > 1 && panels * num_vectors * num_rows * num_sums > most_sums<Panel>(panels * num_vectors)) panels--;
  return panels;
}

/// `size` rows (or panels) cut into as few parts of at most `kMost` as can be, none more than one larger than another.
template <int kMost>
struct EvenSplit {
  explicit EvenSplit(long size) : count((size + kMost - 1) / kMost), size_(size) {}

  long start(long part) const { return part * (size_ / count) + std::min(part, size_ % count); }

  /// `function(start, number)` for each part from `first` to `last`; the number of rows in it is a constant.
  template <class Function>
  void each(long first, long last, const Function& function) const {
    for (long part = first; part < last; part++)
      with_constant<kMost>(int(start(part + 1) - start(part)), [&](auto n) { function(start(part), n); });
  }

  const long count;

 private:
  template <int kNumber, class Function>
  static void with_constant(int number, const Function& function) {
    if constexpr (kNumber > 1)
      if (number < kNumber) return with_constant<kNumber - 1>(number, function);
    function(std::integral_constant<int, kNumber>());
  }

  const long size_;
};

}  // namespace octavo
