#include "local_sgd/check_options.h"

#include <cmath>
#include <string>

#include "tutti/core/error.h"

namespace tutti::local_sgd {
namespace {

void require(bool condition, const std::string& what) {
  if (!condition) throw UsageError("Local SGD: " + what);
}

void check_steps(const LocalSgdAlgorithmOptions& options) {
  require(options.local_steps >= 1, "local_steps must be at least 1, not " + std::to_string(options.local_steps));
  require(options.warmup_steps >= 0, "warmup_steps must not be negative");
  require(options.message_bytes >= 1024, "message_bytes must be at least 1024");
  const std::int64_t inside = options.node_sync_steps;
  require(inside >= 0, "node_sync_steps must not be negative");
  require(inside == 0 || (inside < options.local_steps && options.local_steps % inside == 0),
          "node_sync_steps (" + std::to_string(inside) + ") must be a proper divisor of local_steps (" +
              std::to_string(options.local_steps) + "), or 0");
}

// The comparisons are written so that NaN fails them.
void check_method(const LocalSgdAlgorithmOptions& options) {
  const bool slowmo = options.outer_optimizer == OuterOptimizer::slowmo;
  const bool diloco = options.outer_optimizer == OuterOptimizer::diloco;
  require(slowmo || options.slowmo == SlowMoOptions{}, "slowmo is set: set outer_optimizer to slowmo as well");
  require(diloco || options.diloco == DiLoCoOptions{}, "diloco is set: set outer_optimizer to diloco as well");
  require(options.slowmo.alpha > 0 && std::isfinite(options.slowmo.alpha), "slowmo.alpha must be positive");
  require(options.slowmo.beta >= 0 && options.slowmo.beta < 1, "slowmo.beta must be in [0, 1)");
  require(options.diloco.lr > 0 && std::isfinite(options.diloco.lr), "diloco.lr must be positive");
  require(options.diloco.momentum >= 0 && options.diloco.momentum < 1, "diloco.momentum must be in [0, 1)");
}

void check_streaming(const LocalSgdAlgorithmOptions& options) {
  const StreamingOptions& streaming = options.streaming;
  require(streaming.fragments >= 1, "streaming.fragments must be at least 1");
  require(streaming.fragments <= options.local_steps,
          "streaming.fragments (" + std::to_string(streaming.fragments) + ") must not exceed local_steps (" +
              std::to_string(options.local_steps) + "), because each fragment is sent after a different step");
  require(streaming.overlap_steps >= 0, "streaming.overlap_steps must not be negative");
  require(streaming.overlap_steps < options.local_steps / streaming.fragments,
          "streaming.overlap_steps (" + std::to_string(streaming.overlap_steps) +
              ") must be less than local_steps / fragments (" +
              std::to_string(options.local_steps / streaming.fragments) +
              "): a result is applied before the next fragment is sent");
  require(streaming.mix >= 0 && streaming.mix < 1, "streaming.mix must be in [0, 1)");
  require(streaming.mix == 0 || !streaming.keep_local_progress,
          "streaming.mix and streaming.keep_local_progress exclude each other");
  if (!streams(options)) return;
  require(options.outer_optimizer != OuterOptimizer::slowmo, "SlowMo cannot stream: use average or diloco");
  require(options.node_sync_steps == 0, "streaming and node_sync_steps exclude each other");
  require(options.state_sync.momentum == MomentumRule::local,
          "momentum cannot be averaged with streaming, because no step exchanges the whole model");
}

}  // namespace

bool streams(const LocalSgdAlgorithmOptions& options) {
  return options.streaming != StreamingOptions{};
}

void check_options(const LocalSgdAlgorithmOptions& options) {
  check_steps(options);
  check_method(options);
  check_streaming(options);
}

}  // namespace tutti::local_sgd
