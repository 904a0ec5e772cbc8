#pragma once
// What copies of a Communicator share: a backend, the numbers of its calls, a thread that runs them, and whether one
// has failed.
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/backend/backend.h"
#include "comm/backend/current_operation.h"
#include "comm/call_signature.h"
#include "comm/services.h"
#include "comm/worker.h"
#include "tutti/comm/communicator.h"

namespace tutti::comm {

struct FailureReport;

/// What a rank sends along with the call.
struct CallPayload {
  std::uint64_t length = 0;  // may differ between ranks
  /// At most payload_bytes(), the same length on all ranks. `body` then has all that it needs, must not block, and
  /// may run on the calling thread.
  std::optional<std::span<const std::byte>> payload{};
};

class OperationQueue : public std::enable_shared_from_this<OperationQueue>, private InflightCalls::Listener {
 public:
  /// `name` is unique in the job: channels made from this one are named after it.
  OperationQueue(std::shared_ptr<Backend> backend, std::chrono::milliseconds timeout, std::string name,
                 Services services);
  ~OperationQueue() override;
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  Backend& backend() const { return *backend_; }
  bool failed() const { return failed_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const std::string& name() const { return name_; }
  const Services& services() const { return services_; }

  /// What all ranks sent when they agreed on a call.
  struct GatheredCalls {
    std::vector<CallSignature> by_rank;
    std::vector<const std::byte*> payloads;  // by rank: what was sent along
  };
  /// What a user-facing collective does once all ranks agree on the call.
  using Body = std::function<void(const Operation& operation, const GatheredCalls& gathered)>;
  /// Runs a collective on the channel's thread: compares signatures, then runs `body`. `arguments` is what stands in
  /// the parentheses of the call in messages.
  std::shared_ptr<WorkState> call(const std::string& what, const std::string& arguments, const CallOptions& options,
                                  Body body, const CallPayload& data = {});
  /// How much data can travel with a call.
  std::size_t payload_bytes() const;

  at::Tensor allocate(std::int64_t bytes, at::Device device);
  std::unique_ptr<PendingAllReduce> start_all_reduce(const at::Tensor& flat,
                                                     const std::shared_ptr<const WireCodec>& codec);
  std::unique_ptr<PendingAllGather> start_small_all_gather(std::span<const std::byte> block);
  std::unique_ptr<PendingAllGatherV> start_all_gather_v(std::vector<std::byte> block);
  std::shared_ptr<WorkState> submit(std::function<void()> task);

  // In no order with the calls above. `memory` is contiguous.
  std::shared_ptr<WorkState> send(const at::Tensor& memory, int peer, int tag, const CallOptions& options,
                                  const char* what = "send");
  /// `on_completed(source)` is called before the work ends well, on another thread.
  std::shared_ptr<WorkState> receive(const at::Tensor& memory, int peer, int tag, const CallOptions& options,
                                     std::function<void(int)> on_completed, const char* what = "receive");
  /// See Communicator::monitored_barrier.
  void monitored_barrier(bool wait_for_all, const CallOptions& options);
  /// See Communicator::abort.
  void abort(const std::string& reason) noexcept;

  /// A name for the next channel made from this one; equal on all ranks.
  std::string next_child_name(const std::string& kind);

  /// The channel of this name that was made first, which lives as long as this one.
  std::shared_ptr<OperationQueue> shared_child(const std::string& name,
                                               const std::function<std::shared_ptr<OperationQueue>()>& make);

  /// Runs one step of `operation`; a failed transfer poisons the channel and becomes a PeerError or TimeoutError.
  template <typename Step>
  auto run_checked(const Operation& operation, const Step& step) {
    try {
      throw_if_failed();
      const CurrentOperation here(operation);
      const InflightCalls::InCall in_call(calls_.get(), operation.number);
      return step();
    } catch (const TransferError& error) {
      record_end(operation, flight::EntryState::failed);
      fail(operation, error);
    } catch (...) {
      record_end(operation, flight::EntryState::failed);
      throw;
    }
  }
  /// All steps of `operation` are behind this rank.
  void mark_completed(const Operation& operation) noexcept { record_end(operation, flight::EntryState::completed); }
  /// `operation` was started and will not be completed by this rank: nothing can follow it.
  void abort_unfinished(const Operation& operation) noexcept;

 private:
  struct Call;
  void start(Call& call);
  void complete(Call& call);

  RequestPtr make_request(const char* what, const at::Tensor& memory, int peer, int tag,
                          const CallOptions& options) const;
  void close_p2p() noexcept;
  /// The first failure, by this rank's own will: leaves word of it and closes.
  void abort_with_report(FailureReport report, const std::string& reason) noexcept;
  bool set_blocked(bool blocked) noexcept override { return backend_->set_blocked(blocked); }
  void set_mismatch_reason(const std::string& why) noexcept override;
  void abort_blocked_calls() noexcept override;
  /// Of this channel.
  std::shared_ptr<WorkState> track(std::shared_ptr<WorkState> work) const;

  /// Without a number.
  Operation make_operation(const std::string& what, const CallOptions& options) const;
  /// `text` and `bytes` are for the flight record.
  Operation next_operation(const std::string& what, const CallOptions& options, const std::string& text,
                           std::uint64_t bytes = 0);
  void record_start(const Operation& operation) noexcept;
  void record_end(const Operation& operation, flight::EntryState how) noexcept;
  void throw_if_failed() const;
  [[noreturn]] void fail(const Operation& operation, const TransferError& error);
  [[noreturn]] void throw_earlier_failure() const;

  const std::shared_ptr<Backend> backend_;
  const std::chrono::milliseconds timeout_;
  const std::string name_;
  const Services services_;
  const std::shared_ptr<InflightCalls> calls_;  // null where nobody looks
  std::atomic<int> monitored_barriers_ = 0;

  std::mutex order_mutex_;  // numbers are taken and tasks queued in one order
  std::atomic<std::uint64_t> next_number_ = 0;
  std::atomic<int> children_ = 0;

  std::mutex shared_mutex_;
  std::map<std::string, std::shared_ptr<OperationQueue>> shared_children_;

  mutable std::mutex failure_mutex_;  // held while the first failure is looked into
  std::atomic<bool> failed_ = false;
  std::string failure_;
  std::string mismatch_reason_;  // why calls were made on some ranks only: all ranks throw this
  std::vector<int> failed_ranks_;

  Worker worker_;  // last: ends first
};

}  // namespace tutti::comm
