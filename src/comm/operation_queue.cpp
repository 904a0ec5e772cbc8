#include "comm/operation_queue.h"

#include <cstring>
#include <exception>
#include <utility>

#include "comm/backend/describe.h"
#include "comm/health/root_cause.h"
#include "comm/os/cpu_pause.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/call_site_scope.h"

namespace tutti::comm {

OperationQueue::OperationQueue(std::shared_ptr<Backend> backend, std::chrono::milliseconds timeout, std::string name,
                               Services services)
    : backend_(std::move(backend)),
      timeout_(timeout),
      name_(std::move(name)),
      services_(std::move(services)),
      job_ranks_(services_.p2p ? JobRanks(services_.p2p->global_ranks()) : JobRanks()),
      calls_(services_.deadlock_detector && services_.p2p
                 ? services_.deadlock_detector->add_communicator(name_, services_.p2p->global_ranks())
                 : nullptr) {
  if (calls_) calls_->set_listener(this);
}

OperationQueue::~OperationQueue() {
  if (calls_) calls_->set_listener(nullptr);
  if (std::uncaught_exceptions() == 0) messages_.reset();  // sends what is queued
  if (services_.p2p) {
    const auto failure =
        std::make_exception_ptr(UsageError("The communicator was destroyed while a receive was pending."));
    services_.p2p->close(failure, /*cancel_sends=*/false);
  }
  // During stack unwinding, abort operations in flight instead of waiting for peers.
  if (std::uncaught_exceptions() == 0) return;
  is_unwinding_ = true;
  backend_->close();
}

Operation OperationQueue::make_operation(const std::string& what, const CallOptions& options) const {
  const auto timeout = options.timeout.value_or(timeout_);
  if (timeout <= std::chrono::milliseconds::zero()) {
    throw UsageError(what + ": the timeout must be positive, not " + describe_duration(timeout) + ".");
  }
  return {.number = 0,
          .op_name = what,
          .name = options.name,
          .timeout = timeout,
          .call_site = options.where.known() ? options.where : CallSiteScope::current(),
          .job_ranks = job_ranks_};
}

Operation OperationQueue::next_operation(const std::string& what, const CallOptions& options, const std::string& text,
                                         std::uint64_t bytes) {
  auto operation = make_operation(what, options);
  operation.number = next_number_++;
  if (calls_) calls_->on_call(operation, Worker::is_on_worker_thread());
  if (services_.recorder) {
    operation.entry = services_.recorder->record_call({.text = text,
                                                       .communicator = name_,
                                                       .operation = operation.number,
                                                       .bytes = bytes,
                                                       .group_size = backend_->size(),
                                                       .call_site = operation.call_site});
  }
  return operation;
}

void OperationQueue::record_start(const Operation& operation) noexcept {
  if (services_.recorder) services_.recorder->record_start(operation.entry);
}

void OperationQueue::record_end(const Operation& operation, flight::EntryState how) noexcept {
  if (services_.recorder) services_.recorder->record_end(operation.entry, how);
}

/// A collective in flight.
struct OperationQueue::Call {
  Operation operation;
  Body body;
  std::vector<std::byte> message;  // the call signature, followed by the payload
  std::unique_ptr<PendingAllGather> exchange;
  std::shared_ptr<DeviceCall> device;  // null for host tensors
};

std::size_t OperationQueue::payload_bytes() const {
  const std::size_t cheap = backend_->traits().inline_payload_bytes;
  return cheap > sizeof(CallSignature) ? cheap - sizeof(CallSignature) : 0;
}

std::shared_ptr<WorkState> OperationQueue::call(const std::string& what, const std::string& arguments,
                                                const CallOptions& options, Body body, const CallPayload& data,
                                                std::shared_ptr<DeviceCall> device) {
  throw_if_failed();
  const std::string text = flight::call_text(what, arguments, options.name);
  const CallSignature own_signature(text, data.length);
  const auto call = std::make_shared<Call>();
  call->body = std::move(body);
  call->device = device;
  const auto signature = own_signature.bytes();
  call->message.assign(signature.begin(), signature.end());
  if (data.payload) call->message.insert(call->message.end(), data.payload->begin(), data.payload->end());
  const BackendTraits& traits = backend_->traits();
  if (traits.equal_lengths) call->message.resize(traits.inline_payload_bytes);

  const std::lock_guard lock(order_mutex_);
  call->operation = next_operation(what, options, text, data.payload ? data.payload->size() : data.length);
  const auto run = [this, call] {
    start(*call);
    complete(*call);
  };
  const bool is_single = backend_->size() == 1;
  const int spin_count = traits.spin_count;
  if (device || is_single || !data.payload || spin_count == 0 || !worker_.idle()) {
    auto work = is_single ? run_now(run) : track(worker_.submit(run));
    if (device) work->set_on_waited([device] { device->block_current_stream(); });
    return work;
  }

  // If all ranks call at about the same time, waking a thread would take many times as long as the call. So poll first.
  const auto started = run_now([&] { start(*call); });
  if (!call->exchange) return started;
  for (int poll = 0; poll < spin_count; ++poll) {
    if (call->exchange->is_ready()) return run_now([&] { complete(*call); });
    cpu_pause();
  }
  return track(worker_.submit([this, call] { complete(*call); }));
}

std::shared_ptr<WorkState> OperationQueue::call_backend(const std::string& what, const std::string& arguments,
                                                        const CallOptions& options, CallTensors& tensors,
                                                        BackendCall body, InlineCall inlined) {
  auto write_back = [written = tensors.take_written()] {
    for (const auto& tensor : written) tensor.write_back();
  };
  if (inlined.body && tensors.on_host() && inlined.payload.nbytes() <= payload_bytes()) {
    auto run = [body = std::move(inlined.body), write_back = std::move(write_back)](const Operation&,
                                                                                    const GatheredCalls& gathered) {
      body(gathered.payloads);
      write_back();
    };
    const auto* const bytes = static_cast<const std::byte*>(inlined.payload.const_data_ptr());
    return call(what, arguments, options, std::move(run), {.payload = std::span(bytes, inlined.payload.nbytes())});
  }
  auto run = [this, body = std::move(body), write_back = std::move(write_back)](const Operation& operation,
                                                                                const GatheredCalls&) {
    body(*backend_, operation);
    write_back();
  };
  return call(what, arguments, options, std::move(run), {},
              tensors.start(device_streams_, DeviceStreams::Kind::collectives));
}

void OperationQueue::start(Call& call) {
  record_start(call.operation);
  run_checked(call.operation, [&] { call.exchange = backend_->start_small_all_gather(call.operation, call.message); });
}

void OperationQueue::complete(Call& call) {
  run_checked(call.operation, [&] {
    const auto blocks = call.exchange->wait();
    const std::size_t block = call.message.size();
    GatheredCalls gathered;
    gathered.by_rank.resize(static_cast<std::size_t>(backend_->size()));
    for (std::size_t rank = 0; rank < gathered.by_rank.size(); ++rank) {
      std::memcpy(&gathered.by_rank[rank], blocks.data() + rank * block, sizeof(CallSignature));
      gathered.payloads.push_back(blocks.data() + rank * block + sizeof(CallSignature));
    }
    check_signatures(gathered.by_rank, call.operation);
    if (!call.device) return call.body(call.operation, gathered);
    call.device->run(
        backend_->rank(), call.operation, [this] { return is_stopping(); },
        [&] { call.body(call.operation, gathered); });
  });
  mark_completed(call.operation);
}

std::shared_ptr<WorkState> OperationQueue::submit(std::function<void()> task) {
  if (backend_->size() == 1) return run_now(task);
  // Calls in the task get the call site of this call.
  return track(worker_.submit([task = std::move(task), where = CallSiteScope::current(), callers = callers()] {
    const CallSiteScope here(where);
    const CallerThreads::Task running(callers);
    task();
  }));
}

std::shared_ptr<WorkState> OperationQueue::track(std::shared_ptr<WorkState> work) const {
  work->set_calls(calls_, callers());
  return work;
}

std::shared_ptr<CallerThreads> OperationQueue::callers() const {
  return calls_ ? calls_->callers() : nullptr;
}

std::string OperationQueue::child_name(const Operation& operation, const std::string& kind) const {
  return name_ + "/" + std::to_string(operation.number) + "-" + kind;
}

std::string OperationQueue::subgroup_name(const std::string& name, int lowest) {
  const std::lock_guard lock(shared_mutex_);
  if (!subgroup_names_.insert(name).second) {
    throw UsageError("subgroup '" + name + "': this rank has made a subgroup of this name already: choose another one");
  }
  return name_ + "/sub-" + std::to_string(lowest) + "-" + name;
}

std::shared_ptr<OperationQueue> OperationQueue::shared_child(
    const std::string& name, const std::function<std::shared_ptr<OperationQueue>()>& make) {
  const std::lock_guard lock(shared_mutex_);
  std::shared_ptr<OperationQueue>& child = shared_children_[name];
  if (!child) child = make();
  return child;
}

void OperationQueue::throw_if_failed() const {
  if (failed_) throw_earlier_failure();
}

void OperationQueue::throw_earlier_failure() const {
  const std::lock_guard lock(failure_mutex_);
  if (!mismatch_reason_.empty()) throw MismatchError(mismatch_reason_);
  throw PeerError("This communicator has failed and cannot be used any more: " + failure_, failed_ranks_);
}

void OperationQueue::fail(const Operation& operation, const TransferError& error) {
  std::unique_lock lock(failure_mutex_);
  if (failed_) {
    lock.unlock();
    throw_earlier_failure();
  }
  failed_ = true;
  auto report = make_report(error, operation);
  const bool late = report.timed_out();
  RootCause root_cause;
  try {
    RootCauseQuery query(*backend_, backend_->rank(), backend_->size(), operation, std::move(report));
    // Publish before closing: a peer reads the failure reports as soon as its connection closes.
    backend_->close();
    root_cause = query.find();
  } catch (const std::exception& lookup_error) {
    backend_->close();
    root_cause = {.failed_ranks = error.peers(),
                  .timed_out = late,
                  .message = operation.describe() + ": no answer from " + job_ranks_.describe(error.peers()) + " (" +
                             first_line(lookup_error.what()) + ")"};
  }
  // Such as a device that does not answer, or no descriptor for a connection.
  const bool is_own = error.peers() == std::vector<int>{backend_->rank()};
  failure_ = is_own ? operation.describe() + ": " + error.what() : root_cause.message;
  failed_ranks_ = root_cause.failed_ranks;
  const std::string mismatch_reason = mismatch_reason_;
  lock.unlock();
  close_p2p();
  if (!mismatch_reason.empty()) throw MismatchError(mismatch_reason);
  if (root_cause.timed_out) throw TimeoutError(failure_, failed_ranks_);
  throw PeerError(failure_, failed_ranks_);
}

void OperationQueue::abort_with_report(std::uint64_t number, std::chrono::milliseconds timeout,
                                       const std::string& description, const std::string& reason) noexcept {
  try {
    const std::lock_guard lock(failure_mutex_);
    if (failed_) return;
    failed_ = true;
    failure_ = reason;
    if (backend_->size() > 1) {
      const FailureReport report{.reason = FailureReport::Reason::aborted,
                                 .operation = number,
                                 .timeout = timeout,
                                 .waiting_for = {},
                                 .description = description};
      backend_->failure_board()->publish(backend_->rank(), report.to_text());
    }
  } catch (const std::exception&) {
    // Best effort: peers detect the closed connections even without the report.
  }
  close_p2p();
  backend_->close();
}

// Call without failure_mutex_: the completion of a message runs callbacks, which may call this queue.
void OperationQueue::close_p2p() noexcept {
  if (!services_.p2p) return;
  services_.p2p->close(std::make_exception_ptr(PeerError(
                           "This communicator has failed and cannot be used any more: " + failure_, failed_ranks_)),
                       /*cancel_sends=*/true);
}

void OperationQueue::set_mismatch_reason(const std::string& why) noexcept {
  const std::lock_guard lock(failure_mutex_);
  if (!failed_) mismatch_reason_ = why;
}

void OperationQueue::abort_blocked_calls() noexcept {
  abort_with_report(next_number_, timeout_, "calls that were made on some ranks only", mismatch_reason_);
}

void OperationQueue::abort_unfinished(const Operation& operation) noexcept {
  record_end(operation, flight::EntryState::failed);
  if (backend_->size() == 1) return;  // no peer waits
  abort_with_report(operation.number, operation.timeout, operation.describe(),
                    operation.describe() + " was started and not finished");
}

}  // namespace tutti::comm
