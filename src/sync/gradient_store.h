#pragma once
// The gradients of one reducer on this rank. Knows which of them are local shares and which are means, and which of
// them the program has changed. Dense gradients are summed in buckets, so a bucket holds shares only or means only.
// Communicates in the constructor only. Not thread safe: the reducer's mutex protects it.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sync/gradient_buffer.h"
#include "sync/gradient_streams.h"
#include "sync/pairwise_accumulator.h"
#include "sync/parameter_set.h"
#include "sync/sparse_gradients.h"
#include "sync/window.h"
#include "tutti/comm/communicator.h"
#include "tutti/state/state_dict.h"
#include "tutti/sync/reducer_options.h"

namespace tutti::sync {

/// How the program has cleared the gradients of a window without calling tutti.
enum class ExternalClear {
  none,      ///< not at all
  released,  ///< they are undefined
  zeroed,    ///< they are defined, and zero
};

class GradientStore {
 public:
  /// Allocates memory from `communicator`, so every rank must call it. `parameters` and `communicator` must outlive it;
  /// the number of ranks of `communicator` may change. Throws UsageError if sums cannot be reproducible as requested.
  GradientStore(const ParameterSet& parameters, const ReducerOptions& options, const Communicator& communicator);

  const BucketPlan& plan() const { return buffer_.plan(); }
  std::size_t bucket_count() const { return buckets_.size(); }
  std::size_t slot_count() const { return records_.size(); }
  /// The bucket of a parameter; nullopt if its gradients are sparse.
  std::optional<std::size_t> bucket_of(int parameter) const;

  // A backward pass.
  /// Must be called at the start of a pass. `window_is_pending`: gradients of earlier passes are not synchronized.
  void begin_pass(bool window_is_pending);
  /// Must be called before autograd adds to a gradient, unless its bucket is in flight.
  void to_local_share(int parameter);
  /// The same for a bucket in flight that has been summed. `total_weight`: of its mean.
  void to_local_share_in_flight(std::size_t bucket, double total_weight);
  bool written_in_flight(std::size_t bucket) const { return buckets_[bucket] == BucketState::written_in_flight; }
  /// Must be called after autograd has added to a gradient: moves it into its slot. Gradients on a device move some at
  /// a time, with one kernel, and at the latest before their bucket is summed or the pass ends.
  void on_gradient(int parameter);
  /// Records the gradients, so that changed() detects later changes.
  void record(bool window_is_pending);
  /// The name of a parameter with a gradient of the last pass or synchronization, or with a tensor that replaced it.
  std::optional<std::string> tracked() const;
  /// Whether every gradient is undefined or zeros. The host waits once for each device.
  bool all_zero() const;

  // A synchronization.
  /// Completes a bucket with this rank's local shares. The caller sums the tensor over ranks.
  const at::Tensor& fill_bucket(std::size_t bucket);
  /// The tensor of a bucket whose sum is not used. The program's tensors over its memory keep their values.
  const at::Tensor& discard_bucket(std::size_t bucket);
  int sparse_count() const { return sparse_.count(); }
  const at::Tensor& sparse_parameter(int index) const { return sparse_.parameter(index); }
  /// This rank's local share of sparse gradient `index`; undefined if there is none.
  const at::Tensor& fill_rows(int index);
  /// For each parameter with a slot, whether this rank's shares include a gradient. Drops earlier micro-batches, which
  /// fill_bucket() has added.
  std::vector<bool> take_used();
  bool any_written_in_flight() const;
  /// All buckets of the synchronization, `summed` in number, and the sparse gradients hold the mean. `used`: for each
  /// parameter with a slot, whether any rank has used it.
  void set_mean(double total_weight, std::size_t summed, const std::vector<bool>& used,
                std::span<const at::Tensor> rows);
  /// The synchronization has failed.
  void abandon_sync();
  /// Sets the weight of gradients that a step has used: `weight` for each rank. They are equal on all ranks.
  void set_carried_over_weight(double weight) { total_weight_ = weight * communicator_.size(); }
  /// Whether the program holds no tensor over the buckets.
  bool can_rebuild_buckets() const { return !buffer_.has_outside_views(); }
  /// Plans the buckets again for gradients that become ready in `order`. All buckets must hold the mean.
  void rebuild_buckets(const BucketOptions& options, std::span<const int> order);

  // Windows.
  /// zero_grad().
  void clear(bool set_to_none);
  /// Stops tracking all gradients. They stay in .grad.
  void untrack();
  /// Releases all gradients.
  void discard();
  double loss_scale() const { return loss_scale_; }
  /// Sets the factor on the losses. `rescales`: pending gradients are changed to the new scale.
  void set_loss_scale(double scale, bool rescales);

  // Reproducible sums.
  /// Adds the gradients of a micro-batch to those of the window, and releases them.
  void accumulate_micro_batch();
  /// The number of micro-batches that accumulate_micro_batch() has added.
  std::int64_t micro_batches() const { return accumulator_ ? accumulator_->micro_batches() : 0; }
  void drop_micro_batches();

  // Changes by the program.
  /// Detects that the program has cleared the gradients of `window`. Throws UsageError if it has cleared some of them
  /// only, or (`refuses_changes`) has changed them in another way while they wait for their synchronization.
  ExternalClear find_external_clear(const Window& window, bool refuses_changes);
  /// The name of a parameter whose gradient was not produced by a backward pass, or (`or_replaced`) replaced such a
  /// gradient; nullopt if none.
  std::optional<std::string> foreign(bool or_replaced) const;
  /// Throws UsageError if there is a foreign() gradient, unless all gradients are zeros.
  void require_known(bool or_replaced) const;
  /// The number of gradients that were outside of their slots.
  std::int64_t copied() const { return copied_; }

  void save(StateDict& state) const;
  /// Throws CheckpointError if `state` is not one of these parameters.
  void check_state(const StateDict& state) const;
  /// Restores a checked state. The store must hold no gradients.
  void load(const StateDict& state);

 private:
  enum class BucketState {
    local_share,        // of this rank, or nothing
    mean,               // over all ranks
    written_in_flight,  // a local share, because a pass has added to it after the start of its all-reduce
  };
  struct GradientRecord {
    bool aliased = false;       // the gradient was in its slot
    std::uint32_t version = 0;  // its version at the end of the last pass
    std::uint64_t hash = 0;     // its hash, while it is pending
  };

  int slots() const { return parameters_.slots; }
  const at::Tensor& grad(int parameter) const { return parameters_.trained[parameter].tensor.grad(); }
  /// Converts a mean over `total_weight` to this rank's local share: the sum of the shares is the weighted sum.
  double share_factor(double total_weight) const { return total_weight * loss_scale_ / communicator_.size(); }
  void scale_bucket(std::size_t bucket, double factor);
  void bucket_to_local_share(std::size_t bucket);
  void move_into_slot(int parameter);
  /// The same for `parameters` of one dtype and device.
  void move_into_slots(const std::vector<int>& parameters);
  /// Moves the gradients of the pass that are not in their slots yet: on a device, of one dtype and device.
  void move_waiting(std::size_t group);
  void move_all_waiting();
  /// The calling thread's current stream uses gradients on `device`.
  void use_on_current_stream(at::Device device);
  bool is_on_device(int parameter) const;
  /// Adds the parameter's name to UsageErrors of `action`.
  template <typename Action>
  void naming(int parameter, const Action& action) const;
  void load_bucket(std::size_t bucket, const StateDict& state);
  /// The name of a parameter whose recorded gradient was replaced or written to; nullopt if none.
  std::optional<std::string> changed(bool window_is_pending) const;

  const ParameterSet& parameters_;
  const Communicator& communicator_;
  GradientBuffer buffer_;
  SparseGradients sparse_;
  std::optional<PairwiseAccumulator> accumulator_;  // with ReducerOptions::reproducible
  /// Gradients of one dtype and device that wait for move_into_slots().
  struct Waiting {
    std::vector<int> parameters;
    std::int64_t bytes = 0;
  };
  std::vector<Waiting> waiting_;         // by group of the buffer; empty for the CPU
  GradientStreams streams_;              // of gradients on devices
  std::vector<GradientRecord> records_;  // by slot
  std::vector<BucketState> buckets_;
  double total_weight_ = 1;  // of the means
  double loss_scale_ = 1;    // factor on the local shares
  int hash_salt_ = 0;
  std::int64_t copied_ = 0;
};

}  // namespace tutti::sync
