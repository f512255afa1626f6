// Paged attention over a flattened batch: new keys and values are written, then every query attends causally.
//
// Owns: the layout of the KV cache, online softmax, the share of each thread. Must never know: models, schedulers.
//
// Attention is summed as in Rabe and Staats (arXiv:2112.05682) and FlashAttention (arXiv:2205.14135): chunk by chunk of
// keys, with a running maximum. Chunks, and the spans that threads share out, begin at fixed positions, and a masked
// key adds an exact zero. So a query's result is the same, bit for bit, in whatever batch or chunk of a prompt it is.
//
// The cache of one layer is keys, then values, each with a page for each block and KV head:
//
//   keys:   panels of 16 tokens, dimensions in groups of `kGroup`: [block_size / 16, head_dim / kGroup, 16, kGroup]
//   values: tokens in groups of `kGroup`: [block_size / kGroup, head_dim, kGroup]
//
// so that scores are 16 keys at a time, and neither keys nor values are gathered.

#include <algorithm>
#include <cmath>
#include <vector>

#include "api.h"
#include "pool.h"
#include "tile.h"

namespace octavo {
namespace {

constexpr int kKeys = 16;          // tokens in a panel of keys
constexpr int kChunk = 128;        // keys whose scores are held at a time
constexpr int kSpan = 8 * kChunk;  // keys that one thread sums where threads share a sequence
constexpr int kTileRows = 48;      // rows (queries times heads) that go over the keys together
constexpr int kKeyVectors = kKeys / kLanes;
constexpr int kSums = kLanes == 16 ? 24 : 12;  // vectors of sums that a tile keeps in registers
constexpr int kMaxRows = kSums / kKeyVectors / (kLanes == 16 ? 2 : 1);

/// Panels that go over so many rows at a time: with few rows one alone does not keep the multipliers busy.
constexpr int panels_at_once(int num_rows) {
  const int most = kSums / kKeyVectors / num_rows;
  return most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

template <class Function>
void each_tile(int num_rows, const Function& function) {
  const Tiles<kMaxRows> tiles(num_rows);
  tiles.each(0, tiles.count, function);
}

/// Consecutive queries of one sequence, with heads that read one KV head. Row = query * num_heads + head.
struct Tile {
  int sequence, kv_head, first_head, num_heads;
  long first_token;     // in the flat batch
  long first_position;  // in the sequence
  int num_queries;
};

/// Sums over some keys, for each row of a tile.
struct Sums {
  float maximum[kTileRows], total[kTileRows];
  float* output;  // [kTileRows, head_dim]
};

template <class T>
class Attention {
  using Panel = std::conditional_t<std::is_same_v<T, float>, FloatPanel, BFloat16Panel>;
  using Row = RowElement<Panel>;
  static constexpr int kGroup = Panel::kGroup;

 public:
  explicit Attention(const OctavoAttention& p)
      : p_(p),
        group_(p.num_heads / p.num_kv_heads),
        keys_(static_cast<T*>(p.kv_cache)),
        values_(keys_ + p.num_blocks * p.num_kv_heads * p.block_size * p.head_dim) {}

  void run() {
    constexpr long kTokens = 8;
    parallel((p_.num_tokens + kTokens - 1) / kTokens, [&](long item) {
      for (long token = item * kTokens; token < std::min((item + 1) * kTokens, p_.num_tokens); token++) write(token);
    });
    const std::vector<Tile> tiles = cut();
    long longest = 0;
    for (const Tile& tile : tiles) longest = std::max(longest, num_spans(tile));
    // Spans of a tile go to different threads only where there are too few tiles to go round.
    if (longest > 1 && long(tiles.size()) < 4 * num_threads()) return run_spans(tiles);
    // All heads of a sequence in one item where there are many, since each fetches the next one's keys.
    const long num_tiles = long(tiles.size());
    const long share = num_tiles < 8 * num_threads() * p_.num_kv_heads ? 1 : p_.num_kv_heads;
    parallel((num_tiles + share - 1) / share, [&](long item) {
      for (long t = item * share; t < std::min((item + 1) * share, num_tiles); t++) attend_all(tiles[t]);
    });
  }

 private:
  /// What one thread computes in.
  struct Workspace {
    explicit Workspace(long head_dim)
        : size(kTileRows * head_dim),
          outputs(scratch<float, struct Outputs>(3 * size)),
          queries(scratch<Row, struct Queries>(size)),
          scores(scratch<float, struct Scores>(kTileRows * kChunk)),
          weights(scratch<Row, struct Weights>(kTileRows * kChunk)) {}

    Sums sums(int i) const {
      Sums sums;
      sums.output = outputs + i * size;
      return sums;
    }

    long size;
    float* outputs;
    Row* queries;
    float* scores;
    Row* weights;
  };

  void attend_all(const Tile& tile) const {
    const Workspace work(p_.head_dim);
    Sums span = work.sums(1), total = work.sums(0);
    reset(total, rows_of(tile));
    for (long i = 0; i < num_spans(tile); i++) {
      attend(tile, i, work, span);
      merge(span, rows_of(tile), total);
    }
    finish(tile, total);
  }

  void run_spans(const std::vector<Tile>& tiles) const {
    std::vector<long> first(tiles.size() + 1);  // where the sums of each tile's spans are kept
    for (size_t t = 0; t < tiles.size(); t++) first[t + 1] = first[t] + num_spans(tiles[t]);
    std::vector<float> outputs(first.back() * kTileRows * p_.head_dim);
    std::vector<Sums> spans(first.back());
    for (size_t i = 0; i < spans.size(); i++) spans[i].output = outputs.data() + i * kTileRows * p_.head_dim;
    parallel(first.back(), [&](long i) {
      const long t = std::upper_bound(first.begin(), first.end(), i) - first.begin() - 1;
      attend(tiles[t], i - first[t], Workspace(p_.head_dim), spans[i]);
    });
    for (size_t t = 0; t < tiles.size(); t++) {
      Sums total = Workspace(p_.head_dim).sums(0);
      reset(total, rows_of(tiles[t]));
      for (long i = first[t]; i < first[t + 1]; i++) merge(spans[i], rows_of(tiles[t]), total);
      finish(tiles[t], total);
    }
  }

  int rows_of(const Tile& tile) const { return tile.num_queries * tile.num_heads; }
  long end_of(const Tile& tile) const { return tile.first_position + tile.num_queries; }
  long first_key(long position) const { return p_.sliding_window ? std::max(0L, position - p_.sliding_window + 1) : 0; }
  long first_span(const Tile& tile) const { return first_key(tile.first_position) / kSpan; }
  long num_spans(const Tile& tile) const { return (end_of(tile) + kSpan - 1) / kSpan - first_span(tile); }

  std::vector<Tile> cut() const {
    std::vector<Tile> tiles;
    for (int s = 0; s < p_.num_seqs; s++) {
      const long start = p_.query_start[s], num_queries = p_.query_start[s + 1] - start;
      const long position = p_.seq_lens[s] - num_queries;
      for (int kv_head = 0; kv_head < p_.num_kv_heads; kv_head++)
        for (int first = 0; first < group_; first += kTileRows) {
          const int num_heads = std::min(kTileRows, group_ - first), most = kTileRows / num_heads;
          for (long q = 0; q < num_queries; q += most)
            tiles.push_back({s, kv_head, kv_head * group_ + first, num_heads, start + q, position + q,
                             int(std::min<long>(most, num_queries - q))});
        }
    }
    return tiles;
  }

  T* page(T* half, long block, int head) const {
    return half + (block * p_.num_kv_heads + head) * p_.block_size * p_.head_dim;
  }

  void write(long token) const {
    const long slot = p_.slot_mapping[token], block = slot / p_.block_size, offset = slot % p_.block_size;
    for (int head = 0; head < p_.num_kv_heads; head++) {
      const T* key = static_cast<const T*>(p_.key) + token * p_.key_stride + head * p_.head_dim;
      const T* value = static_cast<const T*>(p_.value) + token * p_.value_stride + head * p_.head_dim;
      T* keys = page(keys_, block, head) + offset / kKeys * kKeys * p_.head_dim + offset % kKeys * kGroup;
      T* values = page(values_, block, head) + offset / kGroup * kGroup * p_.head_dim + offset % kGroup;
      for (long d = 0; d < p_.head_dim; d++) {
        keys[d / kGroup * kKeys * kGroup + d % kGroup] = key[d];
        values[d * kGroup] = value[d];
      }
    }
  }

  static void reset(Sums& sums, int num_rows) {
    std::fill_n(sums.maximum, num_rows, -INFINITY);
    std::fill_n(sums.total, num_rows, 0.0f);
  }

  /// Add `more` to `sums`, whose output is undefined where its maximum is minus infinity.
  void merge(const Sums& more, int num_rows, Sums& sums) const {
    for (int r = 0; r < num_rows; r++) {
      if (more.maximum[r] == -INFINITY) continue;
      float* to = sums.output + r * p_.head_dim;
      const float* from = more.output + r * p_.head_dim;
      if (sums.maximum[r] == -INFINITY) {
        std::copy_n(from, p_.head_dim, to);
        sums.maximum[r] = more.maximum[r];
        sums.total[r] = more.total[r];
        continue;
      }
      const float maximum = std::max(sums.maximum[r], more.maximum[r]);
      const float old = std::exp(sums.maximum[r] - maximum), fresh = std::exp(more.maximum[r] - maximum);
      for (long d = 0; d < p_.head_dim; d += kLanes) store(to + d, load(to + d) * old + load(from + d) * fresh);
      sums.maximum[r] = maximum;
      sums.total[r] = sums.total[r] * old + more.total[r] * fresh;
    }
  }

  /// Sums of a tile over one span of keys; spans are counted from the first that the tile sees.
  void attend(const Tile& tile, long span, const Workspace& work, Sums& sums) const {
    const int num_rows = rows_of(tile);
    Sums fresh = work.sums(2);
    gather_queries(tile, work);
    reset(sums, num_rows);
    const long start = (first_span(tile) + span) * kSpan;
    const long first = std::max(start, first_key(tile.first_position)), end = std::min(start + kSpan, end_of(tile));
    for (long chunk = first / kChunk * kChunk; chunk < end; chunk += kChunk) {
      const long from = std::max(chunk, first), to = std::min(chunk + kChunk, end);
      score(tile, num_rows, chunk, from, to, work);
      weigh(tile, num_rows, chunk, from, to, work, fresh);
      blend(tile, num_rows, chunk, from, to, work, fresh.output);
      merge(fresh, num_rows, sums);
    }
  }

  /// The queries of a tile as `PackedRows`.
  void gather_queries(const Tile& tile, const Workspace& work) const {
    const Tiles<kMaxRows> tiles(rows_of(tile));
    for (long t = 0; t < tiles.count; t++) {
      const long start = tiles.start(t), num_rows = tiles.start(t + 1) - start;
      for (long row = start; row < start + num_rows; row++) {
        const long head = tile.first_head + row % tile.num_heads, token = tile.first_token + row / tile.num_heads;
        const T* query = static_cast<const T*>(p_.query) + token * p_.query_stride + head * p_.head_dim;
        Row* to = work.queries + start * p_.head_dim + (row - start) * kGroup;
        for (long d = 0; d < p_.head_dim; d++) to[d / kGroup * kGroup * num_rows + d % kGroup] = convert<Row>(query[d]);
      }
    }
  }

  const T* key_panel(const Tile& tile, long position) const {
    const long block = table(tile)[position / p_.block_size], offset = position % p_.block_size;
    return page(keys_, block, tile.kv_head) + offset / kKeys * kKeys * p_.head_dim;
  }

  /// The page of keys that is needed about a chunk after the values at `position`: to be fetched, so any will do.
  const T* keys_after(const Tile& tile, long position) const {
    if (position + kChunk < end_of(tile))
      return page(keys_, table(tile)[(position + kChunk) / p_.block_size], tile.kv_head);
    const long first = first_key(tile.first_position) / kChunk * kChunk + position % kChunk;
    return page(keys_, table(tile)[first / p_.block_size], std::min<long>(tile.kv_head + 1, p_.num_kv_heads - 1));
  }

  const int32_t* table(const Tile& tile) const { return p_.block_table + tile.sequence * p_.block_table_stride; }

  /// Raw scores of all rows with the keys of a chunk, whole panels at a time.
  void score(const Tile& tile, int num_rows, long chunk, long from, long to, const Workspace& work) const {
    const long first = from / kKeys * kKeys, last = (to - 1) / kKeys * kKeys;
    const T* panels[kChunk / kKeys];
    for (long position = first; position <= last; position += kKeys)
      panels[(position - chunk) / kKeys] = key_panel(tile, position);
    each_tile(num_rows, [&](long row, auto count) {
      constexpr int kRows = count, kPanels = panels_at_once(kRows);
      const PackedRows<Row, kRows, kGroup> a{work.queries + row * p_.head_dim};
      for (long position = first; position <= last; position += kPanels * kKeys) {
        const T *together[kPanels], *ahead[kPanels];
        long at[kPanels];
        OCTAVO_FOR (i, kPanels) at[i] = std::min(position + i * kKeys, last) - chunk;  // the last one again, if need be
        OCTAVO_FOR (i, kPanels) together[i] = panels[at[i] / kKeys];
        OCTAVO_FOR (i, kPanels) ahead[i] = together[i] + (values_ - keys_);  // the values of these keys
        Floats sums[kPanels][kRows][kKeyVectors] = {};
        multiply<Panel>(a, together, ahead, p_.head_dim, kKeys, sums);
        OCTAVO_FOR (i, kPanels)
          OCTAVO_FOR (r, kRows)
            OCTAVO_FOR (v, kKeyVectors) store(work.scores + (row + r) * kChunk + at[i] + v * kLanes, sums[i][r][v]);
      }
    });
  }

  /// From scores to unnormalised probabilities: scale, cap, bias, mask, exponential.
  void weigh(const Tile& tile, int num_rows, long chunk, long from, long to, const Workspace& work, Sums& sums) const {
    const long begin = (from - chunk) / kLanes * kLanes, end = to - chunk;
    const float scale = float(p_.scale), cap = float(p_.soft_cap);
    Ints lanes;
    for (int i = 0; i < kLanes; i++) lanes[i] = i;
    for (int r = 0; r < num_rows; r++) {
      const long position = tile.first_position + r / tile.num_heads;
      const int first = int(first_key(position) - chunk), last = int(position - chunk);
      const float slope = p_.alibi_slopes ? p_.alibi_slopes[tile.first_head + r % tile.num_heads] : 0.0f;
      float* scores = work.scores + r * kChunk;
      Floats most = splat(-INFINITY);
      for (long k = begin; k < end; k += kLanes) {
        const Ints key = lanes + int(k);
        Floats s = load(scores + k) * scale;
        if (cap != 0) s = cap * (1.0f - 2.0f / (exp(s * (2.0f / cap)) + 1.0f));
        if (p_.alibi_slopes) s = s + slope * __builtin_convertvector(key - last, Floats);
        s = octavo::choose((key >= first) & (key <= last), s, splat(-INFINITY));
        most = max(most, s);
        store(scores + k, s);
      }
      const float maximum = largest(most);
      sums.maximum[r] = maximum;
      Floats total = {};
      for (long k = begin; k < end; k += kLanes) {
        const Floats weight = maximum == -INFINITY ? Floats{} : exp(load(scores + k) - maximum);
        total += weight;
        store(work.weights + r * kChunk + k, weight);
      }
      sums.total[r] = sum(total);
    }
  }

  /// Outputs of a chunk: values weighted by their probabilities.
  void blend(const Tile& tile, int num_rows, long chunk, long from, long to, const Workspace& work,
             float* output) const {
    const long last = p_.head_dim - kKeys;
    each_tile(num_rows, [&](long row, auto count) {
      constexpr int kRows = count, kPanels = panels_at_once(kRows);
      for (long d = 0; d <= last; d += kPanels * kKeys) {
        long at[kPanels];
        OCTAVO_FOR (i, kPanels) at[i] = std::min(d + i * kKeys, last);
        Floats sums[kPanels][kRows][kKeyVectors] = {};
        for (long position = from; position < to;) {
          const long next = std::min(to, (position / p_.block_size + 1) * p_.block_size);
          blend_block(tile, row, position, next, at, chunk, work, sums);
          position = next;
        }
        OCTAVO_FOR (i, kPanels)
          OCTAVO_FOR (r, kRows)
            OCTAVO_FOR (v, kKeyVectors) store(output + (row + r) * p_.head_dim + at[i] + v * kLanes, sums[i][r][v]);
      }
    });
  }

  /// The part of `blend` that one block has. `at`: where each panel of values begins in a head.
  template <int kPanels, int kRows>
  void blend_block(const Tile& tile, long row, long from, long to, const long (&at)[kPanels], long chunk,
                   const Workspace& work, Floats (&sums)[kPanels][kRows][kKeyVectors]) const {
    const T* values = page(values_, table(tile)[from / p_.block_size], tile.kv_head);
    const long block = from / p_.block_size * p_.block_size;
    const T* keys = keys_after(tile, from);
    auto add = [&](long position, long count, const T* const(&panels)[kPanels], long stride) {
      const SpacedRows<Row, kChunk> a{work.weights + row * kChunk + (position - chunk)};
      const T* ahead[kPanels];
      OCTAVO_FOR (i, kPanels) ahead[i] = keys + (position - block) * p_.head_dim + at[i] * kGroup;
      multiply<Panel>(a, panels, ahead, count, stride, sums);
    };
    auto whole_groups = [&](long position, long count) {
      const T* panels[kPanels];
      OCTAVO_FOR (i, kPanels) panels[i] = values + (position - block) * p_.head_dim + at[i] * kGroup;
      add(position, count, panels, p_.head_dim);
    };
    if constexpr (kGroup == 1) {
      whole_groups(from, to - from);
    } else {
      // A pair that is only half visible: the other half may hold anything, NaN included, so it is not touched.
      auto half = [&](long position, bool odd) {
        T alone[kPanels][kGroup * kKeys];
        const T* panels[kPanels];
        for (int i = 0; i < kPanels; i++) {
          const T* pair = values + (position - block) * p_.head_dim + at[i] * kGroup;
          for (int c = 0; c < kKeys; c++) {
            alone[i][2 * c] = odd ? T{} : pair[2 * c];
            alone[i][2 * c + 1] = odd ? pair[2 * c + 1] : T{};
          }
          panels[i] = alone[i];
        }
        add(position, 2, panels, kKeys);
      };
      if (from % 2) half(from++ - 1, true);
      const long whole = to / 2 * 2;
      if (from < whole) whole_groups(from, whole - from);
      if (whole < to && from <= whole) half(whole, false);
    }
  }

  void finish(const Tile& tile, const Sums& sums) const {
    for (int r = 0; r < rows_of(tile); r++) {
      const long head = tile.first_head + r % tile.num_heads;
      float factor = 1.0f, total = sums.total[r];
      if (p_.sinks) {
        const float maximum = std::max(sums.maximum[r], p_.sinks[head]);
        factor = std::exp(sums.maximum[r] - maximum);
        total = total * factor + std::exp(p_.sinks[head] - maximum);
      }
      T* out = static_cast<T*>(p_.out) + (tile.first_token + r / tile.num_heads) * p_.out_stride + head * p_.head_dim;
      for (long d = 0; d < p_.head_dim; d += kLanes)
        store(out + d, load(sums.output + r * p_.head_dim + d) * (factor / total));
    }
  }

  const OctavoAttention& p_;
  const int group_;
  T* const keys_;
  T* const values_;
};

}  // namespace
}  // namespace octavo

extern "C" void octavo_attention(const OctavoAttention* p) {
  if (p->dtype == OCTAVO_BFLOAT16)
    octavo::Attention<octavo::BFloat16>(*p).run();
  else
    octavo::Attention<float>(*p).run();
}
