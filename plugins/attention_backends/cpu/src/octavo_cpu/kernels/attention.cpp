// Paged attention over a flattened batch: new keys and values are written, then every query attends causally.
//
// Owns: the layout of the KV cache, online softmax. Must never know: models, schedulers, why a tile is what it is.
//
// Attention is summed as in Rabe and Staats (arXiv:2112.05682) and FlashAttention (arXiv:2205.14135): chunk by chunk of
// keys, with a running maximum. Chunks, and the spans that threads share out, begin at fixed positions, and a masked
// key adds an exact zero (if its value is finite). So a query's result is the same, bit for bit, in whatever batch or
// chunk of a prompt it is.
//
// Sequences whose tables begin with the same blocks go over those together (as in Hydragen, arXiv:2402.05099): keys are
// then multiplied with the queries of all of them, chunk by chunk in the order in which each would do it alone.
//
// The cache of one layer is keys, then values, each with a page for each block and KV head:
//
//   keys:   panels of 16 tokens, dimensions in groups of `kGroup`: [block_size / 16, head_dim / kGroup, 16, kGroup]
//   values: tokens in groups of `kGroup`: [block_size / kGroup, head_dim, kGroup]
//
// so that scores are 16 keys at a time, and neither keys nor values are gathered.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "api.h"
#include "attention_plan.h"
#include "pool.h"
#include "tile.h"

namespace octavo {
namespace {

constexpr int kKeys = 16;  // tokens in a panel of keys
constexpr int kKeyVectors = kKeys / kLanes;

/// Sums over some keys, for each row of a tile.
struct Sums {
  float* output;  // [rows, head_dim]
  float *maximum, *total;

  static long size(long num_rows, long head_dim) { return num_rows * (head_dim + 2); }
  Sums(float* memory, long num_rows, long head_dim)
      : output(memory), maximum(memory + num_rows * head_dim), total(maximum + num_rows) {}
  void skip(long num_rows, long head_dim) { maximum += num_rows, total += num_rows, output += num_rows * head_dim; }
};

template <class T>
class Attention {
  using Panel = std::conditional_t<std::is_same_v<T, float>, FloatPanel<float>, BFloat16Panel>;
  using Row = typename Panel::Row;
  static constexpr int kGroup = Panel::kGroup;
  /// Rows at a time; 12 go into a whole tile without a rest, and leave registers for two panels.
  static constexpr int kMaxRows = std::min(12, most_sums<Panel>(kKeyVectors) / kKeyVectors);

 public:
  explicit Attention(const OctavoAttention& p)
      : p_(p),
        plan_(p),
        page_size_(p.block_size * p.head_dim),
        keys_(static_cast<T*>(p.kv_cache)),
        values_(keys_ + p.num_blocks * p.num_kv_heads * page_size_) {}

  void run() {
    constexpr long kTokens = 8;
    parallel((p_.num_tokens + kTokens - 1) / kTokens,
             [&](long item) { write(item * kTokens, std::min((item + 1) * kTokens, p_.num_tokens)); });
    const std::vector<QueryTile>& tiles = plan_.tiles();
    long longest = 0;
    for (const QueryTile& tile : tiles) longest = std::max(longest, plan_.num_spans(tile));
    if (longest > 1 && plan_.is_scarce()) return run_spans();
    // Where there are many: all heads of a sequence that decodes in one item, since each fetches the next one's keys.
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
        : queries(scratch<Row, struct Queries>(kTileRows * head_dim)),
          scores(scratch<float, struct Scores>(kMaxRows * kChunk)),
          weights(scratch<Row, struct Weights>(kMaxRows * kChunk)),
          edges(scratch<T, struct Edges>(2 * kKeys * head_dim)) {}

    Row* queries;
    float* scores;            // [rows, kChunk]
    Row* weights;             // likewise
    T* edges;                 // values of the first and of the last panel: [2, kKeys, head_dim]
    float factors[kMaxRows];  // by which the sums so far are to be multiplied
  };

  /// Keys from `from` to `to`, all in the chunk that begins at `start`.
  struct Chunk {
    long start, from, to;
    const T* keys[kChunk / kKeys];    // panels
    const T* values[kChunk / kKeys];  // of the same tokens
    const T* next[kChunk / kKeys];    // keys that are likely needed after these values

    int first() const { return int(from - start) / kKeys; }
    int last() const { return int(to - 1 - start) / kKeys; }
  };

  void attend_all(const QueryTile& tile) const {
    const long num_rows = tile.num_rows(), size = Sums::size(num_rows, p_.head_dim);
    float* memory = scratch<float, QueryTile>(2 * size);
    Sums total(memory, num_rows, p_.head_dim), span(memory + size, num_rows, p_.head_dim);
    for (long i = 0; i < plan_.num_spans(tile); i++) {
      attend(tile, i, i ? span : total);
      if (i) merge(span, num_rows, total);
    }
    finish(tile, total);
  }

  void run_spans() const {
    const std::vector<QueryTile>& tiles = plan_.tiles();
    struct Span {
      long tile, number;
      Sums sums;
    };
    long size = 0;
    for (const QueryTile& tile : tiles) size += plan_.num_spans(tile) * Sums::size(tile.num_rows(), p_.head_dim);
    float* memory = scratch<float, Span>(size);
    std::vector<Span> spans;
    for (size_t t = 0; t < tiles.size(); t++)
      for (long i = 0; i < plan_.num_spans(tiles[t]); i++) {
        spans.push_back({long(t), i, Sums(memory, tiles[t].num_rows(), p_.head_dim)});
        memory += Sums::size(tiles[t].num_rows(), p_.head_dim);
      }
    parallel(long(spans.size()), [&](long i) { attend(tiles[spans[i].tile], spans[i].number, spans[i].sums); });
    for (size_t i = 0; i < spans.size();) {
      const QueryTile& tile = tiles[spans[i].tile];
      Sums& total = spans[i].sums;
      for (long n = 1; n < plan_.num_spans(tile); n++) merge(spans[i + n].sums, tile.num_rows(), total);
      finish(tile, total);
      i += plan_.num_spans(tile);
    }
  }

  T* page(T* half, long block, int head) const { return half + (block * p_.num_kv_heads + head) * page_size_; }

  /// Keys and values of the tokens from `first` to `last` to their slots.
  void write(long first, long last) const {
    for (long token = first; token < last; token++) write_keys(token);
    for (long token = first; token < last;) token += write_values(token, last);
  }

  void write_keys(long token) const {
    const long slot = p_.slot_mapping[token], offset = slot % p_.block_size;
    const T* key = static_cast<const T*>(p_.key) + token * p_.key_stride;
    for (int head = 0; head < p_.num_kv_heads; head++, key += p_.head_dim) {
      T* to = page(keys_, slot / p_.block_size, head) + offset / kKeys * kKeys * p_.head_dim + offset % kKeys * kGroup;
      for (long d = 0; d < p_.head_dim; d += kGroup) std::memcpy(to + d * kKeys, key + d, kGroup * sizeof(T));
    }
  }

  /// Writes the values of a token, and those of the next one too if both lie interleaved; returns how many.
  int write_values(long token, long last) const {
    const long slot = p_.slot_mapping[token], offset = slot % p_.block_size;
    const bool both = offset % kGroup == 0 && token + 1 < last && p_.slot_mapping[token + 1] == slot + 1;
    const T* value = static_cast<const T*>(p_.value) + token * p_.value_stride;
    for (int head = 0; head < p_.num_kv_heads; head++, value += p_.head_dim) {
      T* to = page(values_, slot / p_.block_size, head) + offset / kGroup * kGroup * p_.head_dim + offset % kGroup;
      if constexpr (kGroup == 2) {
        if (both) {
          interleave(value, value + p_.value_stride, p_.head_dim, to);
          continue;
        }
      }
      for (long d = 0; d < p_.head_dim; d++) to[d * kGroup] = value[d];
    }
    return kGroup == 2 && both ? 2 : 1;
  }

  void reset(const Sums& sums, long num_rows) const {
    std::fill_n(sums.maximum, num_rows, -INFINITY);
    std::fill_n(sums.total, num_rows, 0.0f);
    std::fill_n(sums.output, num_rows * p_.head_dim, 0.0f);
  }

  /// Add `more` to `sums`. Not inlined, or the compiler could round one product here and the other there.
  __attribute__((noinline)) void merge(const Sums& more, long num_rows, Sums& sums) const {
    for (long r = 0; r < num_rows; r++) {
      const float maximum = std::max(sums.maximum[r], more.maximum[r]);
      const float old = factor(sums.maximum[r], maximum), fresh = factor(more.maximum[r], maximum);
      float* to = sums.output + r * p_.head_dim;
      const float* from = more.output + r * p_.head_dim;
      for (long d = 0; d < p_.head_dim; d += kLanes) store(to + d, load(to + d) * old + load(from + d) * fresh);
      sums.maximum[r] = maximum;
      sums.total[r] = sums.total[r] * old + more.total[r] * fresh;
    }
  }

  /// What turns sums relative to one maximum into sums relative to another.
  static float factor(float from, float to) { return from == to ? 1.0f : std::exp(from - to); }

  /// Sums of a tile over one of its spans of keys: those that its sequences share, then each sequence's own.
  void attend(const QueryTile& tile, long span, Sums sums) const {
    reset(sums, tile.num_rows());
    const long start = (plan_.first_span(tile) + span) * kSpan, end = start + kSpan;
    if (tile.shared) add_keys(tile, start, std::min(end, tile.shared), sums);
    plan_.each_sequence(tile, [&](const QueryTile& part) {
      const long first = std::max(tile.shared, plan_.first_key(plan_.first_of(part).position));
      add_keys(part, std::max(start, first), std::min(end, plan_.last_of(part).position + 1), sums);
      sums.skip(part.num_rows(), p_.head_dim);
    });
  }

  /// Add keys from `from` to `to`, which lie in one span, to the sums of a tile.
  void add_keys(const QueryTile& tile, long from, long to, const Sums& sums) const {
    if (from >= to) return;
    Workspace work(p_.head_dim);
    gather_queries(tile, work);
    const EvenSplit<kMaxRows> tiles(tile.num_rows());
    for (long start = from / kChunk * kChunk; start < to; start += kChunk) {
      const Chunk chunk = chunk_at(tile, start, from, to, work);
      tiles.each(0, tiles.count, [&](long row, auto num_rows) {
        score<num_rows>(chunk, work.queries + row * p_.head_dim, work);
        weigh(tile, row, num_rows, chunk, sums, work);
        blend<num_rows>(chunk, work, sums.output + row * p_.head_dim);
      });
    }
  }

  /// The queries of a tile as `PackedRows`.
  void gather_queries(const QueryTile& tile, const Workspace& work) const {
    const EvenSplit<kMaxRows> tiles(tile.num_rows());
    for (long t = 0; t < tiles.count; t++) {
      const long start = tiles.start(t), num_rows = tiles.start(t + 1) - start;
      for (long row = start; row < start + num_rows; row++) {
        const long head = tile.first_head + row % tile.num_heads, token = plan_.query_of(tile, row).token;
        const T* query = static_cast<const T*>(p_.query) + token * p_.query_stride + head * p_.head_dim;
        Row* to = work.queries + start * p_.head_dim + (row - start) * kGroup;
        for (long d = 0; d < p_.head_dim; d += kGroup)
          OCTAVO_FOR (g, kGroup) to[d * num_rows + g] = convert<Row>(query[d + g]);
      }
    }
  }

  Chunk chunk_at(const QueryTile& tile, long start, long from, long to, const Workspace& work) const {
    Chunk chunk{start, std::max(start, from), std::min(start + kChunk, to), {}, {}, {}};
    find_keys(tile, tile.kv_head, start, chunk.keys);
    for (int i = chunk.first(); i <= chunk.last(); i++) chunk.values[i] = chunk.keys[i] + (values_ - keys_);
    for (const bool last : {false, true}) {
      const int i = last ? chunk.last() : chunk.first();
      const long panel = start + i * kKeys;
      T* const edge = work.edges + last * kKeys * p_.head_dim;
      if (chunk.from <= panel && panel + kKeys <= chunk.to) continue;
      copy_values(chunk.values[i], int(std::max(0L, chunk.from - panel)), int(std::min<long>(kKeys, chunk.to - panel)),
                  edge);
      chunk.values[i] = edge;
    }
    if (start + kChunk < to)
      find_keys(tile, tile.kv_head, start + kChunk, chunk.next);
    else  // those of the next head
      find_keys(tile, std::min<int>(tile.kv_head + 1, int(p_.num_kv_heads) - 1), from / kChunk * kChunk, chunk.next);
    return chunk;
  }

  /// A panel of values from token `first` to token `end`, the others as zeros: they may hold anything, NaN included.
  void copy_values(const T* values, int first, int end, T* to) const {
    std::fill_n(to, kKeys * p_.head_dim, T{});
    for (int token = first; token < end; token++) {
      const long at = token / kGroup * kGroup * p_.head_dim + token % kGroup;
      for (long d = 0; d < p_.head_dim; d++) to[at + d * kGroup] = values[at + d * kGroup];
    }
  }

  /// The panels of keys of the chunk at `start`; where the sequence is over, any.
  void find_keys(const QueryTile& tile, int head, long start, const T* (&keys)[kChunk / kKeys]) const {
    const long last = plan_.last_of(tile).position / p_.block_size;
    long block = start / p_.block_size, offset = start % p_.block_size;
    for (int i = 0; i < kChunk / kKeys; i++) {
      keys[i] =
          page(keys_, plan_.table(plan_.first_of(tile).sequence)[std::min(block, last)], head) + offset * p_.head_dim;
      offset += kKeys;
      if (offset == p_.block_size) block++, offset = 0;
    }
  }

  /// Raw scores of some rows with the keys of a chunk, whole panels at a time.
  template <int kRows>
  void score(const Chunk& chunk, const Row* queries, const Workspace& work) const {
    constexpr int kPanels = panels_at_once<Panel>(kRows, kKeyVectors);
    const PackedRows<Row, kRows, kGroup> a{queries};
    for (int first = chunk.first(); first <= chunk.last(); first += kPanels) {
      const T *panels[kPanels], *ahead[kPanels];
      int at[kPanels];
      OCTAVO_FOR (i, kPanels) at[i] = std::min(first + i, chunk.last());  // the last one again, if need be
      OCTAVO_FOR (i, kPanels) panels[i] = chunk.keys[at[i]];
      OCTAVO_FOR (i, kPanels) ahead[i] = panels[i] + (values_ - keys_);  // the values of these keys
      Floats sums[kPanels][kRows][kKeyVectors] = {};
      multiply<Panel>(a, panels, ahead, p_.head_dim, kKeys, sums);
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (r, kRows)
          OCTAVO_FOR (v, kKeyVectors) store(work.scores + r * kChunk + at[i] * kKeys + v * kLanes, sums[i][r][v]);
    }
  }

  /// From scores of rows, of which `first_row` is the first, to unnormalised probabilities: scale, cap, bias, mask,
  /// exponential. What the sums so far are to be multiplied with goes to `work.factors`.
  void weigh(const QueryTile& tile, long first_row, int num_rows, const Chunk& chunk, const Sums& sums,
             Workspace& work) const {
    const long begin = chunk.first() * kKeys, end = (chunk.last() + 1) * kKeys;
    const float scale = float(p_.scale), cap = float(p_.soft_cap);
    Ints lanes;
    for (int i = 0; i < kLanes; i++) lanes[i] = i;
    for (int r = 0; r < num_rows; r++) {
      const long row = first_row + r, position = plan_.query_of(tile, row).position;
      const int first = int(plan_.first_key(position) - chunk.start), last = int(position - chunk.start);
      const float slope = p_.alibi_slopes ? p_.alibi_slopes[tile.first_head + row % tile.num_heads] : 0.0f;
      float* scores = work.scores + r * kChunk;
      Floats most = splat(-INFINITY);
      for (long k = begin; k < end; k += kLanes) {
        const Ints key = lanes + int(k);
        Floats s = load(scores + k) * scale;
        if (cap != 0) s = cap * (1.0f - 2.0f / (exp(s * (2.0f / cap)) + 1.0f));
        if (p_.alibi_slopes) s = s + slope * __builtin_convertvector(key - last, Floats);
        s = choose((key >= first) & (key <= last), s, splat(-INFINITY));
        most = max(most, s);
        store(scores + k, s);
      }
      const float maximum = std::max(sums.maximum[row], largest(most));
      const float base = maximum == -INFINITY ? 0.0f : maximum;  // where all is masked, all weights are zero
      Floats total = {};
      for (long k = begin; k < end; k += kLanes) {
        const Floats weight = exp(load(scores + k) - base);
        total += weight;
        store(work.weights + r * kChunk + k, weight);
      }
      work.factors[r] = factor(sums.maximum[row], maximum);
      sums.maximum[row] = maximum;
      sums.total[row] = sums.total[row] * work.factors[r] + sum(total);
    }
  }

  /// Add the values of a chunk, weighted by their probabilities, to `output` [kRows, head_dim].
  template <int kRows>
  void blend(const Chunk& chunk, const Workspace& work, float* output) const {
    constexpr int kPanels = panels_at_once<Panel>(kRows, kKeyVectors);
    const long last = p_.head_dim - kKeys;
    for (long d = 0; d <= last; d += kPanels * kKeys) {
      long at[kPanels];
      OCTAVO_FOR (i, kPanels) at[i] = std::min(d + i * kKeys, last);
      auto to = [&](int i, int r, int v) { return output + r * p_.head_dim + at[i] + v * kLanes; };
      Floats sums[kPanels][kRows][kKeyVectors];
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (r, kRows)
          OCTAVO_FOR (v, kKeyVectors) sums[i][r][v] = load(to(i, r, v)) * work.factors[r];
      for (int panel = chunk.first(); panel <= chunk.last(); panel++) {
        const SpacedRows<Row, kChunk> weights{work.weights + panel * kKeys};
        const T *panels[kPanels], *ahead[kPanels];
        OCTAVO_FOR (i, kPanels) panels[i] = chunk.values[panel] + at[i] * kGroup;
        OCTAVO_FOR (i, kPanels) ahead[i] = chunk.next[panel] + at[i] * kGroup;
        multiply<Panel>(weights, panels, ahead, kKeys, p_.head_dim, sums);
      }
      OCTAVO_FOR (i, kPanels)
        OCTAVO_FOR (r, kRows)
          OCTAVO_FOR (v, kKeyVectors) store(to(i, r, v), sums[i][r][v]);
    }
  }

  void finish(const QueryTile& tile, const Sums& sums) const {
    for (long r = 0; r < tile.num_rows(); r++) {
      const long head = tile.first_head + r % tile.num_heads;
      float factor = 1.0f, total = sums.total[r];
      if (p_.sinks) {
        const float maximum = std::max(sums.maximum[r], p_.sinks[head]);
        factor = std::exp(sums.maximum[r] - maximum);
        total = total * factor + std::exp(p_.sinks[head] - maximum);
      }
      T* out = static_cast<T*>(p_.out) + plan_.query_of(tile, r).token * p_.out_stride + head * p_.head_dim;
      for (long d = 0; d < p_.head_dim; d += kLanes)
        store(out + d, load(sums.output + r * p_.head_dim + d) * (factor / total));
    }
  }

  const OctavoAttention& p_;
  const AttentionPlan plan_;
  const long page_size_;
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
