#pragma once
// One synchronization: the opening headers, the sums of all buckets in index order, the closing headers. Started piece
// by piece from autograd hooks, which never block; completed on the channel's own thread.
#include <ATen/core/TensorBody.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sync/sync_header.h"
#include "tutti/comm/communicator.h"
#include "tutti/detail/comm/pending.h"

namespace tutti::sync {

class GradientSync {
 public:
  /// Sends the opening. Every rank starts the same rounds in the same order.
  GradientSync(const Communicator& communicator, const SyncHeader& header, bool detect_overflow = false);

  /// Blocks until all ranks' openings are here: terms() and openings() are valid from then on.
  void wait_for_headers() { works_.front().wait(); }
  /// Starts the sum of the next bucket.
  void start_bucket_all_reduce(at::Tensor bucket, const std::shared_ptr<const WireCodec>& codec = nullptr);
  /// Starts the sum of a gradient that comes as rows of `parameter`; undefined where this rank has none. After the last
  /// bucket, by every rank for the same parameters.
  void start_rows(const at::Tensor& gradient, const at::Tensor& parameter);
  /// Blocks until the sum of bucket `index` is in its tensor: before something writes there again.
  void wait_for_bucket(std::size_t index);
  /// Sends the closing: `used` says for each parameter whether this rank used it; `numbers` are a few more, as many on
  /// every rank. No bucket may be started after it.
  void close(const SyncTrailer& trailer, const std::vector<bool>& used, std::span<const int> numbers = {});
  bool closed() const { return closed_; }
  std::size_t buckets_started() const { return sums_.size(); }

  /// Blocks until everything is here; throws what the backend throws. Called once, after close().
  void wait();

  // Valid after wait().
  const SyncPlan& plan() const { return state_->plan; }
  const std::vector<SyncHeader>& headers() const { return state_->headers; }
  const std::vector<SyncTrailer>& trailers() const { return state_->trailers; }
  /// The means of what was given to start_rows(); undefined where no rank had a gradient.
  const std::vector<at::Tensor>& rows() const { return state_->rows; }
  /// Gradient bytes that this rank has given to others.
  std::int64_t bytes_sent() const;
  /// Whether a sum holds infinity or NaN; false unless the round was made to look.
  bool overflowed() const { return state_->overflowed; }
  /// What rank 0 gave to close().
  const std::vector<int>& numbers_of_rank_0() const { return state_->numbers; }
  /// For each parameter whether any rank used it.
  const std::vector<bool>& used_by_any_rank() const { return state_->used; }

 private:
  // What the channel's thread writes; it outlives the round while tasks are under way.
  struct State {
    std::vector<SyncHeader> headers;
    SyncPlan plan;
    std::vector<SyncTrailer> trailers;
    std::vector<bool> used;
    std::vector<int> numbers;
    std::vector<at::Tensor> rows;
    std::int64_t sparse_bytes = 0;
    bool overflowed = false;
  };
  struct BucketAllReduce {
    at::Tensor bucket;
    std::shared_ptr<comm::PendingAllReduce> pending;
    bool finished = false;
  };

  void submit(std::function<void()> task) { works_.push_back(communicator_.submit(std::move(task))); }

  Communicator communicator_;
  bool detect_overflow_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::vector<std::shared_ptr<BucketAllReduce>> sums_;
  std::vector<Work> works_;
  bool closed_ = false;
};

}  // namespace tutti::sync
