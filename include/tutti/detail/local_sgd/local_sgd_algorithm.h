#pragma once
// Ranks train alone for some optimizer steps and then average their models. One class implements Local SGD, post-local
// SGD, hierarchical Local SGD, SlowMo, DiLoCo and streaming DiLoCo. It is independent of the training loop: the caller
// calls step() after each optimizer step, and synchronizes gradients only while synchronous() is true.
//
// All methods except plain fp32 averaging exchange differences from an anchor, a copy of the model that is equal on all
// ranks. After finish(), and after every round without streaming, parameters have equal bits on all ranks. Every rank
// must call step() and finish() equally often; otherwise all ranks throw MismatchError. With node_sync_steps, ranks
// outside the exchange that differs throw PeerError.
#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/detail/sync/named_parameter.h"
#include "tutti/local_sgd/local_sgd_algorithm_options.h"
#include "tutti/state/stateful.h"

namespace torch::optim {
class Optimizer;
}

namespace tutti {

/// Counters of this rank.
struct LocalSgdStats {
  std::int64_t steps = 0;        ///< calls of step()
  std::int64_t rounds = 0;       ///< averages over all ranks; with streaming, of one fragment each
  std::int64_t node_rounds = 0;  ///< averages over the ranks of a node
  /// Bytes of models and their state that this rank sent: 2 n (N - 1) / N for n bytes and N ranks. A broadcast inside a
  /// node counts on the rank that sends it. Headers of a few dozen bytes do not count.
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_between_nodes = 0;  ///< of these, to ranks on other nodes
  double seconds_blocked = 0;            ///< time that step() and finish() waited for exchanges
  double seconds_exchanging = 0;         ///< duration of all exchanges, also of those in the background
};

/// Not thread safe. Call finish() at the end of training: the destructor starts no communication. It waits for an
/// exchange in flight. During stack unwinding it aborts the exchange instead; then the other ranks throw PeerError.
class LocalSgdAlgorithm final : public Stateful {
 public:
  /// Collective: every rank must construct it.
  /// - `parameters`, `buffers`: of the model, dense tensors on any device. Parameters are float or double, and equal on
  ///   all ranks. Frozen parameters are ignored. Exchanges run in CPU memory: parameters on an accelerator are copied
  ///   to the host and back in each round.
  /// - `optimizer`: the inner optimizer. Required for SlowMo and for averaged momentum, else it may be null.
  /// - `communicator`: no other code may use it (see Communicator::duplicate).
  /// Throws UsageError for unsupported options or tensors, and MismatchError if ranks differ.
  LocalSgdAlgorithm(const std::vector<NamedParameter>& parameters, const std::vector<NamedParameter>& buffers,
                    std::shared_ptr<torch::optim::Optimizer> optimizer, Communicator communicator,
                    const LocalSgdAlgorithmOptions& options = {});
  ~LocalSgdAlgorithm() override;
  LocalSgdAlgorithm(const LocalSgdAlgorithm&) = delete;
  LocalSgdAlgorithm& operator=(const LocalSgdAlgorithm&) = delete;

  /// Call it after each optimizer step, on every rank. Averages the models at the end of a round. `weight`: the weight
  /// of this rank's step (tokens, samples), at least 0. A rank whose weights in a round are 0 contributes nothing.
  /// `rates`: the learning rate of each parameter group in that step, for SlowMo; empty: the optimizer's present ones.
  /// SlowMo uses those of rank 0's last step in the round.
  ///
  /// Throws UsageError for a weight that is negative or not finite, and if a parameter was replaced. Throws UsageError
  /// on all ranks if the weights of all ranks are 0 or a learning rate of rank 0 that SlowMo divides by is 0. Throws
  /// PeerError, TimeoutError and MismatchError. After an error of an exchange, also of one in the background, every
  /// later call throws it again.
  void step(double weight = 1, const std::vector<double>& rates = {});

  /// Averages all local progress, on every rank. Afterwards all ranks hold the same model, and the next step() begins a
  /// round. Throws as step() does.
  void finish();

  /// True if the caller must synchronize the gradients of the next step: during the warm-up of post-local SGD.
  bool synchronous() const;

  /// The counters of this rank since construction.
  LocalSgdStats stats() const;

  /// The state of this rank: position in the round, anchor, outer momentum, error feedback of the quantization, result
  /// of the exchange in flight, for which it waits. A run that resumes with as many ranks computes the bits of the
  /// uninterrupted run. Parameters, buffers and the inner optimizer are not included.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
