#pragma once
// Ranks train alone for some optimizer steps and then combine their models: Local SGD, post-local SGD, hierarchical
// Local SGD, SlowMo, DiLoCo and its streaming form in one class. It knows no training loop: whoever owns the loop
// calls step() after each optimizer step, and leaves gradients unsynchronized unless synchronous() says otherwise.
//
// Everything but plain fp32 averaging exchanges differences from an anchor, a copy of the model that is equal on all
// ranks. After finish(), and after every round of a method that does not stream, parameters have the same bits on all
// ranks. Every rank must call step() and finish() equally often; where they do not, a MismatchError says so.
#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/comm/communicator.h"
#include "tutti/local_sgd/local_sgd_algorithm_options.h"
#include "tutti/state/stateful.h"
#include "tutti/sync/named_parameter.h"

namespace torch::optim {
class Optimizer;
}

namespace tutti {

/// What the algorithm did and cost on this rank.
struct LocalSgdStats {
  std::int64_t steps = 0;        ///< calls of step()
  std::int64_t rounds = 0;       ///< combinations of all ranks; with streaming, of one fragment
  std::int64_t node_rounds = 0;  ///< combinations of a node's ranks alone
  /// Bytes of models and of their state given to others: 2 n (N - 1) / N for n bytes and N ranks; what is handed out
  /// inside a node counts where it comes from. Without headers of some dozen bytes.
  std::int64_t bytes_sent = 0;
  std::int64_t bytes_between_nodes = 0;  ///< of these, to ranks on other nodes
  double seconds_blocked = 0;            ///< step() and finish() stood still for exchanges
  double seconds_exchanging = 0;         ///< exchanges took, in the background or not
};

/// Not thread safe. The destructor never communicates: call finish(). It waits for an exchange under way, or gives it
/// up when an exception unwinds: then the other ranks get a PeerError.
class LocalSgdAlgorithm final : public Stateful {
 public:
  /// `parameters` and `buffers` of the model: dense CPU tensors; frozen parameters take no part. Parameters are float
  /// or double, and equal on all ranks. `optimizer` is the inner one, needed for SlowMo and for averaged momentum, else
  /// it may be null. `communicator` is the algorithm's alone (Communicator::duplicate). Every rank must construct it.
  /// Throws UsageError for options or tensors that cannot be honoured, and MismatchError where ranks differ.
  LocalSgdAlgorithm(const std::vector<NamedParameter>& parameters, const std::vector<NamedParameter>& buffers,
                    std::shared_ptr<torch::optim::Optimizer> optimizer, Communicator communicator,
                    const LocalSgdAlgorithmOptions& options = {});
  ~LocalSgdAlgorithm() override;
  LocalSgdAlgorithm(const LocalSgdAlgorithm&) = delete;
  LocalSgdAlgorithm& operator=(const LocalSgdAlgorithm&) = delete;

  /// After each optimizer step. `weight`: what this rank's step was worth (tokens, samples), at least 0; a rank that
  /// weighs 0 over a round contributes nothing to it. Combines models when their turn has come. Throws UsageError where
  /// all ranks weigh 0, a learning rate that SlowMo divides by is 0, or a parameter was replaced; PeerError,
  /// TimeoutError and MismatchError, also for an exchange that failed in the background; after one of these every call
  /// throws it again.
  void step(double weight = 1);

  /// Combines what has not been combined: afterwards all ranks hold the same model, and the next step() begins a round.
  /// Throws as step() does.
  void finish();

  /// Whether the gradients of the next step must be synchronized by the caller: the warm-up of post-local SGD.
  bool synchronous() const;

  /// What it did and cost so far.
  LocalSgdStats stats() const;

  /// This rank's: where it stands in the round, anchor, outer momentum, what quantisation lost, an exchange under way
  /// (waited for). Going on with it gives the bits of the uninterrupted run, on the same number of ranks; parameters,
  /// buffers and the inner optimizer are saved by their owners.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
