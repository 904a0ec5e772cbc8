#pragma once
// What a local-update algorithm does: when models are combined, how, and what travels.
#include <cstdint>

namespace tutti {

/// What becomes of the mean of all ranks' models.
enum class OuterOptimizer {
  /// The mean is the new model. Stich, "Local SGD Converges Fast and Communicates Little" (ICLR 2019, 1805.09767).
  average,
  /// Slow momentum over the change of a round. Wang et al., "SlowMo" (ICLR 2020, 1910.00643).
  slowmo,
  /// The change of a round is the gradient of an outer SGD. Douillard et al., "DiLoCo" (2311.08105).
  diloco,
};

/// u = beta u + (x0 - mean) / gamma;  x0 = x0 - alpha gamma u, with gamma the inner learning rate of each parameter
/// when the round happens, which must not be 0.
struct SlowMoOptions {
  double alpha = 1;   ///< outer learning rate
  double beta = 0.5;  ///< slow momentum, in [0, 1)

  bool operator==(const SlowMoOptions&) const = default;
};

/// Outer SGD as PyTorch's, with gradient x0 - mean.
struct DiLoCoOptions {
  double lr = 0.7;        ///< outer learning rate
  double momentum = 0.9;  ///< outer momentum
  bool nesterov = true;   ///< Nesterov's form of it

  bool operator==(const DiLoCoOptions&) const = default;
};

/// Douillard et al., "Streaming DiLoCo with overlapping communication" (2501.18512), for average and diloco. The
/// model's elements are dealt to `fragments` of equal length. Fragment f leaves in the background (f + 1) / fragments
/// of a round after its begin, and its result is applied overlap_steps later. Any value that is not the default makes a
/// run a streaming one.
struct StreamingOptions {
  int fragments = 1;  ///< parts that the model is cut into
  /// Less than local_steps / fragments. 0: step() waits for the result.
  std::int64_t overlap_steps = 0;
  /// The share of this rank's own parameters that stays when a result is applied, in [0, 1). 0 forgets what was learned
  /// during the overlap.
  double mix = 0;
  /// What this rank learned during the overlap is added to the result whole: x = result + (x - x when it was sent).
  /// Zhou et al., "DaSGD: delayed averaging" (2006.00441). Excludes `mix`.
  bool keep_local_progress = false;

  bool operator==(const StreamingOptions&) const = default;
};

/// How the differences of models travel. The lossy ones have error feedback: what was lost is added to the next
/// exchange, at the sender and at the owner of a slice of the mean.
enum class WireFormat {
  fp32,  ///< 4 bytes an element, exact
  bf16,  ///< 2 bytes an element, 8 significant bits
  int8,  ///< 1 byte an element and one scale for every 256 elements
};

/// What becomes of the model's buffers when models are combined.
enum class BufferRule {
  average,    ///< floating ones: the mean by weight; integer and bool ones: the largest value
  broadcast,  ///< those of rank 0 (inside a node: of its first rank)
  local,      ///< each rank keeps its own
};

/// What becomes of the inner optimizer's tensors when models are combined.
enum class MomentumRule {
  local,    ///< each rank keeps its own
  average,  ///< the mean over ranks
};

/// What becomes of the state beside the parameters, which are combined always. docs/local_sgd.md has it as a table.
struct StateSync {
  /// Running statistics and the like.
  BufferRule buffers = BufferRule::average;
  /// The inner optimizer's tensors of each parameter.
  MomentumRule momentum = MomentumRule::local;
};

/// What a local-update algorithm is told. Every rank gives the same.
struct LocalSgdAlgorithmOptions {
  /// Optimizer steps between two combinations of all ranks (the papers' k, tau or H).
  std::int64_t local_steps = 8;
  /// Post-local SGD: steps at the beginning in which gradients are synchronized instead. Lin et al., "Don't Use Large
  /// Mini-Batches, Use Local SGD" (ICLR 2020, 1808.07217).
  std::int64_t warmup_steps = 0;
  /// What becomes of the mean.
  OuterOptimizer outer_optimizer = OuterOptimizer::average;
  /// Heeded by OuterOptimizer::slowmo only.
  SlowMoOptions slowmo = {};
  /// Heeded by OuterOptimizer::diloco only.
  DiLoCoOptions diloco = {};
  /// Hierarchical: ranks of one node average every so many steps, 0 for never; a proper divisor of local_steps. Also
  /// Lin et al., section on hierarchical local SGD.
  std::int64_t node_sync_steps = 0;
  /// Exchanges in parts and in the background.
  StreamingOptions streaming = {};
  /// How differences travel; with node_sync_steps only between nodes, as inside a node everything is exact.
  WireFormat wire = WireFormat::fp32;
  /// What becomes of buffers and momentum.
  StateSync state_sync = {};
  /// Vectors travel in pieces of about so many bytes (of fp32).
  std::int64_t message_bytes = 8 << 20;
  /// The constructor compares the parameters' values across ranks. False where ranks have loaded a checkpoint taken
  /// within a round before they construct the algorithm.
  bool check_replicas = true;
};

}  // namespace tutti
