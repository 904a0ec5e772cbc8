// The point-to-point operations of OperationQueue, the monitored barrier and abort(). They have no order relative to
// collectives.
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "comm/backend/describe.h"
#include "comm/operation_queue.h"
#include "comm/transport/tcp/group_endpoint.h"
#include "tutti/core/error.h"

namespace tutti::comm {
RequestPtr OperationQueue::make_request(const char* what, const at::Tensor& memory, int peer, int tag,
                                        const CallOptions& options) const {
  throw_if_failed();
  if (!services_.p2p) throw UsageError(std::string(what) + ": messages between ranks are not available in this group.");
  auto request = std::make_shared<Request>();
  request->description = std::string(what) + (options.name.empty() ? "" : " '" + options.name + "'");
  if (tag >= 0) request->description += " (tag " + std::to_string(tag) + ")";
  request->description += job_ranks_.describe_group();
  request->peer = peer;
  request->tag = static_cast<std::uint64_t>(std::int64_t{tag});
  request->memory = {static_cast<std::byte*>(const_cast<void*>(memory.const_data_ptr())), memory.nbytes()};
  request->owner = std::make_shared<at::Tensor>(memory);
  const Operation operation = make_operation(what, options);
  request->timeout = operation.timeout;
  request->deadline = operation.deadline();
  request->is_peer_gone = [backend = backend_, peer] {
    if (peer != any_source) return backend->peer_exited(peer);
    for (int other = 0; other < backend->size(); ++other) {
      if (other != backend->rank() && !backend->peer_exited(other)) return false;
    }
    return true;
  };
  return request;
}

std::shared_ptr<WorkState> OperationQueue::send(const at::Tensor& memory, int peer, int tag, const CallOptions& options,
                                                const char* what, std::shared_ptr<DeviceCall> device) {
  auto request = make_request(what, memory, peer, tag, options);
  request->is_send = true;
  auto state = std::make_shared<WorkState>();
  state->set_calls(nullptr, callers());
  request->mark_completed = [state](std::exception_ptr failure) { state->end(std::move(failure)); };
  // A message must not overtake an earlier one whose bytes are still on the device.
  if (!device && messages_->idle()) {
    services_.p2p->post(std::move(request));
    return state;
  }
  const auto queued = messages_->submit([this, request, device, operation = make_operation(what, options)] {
    try {
      const auto send_now = [&] { services_.p2p->post(request); };
      if (!device) return send_now();
      device->run(
          backend_->rank(), operation, [this] { return is_stopping(); }, send_now);
    } catch (const TransferError& error) {
      if (error.kind() != TransferError::Kind::timeout) throw_if_failed();
      throw TimeoutError(request->description + ": " + error.what(), error.peers());
    }
  });
  queued->then([queued, state] {
    if (const auto failure = queued->exception()) state->end(failure);
  });
  return state;
}

std::shared_ptr<WorkState> OperationQueue::receive(const at::Tensor& memory, int peer, int tag,
                                                   const CallOptions& options, std::function<void(int)> on_completed,
                                                   const char* what, std::shared_ptr<DeviceCall> device) {
  auto request = make_request(what, memory, peer, tag, options);
  auto state = std::make_shared<WorkState>();
  state->set_calls(nullptr, callers());
  request->mark_completed = [state](std::exception_ptr failure) { state->end(std::move(failure)); };
  if (device) {
    state->set_on_waited([device] { device->block_current_stream(); });
    on_completed = [device, on_completed = std::move(on_completed), rank = backend_->rank(),
                    operation = make_operation(what, options)](int source) {
      device->make_device_current();
      device->run(
          rank, operation, [] { return false; }, [&] { on_completed(source); });
    };
  }
  request->on_completed = [on_completed = std::move(on_completed), callers = callers()](int source) {
    const CallerThreads::Task task(on_completed ? callers : nullptr);
    if (on_completed) on_completed(source);
  };
  services_.p2p->post(std::move(request));
  return state;
}

void OperationQueue::monitored_barrier(bool wait_for_all, const CallOptions& options) {
  constexpr const char* what = "monitored_barrier";
  throw_if_failed();
  if (backend_->size() == 1) return;
  const auto timeout = make_operation(what, options).timeout;
  const auto nothing = at::empty({0}, at::kByte);
  // Users' tags are not negative. Each barrier has two negative tags, so that a late message matches no later barrier.
  const int arrival_tag = -2 * ++monitored_barriers_;
  const int release_tag = arrival_tag + 1;
  if (backend_->rank() != 0) {
    send(nothing, 0, arrival_tag, options, what);
    // Rank 0 may enter up to one timeout later and then waits up to one timeout for other ranks.
    CallOptions release_options = options;
    release_options.timeout = 2 * std::min(timeout, longest_timeout);
    auto outcome = at::empty({1}, at::kByte);
    receive(outcome, 0, release_tag, release_options, nullptr, what)->wait();
    if (*static_cast<const std::uint8_t*>(outcome.const_data_ptr()) != 0) return;
    const std::string root = job_ranks_.describe({0});
    throw PeerError(std::string(what) + job_ranks_.describe_group() + ": Rank " +
                        std::to_string(job_ranks_.of(backend_->rank())) +
                        " successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                        "from " +
                        root + ": " + root + " reports that other ranks did not enter the barrier within " +
                        describe_duration(timeout) + ".",
                    {});
  }
  std::vector<std::shared_ptr<WorkState>> arrivals(static_cast<std::size_t>(backend_->size()));
  for (int peer = 1; peer < backend_->size(); ++peer) {
    arrivals[static_cast<std::size_t>(peer)] = receive(nothing, peer, arrival_tag, options, nullptr, what);
  }
  std::vector<int> absent;
  for (int peer = 1; peer < backend_->size() && (absent.empty() || wait_for_all); ++peer) {
    try {
      arrivals[static_cast<std::size_t>(peer)]->wait();
    } catch (const PeerError& error) {
      if (error.ranks().empty()) throw;  // this group or the job has ended
      absent.push_back(peer);
    }
  }
  const auto outcome = at::empty({1}, at::kByte);
  *static_cast<std::uint8_t*>(outcome.data_ptr()) = absent.empty() ? 1 : 0;
  // At most 5 s: absent ranks may never receive the outcome.
  CallOptions notice_options = options;
  notice_options.timeout = std::min<std::chrono::milliseconds>(timeout, std::chrono::seconds(5));
  for (int peer = 1; peer < backend_->size(); ++peer) {
    send(outcome, peer, release_tag, notice_options, what);
  }
  if (absent.empty()) return;
  std::string names;
  for (const int rank : absent) names += (names.empty() ? "" : ", ") + std::to_string(job_ranks_.of(rank));
  throw TimeoutError(std::string(what) + job_ranks_.describe_group() + ": " + (wait_for_all ? "Ranks " : "Rank ") +
                         names + " failed to pass monitoredBarrier within " + describe_duration(timeout) + ".",
                     absent);
}

void OperationQueue::abort(const std::string& reason) noexcept {
  abort_with_report(next_number_, timeout_, "the group (" + reason + ")", reason);
}

}  // namespace tutti::comm
