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
constexpr long kDepthBlock = 2048;         // k summed before sums go through memory
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

/// Numbers of x in int8, and weights of 4 bits, that have one scale: one large number must not cost all others their
/// precision.
constexpr long kStretch = 32;

/// A stretch of weights of 4 bits in a panel: the factors of all columns, then the numbers.
constexpr long kFactorBytes = kPanel * 4, kInt4Bytes = kFactorBytes + kPanel * kStretch / 2;

void pack_int4(const uint8_t* numbers, const uint32_t* factors, long num_columns, long depth, uint8_t* packed) {
  const long num_stretches = depth / kStretch;
  constexpr int kGroup = Int8Panel::kGroup;
  parallel((num_columns + kPanel - 1) / kPanel, [&](long p) {
    for (long s = 0; s < num_stretches; s++) {
      uint8_t* to = packed + (p * num_stretches + s) * kInt4Bytes;
      std::fill_n(to, kInt4Bytes, uint8_t(0));
      for (long c = 0; c < std::min<long>(kPanel, num_columns - p * kPanel); c++) {
        const long column = p * kPanel + c;
        std::memcpy(to + c * 4, factors + column * num_stretches + s, 4);
        for (long k = 0; k < kStretch; k++) {
          const uint8_t number = numbers[column * depth + s * kStretch + k];
          uint8_t& pair = to[kFactorBytes + k / (2 * kGroup) * kPanel * kGroup + c * kGroup + k % kGroup];
          pair = uint8_t(pair | number << (k / kGroup % 2 * 4));
        }
      }
    }
  });
}

/// A stretch of a row as int8, its largest number as 127; returns the scale, and the sum of all in `numbers_sum`.
template <class T>
float quantize(const T* x, long count, Int8Panel::Row* to, int32_t& numbers_sum) {
  typedef Int8Panel::Row Rows __attribute__((vector_size(kLanes * sizeof(Int8Panel::Row))));
  float padded[kStretch] = {};
  long k = 0;
  for (; k + kLanes <= count; k += kLanes) store(padded + k, load(x + k));
  for (; k < count; k++) padded[k] = widen(x[k]);
  Floats most = {};
  Ints not_finite = {};
  for (k = 0; k < kStretch; k += kLanes) {
    const Floats v = load(padded + k);
    not_finite |= v - v != 0.0f;
    most = max(most, max(v, -v));
  }
  const float limit = largest(most);
  const Floats inverse = splat(limit > 1e-30f ? 127 / limit : 0), magic = splat(12582912.0f);  // see exp
  Ints sum = {};
  Rows numbers[kStretch / kLanes];
  for (k = 0; k < kStretch; k += kLanes) {
    const Ints rounded = ~not_finite & ((Ints)(load(padded + k) * inverse + magic) - (Ints)magic);
    sum += rounded;
    numbers[k / kLanes] = __builtin_convertvector(rounded, Rows);
  }
  std::memcpy(to, numbers, count * sizeof(*to));
  numbers_sum = total(sum);
  return total(not_finite) == 0 ? limit / 127 : NAN;  // what has no int8 makes its stretch NaN
}

/// Rows of x as the kernel reads them: tile after tile, each as `PackedRows`.
template <class Row>
struct Packed {
  Row* numbers;
  float* scales = nullptr;  // int8: tile after tile, [num_stretches, rows of the tile]
  int32_t* sums = nullptr;  // likewise
};

template <class Panel>
class Product {
  using Element = typename Panel::Element;
  using Row = typename Panel::Row;
  static constexpr bool kQuantized = std::is_integral_v<Row>;  // stretches are summed in integers
  static constexpr bool kInt4 = std::is_same_v<Panel, Int4Panel>;
  static constexpr int kSums = kQuantized ? 2 : 1;  // for each number of the result
  static constexpr int kMaxRows = most_sums<Panel>(kVectors) / (kVectors * kSums);

 public:
  Product(const Output& out, const void* weight, long num_rows, long depth)
      : out_(out),
        weight_(static_cast<const Element*>(weight)),
        depth_(depth),
        num_stretches_((depth + kStretch - 1) / kStretch),
        tiles_(num_rows),
        x_{scratch<Row, struct Numbers>(num_rows * depth)} {
    if constexpr (kQuantized) {
      x_.scales = scratch<float, struct Scales>(num_rows * num_stretches_);
      x_.sums = scratch<int32_t, struct RowSums>(num_rows * num_stretches_);
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
    Row* to = x_.numbers + row * depth_ + r * kGroup;
    if constexpr (kQuantized) {
      for (long i = 0; i < num_stretches_; i++) {
        const long at = row * num_stretches_ + i * num_rows + r, count = std::min(kStretch, depth_ - i * kStretch);
        Row numbers[kStretch];
        x_.scales[at] = quantize(x + i * kStretch, count, numbers, x_.sums[at]);
        for (long k = 0; k < count; k += kGroup)
          std::memcpy(to + (i * kStretch + k) * num_rows, numbers + k, kGroup * sizeof(Row));
      }
    } else {
      for (long k = 0; k < depth_; k += kGroup)
        for (int g = 0; g < kGroup; g++) to[k * num_rows + g] = convert<Row>(x[k + g]);
    }
  }

  /// An item is a block of tiles, which stays in the L2 cache, times some panels.
  void multiply_all() const {
    if (tiles_.count == 0) return;
    const long num_panels = (out_.num_columns + kPanel - 1) / kPanel;
    const long block = std::max<long>(kRowsBytes / (kMaxRows * std::min(depth_, kDepthBlock) * long(sizeof(Row))), 1);
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

  static constexpr int panels_of(int num_rows) { return panels_at_once<Panel>(num_rows, kVectors, kSums); }

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
          auto sums_at = [&](long p) {
            return partial ? partial + (row - first_row) * stride + (p - first) * kPanel : nullptr;
          };
          const EvenSplit<kPanels> panels(width);
          panels.each(0, panels.count, [&](long p, auto num_panels) {
            tile<kRows, num_panels>(row, panel + p, start, sums_at(panel + p), stride);
          });
        });
  }

  /// The numbers of a panel from `k` on; for int4, in a stretch that begins there.
  const Element* weight_at(long panel, long k) const {
    if constexpr (kInt4)
      return factors_at(panel, k) + kFactorBytes;
    else
      return weight_ + (panel * depth_ + k) * kPanel;
  }

  const uint8_t* factors_at(long panel, long k) const {
    return weight_ + (panel * num_stretches_ + k / kStretch) * kInt4Bytes;
  }

  /// `kPanels` panels from number `panel` on times the tile of `kRows` rows from `row` on, over the k from `start` on.
  template <int kRows, int kPanels>
  void tile(long row, long panel, long start, float* partial, long partial_stride) const {
    const long count = std::min(kDepthBlock, depth_ - start);
    const PackedRows<Row, kRows, Panel::kGroup> a{x_.numbers + row * depth_ + start * kRows};
    Floats sums[kPanels][kRows][kVectors] = {};
    auto at = [&](int i, int r, int v) { return partial + r * partial_stride + (i * kVectors + v) * kLanes; };
    if (start)
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (r, kRows)
          OCTAVO_FOR (v, kVectors) sums[i][r][v] = load(at(i, r, v));
    if constexpr (kQuantized)
      sum_stretches(a, row, panel, start, count, sums);
    else
      add_product(a, panel, start, count, sums);
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

  /// Add rows times panels from number `panel` on, over `count` k from `start` on.
  template <class Sum, int kRows, int kPanels>
  void add_product(const PackedRows<Row, kRows, Panel::kGroup>& rows, long panel, long start, long count,
                   Sum (&sums)[kPanels][kRows][kVectors]) const {
    const Element *panels[kPanels], *ahead[kPanels];
    OCTAVO_FOR (i, kPanels) panels[i] = weight_at(panel + i, start);
    OCTAVO_FOR (i, kPanels) ahead[i] = panels[i] + kAhead / long(sizeof(Element));
    multiply<Panel>(rows, panels, ahead, count, kPanel, sums);
  }

  /// Likewise for int8 and int4: exact within a stretch, in float32 over all stretches. `row`: the first of the tile.
  template <int kRows, int kPanels>
  void sum_stretches(const PackedRows<Row, kRows, Panel::kGroup>& a, long row, long panel, long start, long count,
                     Floats (&sums)[kPanels][kRows][kVectors]) const {
    long stretch = row * num_stretches_ + start / kStretch * kRows;  // index of the first scale
    for (long k = 0; k < count; k += kStretch, stretch += kRows) {
      const PackedRows<Row, kRows, Panel::kGroup> rows{a.data + k * kRows};
      Ints products[kPanels][kRows][kVectors];
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (r, kRows)
          OCTAVO_FOR (v, kVectors) products[i][r][v] = Ints{} - Panel::kOffset * x_.sums[stretch + r];
      add_product(rows, panel, start + k, std::min(kStretch, count - k), products);
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (v, kVectors) {
          Floats scales, offsets;
          if constexpr (kInt4) {
            const Ints factors = load_as<Ints>(factors_at(panel + i, start + k) + v * sizeof(Ints));
            scales = from_float16((factors >> 16) & 0xffff), offsets = from_float16(factors & 0xffff);
          }
          OCTAVO_FOR (r, kRows) {
            const float scale = x_.scales[stretch + r];
            Floats product = __builtin_convertvector(products[i][r][v], Floats);
            if constexpr (kInt4) {
              product = product * scales;
              sums[i][r][v] += offsets * (scale * float(x_.sums[stretch + r]));
            }
            sums[i][r][v] += product * scale;
          }
        }
    }
  }

  const Output out_;
  const Element* const weight_;
  const long depth_, num_stretches_;
  const EvenSplit<kMaxRows> tiles_;
  Packed<Row> x_;
};

template <class Panel>
void product(const OctavoLinear& p) {
  const Output out{p.out, int(p.out_dtype), p.out_stride, p.num_columns, p.bias, p.scales};
  const Product<Panel> product(out, p.weight, p.num_rows, p.depth);
  if (p.dtype == OCTAVO_BFLOAT16) return product.compute(static_cast<const BFloat16*>(p.x), p.x_stride);
  if constexpr (!std::is_same_v<typename Panel::Row, BFloat16>)
    product.compute(static_cast<const float*>(p.x), p.x_stride);
}

}  // namespace
}  // namespace octavo

using namespace octavo;

extern "C" int64_t octavo_packed_columns(int64_t num_columns) { return (num_columns + kPanel - 1) / kPanel * kPanel; }

extern "C" int64_t octavo_packed_bytes(int64_t weight_dtype, int64_t num_columns, int64_t depth) {
  const int64_t size = octavo_packed_columns(num_columns) * depth;
  if (weight_dtype == OCTAVO_INT4) return size / (kPanel * kStretch) * kInt4Bytes;
  return size * (weight_dtype == OCTAVO_FLOAT32 ? 4 : weight_dtype == OCTAVO_BFLOAT16 ? 2 : 1);
}

extern "C" void octavo_pack(const void* weight, int64_t weight_dtype, int64_t num_columns, int64_t depth,
                            void* packed) {
  auto pack_as = [&](auto kind, auto panel) {
    using T = decltype(kind);
    pack(static_cast<const T*>(weight), num_columns, depth, decltype(panel)::kGroup, static_cast<T*>(packed));
  };
  if (weight_dtype == OCTAVO_BFLOAT16) return pack_as(BFloat16(), WidenedBFloat16Panel());
  if (weight_dtype == OCTAVO_FLOAT32) return pack_as(float(), FloatPanel<float>());
  if (weight_dtype == OCTAVO_INT8_WEIGHT_ONLY) return pack_as(int8_t(), FloatPanel<int8_t>());
  pack_as(uint8_t(), Int8Panel());
  uint8_t* const numbers = static_cast<uint8_t*>(packed);
  const long size = octavo_packed_columns(num_columns) * depth;
  for (long i = 0; i < size; i++) numbers[i] = uint8_t(numbers[i] + Int8Panel::kOffset);
}

extern "C" void octavo_pack_int4(const uint8_t* numbers, const uint32_t* factors, int64_t num_columns, int64_t depth,
                                 uint8_t* packed) {
  pack_int4(numbers, factors, num_columns, depth, packed);
}

extern "C" void octavo_linear(const OctavoLinear* p) {
  if (p->weight_dtype == OCTAVO_INT8) return product<Int8Panel>(*p);
  if (p->weight_dtype == OCTAVO_INT4) return product<Int4Panel>(*p);
  if (p->weight_dtype == OCTAVO_INT8_WEIGHT_ONLY) return product<FloatPanel<int8_t>>(*p);
  if (p->weight_dtype == OCTAVO_FLOAT32) return product<FloatPanel<float>>(*p);
  if (p->dtype == OCTAVO_BFLOAT16) return product<BFloat16Panel>(*p);
  product<WidenedBFloat16Panel>(*p);
}
