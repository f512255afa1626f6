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
constexpr int kMaxRows = most_rows(kVectors);
constexpr long kDepthBlock = 2048;    // k summed before sums go through memory; fixed, so that the order is too
constexpr int kFewRowsPanels = 4;     // panels that one row goes over at a time
constexpr long kItemsPerThread = 4;   // so that a thread that is slowed down leaves its share to the others
constexpr long kRowsBytes = 1 << 18;  // rows of x that are worked on together should stay in the L2 cache

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

/// What turns sums of int8 products into numbers: one scale for each row of x and each column.
struct Scales {
  const float* rows;
  const float* columns;
  const int32_t* column_sums;  // of the weights, for targets whose rows have an offset
};

template <class Panel, class A, class Out>
struct Product {
  using Sum = typename Panel::Sum;
  Out* out;
  const A* x;
  const typename Panel::Element* weight;
  const float* bias;
  long num_columns, depth, out_stride, x_stride;
  Scales scales = {};

  /// `kPanels` panels from number `panel` on times `kRows` rows, over the k from `start` on. Sums are kept in
  /// `partial` until all of k is done. Several panels: with few rows one alone does not keep the multipliers busy.
  template <int kRows, int kPanels>
  void tile(long row, long panel, long start, float* partial, long partial_stride) const {
    const long count = std::min(kDepthBlock, depth - start);
    const A* a[kRows];
    OCTAVO_UNROLL
    for (int r = 0; r < kRows; r++) a[r] = x + (row + r) * x_stride + start;
    const typename Panel::Element* b[kPanels];
    OCTAVO_UNROLL
    for (int i = 0; i < kPanels; i++) b[i] = weight + ((panel + i) * depth + start) * kPanel;

    Sum sums[kPanels][kRows][kVectors] = {};
    auto at = [&](int i, int r, int v) { return partial + r * partial_stride + (i * kVectors + v) * kLanes; };
    if (start)
      OCTAVO_UNROLL
      for (int i = 0; i < kPanels; i++)
        OCTAVO_UNROLL
        for (int r = 0; r < kRows; r++)
          OCTAVO_UNROLL
          for (int v = 0; v < kVectors; v++) sums[i][r][v] = load_as<Sum>(at(i, r, v));
    multiply<Panel>(a, b, count, kPanel, sums);
    if (start + count < depth) {
      OCTAVO_UNROLL
      for (int i = 0; i < kPanels; i++)
        OCTAVO_UNROLL
        for (int r = 0; r < kRows; r++)
          OCTAVO_UNROLL
          for (int v = 0; v < kVectors; v++) std::memcpy(at(i, r, v), &sums[i][r][v], sizeof(Sum));
      return;
    }
    OCTAVO_UNROLL
    for (int i = 0; i < kPanels; i++)
      OCTAVO_UNROLL
      for (int r = 0; r < kRows; r++)
        OCTAVO_UNROLL
        for (int v = 0; v < kVectors; v++)
          finish(row + r, (panel + i) * kPanel + v * kLanes, sums[i][r][v]);
  }

  Floats scaled(long, long, Floats sums) const { return sums; }

  /// Scales and sums of columns are padded to whole panels.
  Floats scaled(long row, long column, Ints sums) const {
    if constexpr (Int8Panel::kOffset) sums -= Int8Panel::kOffset * load_as<Ints>(scales.column_sums + column);
    return __builtin_convertvector(sums, Floats) * (scales.rows[row] * load(scales.columns + column));
  }

  void finish(long row, long column, Sum sums) const {
    const Floats result = scaled(row, column, sums);
    Out* to = out + row * out_stride;
    if (column + kLanes <= num_columns) {
      store(to + column, bias ? result + load(bias + column) : result);
      return;
    }
    for (long c = column; c < num_columns; c++)
      to[c] = narrow<Out>(bias ? result[c - column] + bias[c] : result[c - column]);
  }

  /// Rows from `row` to `end` times the panels from `first` to `last`; `partial` is where the first of them begins.
  template <int kRows = kMaxRows>
  void rows(long row, long end, long first, long last, long start, float* partial, long partial_stride) const {
    constexpr int kPanels = kRows == 1 ? kFewRowsPanels : kRows == 2 ? kFewRowsPanels / 2 : 1;
    for (; row + kRows <= end; row += kRows, partial += kRows * partial_stride) {
      long panel = first;
      for (; panel + kPanels <= last; panel += kPanels)
        tile<kRows, kPanels>(row, panel, start, partial + (panel - first) * kPanel, partial_stride);
      for (; panel < last; panel++)
        tile<kRows, 1>(row, panel, start, partial + (panel - first) * kPanel, partial_stride);
    }
    if constexpr (kRows > 1) rows<fewer_rows(kRows)>(row, end, first, last, start, partial, partial_stride);
  }

  /// All rows. An item is a block of rows, which stays in the L2 cache, times some panels.
  void compute(long num_rows) const {
    const long num_panels = (num_columns + kPanel - 1) / kPanel;
    const long fitting = kRowsBytes / (std::min(depth, kDepthBlock) * long(sizeof(A)));
    const long block_rows = std::max<long>(fitting / kMaxRows, 1) * kMaxRows;
    const long num_blocks = (num_rows + block_rows - 1) / block_rows;
    const long share = num_panels * num_blocks / (kItemsPerThread * num_threads());
    const long group = std::clamp<long>(share / kFewRowsPanels * kFewRowsPanels, kFewRowsPanels, num_panels);
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
      if (end - row < 3) {
        rows(row, end, first, last, start, partial, stride);
        continue;
      }
      for (long panel = first; panel < last; panel++)  // one at a time, so that it stays in the cache for all rows
        rows(row, end, panel, panel + 1, start, partial ? partial + (panel - first) * kPanel : nullptr, stride);
    }
  }
};

template <class Panel, class A, class Out>
void product(void* out, const A* x, const void* weight, const float* bias, long num_rows, long num_columns, long depth,
             long out_stride, long x_stride) {
  Product<Panel, A, Out>{static_cast<Out*>(out), x,     static_cast<const typename Panel::Element*>(weight),
                         bias,                   num_columns, depth,
                         out_stride,             x_stride}
      .compute(num_rows);
}

/// `convert(row)` for all rows, by several threads where it pays.
template <class Convert>
void for_rows(long num_rows, const Convert& convert) {
  constexpr long kRows = 8;
  parallel((num_rows + kRows - 1) / kRows, [&](long item) {
    for (long row = item * kRows; row < std::min((item + 1) * kRows, num_rows); row++) convert(row);
  });
}

/// Bfloat16 rows as float32, for targets that cannot multiply bfloat16.
float* widened(const BFloat16* x, long num_rows, long depth, long stride) {
  float* wide = scratch<float, struct Widened>(num_rows * depth);
  for_rows(num_rows, [&](long row) {
    for (long k = 0; k < depth; k++) wide[row * depth + k] = widen(x[row * stride + k]);
  });
  return wide;
}

template <class Out>
void dispatch(int weight_dtype, const Out* x, void* out, const void* weight, const float* bias, long num_rows,
              long num_columns, long depth, long out_stride, long x_stride) {
  if constexpr (std::is_same_v<Out, BFloat16>) {
#if defined(__AVX512BF16__)
    if (weight_dtype == OCTAVO_BFLOAT16)
      return product<BFloat16Panel, BFloat16, Out>(out, x, weight, bias, num_rows, num_columns, depth, out_stride, x_stride);
#endif
    const float* wide = widened(x, num_rows, depth, x_stride);
    if (weight_dtype == OCTAVO_BFLOAT16)
      return product<BFloat16Panel, float, Out>(out, wide, weight, bias, num_rows, num_columns, depth, out_stride, depth);
    return product<FloatPanel, float, Out>(out, wide, weight, bias, num_rows, num_columns, depth, out_stride, depth);
  } else {
    if (weight_dtype == OCTAVO_BFLOAT16)
      return product<BFloat16Panel, float, Out>(out, x, weight, bias, num_rows, num_columns, depth, out_stride, x_stride);
    return product<FloatPanel, float, Out>(out, x, weight, bias, num_rows, num_columns, depth, out_stride, x_stride);
  }
}

/// A row of x as int8, so that its largest number becomes 127; returns the scale.
template <class T>
float quantize(const T* x, long depth, Int8Panel::Row* to) {
  float most = 0;
  for (long k = 0; k < depth; k++) most = std::max(most, std::abs(widen(x[k])));
  const float inverse = most > 0 ? 127 / most : 0;
  bool is_number = true;  // NaN has no int8: such a row is all NaN
  for (long k = 0; k < depth; k++) {
    const float value = widen(x[k]);
    is_number &= value == value;
    to[k] = Int8Panel::Row(int(std::lrint(value == value ? value * inverse : 0)) + Int8Panel::kOffset);
  }
  return is_number ? most / 127 : NAN;
}

template <class T>
void int8_product(const T* x, void* out, const int8_t* weight, const float* scales, const int32_t* sums,
                  const float* bias, long num_rows, long num_columns, long depth, long out_stride, long x_stride) {
  Int8Panel::Row* rows = scratch<Int8Panel::Row, struct Rows>(num_rows * depth);
  float* row_scales = scratch<float, struct RowScales>(num_rows);
  for_rows(num_rows, [&](long r) { row_scales[r] = quantize(x + r * x_stride, depth, rows + r * depth); });
  Product<Int8Panel, Int8Panel::Row, T>{static_cast<T*>(out), rows,  weight, bias, num_columns, depth, out_stride,
                                        depth, {row_scales, scales, sums}}
      .compute(num_rows);
}

}  // namespace
}  // namespace octavo

using namespace octavo;

extern "C" int64_t octavo_packed_columns(int64_t num_columns) { return (num_columns + kPanel - 1) / kPanel * kPanel; }

extern "C" void octavo_pack(const void* weight, int dtype, int64_t num_columns, int64_t depth, void* packed) {
  if (dtype == OCTAVO_BFLOAT16)
    pack(static_cast<const BFloat16*>(weight), num_columns, depth, BFloat16Panel::kGroup, static_cast<BFloat16*>(packed));
  else
    pack(static_cast<const float*>(weight), num_columns, depth, FloatPanel::kGroup, static_cast<float*>(packed));
}

extern "C" void octavo_linear(void* out, const void* x, int dtype, const void* weight, int weight_dtype, const float* bias,
                              int64_t num_rows, int64_t num_columns, int64_t depth, int64_t out_stride,
                              int64_t x_stride) {
  if (dtype == OCTAVO_BFLOAT16)
    dispatch(weight_dtype, static_cast<const BFloat16*>(x), out, weight, bias, num_rows, num_columns, depth, out_stride, x_stride);
  else
    dispatch(weight_dtype, static_cast<const float*>(x), out, weight, bias, num_rows, num_columns, depth, out_stride, x_stride);
}

extern "C" void octavo_pack_int8(const int8_t* weight, int64_t num_columns, int64_t depth, int8_t* packed,
                                 int32_t* column_sums) {
  pack(weight, num_columns, depth, Int8Panel::kGroup, packed);
  for (long column = 0; column < num_columns; column++) {
    column_sums[column] = 0;
    for (long k = 0; k < depth; k++) column_sums[column] += weight[column * depth + k];
  }
}

extern "C" void octavo_linear_int8(void* out, const void* x, int dtype, const int8_t* weight, const float* scales,
                                   const int32_t* column_sums, const float* bias, int64_t num_rows,
                                   int64_t num_columns, int64_t depth, int64_t out_stride, int64_t x_stride) {
  if (dtype == OCTAVO_BFLOAT16)
    int8_product(static_cast<const BFloat16*>(x), out, weight, scales, column_sums, bias, num_rows, num_columns, depth, out_stride, x_stride);
  else
    int8_product(static_cast<const float*>(x), out, weight, scales, column_sums, bias, num_rows, num_columns, depth, out_stride, x_stride);
}
