#pragma once
// The state that copies of a Communicator share: a backend, the operation numbers, the worker thread that runs the
// operations, and the first failure.
//
// Lock order: shared_mutex_, order_mutex_, failure_mutex_. shared_child() makes a child by a call on this queue, and a
// call may fail while its thread holds order_mutex_.
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "comm/backend/backend.h"
#include "comm/backend/current_operation.h"
#include "comm/call_signature.h"
#include "comm/device_call.h"
#include "comm/services.h"
#include "comm/worker.h"
#include "tutti/comm/call_options.h"
#include "tutti/core/error.h"

namespace tutti::comm {

/// The data that a rank sends with its call signature.
struct CallPayload {
  std::uint64_t length = 0;  // may differ between ranks
  /// At most payload_bytes(), with the same length on all ranks. With a payload, `body` needs no further message. It
  /// must not block, and it may run on the calling thread.
  std::optional<std::span<const std::byte>> payload{};
};

class OperationQueue : public std::enable_shared_from_this<OperationQueue>, private InflightCalls::Listener {
 public:
  /// `name` must be unique in the job: the names of child queues begin with it.
  OperationQueue(std::shared_ptr<Backend> backend, std::chrono::milliseconds timeout, std::string name,
                 Services services);
  ~OperationQueue() override;
  OperationQueue(const OperationQueue&) = delete;
  OperationQueue& operator=(const OperationQueue&) = delete;

  Backend& backend() const { return *backend_; }
  bool failed() const { return failed_; }
  void throw_if_failed() const;
  std::chrono::milliseconds timeout() const { return timeout_; }
  const std::string& name() const { return name_; }
  const Services& services() const { return services_; }
  const JobRanks& job_ranks() const { return job_ranks_; }
  DeviceStreams& device_streams() { return device_streams_; }

  /// The call signatures and payloads of all ranks.
  struct GatheredCalls {
    std::vector<CallSignature> by_rank;
    std::vector<const std::byte*> payloads;  // by rank
  };
  /// The part of a collective that runs after the signatures have been compared.
  using Body = std::function<void(const Operation& operation, const GatheredCalls& gathered)>;
  /// Runs a collective on the worker thread: compares signatures, then runs `body`. `arguments` is the text between the
  /// parentheses of the call in messages. With `device`, `body` runs on the device's side stream.
  std::shared_ptr<WorkState> call(const std::string& what, const std::string& arguments, const CallOptions& options,
                                  Body body, const CallPayload& data = {},
                                  std::shared_ptr<DeviceCall> device = nullptr);
  using BackendCall = std::function<void(Backend& backend, const Operation& operation)>;
  /// The form of a collective for small host tensors: `payload` is sent with the call signature, and `body` needs no
  /// further message.
  struct InlineCall {
    at::Tensor payload;  // contiguous, with the same length on all ranks
    std::function<void(const std::vector<const std::byte*>& payloads)> body;  // `payloads` is by rank
  };
  /// Runs a collective on `tensors`: `body` calls the backend with them. With `inlined`, runs that instead if the
  /// tensors are in host memory and the payload is short. Afterwards writes back the tensors that the call writes to.
  std::shared_ptr<WorkState> call_backend(const std::string& what, const std::string& arguments,
                                          const CallOptions& options, CallTensors& tensors, BackendCall body,
                                          InlineCall inlined = {});

  at::Tensor allocate(std::int64_t bytes, at::Device device);
  std::unique_ptr<PendingAllReduce> start_all_reduce(const at::Tensor& flat,
                                                     const std::shared_ptr<const WireCodec>& codec);
  std::unique_ptr<PendingAllGather> start_small_all_gather(std::span<const std::byte> block);
  std::unique_ptr<PendingAllGatherV> start_all_gather_v(std::vector<std::byte> block);
  std::shared_ptr<WorkState> submit(std::function<void()> task);

  // These have no order relative to the calls above. `memory` must be contiguous, in host memory; with `device` it is
  // the staging memory of a device tensor.
  std::shared_ptr<WorkState> send(const at::Tensor& memory, int peer, int tag, const CallOptions& options,
                                  const char* what = "send", std::shared_ptr<DeviceCall> device = nullptr);
  /// Calls `on_completed(source)` before the work completes without an error, on another thread. With `device`, it runs
  /// on the device's side stream.
  std::shared_ptr<WorkState> receive(const at::Tensor& memory, int peer, int tag, const CallOptions& options,
                                     std::function<void(int)> on_completed, const char* what = "receive",
                                     std::shared_ptr<DeviceCall> device = nullptr);
  /// See Communicator::monitored_barrier.
  void monitored_barrier(bool wait_for_all, const CallOptions& options);
  /// See Communicator::abort.
  void abort(const std::string& reason) noexcept;

  /// The name of the child queue that `operation`, a call of all ranks, makes.
  std::string child_name(const Operation& operation, const std::string& kind) const;
  /// The name of the queue of subgroup `name`, whose lowest rank is `lowest`. Throws UsageError if this rank has used
  /// `name` before. Subgroups of one name therefore have no common rank, and different lowest ranks tell them apart.
  std::string subgroup_name(const std::string& name, int lowest);

  /// The child queue called `name`. The first call makes it; it exists as long as this queue.
  std::shared_ptr<OperationQueue> shared_child(const std::string& name,
                                               const std::function<std::shared_ptr<OperationQueue>()>& make);

  /// Runs one step of `operation`. A failed transfer aborts the queue and is rethrown as PeerError or TimeoutError. A
  /// MismatchError or PeerError of `step` is one on all ranks. Any other exception aborts the queue, because the other
  /// ranks wait in the operation.
  template <typename Step>
  auto run_checked(const Operation& operation, const Step& step) {
    try {
      throw_if_failed();
      const CurrentOperation here(operation);
      const InflightCalls::InCall in_call(calls_.get(), operation.entry);
      return step();
    } catch (const TransferError& error) {
      record_end(operation, flight::EntryState::failed);
      fail(operation, error);
    } catch (const MismatchError&) {
      record_end(operation, flight::EntryState::failed);
      throw;
    } catch (const PeerError&) {
      record_end(operation, flight::EntryState::failed);
      throw;
    } catch (...) {
      abort_unfinished(operation);
      throw;
    }
  }
  /// Records that this rank has run all steps of `operation`.
  void mark_completed(const Operation& operation) noexcept { record_end(operation, flight::EntryState::completed); }
  /// Aborts the queue because this rank started `operation` and will not complete it. A group of one rank stays usable.
  void abort_unfinished(const Operation& operation) noexcept;

 private:
  struct Call;
  /// The largest payload of a call, in bytes.
  std::size_t payload_bytes() const;
  void start(Call& call);
  void complete(Call& call);

  RequestPtr make_request(const char* what, const at::Tensor& memory, int peer, int tag,
                          const CallOptions& options) const;
  void close_p2p() noexcept;
  /// Aborts the queue unless it has failed already, because of `reason`. Publishes a report that this rank has aborted
  /// the operation of `number`, then closes the connections.
  void abort_with_report(std::uint64_t number, std::chrono::milliseconds timeout, const std::string& description,
                         const std::string& reason) noexcept;
  bool is_starting() const noexcept override { return worker_.is_starting(); }
  void set_mismatch_reason(const std::string& why) noexcept override;
  void abort_blocked_calls() noexcept override;
  /// Attaches this queue's calls to `work`.
  std::shared_ptr<WorkState> track(std::shared_ptr<WorkState> work) const;
  /// The threads that may make calls, as the deadlock detector counts them; null without one.
  std::shared_ptr<CallerThreads> callers() const;

  /// Makes an operation without a number.
  Operation make_operation(const std::string& what, const CallOptions& options) const;
  /// Makes an operation with the next number. `text` and `bytes` are for the flight record.
  Operation next_operation(const std::string& what, const CallOptions& options, const std::string& text,
                           std::uint64_t bytes = 0);
  void record_start(const Operation& operation) noexcept;
  void record_end(const Operation& operation, flight::EntryState how) noexcept;
  /// True if waits for a device must end.
  bool is_stopping() const { return failed_ || is_unwinding_; }
  [[noreturn]] void fail(const Operation& operation, const TransferError& error);
  [[noreturn]] void throw_earlier_failure() const;

  const std::shared_ptr<Backend> backend_;
  const std::chrono::milliseconds timeout_;
  const std::string name_;
  const Services services_;
  const JobRanks job_ranks_;
  const std::shared_ptr<InflightCalls> calls_;  // null without a deadlock detector
  std::atomic<int> monitored_barriers_ = 0;

  std::mutex order_mutex_;  // held while a number is taken and the task is queued, so that both have one order
  std::atomic<std::uint64_t> next_number_ = 0;

  std::mutex shared_mutex_;
  std::map<std::string, std::shared_ptr<OperationQueue>> shared_children_;
  std::set<std::string> subgroup_names_;

  mutable std::mutex failure_mutex_;  // held while the root cause of the first failure is found
  std::atomic<bool> failed_ = false;
  std::atomic<bool> is_unwinding_ = false;  // the destructor runs because of an exception
  std::string failure_;
  std::string mismatch_reason_;  // the text of the MismatchError that all ranks throw after a deadlock
  std::vector<int> failed_ranks_;

  DeviceStreams device_streams_;
  std::optional<Worker> messages_{std::in_place};  // sends messages of device tensors, in their order
  Worker worker_;                                  // last, so that it is destroyed first
};

}  // namespace tutti::comm
