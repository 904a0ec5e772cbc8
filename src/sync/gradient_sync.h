#pragma once
// One synchronization: the sync headers, the all-reduces of all buckets in index order, the sync trailers. Autograd
// hooks start it step by step and never block; the communicator's thread completes it.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sync/sync_header.h"
#include "tutti/detail/comm/gradient_communicator.h"
#include "tutti/device/late_value.h"

namespace tutti::sync {

/// The result of a synchronization: equal on all ranks, except for the last two members.
struct SyncResult {
  SyncPlan plan;
  std::vector<SyncHeader> headers;
  std::vector<SyncTrailer> trailers;
  std::size_t summed = 0;        ///< the number of buckets that were summed
  std::vector<bool> used;        ///< by parameter with a slot: whether any rank has used it
  std::vector<at::Tensor> rows;  ///< the means of the gradients of start_rows(); undefined if no rank had a gradient
  std::vector<int> numbers;      ///< those that rank 0 passed to close()
  /// 1 if a sum contains infinity or NaN, else 0; 0 unless that is detected. Reading the value waits for the device.
  LateValue overflowed;
  std::int64_t bytes_sent = 0;  ///< gradient bytes that this rank has sent to other ranks
  double seconds_waited = 0;    ///< duration of SyncDriver::wait()

  /// By rank: the lengths of its last windows.
  std::vector<WindowLengths> window_lengths() const;
  /// The ranks that have aborted the synchronization.
  std::vector<int> aborted_ranks() const;
};

class GradientSync {
 public:
  /// Sends the header. Every rank must start the same synchronizations in the same order.
  GradientSync(const Communicator& communicator, const SyncHeader& header, bool detect_overflow = false);

  /// Blocks until the headers of all ranks have arrived; plan() is valid from then on.
  void wait_for_headers() { works_.front().wait(); }
  /// Starts the all-reduce of the next bucket.
  void start_bucket_all_reduce(at::Tensor bucket, const std::shared_ptr<const WireCodec>& codec = nullptr);
  /// Starts the sum of a sparse gradient, which consists of rows of `parameter`; undefined if this rank has none. Must
  /// be called after the last bucket, by every rank for the same parameters.
  void start_rows(const at::Tensor& gradient, const at::Tensor& parameter);
  /// Blocks until the sums of bucket `index` and of all earlier ones are in their tensors. Must be called before
  /// another write to the bucket.
  void wait_for_bucket(std::size_t index);
  /// Sends the trailer. `used`: for each parameter, whether this rank used it. `numbers`: additional numbers, equal in
  /// count on all ranks. No bucket may be started afterwards.
  void close(const SyncTrailer& trailer, const std::vector<bool>& used, std::span<const int> numbers = {});
  std::size_t buckets_started() const { return sums_.size(); }

  const SyncPlan& plan() const { return state_->result.plan; }

  /// Blocks until the synchronization completes. Throws the exceptions of the backend. Must be called once, after
  /// close(); no other call may follow.
  SyncResult wait();

 private:
  // Written by the communicator's thread. Tasks in flight keep it alive after this object.
  struct State {
    SyncResult result;
    bool overflowed = false;
  };

  void submit(std::function<void()> task) { works_.push_back(communicator_.submit(std::move(task))); }

  comm::GradientCommunicator communicator_;
  bool detect_overflow_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::vector<std::shared_ptr<comm::QueuedAllReduce>> sums_;
  std::vector<Work> works_;
  std::vector<at::Tensor> device_buckets_;  // in which wait() looks for an overflow
};

}  // namespace tutti::sync
