// Linear layers over weights that were packed once: out = x · weightᵀ + bias.
//
// Owns: packing, blocking for the caches, the share of each thread. Must never know: layers, models.
// Blocking as in Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS 34, 2008).

#include <algorithm>
#include <cmath>

#include "api.h"
#include "pool.h"
#include "tile.h"

namespace octavo {
namespace {

constexpr int kVectors = 2;
constexpr int kPanel = kVectors * kLanes;  // columns in a panel
constexpr long kDepthBlock = 2048;         // k summed before sums go through memory; fixed, so that the order is too
constexpr int kMostPanels = 4;             // panels that few rows go over at a time
constexpr long kItemsPerThread = 16;       // so that a thread that is slowed down leaves its share to the others
constexpr long kRowsBytes = 1 << 18;       // rows of x that are worked on together should stay in the L2 cache

/// Panel after panel; in each the rows of k, `depth_group` of them interleaved. Columns that do not exist are zero.
template <class T>
void pack(const T* weight, long num_columns, long depth, int depth_group, T* packed) {
  parallel((num_columns + kPanel - 1) / kPanel, [&](long p) {
    for (long c = 0; c < kPanel; c++) {
      const long column = p * kPanel + c;
      T* to = packed + p * kPanel * depth + c * depth_group;
      for (long k = 0; k < depth; k++)
        to[(k / depth_group) * kPanel * depth_group + k % depth_group] =
            column < num_columns ? weight[column * depth + k] : T{};
    }
  });
}

/// Rows of x as int8. Each stretch of `kStretch` numbers has a scale of its own, so that one large number does not cost
/// all others their precision.
struct Int8Rows {
  static constexpr long kStretch = 32;
  const float* scales;     // [num_rows, num_stretches]
  const int32_t* offsets;  // [num_rows, num_stretches]: what sums of products begin with
  long num_stretches;
};

/// Where results go, and what becomes of a sum before.
struct Output {
  void* to;
  int dtype;
  long stride, num_columns;
  const float* bias;              // or null
  const float* scales = nullptr;  // of columns, padded to whole panels; or null

  void put(long row, long column, Floats result) const {
    if (scales) result = result * load(scales + column);
    if (dtype == OCTAVO_BFLOAT16)
      put_as(static_cast<BFloat16*>(to) + row * stride, column, result);
    else
      put_as(static_cast<float*>(to) + row * stride, column, result);
  }

  template <class T>
  void put_as(T* out, long column, Floats result) const {
    if (column + kLanes <= num_columns) return store(out + column, bias ? result + load(bias + column) : result);
    for (long c = column; c < num_columns; c++)
      out[c] = narrow<T>(bias ? result[c - column] + bias[c] : result[c - column]);
  }
};

template <class Panel, class A>
struct Product {
  Output out;
  const A* x;
  const typename Panel::Element* weight;
  long depth, x_stride;
  Int8Rows int8 = {};

  static constexpr int kMaxRows = most_rows(kVectors, std::is_same_v<Panel, Int8Panel> ? 2 : 1);

  /// `kPanels` panels from number `panel` on times `kRows` rows, over the k from `start` on. Sums are kept in
  /// `partial` until all of k is done. Several panels: with few rows one alone does not keep the multipliers busy.
  template <int kRows, int kPanels>
  void tile(long row, long panel, long start, float* partial, long partial_stride) const {
    const long count = std::min(kDepthBlock, depth - start);
    const A* a[kRows];
    OCTAVO_FOR (r, kRows) a[r] = x + (row + r) * x_stride + start;
    const typename Panel::Element* b[kPanels];
    OCTAVO_FOR (i, kPanels) b[i] = weight + ((panel + i) * depth + start) * kPanel;

    Floats sums[kPanels][kRows][kVectors] = {};
    auto at = [&](int i, int r, int v) { return partial + r * partial_stride + (i * kVectors + v) * kLanes; };
    if (start)
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (r, kRows)
          OCTAVO_FOR (v, kVectors) sums[i][r][v] = load(at(i, r, v));
    if constexpr (std::is_same_v<Panel, Int8Panel>)
      sum_stretches(a, b, row, start, count, sums);
    else
      multiply<Panel>(a, b, count, kPanel, sums);
    if (start + count < depth) {
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (r, kRows)
          OCTAVO_FOR (v, kVectors) store(at(i, r, v), sums[i][r][v]);
      return;
    }
    OCTAVO_FOR (i, kPanels)
      OCTAVO_FOR (r, kRows)
        OCTAVO_FOR (v, kVectors) out.put(row + r, (panel + i) * kPanel + v * kLanes, sums[i][r][v]);
  }

  /// `multiply` for int8: exact within a stretch, in float32 over all stretches.
  template <int kRows, int kPanels>
  void sum_stretches(const A* const (&a)[kRows], const typename Panel::Element* const (&b)[kPanels], long row,
                     long start, long count, Floats (&sums)[kPanels][kRows][kVectors]) const {
    for (long k = 0; k < count; k += Int8Rows::kStretch) {
      const long stretch = row * int8.num_stretches + (start + k) / Int8Rows::kStretch;
      const A* rows[kRows];
      OCTAVO_FOR (r, kRows) rows[r] = a[r] + k;
      const typename Panel::Element* panels[kPanels];
      OCTAVO_FOR (i, kPanels) panels[i] = b[i] + k * kPanel;
      Ints products[kPanels][kRows][kVectors];
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (r, kRows)
          OCTAVO_FOR (v, kVectors) products[i][r][v] = Ints{} + int8.offsets[stretch + r * int8.num_stretches];
      multiply<Panel>(rows, panels, std::min(Int8Rows::kStretch, count - k), kPanel, products);
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (r, kRows)
          OCTAVO_FOR (v, kVectors)
            sums[i][r][v] +=
                __builtin_convertvector(products[i][r][v], Floats) * int8.scales[stretch + r * int8.num_stretches];
    }
  }

  /// Panels that go over so many rows at a time: with few rows one alone does not keep the multipliers busy.
  static constexpr int panels_at_once(int num_rows) { return std::clamp((kMaxRows - 1) / num_rows, 1, kMostPanels); }

  /// Rows from `row` to `end` times the panels from `first` to `last`; `partial` is where the first of them begins.
  void rows(long row, long end, long first, long last, long start, float* partial, long partial_stride) const {
    while (row < end) {
      const long num_tiles = (end - row + kMaxRows - 1) / kMaxRows;
      const int count = int((end - row + num_tiles - 1) / num_tiles);  // none much smaller than the others
      tiles<kMaxRows>(count, row, first, last, start, partial, partial_stride);
      row += count;
      partial += count * partial_stride;
    }
  }

  /// `count` rows, which are at most `kRows`.
  template <int kRows>
  void tiles(int count, long row, long first, long last, long start, float* partial, long partial_stride) const {
    if constexpr (kRows > 1)
      if (count < kRows) return tiles<kRows - 1>(count, row, first, last, start, partial, partial_stride);
    constexpr int kPanels = panels_at_once(kRows);
    long panel = first;
    for (; panel + kPanels <= last; panel += kPanels)
      tile<kRows, kPanels>(row, panel, start, partial + (panel - first) * kPanel, partial_stride);
    if constexpr (kPanels > 1)
      for (; panel < last; panel++)
        tile<kRows, 1>(row, panel, start, partial + (panel - first) * kPanel, partial_stride);
  }

  /// All rows. An item is a block of rows, which stays in the L2 cache, times some panels.
  void compute(long num_rows) const {
    if (num_rows == 0) return;
    const long num_panels = (out.num_columns + kPanel - 1) / kPanel;
    const long fitting = kRowsBytes / (std::min(depth, kDepthBlock) * long(sizeof(A)));
    const long block_rows = std::max<long>(fitting / kMaxRows, 1) * kMaxRows;
    const long num_blocks = (num_rows + block_rows - 1) / block_rows;
    const long share = num_panels * num_blocks / (kItemsPerThread * num_threads());
    const long unit = num_rows > kMaxRows ? 1 : panels_at_once(int(num_rows));
    const long group = std::max<long>(share / unit, 1) * unit;
    const long num_groups = (num_panels + group - 1) / group;
    parallel(num_groups * num_blocks, [&](long item) {
      const long row = item / num_groups * block_rows, first = item % num_groups * group;
      block(row, std::min(row + block_rows, num_rows), first, std::min(first + group, num_panels));
    });
  }

  void block(long row, long end, long first, long last) const {
    const long stride = (last - first) * kPanel;
    float* partial = depth > kDepthBlock ? scratch<float, Product>((end - row) * stride) : nullptr;
    for (long start = 0; start < depth; start += kDepthBlock) {
      if (end - row <= kMaxRows) {
        rows(row, end, first, last, start, partial, stride);
        continue;
      }
      for (long panel = first; panel < last; panel++)  // one at a time, so that it stays in the cache for all rows
        rows(row, end, panel, panel + 1, start, partial ? partial + (panel - first) * kPanel : nullptr, stride);
    }
  }
};

/// `convert(row)` for all rows, by several threads where it pays.
template <class Convert>
void for_rows(long num_rows, const Convert& convert) {
  constexpr long kRows = 8;
  parallel((num_rows + kRows - 1) / kRows, [&](long item) {
    for (long row = item * kRows; row < std::min((item + 1) * kRows, num_rows); row++) convert(row);
  });
}

/// Bfloat16 rows as float32.
float* widened(const BFloat16* x, long num_rows, long depth, long stride) {
  float* wide = scratch<float, struct Widened>(num_rows * depth);
  for_rows(num_rows, [&](long row) {
    for (long k = 0; k < depth; k++) wide[row * depth + k] = widen(x[row * stride + k]);
  });
  return wide;
}

/// A stretch of a row as int8, its largest number as 127; returns the scale, and the offset in `offset`.
template <class T>
float quantize(const T* x, long count, Int8Panel::Row* to, int32_t& offset) {
  typedef Int8Panel::Row Rows __attribute__((vector_size(kLanes * sizeof(Int8Panel::Row))));
  float padded[Int8Rows::kStretch] = {};
  long k = 0;
  for (; k + kLanes <= count; k += kLanes) store(padded + k, load(x + k));
  for (; k < count; k++) padded[k] = widen(x[k]);
  Floats most = {};
  Ints is_odd = {};  // infinite, or no number
  for (k = 0; k < Int8Rows::kStretch; k += kLanes) {
    const Floats v = load(padded + k);
    is_odd |= v - v != 0.0f;
    most = max(most, max(v, -v));
  }
  const float limit = largest(most);
  const Floats inverse = splat(limit > 0 ? 127 / limit : 0), magic = splat(12582912.0f);  // see exp
  Ints sum = {};
  Rows numbers[Int8Rows::kStretch / kLanes];
  for (k = 0; k < Int8Rows::kStretch; k += kLanes) {
    const Ints rounded = ~is_odd & ((Ints)(load(padded + k) * inverse + magic) - (Ints)magic);
    sum += rounded;
    numbers[k / kLanes] = __builtin_convertvector(rounded, Rows);
  }
  std::memcpy(to, numbers, count * sizeof(*to));
  offset = -Int8Panel::kOffset * total(sum);
  return total(is_odd) == 0 ? limit / 127 : NAN;  // what has no int8 makes its stretch NaN
}

template <class T>
void int8_product(const Output& out, const T* x, const uint8_t* weight, long num_rows, long depth, long x_stride) {
  constexpr long kStretch = Int8Rows::kStretch;
  const long num_stretches = (depth + kStretch - 1) / kStretch;
  Int8Panel::Row* numbers = scratch<Int8Panel::Row, struct Numbers>(num_rows * depth);
  float* scales = scratch<float, struct RowScales>(num_rows * num_stretches);
  int32_t* offsets = scratch<int32_t, struct Offsets>(num_rows * num_stretches);
  for_rows(num_rows, [&](long row) {
    for (long k = 0, i = row * num_stretches; k < depth; k += kStretch, i++)
      scales[i] =
          quantize(x + row * x_stride + k, std::min(kStretch, depth - k), numbers + row * depth + k, offsets[i]);
  });
  const Int8Rows int8{scales, offsets, num_stretches};
  Product<Int8Panel, Int8Panel::Row>{out, numbers, weight, depth, depth, int8}.compute(num_rows);
}

}  // namespace
}  // namespace octavo

using namespace octavo;

extern "C" int64_t octavo_packed_columns(int64_t num_columns) { return (num_columns + kPanel - 1) / kPanel * kPanel; }

extern "C" void octavo_pack(const void* weight, int64_t dtype, int64_t num_columns, int64_t depth, void* packed) {
  if (dtype == OCTAVO_BFLOAT16)
    pack(static_cast<const BFloat16*>(weight), num_columns, depth, BFloat16Panel::kGroup,
         static_cast<BFloat16*>(packed));
  else if (dtype == OCTAVO_FLOAT32)
    pack(static_cast<const float*>(weight), num_columns, depth, FloatPanel::kGroup, static_cast<float*>(packed));
  else {
    uint8_t* to = static_cast<uint8_t*>(packed);
    pack(static_cast<const uint8_t*>(weight), num_columns, depth, Int8Panel::kGroup, to);
    const long size = octavo_packed_columns(num_columns) * depth;
    for (long i = 0; i < size; i++) to[i] = uint8_t(to[i] + Int8Panel::kOffset);
  }
}

extern "C" void octavo_linear(const OctavoLinear* p) {
  const Output out{p->out, int(p->dtype), p->out_stride, p->num_columns, p->bias, p->scales};
  const auto* wide = static_cast<const float*>(p->x);
  const auto* narrow = static_cast<const BFloat16*>(p->x);
  const bool is_narrow = p->dtype == OCTAVO_BFLOAT16;
  long x_stride = p->x_stride;
  if (p->weight_dtype == OCTAVO_INT8) {
    const auto* weight = static_cast<const uint8_t*>(p->weight);
    if (is_narrow) return int8_product(out, narrow, weight, p->num_rows, p->depth, x_stride);
    return int8_product(out, wide, weight, p->num_rows, p->depth, x_stride);
  }
  const auto* weight = static_cast<const BFloat16*>(p->weight);
#if defined(__AVX512BF16__)
  if (is_narrow && p->weight_dtype == OCTAVO_BFLOAT16)
    return Product<BFloat16Panel, BFloat16>{out, narrow, weight, p->depth, x_stride}.compute(p->num_rows);
#endif
  if (is_narrow) {
    wide = widened(narrow, p->num_rows, p->depth, x_stride);
    x_stride = p->depth;
  }
  if (p->weight_dtype == OCTAVO_BFLOAT16)
    Product<BFloat16Panel, float>{out, wide, weight, p->depth, x_stride}.compute(p->num_rows);
  else
    Product<FloatPanel, float>{out, wide, static_cast<const float*>(p->weight), p->depth, x_stride}.compute(
        p->num_rows);
}
