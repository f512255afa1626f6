// Linear layers over weights that were packed once: out = x · weightᵀ + bias.
//
// Owns: packing, blocking for the caches, the share of each thread. Must never know: layers, models.
// Blocking as in Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS 34, 2008).

#include <algorithm>
#include <cmath>
#include <memory>

#include <omp.h>

#include "api.h"
#include "tile.h"

namespace octavo {
namespace {

constexpr int kVectors = 2;
constexpr int kPanel = kVectors * kLanes;  // columns in a panel
constexpr int kMaxRows = most_rows(kVectors);
constexpr long kDepthBlock = 2048;    // k summed before sums go through memory; fixed, so that the order is too
constexpr long kRowsBytes = 1 << 18;  // rows of x that are worked on together should stay in the L2 cache

/// Panel after panel; in each the rows of k, `depth_group` of them interleaved. Columns that do not exist are zero.
template <class T>
void pack(const T* weight, long num_columns, long depth, int depth_group, T* packed) {
  const long num_panels = (num_columns + kPanel - 1) / kPanel;
#pragma omp parallel for schedule(static)
  for (long p = 0; p < num_panels; p++)
    for (long c = 0; c < kPanel; c++) {
      const long column = p * kPanel + c;
      T* to = packed + p * kPanel * depth + c * depth_group;
      for (long k = 0; k < depth; k++)
        to[(k / depth_group) * kPanel * depth_group + k % depth_group] =
            column < num_columns ? weight[column * depth + k] : T{};
    }
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
    constexpr int kPanels = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;
    for (; row + kRows <= end; row += kRows, partial += kRows * partial_stride) {
      long panel = first;
      for (; panel + kPanels <= last; panel += kPanels)
        tile<kRows, kPanels>(row, panel, start, partial + (panel - first) * kPanel, partial_stride);
      for (; panel < last; panel++)
        tile<kRows, 1>(row, panel, start, partial + (panel - first) * kPanel, partial_stride);
    }
    if constexpr (kRows > 1) rows<fewer_rows(kRows)>(row, end, first, last, start, partial, partial_stride);
  }

  void compute(long num_rows) const {
    const long num_panels = (num_columns + kPanel - 1) / kPanel;
    const long block_rows = std::max<long>(kRowsBytes / (std::min(depth, kDepthBlock) * sizeof(A)) / kMaxRows, 1) * kMaxRows;
#pragma omp parallel
    {
      const long num_threads = omp_get_num_threads(), thread = omp_get_thread_num();
      const long first = num_panels * thread / num_threads, last = num_panels * (thread + 1) / num_threads;
      const long stride = (last - first) * kPanel;
      std::unique_ptr<float[]> partial;
      if (depth > kDepthBlock) partial.reset(new float[std::min(block_rows, num_rows) * stride]);
      for (long block = 0; block < num_rows; block += block_rows) {
        const long end = std::min(block + block_rows, num_rows);
        for (long start = 0; start < depth; start += kDepthBlock)
          for (long panel = first; panel < last;) {
            // As many panels at a time as the fewest rows want, so that one group stays in the cache for all rows.
            const long next = num_rows > 2 ? panel + 1 : last;
            rows(block, end, panel, next, start, partial.get() + (panel - first) * kPanel, stride);
            panel = next;
          }
      }
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

/// Bfloat16 rows as float32, for targets that cannot multiply bfloat16.
std::unique_ptr<float[]> widened(const BFloat16* x, long num_rows, long depth, long stride) {
  std::unique_ptr<float[]> wide(new float[num_rows * depth]);
#pragma omp parallel for schedule(static) if (num_rows > 8)
  for (long row = 0; row < num_rows; row++)
    for (long k = 0; k < depth; k++) wide[row * depth + k] = widen(x[row * stride + k]);
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
    const auto wide = widened(x, num_rows, depth, x_stride);
    if (weight_dtype == OCTAVO_BFLOAT16)
      return product<BFloat16Panel, float, Out>(out, wide.get(), weight, bias, num_rows, num_columns, depth, out_stride, depth);
    return product<FloatPanel, float, Out>(out, wide.get(), weight, bias, num_rows, num_columns, depth, out_stride, depth);
  } else {
    if (weight_dtype == OCTAVO_BFLOAT16)
      return product<BFloat16Panel, float, Out>(out, x, weight, bias, num_rows, num_columns, depth, out_stride, x_stride);
    return product<FloatPanel, float, Out>(out, x, weight, bias, num_rows, num_columns, depth, out_stride, x_stride);
  }
}

/// Rows of x as int8, each with a scale of its own, so that the largest becomes 127.
struct Quantized {
  std::unique_ptr<Int8Panel::Row[]> rows;
  std::unique_ptr<float[]> scales;
};

template <class T>
Quantized quantized(const T* x, long num_rows, long depth, long stride) {
  Quantized q{std::unique_ptr<Int8Panel::Row[]>(new Int8Panel::Row[num_rows * depth]),
              std::unique_ptr<float[]>(new float[num_rows])};
#pragma omp parallel for schedule(static) if (num_rows > 8)
  for (long row = 0; row < num_rows; row++) {
    const T* from = x + row * stride;
    Int8Panel::Row* to = q.rows.get() + row * depth;
    float most = 0;
    for (long k = 0; k < depth; k++) most = std::abs(widen(from[k])) > most ? std::abs(widen(from[k])) : most;
    const float scale = most / 127, inverse = most > 0 ? 127 / most : 0;
    bool whole = true;  // NaN has no int8: such a row is all NaN
    for (long k = 0; k < depth; k++) {
      const float value = widen(from[k]);
      whole &= value == value;
      to[k] = Int8Panel::Row(int(std::lrint(value == value ? value * inverse : 0)) + Int8Panel::kOffset);
    }
    q.scales[row] = whole ? scale : NAN;
  }
  return q;
}

template <class T>
void int8_product(const T* x, void* out, const int8_t* weight, const float* scales, const int32_t* sums,
                  const float* bias, long num_rows, long num_columns, long depth, long out_stride, long x_stride) {
  const Quantized q = quantized(x, num_rows, depth, x_stride);
  Product<Int8Panel, Int8Panel::Row, T>{static_cast<T*>(out), q.rows.get(), weight, bias, num_columns, depth,
                                        out_stride, depth, {q.scales.get(), scales, sums}}
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
