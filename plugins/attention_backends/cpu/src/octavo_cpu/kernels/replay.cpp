// Passes that were recorded, done again for other tokens.
//
// Owns: the order of a pass. Must never know: what is computed, how a pass was recorded.

#include "api.h"

namespace {

template <class Call>
const Call* as(const OctavoCall& call) {
  return static_cast<const Call*>(call.arguments);
}

void run(const OctavoCall& call) {
  switch (call.kernel) {
    case OCTAVO_CALL_ATTENTION:
      return octavo_attention(as<OctavoAttention>(call));
    case OCTAVO_CALL_LINEAR:
      return octavo_linear(as<OctavoLinear>(call));
    case OCTAVO_CALL_RMS_NORM:
      return octavo_rms_norm(as<OctavoRMSNorm>(call));
    case OCTAVO_CALL_SILU_AND_MUL:
      return octavo_silu_and_mul(as<OctavoSiluAndMul>(call));
    case OCTAVO_CALL_ROTATE:
      return octavo_rotate(as<OctavoRotate>(call));
    case OCTAVO_CALL_GATHER:
      return octavo_gather(as<OctavoGather>(call));
  }
}

}  // namespace

extern "C" void octavo_replay(const OctavoCall* calls, int64_t num_calls, const OctavoPatch* patches,
                              int64_t num_patches, const int64_t* bases, int64_t num_tokens) {
  for (int64_t i = 0; i < num_patches; i++)
    *patches[i].field = bases[patches[i].base] + patches[i].constant + patches[i].per_token * num_tokens;
  for (int64_t i = 0; i < num_calls; i++) run(calls[i]);
}
