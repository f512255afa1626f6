// Linear layers over weights that were packed once: out = x · weightᵀ + bias.
//
// Owns: packing, blocking for the caches, the share of each thread. Must never know: layers, models.
// Blocking as in Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS 34, 2008).

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "api.h"
#include "pool.h"
#include "tile.h"

namespace octavo {
namespace {

constexpr int kVectors = 2;
constexpr int kPanel = kVectors * kLanes;  // columns in a panel
constexpr long kDepthBlock = 2048;         // k summed before sums go through memory; fixed, so that the order is too
constexpr long kAhead = 4096;  // bytes of a panel between what is read and what is fetched: over the end of the page
constexpr long kItemsPerThread = 16;  // so that a thread that is slowed down leaves its share to the others
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

/// Numbers of x in int8 that have one scale, so that one large number does not cost all others their precision.
constexpr long kStretch = 32;

/// A stretch of a row as int8, its largest number as 127; returns the scale, and the offset in `offset`.
template <class T>
float quantize(const T* x, long count, Int8Panel::Row* to, int32_t& offset) {
  typedef Int8Panel::Row Rows __attribute__((vector_size(kLanes * sizeof(Int8Panel::Row))));
  float padded[kStretch] = {};
  long k = 0;
  for (; k + kLanes <= count; k += kLanes) store(padded + k, load(x + k));
  for (; k < count; k++) padded[k] = widen(x[k]);
  Floats most = {};
  Ints is_odd = {};  // infinite, or no number
  for (k = 0; k < kStretch; k += kLanes) {
    const Floats v = load(padded + k);
    is_odd |= v - v != 0.0f;
    most = max(most, max(v, -v));
  }
  const float limit = largest(most);
  const Floats inverse = splat(limit > 0 ? 127 / limit : 0), magic = splat(12582912.0f);  // see exp
  Ints sum = {};
  Rows numbers[kStretch / kLanes];
  for (k = 0; k < kStretch; k += kLanes) {
    const Ints rounded = ~is_odd & ((Ints)(load(padded + k) * inverse + magic) - (Ints)magic);
    sum += rounded;
    numbers[k / kLanes] = __builtin_convertvector(rounded, Rows);
  }
  std::memcpy(to, numbers, count * sizeof(*to));
  offset = -Int8Panel::kOffset * total(sum);
  return total(is_odd) == 0 ? limit / 127 : NAN;  // what has no int8 makes its stretch NaN
}

/// Rows of x as the kernel reads them: tile after tile, each as `PackedRows`.
template <class A>
struct Packed {
  A* numbers;
  float* scales = nullptr;     // int8: tile after tile, [num_stretches, rows of the tile]
  int32_t* offsets = nullptr;  // likewise: what sums of products begin with
};

template <class Panel, class A>
class Product {
  static constexpr int kSums = std::is_same_v<Panel, Int8Panel> ? 2 : 1;  // of an element: int8 has an exact one too
  static constexpr int kMaxRows = most_sums<Panel, A>(kVectors) / (kVectors * kSums);

 public:
  Product(const Output& out, const void* weight, long num_rows, long depth)
      : out_(out),
        weight_(static_cast<const typename Panel::Element*>(weight)),
        depth_(depth),
        num_stretches_((depth + kStretch - 1) / kStretch),
        tiles_(num_rows),
        x_{scratch<A, struct Numbers>(num_rows * depth)} {
    if constexpr (std::is_same_v<Panel, Int8Panel>) {
      x_.scales = scratch<float, struct Scales>(num_rows * num_stretches_);
      x_.offsets = scratch<int32_t, struct Offsets>(num_rows * num_stretches_);
    }
  }

  template <class T>
  void compute(const T* x, long x_stride) const {
    parallel(tiles_.count, [&](long tile) {
      const long row = tiles_.start(tile), num_rows = tiles_.start(tile + 1) - row;
      for (long r = 0; r < num_rows; r++) pack_row(x + (row + r) * x_stride, row, r, num_rows);
    });
    multiply_all();
  }

 private:
  /// Row `r` of the `num_rows` of a tile that begins with `row`.
  template <class T>
  void pack_row(const T* x, long row, long r, long num_rows) const {
    constexpr int kGroup = Panel::kGroup;
    A* to = x_.numbers + row * depth_ + r * kGroup;
    if constexpr (std::is_same_v<Panel, Int8Panel>) {
      for (long i = 0; i < num_stretches_; i++) {
        const long at = row * num_stretches_ + i * num_rows + r, count = std::min(kStretch, depth_ - i * kStretch);
        A numbers[kStretch];
        x_.scales[at] = quantize(x + i * kStretch, count, numbers, x_.offsets[at]);
        for (long k = 0; k < count; k += kGroup)
          std::memcpy(to + (i * kStretch + k) * num_rows, numbers + k, kGroup * sizeof(A));
      }
    } else {
      for (long k = 0; k < depth_; k += kGroup)
        for (int g = 0; g < kGroup; g++) to[k * num_rows + g] = convert<A>(x[k + g]);
    }
  }

  /// An item is a block of tiles, which stays in the L2 cache, times some panels.
  void multiply_all() const {
    if (tiles_.count == 0) return;
    const long num_panels = (out_.num_columns + kPanel - 1) / kPanel;
    const long block = std::max<long>(kRowsBytes / (kMaxRows * std::min(depth_, kDepthBlock) * long(sizeof(A))), 1);
    const long num_blocks = (tiles_.count + block - 1) / block;
    const long unit = tiles_.count > 1 ? 1 : panels_of(int(tiles_.start(1)));
    const long rounds = std::clamp<long>(num_panels * num_blocks / (unit * num_threads()), 1, kItemsPerThread);
    const long num_groups = std::min((rounds * num_threads() + num_blocks - 1) / num_blocks, num_panels);
    parallel(num_groups * num_blocks, [&](long item) {
      const long tile = item / num_groups * block, group = item % num_groups;
      multiply_block(tile, std::min(tile + block, tiles_.count), group * num_panels / num_groups,
                     (group + 1) * num_panels / num_groups);
    });
  }

  static constexpr int panels_of(int num_rows) { return panels_at_once<Panel, A>(num_rows, kVectors * kSums); }

  /// Tiles from `first_tile` to `last_tile` times panels from `first` to `last`. Sums over a part of the depth are kept
  /// in `partial` [rows, columns of the panels].
  void multiply_block(long first_tile, long last_tile, long first, long last) const {
    const long stride = (last - first) * kPanel, first_row = tiles_.start(first_tile);
    float* partial =
        depth_ > kDepthBlock ? scratch<float, Product>((tiles_.start(last_tile) - first_row) * stride) : nullptr;
    // One tile: several panels at a time. Several: panel by panel, so that one stays in the cache for all of them.
    const long width = last_tile - first_tile > 1 ? 1 : last - first;
    for (long start = 0; start < depth_; start += kDepthBlock)
      for (long panel = first; panel < last; panel += width)
        tiles_.each(first_tile, last_tile, [&](long row, auto count) {
          constexpr int kRows = count, kPanels = panels_of(kRows);
          auto sums_at = [&](long p) { return partial + (row - first_row) * stride + (p - first) * kPanel; };
          const Tiles<kPanels> panels(width);
          panels.each(0, panels.count, [&](long p, auto num_panels) {
            tile<kRows, num_panels>(row, panel + p, start, sums_at(panel + p), stride);
          });
        });
  }

  /// `kPanels` panels from number `panel` on times the tile of `kRows` rows from `row` on, over the k from `start` on.
  template <int kRows, int kPanels>
  void tile(long row, long panel, long start, float* partial, long partial_stride) const {
    const long count = std::min(kDepthBlock, depth_ - start);
    const PackedRows<A, kRows, Panel::kGroup> a{x_.numbers + row * depth_ + start * kRows};
    using Element = typename Panel::Element;
    const Element *b[kPanels], *ahead[kPanels];
    OCTAVO_FOR (i, kPanels) b[i] = weight_ + ((panel + i) * depth_ + start) * kPanel;
    OCTAVO_FOR (i, kPanels) ahead[i] = b[i] + kAhead / long(sizeof(Element));

    Floats sums[kPanels][kRows][kVectors] = {};
    auto at = [&](int i, int r, int v) { return partial + r * partial_stride + (i * kVectors + v) * kLanes; };
    if (start)
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (r, kRows)
          OCTAVO_FOR (v, kVectors) sums[i][r][v] = load(at(i, r, v));
    if constexpr (std::is_same_v<Panel, Int8Panel>)
      sum_stretches(a, b, ahead, row * num_stretches_ + start / kStretch * kRows, count, sums);
    else
      multiply<Panel>(a, b, ahead, count, kPanel, sums);
    if (start + count < depth_) {
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (r, kRows)
          OCTAVO_FOR (v, kVectors) store(at(i, r, v), sums[i][r][v]);
      return;
    }
    OCTAVO_FOR (i, kPanels)
      OCTAVO_FOR (r, kRows)
        OCTAVO_FOR (v, kVectors) out_.put(row + r, (panel + i) * kPanel + v * kLanes, sums[i][r][v]);
  }

  /// `multiply` for int8: exact within a stretch, in float32 over all stretches. `stretch`: index of the first scale.
  template <int kRows, int kPanels>
  void sum_stretches(const PackedRows<A, kRows, Panel::kGroup>& a, const typename Panel::Element* const (&b)[kPanels],
                     const typename Panel::Element* const (&ahead)[kPanels], long stretch, long count,
                     Floats (&sums)[kPanels][kRows][kVectors]) const {
    for (long k = 0; k < count; k += kStretch, stretch += kRows) {
      const PackedRows<A, kRows, Panel::kGroup> rows{a.data + k * kRows};
      const typename Panel::Element *panels[kPanels], *next[kPanels];
      OCTAVO_FOR (i, kPanels) panels[i] = b[i] + k * kPanel, next[i] = ahead[i] + k * kPanel;
      Ints products[kPanels][kRows][kVectors];
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (r, kRows)
          OCTAVO_FOR (v, kVectors) products[i][r][v] = Ints{} + x_.offsets[stretch + r];
      multiply<Panel>(rows, panels, next, std::min(kStretch, count - k), kPanel, products);
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (r, kRows)
          OCTAVO_FOR (v, kVectors)
            sums[i][r][v] += __builtin_convertvector(products[i][r][v], Floats) * x_.scales[stretch + r];
    }
  }

  const Output out_;
  const typename Panel::Element* const weight_;
  const long depth_, num_stretches_;
  const Tiles<kMaxRows> tiles_;
  Packed<A> x_;
};

template <class Panel, class A>
void product(const OctavoLinear& p) {
  const Output out{p.out, int(p.out_dtype), p.out_stride, p.num_columns, p.bias, p.scales};
  const Product<Panel, A> product(out, p.weight, p.num_rows, p.depth);
  if (p.dtype == OCTAVO_BFLOAT16) return product.compute(static_cast<const BFloat16*>(p.x), p.x_stride);
  if constexpr (!std::is_same_v<A, BFloat16>) product.compute(static_cast<const float*>(p.x), p.x_stride);
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
  if (p->weight_dtype == OCTAVO_INT8) return product<Int8Panel, Int8Panel::Row>(*p);
  if (p->weight_dtype == OCTAVO_FLOAT32) return product<FloatPanel, float>(*p);
#if defined(__AVX512BF16__)
  if (p->dtype == OCTAVO_BFLOAT16) return product<BFloat16Panel, BFloat16>(*p);
#endif
  product<BFloat16Panel, float>(*p);
}
