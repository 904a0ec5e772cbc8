#pragma once
// Options of Local SGD: when models are averaged, how, and in which encoding.
#include <cstdint>

namespace tutti {

/// How the mean of all ranks' models is applied.
enum class OuterOptimizer {
  /// The mean is the new model. Stich, "Local SGD Converges Fast and Communicates Little" (ICLR 2019, 1805.09767).
  average,
  /// Slow momentum over the change of a round. Wang et al., "SlowMo" (ICLR 2020, 1910.00643).
  slowmo,
  /// The change of a round is the gradient of an outer SGD. Douillard et al., "DiLoCo" (2311.08105).
  diloco,
};

/// u = beta u + (x0 - mean) / gamma;  x0 = x0 - alpha gamma u. gamma is the inner learning rate of each parameter in
/// the last step of the round, on rank 0; it must not be 0.
struct SlowMoOptions {
  double alpha = 1;   ///< outer learning rate
  double beta = 0.5;  ///< slow momentum, in [0, 1)

  bool operator==(const SlowMoOptions&) const = default;
};

/// Outer SGD, as PyTorch's, with gradient x0 - mean.
struct DiLoCoOptions {
  double lr = 0.7;        ///< outer learning rate
  double momentum = 0.9;  ///< outer momentum
  bool nesterov = true;   ///< Nesterov momentum

  bool operator==(const DiLoCoOptions&) const = default;
};

/// Douillard et al., "Streaming DiLoCo with overlapping communication" (2501.18512), for average and diloco. The
/// model's elements are split into `fragments` of equal length. The exchange of fragment f starts in the background
/// (f + 1) / fragments of a round after the round began. Its result is applied overlap_steps later. Any value other
/// than the default enables streaming.
struct StreamingOptions {
  int fragments = 1;  ///< number of parts of the model
  /// Less than local_steps / fragments. 0: step() waits for the result.
  std::int64_t overlap_steps = 0;
  /// The weight of this rank's parameters when a result is applied, in [0, 1). 0 discards the progress of this rank
  /// during the overlap.
  double mix = 0;
  /// Add this rank's progress during the overlap to the result: x = result + (x - x when it was sent). Zhou et al.,
  /// "DaSGD: delayed averaging" (2006.00441). Excludes `mix`.
  bool keep_local_progress = false;

  bool operator==(const StreamingOptions&) const = default;
};

/// The encoding of model differences on the wire. Lossy formats have error feedback: the rounding error is added to the
/// next exchange, at the sender and at the owner of a slice of the mean.
enum class WireFormat {
  fp32,  ///< 4 bytes an element, exact
  bf16,  ///< 2 bytes an element, 8 significant bits
  int8,  ///< 1 byte an element, and one scale for every 256 elements
};

/// How the model's buffers are combined when models are averaged.
enum class BufferRule {
  average,    ///< floating-point buffers: the weighted mean; integer and bool buffers: the maximum
  broadcast,  ///< the buffers of rank 0 (inside a node: of the node leader)
  local,      ///< each rank keeps its buffers
};

/// How the inner optimizer's tensors are combined when models are averaged.
enum class MomentumRule {
  local,    ///< each rank keeps its tensors
  average,  ///< the mean over ranks
};

/// How state other than parameters is combined. Table: docs/local_sgd.md.
struct StateSync {
  /// Buffers such as running statistics.
  BufferRule buffers = BufferRule::average;
  /// The inner optimizer's tensors of each parameter.
  MomentumRule momentum = MomentumRule::local;
};

/// Options of LocalSgdAlgorithm. Must be equal on all ranks.
struct LocalSgdAlgorithmOptions {
  /// Optimizer steps between two averages over all ranks (k, tau or H in the papers).
  std::int64_t local_steps = 8;
  /// Post-local SGD: number of first steps in which gradients are synchronized instead. Lin et al., "Don't Use Large
  /// Mini-Batches, Use Local SGD" (ICLR 2020, 1808.07217).
  std::int64_t warmup_steps = 0;
  /// How the mean is applied.
  OuterOptimizer outer_optimizer = OuterOptimizer::average;
  /// For OuterOptimizer::slowmo only.
  SlowMoOptions slowmo = {};
  /// For OuterOptimizer::diloco only.
  DiLoCoOptions diloco = {};
  /// Hierarchical Local SGD: steps between two averages over the ranks of a node; 0: none. A proper divisor of
  /// local_steps. Lin et al., section on hierarchical local SGD.
  std::int64_t node_sync_steps = 0;
  /// Exchanges in parts and in the background.
  StreamingOptions streaming = {};
  /// The encoding of model differences. With node_sync_steps it applies between nodes only; inside a node the exchange
  /// is exact.
  WireFormat wire = WireFormat::fp32;
  /// How buffers and momentum are combined.
  StateSync state_sync = {};
  /// The approximate size of a message in bytes of fp32 elements. Longer vectors are sent in several messages.
  std::int64_t message_bytes = 8 << 20;
  /// Compare the parameters of all ranks in the constructor. Set it to false if ranks load a checkpoint taken within a
  /// round before they construct the algorithm.
  bool check_replicas = true;
};

}  // namespace tutti
