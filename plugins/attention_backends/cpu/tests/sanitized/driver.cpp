// Random calls of every kernel on memory of exactly the right size, for a build under a sanitizer.
// What is not a sequence's own is NaN. Results are compared with the definitions, in double precision.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "api.h"

namespace {

std::mt19937 generator(1);

long pick(long low, long high) { return std::uniform_int_distribution<long>(low, high)(generator); }

std::vector<float> normal(long size) {
  std::normal_distribution<float> draw;
  std::vector<float> values(size);
  for (float& value : values) value = draw(generator);
  return values;
}

/// float32 or bfloat16 numbers in one block of the heap, so that a step beyond its end is seen.
class Numbers {
 public:
  Numbers(int dtype, const std::vector<float>& values) : dtype_(dtype), bytes_(values.size() * width()) {
    for (size_t i = 0; i < values.size(); i++) {
      uint32_t bits;
      std::memcpy(&bits, &values[i], 4);
      const uint16_t upper = uint16_t(bits >> 16);
      if (dtype_ == OCTAVO_FLOAT32)
        std::memcpy(&bytes_[i * 4], &bits, 4);
      else
        std::memcpy(&bytes_[i * 2], &upper, 2);
    }
  }
  float operator[](long i) const {
    uint32_t bits = 0;
    std::memcpy(reinterpret_cast<char*>(&bits) + (4 - width()), &bytes_[i * width()], width());
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  void* data() { return bytes_.data(); }

 private:
  size_t width() const { return dtype_ == OCTAVO_FLOAT32 ? 4 : 2; }
  int dtype_;
  std::vector<char> bytes_;
};

int failures = 0;

void expect_near(double actual, double expected, int dtype, double size, const char* what) {
  const double tolerance = (dtype == OCTAVO_FLOAT32 ? 2e-5 : 3e-2) * std::max(size, std::abs(expected));
  if (!(std::abs(actual - expected) <= tolerance) && failures++ < 10)
    std::printf("%s: %g, not %g\n", what, actual, expected);
}

void try_linear(int dtype, int weight_dtype) {
  const long rows = pick(0, 20), columns = pick(1, 70), depth = 2 * pick(1, pick(0, 3) ? 40 : 1200);
  Numbers x(dtype, normal(rows * depth)), weight(weight_dtype, normal(columns * depth));
  const std::vector<float> bias = normal(columns);
  Numbers packed(weight_dtype, std::vector<float>(octavo_packed_columns(columns) * depth));
  Numbers out(dtype, std::vector<float>(rows * columns));
  octavo_pack(weight.data(), weight_dtype, columns, depth, packed.data());
  const OctavoLinear call{out.data(),   x.data(), packed.data(), nullptr, bias.data(), dtype, dtype,
                          weight_dtype, rows,     columns,       depth,   columns,     depth};
  octavo_linear(&call);
  for (long r = 0; r < rows; r++)
    for (long c = 0; c < columns; c++) {
      double sum = bias[c];
      for (long k = 0; k < depth; k++) sum += double(x[r * depth + k]) * weight[c * depth + k];
      expect_near(out[r * columns + c], sum, dtype, std::sqrt(depth), "linear");
    }
}

void try_int8(int dtype, int weight_dtype) {
  const long rows = pick(0, 20), columns = pick(1, 70), depth = 4 * pick(1, pick(0, 3) ? 40 : 600);
  Numbers x(dtype, normal(rows * depth));
  std::vector<int8_t> weight(columns * depth);
  for (int8_t& w : weight) w = int8_t(pick(-127, 127));
  std::vector<float> scales(octavo_packed_columns(columns)), bias = normal(columns);
  for (long c = 0; c < columns; c++) scales[c] = 1.0f / (c + 100);
  std::vector<uint8_t> packed(octavo_packed_bytes(weight_dtype, columns, depth));
  Numbers out(dtype, std::vector<float>(rows * columns));
  octavo_pack(weight.data(), weight_dtype, columns, depth, packed.data());
  const OctavoLinear call{out.data(),   x.data(), packed.data(), scales.data(), bias.data(), dtype, dtype,
                          weight_dtype, rows,     columns,       depth,         columns,     depth};
  octavo_linear(&call);
  for (long r = 0; r < rows; r++)
    for (long c = 0; c < columns; c++) {
      double sum = 0, rounding = 0;
      for (long k = 0; k < depth; k++) {
        sum += double(x[r * depth + k]) * weight[c * depth + k];
        rounding += std::abs(weight[c * depth + k]) * 4.5 / 254;  // half a step, were the largest number 4.5
      }
      expect_near(out[r * columns + c], bias[c] + sum * scales[c], OCTAVO_FLOAT32, rounding * scales[c] * 1e5, "int8");
    }
}

void try_int4(int dtype) {
  const long rows = pick(0, 20), columns = pick(1, 70), depth = 32 * pick(1, pick(0, 3) ? 5 : 75);
  Numbers x(dtype, normal(rows * depth));
  std::vector<uint8_t> numbers(columns * depth);
  for (uint8_t& number : numbers) number = uint8_t(pick(0, 15));
  std::vector<double> factors(columns * depth / 32 * 2);  // offset and scale in turn
  std::vector<uint16_t> as_float16(factors.size());
  for (size_t i = 0; i < factors.size(); i++) {
    const long exponent = pick(10, 15), fraction = pick(0, 1023), sign = pick(0, 1);
    as_float16[i] = uint16_t(sign << 15 | exponent << 10 | fraction);
    factors[i] = (sign ? -1 : 1) * std::ldexp(1 + fraction / 1024.0, int(exponent) - 15);
  }
  std::vector<uint8_t> packed(octavo_packed_bytes(OCTAVO_INT4, columns, depth));
  Numbers out(dtype, std::vector<float>(rows * columns));
  octavo_pack_int4(numbers.data(), reinterpret_cast<const uint32_t*>(as_float16.data()), columns, depth, packed.data());
  const OctavoLinear call{out.data(),  x.data(), packed.data(), nullptr, nullptr, dtype, dtype,
                          OCTAVO_INT4, rows,     columns,       depth,   columns, depth};
  octavo_linear(&call);
  for (long r = 0; r < rows; r++)
    for (long c = 0; c < columns; c++) {
      double sum = 0, rounding = 0;
      for (long k = 0; k < depth; k++) {
        const long at = 2 * (c * (depth / 32) + k / 32);
        const double weight = numbers[c * depth + k] * factors[at + 1] + factors[at];
        sum += double(x[r * depth + k]) * weight;
        rounding += std::abs(weight) * 4.5 / 254;
      }
      expect_near(out[r * columns + c], sum, OCTAVO_FLOAT32, rounding * 1e5, "int4");
    }
}

void try_attention(int dtype) {
  const long kv_heads = pick(1, 3), heads = kv_heads * (pick(0, 5) ? pick(1, 4) : pick(40, 110)),
             size = 16 * pick(1, 4), block = 16 * pick(1, 3);
  const long num_seqs = pick(0, 1) ? pick(1, 3) : pick(8, 24), window = pick(0, 2) ? 0 : pick(1, 200);
  const bool share = pick(0, 1);
  std::vector<int32_t> starts{0}, lens;
  long most = 0;
  for (long s = 0; s < num_seqs; s++) {
    const long queries = num_seqs > 3 ? pick(0, 3) : pick(0, 1) ? 1 : pick(1, 60);
    const long before = pick(0, 4) ? pick(0, 300) : pick(900, num_seqs > 3 ? 1200 : 2300);
    starts.push_back(starts.back() + queries);
    lens.push_back(queries + before);
    most = std::max(most, (queries + before + block - 1) / block);
  }
  const long num_tokens = starts.back(), num_blocks = num_seqs * most + 1, row = kv_heads * size;
  std::vector<int32_t> blocks(num_seqs * most);
  for (size_t i = 0; i < blocks.size(); i++) blocks[i] = int32_t(i + 1);
  std::shuffle(blocks.begin(), blocks.end(), generator);

  std::vector<std::vector<float>> keys, values;  // of each sequence, from its first token on
  for (long s = 0; s < num_seqs; s++) keys.push_back(normal(lens[s] * row)), values.push_back(normal(lens[s] * row));
  std::vector<long> shared(num_seqs);             // tokens whose keys another sequence writes
  for (long s = 1; s < num_seqs && share; s++) {  // as long a prefix as both have, of blocks that are full and computed
    auto computed = [&](long i) { return (lens[i] - (starts[i + 1] - starts[i])) / block; };
    const long other = pick(0, s - 1), count = std::min(computed(s), computed(other));
    shared[s] = count * block;
    std::copy_n(blocks.begin() + other * most, count, blocks.begin() + s * most);
    std::copy_n(keys[other].begin(), count * block * row, keys[s].begin());
    std::copy_n(values[other].begin(), count * block * row, values[s].begin());
  }
  Numbers cache(dtype, std::vector<float>(2 * num_blocks * kv_heads * block * size, NAN));
  std::vector<float> slopes = normal(heads), sinks = normal(heads);
  for (float& slope : slopes) slope = std::abs(slope);
  const bool has_slopes = pick(0, 3) == 0, has_sinks = pick(0, 3) == 0;
  OctavoAttention call{};
  call.kv_cache = cache.data();
  call.block_table = blocks.data(), call.block_table_stride = most;
  call.num_seqs = num_seqs, call.num_blocks = num_blocks, call.block_size = block;
  call.num_heads = heads, call.num_kv_heads = kv_heads, call.head_dim = size;
  call.sliding_window = window, call.scale = 1 / std::sqrt(float(size)), call.soft_cap = pick(0, 3) ? 0.0f : 3.0f;
  call.alibi_slopes = has_slopes ? slopes.data() : nullptr, call.sinks = has_sinks ? sinks.data() : nullptr;
  call.dtype = dtype;
  call.key_stride = call.value_stride = row, call.query_stride = call.out_stride = heads * size;

  // First all earlier tokens, then the step itself.
  for (const bool is_step : {false, true}) {
    std::vector<int32_t> query_start{0}, seq_lens;
    std::vector<int64_t> slots;
    std::vector<float> key, value;
    for (long s = 0; s < num_seqs; s++) {
      const long before = lens[s] - (starts[s + 1] - starts[s]), from = is_step ? before : shared[s],
                 to = is_step ? lens[s] : before;
      for (long p = from; p < to; p++) slots.push_back(long(blocks[s * most + p / block]) * block + p % block);
      key.insert(key.end(), keys[s].begin() + from * row, keys[s].begin() + to * row);
      value.insert(value.end(), values[s].begin() + from * row, values[s].begin() + to * row);
      query_start.push_back(int32_t(slots.size()));
      seq_lens.push_back(int32_t(to));
    }
    const std::vector<float> query = normal(slots.size() * heads * size);
    Numbers q(dtype, query), k(dtype, key), v(dtype, value), out(dtype, std::vector<float>(query.size(), NAN));
    call.query = q.data(), call.key = k.data(), call.value = v.data(), call.out = out.data();
    call.slot_mapping = slots.data(), call.query_start = query_start.data(), call.seq_lens = seq_lens.data();
    call.num_tokens = long(slots.size());
    octavo_attention(&call);
    if (!is_step) continue;
    for (long s = 0; s < num_seqs; s++) {
      const Numbers all_keys(dtype, keys[s]), all_values(dtype, values[s]);
      for (long t = 0; t < num_tokens; t++) {
        if (t < starts[s] || t >= starts[s + 1]) continue;
        const long position = lens[s] - starts[s + 1] + t, first = window ? std::max(0L, position - window + 1) : 0;
        for (long h = 0; h < heads; h++) {
          const long kv = h / (heads / kv_heads);
          std::vector<double> sums(size);
          double total = has_sinks ? std::exp(double(sinks[h])) : 0;
          for (long p = first; p <= position; p++) {
            double score = 0;
            for (long d = 0; d < size; d++)
              score += double(q[(t * heads + h) * size + d]) * all_keys[p * row + kv * size + d];
            score *= call.scale;
            if (call.soft_cap != 0) score = call.soft_cap * std::tanh(score / call.soft_cap);
            if (has_slopes) score += slopes[h] * double(p - position);
            const double weight = std::exp(score);
            total += weight;
            for (long d = 0; d < size; d++) sums[d] += weight * all_values[p * row + kv * size + d];
          }
          for (long d = 0; d < size; d++)
            expect_near(out[(t * heads + h) * size + d], sums[d] / total, dtype, 1, "attention");
        }
      }
    }
  }
}

/// A gather of a gather, as a pass that is kept and replayed for other numbers of tokens.
void try_replay() {
  const long size = pick(1, 9), num_rows = 20;
  const std::vector<float> table = normal(num_rows * size);
  const long bytes = size * 4;
  OctavoGather first{nullptr, table.data(), nullptr, 0, bytes}, second{nullptr, nullptr, nullptr, 0, bytes};
  const OctavoCall calls[] = {{OCTAVO_CALL_GATHER, &first}, {OCTAVO_CALL_GATHER, &second}};
  auto field = [](auto& member) { return reinterpret_cast<int64_t*>(&member); };
  const OctavoPatch patches[] = {{field(first.out), 1, 0, 0},      {field(first.indices), 2, 0, 0},
                                 {field(first.num_rows), 0, 0, 1}, {field(second.out), 1, 0, bytes},
                                 {field(second.table), 1, 0, 0},   {field(second.indices), 3, 0, 0},
                                 {field(second.num_rows), 0, 0, 1}};
  for (int i = 0; i < 3; i++) {
    const long tokens = pick(0, 12);
    std::vector<int64_t> rows(tokens), again(tokens);
    for (long t = 0; t < tokens; t++) rows[t] = pick(0, num_rows - 1), again[t] = pick(0, tokens - 1);
    std::vector<float> arena(2 * tokens * size);
    auto address = [](auto& memory) { return reinterpret_cast<int64_t>(memory.data()); };
    const int64_t bases[] = {0, address(arena), address(rows), address(again)};
    octavo_replay(calls, 2, patches, 7, bases, tokens);
    for (long t = 0; t < tokens; t++)
      for (long c = 0; c < size; c++)
        expect_near(arena[(tokens + t) * size + c], table[rows[again[t]] * size + c], OCTAVO_FLOAT32, 0, "replay");
  }
}

void try_elementwise(int dtype) {
  const long lanes = octavo_lanes(), rows = pick(0, 9), size = lanes * pick(1, 9);
  Numbers x(dtype, normal(rows * 2 * size)), residual(dtype, normal(rows * size)), weight(dtype, normal(size));
  Numbers out(dtype, std::vector<float>(rows * size)), sum(dtype, std::vector<float>(rows * size));
  const OctavoRMSNorm norm{out.data(), sum.data(), x.data(), residual.data(), weight.data(), dtype,
                           rows,       size,       1,        2 * size,        1e-5};
  octavo_rms_norm(&norm);
  for (long r = 0; r < rows; r++) {
    double squares = 0;
    for (long i = 0; i < size; i++) {
      expect_near(sum[r * size + i], double(x[r * 2 * size + i]) + residual[r * size + i], dtype, 1, "sum");
      squares += double(sum[r * size + i]) * sum[r * size + i];
    }
    const double scale = 1 / std::sqrt(squares / size + 1e-5);
    for (long i = 0; i < size; i++)
      expect_near(out[r * size + i], sum[r * size + i] * scale * weight[i], dtype, 1, "norm");
  }
  const OctavoSiluAndMul gate{out.data(), x.data(), dtype, rows, size, 2 * size};
  octavo_silu_and_mul(&gate);
  for (long r = 0; r < rows; r++)
    for (long i = 0; i < size; i++) {
      const double g = x[r * 2 * size + i];
      expect_near(out[r * size + i], g / (1 + std::exp(-g)) * x[r * 2 * size + size + i], dtype, 1, "gate");
    }
  const long heads = pick(1, 3), head = 2 * size + lanes * pick(0, 1);
  Numbers q(dtype, normal(rows * heads * head)), k(dtype, normal(rows * head));
  const Numbers before = q;
  const std::vector<float> cos = normal(rows * size), sin = normal(rows * size);
  const OctavoRotate rotate{q.data(), k.data(), cos.data(), sin.data(), dtype,        rows,
                            heads,    1,        head,       size,       heads * head, head};
  octavo_rotate(&rotate);
  for (long r = 0; r < rows * heads; r++)
    for (long i = 0; i < size; i++) {
      const double a = before[r * head + i], b = before[r * head + size + i], c = cos[r / heads * size + i];
      const double s = sin[r / heads * size + i];
      expect_near(q[r * head + i], a * c - b * s, dtype, 1, "rotation");
      expect_near(q[r * head + size + i], b * c + a * s, dtype, 1, "rotation");
    }
}

}  // namespace

int main(int, char** arguments) {
  octavo_set_num_threads(3);
  const int rounds = std::atoi(arguments[1]);
  for (int round = 0; round < rounds; round++)
    for (int dtype : {OCTAVO_FLOAT32, OCTAVO_BFLOAT16}) {
      try_linear(dtype, OCTAVO_FLOAT32);
      try_linear(dtype, OCTAVO_BFLOAT16);
      try_int8(dtype, OCTAVO_INT8);
      try_int8(dtype, OCTAVO_INT8_WEIGHT_ONLY);
      try_int4(dtype);
      try_attention(dtype);
      try_elementwise(dtype);
      try_replay();
    }
  std::printf("%d rounds, %d failures\n", rounds, failures);
  return failures != 0;
}
