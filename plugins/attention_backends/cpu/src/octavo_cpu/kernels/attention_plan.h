// Who computes what in one call of attention: the batch's queries cut into tiles, tiles into spans of keys.
//
// Owns: the order of queries, which sequences go over shared blocks together. Must never know: numbers.

#pragma once

#include <algorithm>
#include <climits>
#include <vector>

#include "api.h"
#include "pool.h"

namespace octavo {

constexpr int kChunk = 128;        // keys whose scores are held at a time
constexpr int kSpan = 8 * kChunk;  // keys that one thread sums where threads share a sequence
constexpr int kTileRows = 48;      // rows (queries times heads) that go over the keys together

/// A token of the batch.
struct Query {
  long token, sequence, position;
};

/// Consecutive queries of a plan, with heads that read one KV head. Row = query * num_heads + head.
struct QueryTile {
  int kv_head, first_head, num_heads;
  long first_query, num_queries;
  long shared;  // where several sequences have queries here: the keys, from the first on, that they have in common

  int num_rows() const { return int(num_queries * num_heads); }
};

class AttentionPlan {
 public:
  explicit AttentionPlan(const OctavoAttention& p) : p_(p), group_(int(p.num_heads / p.num_kv_heads)) {
    queries_.reserve(p.num_tokens);
    const std::vector<long> sequences = in_order_of_blocks();
    for (const long s : sequences)
      for (long q = 0; q < num_queries(s); q++) queries_.push_back({p.query_start[s] + q, s, start_of(s) + q});
    cut(sequences);
  }

  const std::vector<QueryTile>& tiles() const { return tiles_; }
  const Query& first_of(const QueryTile& tile) const { return queries_[tile.first_query]; }
  const Query& last_of(const QueryTile& tile) const { return queries_[tile.first_query + tile.num_queries - 1]; }
  const Query& query_of(const QueryTile& tile, long row) const {
    return queries_[tile.first_query + row / tile.num_heads];
  }
  const int32_t* table(long sequence) const { return p_.block_table + sequence * p_.block_table_stride; }

  /// The first key that a position sees.
  long first_key(long position) const { return p_.sliding_window ? std::max(0L, position - p_.sliding_window + 1) : 0; }

  /// Spans are counted from the first that the tile sees.
  long first_span(const QueryTile& tile) const { return first_key(first_of(tile).position) / kSpan; }

  long num_spans(const QueryTile& tile) const {
    long last = 0;
    for (long q = 0; q < tile.num_queries; q++) last = std::max(last, queries_[tile.first_query + q].position);
    return last / kSpan + 1 - first_span(tile);
  }

  /// `function(part)` for the queries that each sequence has in a tile, as tiles that share nothing.
  template <class Function>
  void each_sequence(const QueryTile& tile, const Function& function) const {
    QueryTile part = tile;
    part.shared = 0;
    for (const long end = tile.first_query + tile.num_queries; part.first_query < end;
         part.first_query += part.num_queries) {
      part.num_queries = 1;
      while (part.first_query + part.num_queries < end &&
             queries_[part.first_query + part.num_queries].sequence == first_of(part).sequence)
        part.num_queries++;
      function(part);
    }
  }

  /// Whether tiles are too few to go round, so that spans of one must go to different threads.
  bool is_scarce() const { return long(tiles_.size()) < kTilesPerThread * num_threads(); }

 private:
  static constexpr long kTilesPerThread = 4;

  long num_queries(long sequence) const { return p_.query_start[sequence + 1] - p_.query_start[sequence]; }
  long start_of(long sequence) const { return p_.seq_lens[sequence] - num_queries(sequence); }

  /// The sequences that have queries, those whose blocks begin alike side by side.
  std::vector<long> in_order_of_blocks() const {
    std::vector<long> sequences;
    for (long s = 0; s < p_.num_seqs; s++)
      if (num_queries(s) > 0) sequences.push_back(s);
    auto end = [&](long s) { return table(s) + std::max(1L, start_of(s) / p_.block_size); };
    std::stable_sort(sequences.begin(), sequences.end(),
                     [&](long a, long b) { return std::lexicographical_compare(table(a), end(a), table(b), end(b)); });
    return sequences;
  }

  /// Neighbours whose queries fit into one tile go together while that saves no fewer keys than it did before.
  void cut(const std::vector<long>& sequences) {
    const long fair = p_.num_tokens * p_.num_kv_heads / (kTilesPerThread * num_threads());
    const long most = std::min<long>(fair, kTileRows / std::min(kTileRows, group_));
    long first = 0;
    for (size_t i = 0; i < sequences.size();) {
      long count = num_queries(sequences[i]), shared = 0, members = 1;
      for (i++; i < sequences.size() && count + num_queries(sequences[i]) <= most; i++, members++) {
        const long common = common_keys(sequences[i - 1], sequences[i], members > 1 ? shared : LONG_MAX);
        if (common == 0 || common * members < shared * (members - 1)) break;
        count += num_queries(sequences[i]), shared = common;
      }
      add_tiles(first, count, shared);
      first += count;
    }
  }

  void add_tiles(long first_query, long num_queries, long shared) {
    for (int kv_head = 0; kv_head < p_.num_kv_heads; kv_head++)
      for (int head = 0; head < group_; head += kTileRows) {
        const int num_heads = std::min(kTileRows, group_ - head), most = kTileRows / num_heads;
        for (long q = 0; q < num_queries; q += most)
          tiles_.push_back({kv_head, kv_head * group_ + head, num_heads, first_query + q,
                            std::min<long>(most, num_queries - q), shared});
      }
  }

  /// Whole chunks of keys, at most `most`, that all queries of both sequences see, and which are in the same blocks.
  long common_keys(long a, long b, long most) const {
    for (const long s : {a, b}) {
      if (first_key(p_.seq_lens[s] - 1) > 0) return 0;
      most = std::min(most, start_of(s));
    }
    const long blocks = std::mismatch(table(a), table(a) + most / p_.block_size, table(b)).first - table(a);
    return blocks * p_.block_size / kChunk * kChunk;
  }

  const OctavoAttention& p_;
  const int group_;
  std::vector<Query> queries_;
  std::vector<QueryTile> tiles_;
};

}  // namespace octavo
