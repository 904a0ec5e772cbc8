#pragma once
// Runs the synchronizations of one reducer, one at a time: open(), then the buckets in index order, then close(), then
// wait(). It is the owner of their state, and of the order of gradients in which buckets are rebuilt. Only wait(),
// is_empty() and prepare_write() block. Not thread safe: the reducer's mutex protects it.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sync/gradient_store.h"
#include "sync/gradient_sync.h"
#include "sync/sync_header.h"
#include "sync/sync_state.h"
#include "tutti/comm/communicator.h"
#include "tutti/device/late_value.h"
#include "tutti/sync/reducer_options.h"

namespace tutti::sync {

class SyncDriver {
 public:
  /// The arguments must outlive the driver. `communicator` may be another one in each synchronization.
  SyncDriver(GradientStore& store, const ReducerOptions& options, const Communicator& communicator);

  SyncState state() const { return state_; }
  bool is_refused() const { return state_ == SyncState::refused; }
  bool is_aborted() const { return sync::is_aborted(state_); }
  /// Whether open() has run and wait() has not.
  bool is_open() const { return sync_ != nullptr; }
  void refuse(std::string reason);
  /// Why the call was refused.
  const std::string& refusal() const { return refusal_; }
  void abort() { state_ = next_state(state_, SyncEvent::abort); }
  /// Drops the synchronization. Its result is not used.
  void end();

  /// Sends the header. The driver sets SyncHeader::seconds_waited.
  void open(SyncHeader header);
  /// Must be called before autograd adds to a gradient. Waits for its bucket if that is in flight.
  void prepare_write(int parameter);
  /// Starts the all-reduces of the buckets up to `end` that have not started.
  void start_buckets(std::size_t end);
  /// Waits for the headers of all ranks. Returns whether no rank has a gradient.
  bool is_empty();
  /// That of all ranks, after is_empty().
  Weighting weighting() const { return sync_->plan().weighting; }
  /// Starts what has not started, and sends the trailer. `abort_reason`: what the other ranks report if is_aborted().
  /// `order`: parameters in the order of their gradients in this pass. If it throws because of a gradient, call
  /// abort(), then close() again.
  void close(const std::string& abort_reason, std::span<const int> order);
  /// Sends the trailer of a synchronization in which no rank has a gradient.
  void close_empty();
  /// Waits for the result. Throws the exceptions of the backend; the caller must call end() then.
  SyncResult wait();

  /// The gradients become the mean.
  void apply(const SyncResult& result);
  /// Rebuilds the buckets in the order of rank 0's gradients, once. Every rank must call it after the same results.
  void learn_order(const SyncResult& result);

  /// Whether the mean contains infinity or NaN, if ReducerOptions::detect_overflow is set.
  bool overflowed() const { return overflowed_ != 0; }
  void set_overflowed(bool overflowed) { overflowed_ = overflowed ? 1 : 0; }

 private:
  void send_trailer(const SyncTrailer& trailer, const std::vector<bool>& used, std::span<const int> numbers = {});
  bool is_learning_order() const;

  GradientStore& store_;
  const ReducerOptions& options_;
  const Communicator& communicator_;
  SyncState state_ = SyncState::idle;
  std::string refusal_;
  std::unique_ptr<GradientSync> sync_;  // from open() to wait() or end()
  bool may_be_unreached_ = false;       // SyncHeader::joined of this rank
  double last_wait_seconds_ = 0;        // in the last synchronization
  int syncs_left_to_learn_order_ = 0;   // > 0 while the order of gradients is unknown
  bool can_rebuild_buckets_ = false;    // see SyncTrailer
  LateValue overflowed_;
};

}  // namespace tutti::sync
