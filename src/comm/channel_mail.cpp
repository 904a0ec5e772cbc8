// The part of a channel that stands in no order with its collectives: messages from rank to rank.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "comm/channel.h"
#include "comm/engine/describe.h"
#include "comm/mail/mail.h"
#include "comm/meeting/blame.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

std::span<std::byte> bytes_in(const at::Tensor& memory) {
  return {static_cast<std::byte*>(const_cast<void*>(memory.const_data_ptr())), memory.nbytes()};
}

}  // namespace

OrderPtr Channel::make_order(const char* what, const at::Tensor& memory, int peer, int tag,
                             const CallOptions& options) const {
  throw_if_poisoned();
  if (!parts_.mail) throw UsageError(std::string(what) + ": the ranks of this group have no mail.");
  auto order = std::make_shared<Order>();
  order->what = std::string(what) + (options.name.empty() ? "" : " '" + options.name + "'");
  if (tag >= 0) order->what += " (tag " + std::to_string(tag) + ")";
  order->peer = peer;
  order->tag = tag;
  order->memory = bytes_in(memory);
  order->owner = std::make_shared<at::Tensor>(memory);
  const Operation operation = timed(what, options);
  order->timeout = operation.timeout;
  order->deadline = operation.deadline();
  order->peer_is_gone = [engine = engine_, peer] {
    if (peer != any_source) return engine->is_gone(peer);
    for (int other = 0; other < engine->size(); ++other) {
      if (other != engine->rank() && !engine->is_gone(other)) return false;
    }
    return true;
  };
  return order;
}

std::shared_ptr<WorkState> Channel::send(const at::Tensor& memory, int peer, int tag, const CallOptions& options,
                                         const char* what) {
  auto order = make_order(what, memory, peer, tag, options);
  auto state = std::make_shared<WorkState>();
  order->end = [state](std::exception_ptr failure) { state->end(std::move(failure)); };
  parts_.mail->send(std::move(order));
  return state;
}

std::shared_ptr<WorkState> Channel::receive(const at::Tensor& memory, int peer, int tag, const CallOptions& options,
                                            std::function<void(int)> at_end, const char* what) {
  auto order = make_order(what, memory, peer, tag, options);
  auto state = std::make_shared<WorkState>();
  order->end = [state](std::exception_ptr failure) { state->end(std::move(failure)); };
  order->at_end = [at_end = std::move(at_end)](int source) {
    const at::AutoDispatchBelowADInplaceOrView without_autograd;
    if (at_end) at_end(source);
  };
  parts_.mail->receive(std::move(order));
  return state;
}

void Channel::monitored_barrier(bool wait_for_all, const CallOptions& options) {
  constexpr const char* what = "monitored_barrier";
  throw_if_poisoned();
  if (engine_->size() == 1) return;
  const auto timeout = timed(what, options).timeout;
  const auto nothing = at::empty({0}, at::kByte);
  // Users' tags are not negative. Each barrier has two of its own: what comes late is not taken for the next one's.
  const int arrival_tag = -2 * ++monitored_barriers_;
  const int release_tag = arrival_tag + 1;
  if (engine_->rank() != 0) {
    send(nothing, 0, arrival_tag, options, what);
    // Rank 0 may come as late as that, and wait as long for others; what it says then is waited for.
    CallOptions patient = options;
    patient.timeout = 2 * timeout;
    auto verdict = at::empty({1}, at::kByte);
    receive(verdict, 0, release_tag, patient, nullptr, what)->wait();
    if (*static_cast<const std::uint8_t*>(verdict.const_data_ptr()) != 0) return;
    throw PeerFailure(std::string(what) + ": Rank " + std::to_string(engine_->rank()) +
                          " successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                          "from rank 0: other ranks did not come within " +
                          describe_duration(timeout) + ", as rank 0 tells.",
                      {});
  }
  std::vector<std::shared_ptr<WorkState>> arrivals{nullptr};
  for (int peer = 1; peer < engine_->size(); ++peer) {
    arrivals.push_back(receive(nothing, peer, arrival_tag, options, nullptr, what));
  }
  std::vector<int> absent;
  for (int peer = 1; peer < engine_->size() && (absent.empty() || wait_for_all); ++peer) {
    try {
      arrivals[static_cast<std::size_t>(peer)]->wait();
    } catch (const PeerFailure&) {
      absent.push_back(peer);
    }
  }
  const auto verdict = at::empty({1}, at::kByte);
  *static_cast<std::uint8_t*>(verdict.data_ptr()) = absent.empty() ? 1 : 0;
  // Not longer than for a moment: those that are absent may never take it.
  CallOptions brief = options;
  brief.timeout = std::min<std::chrono::milliseconds>(timeout, std::chrono::seconds(5));
  for (int peer = 1; peer < engine_->size(); ++peer) send(verdict, peer, release_tag, brief, what);
  if (absent.empty()) return;
  std::string names;
  for (const int rank : absent) {
    if (!names.empty()) names += ", ";
    names += std::to_string(rank);
  }
  throw Timeout(std::string(what) + ": " + (wait_for_all ? "Ranks " : "Rank ") + names +
                    " failed to pass monitoredBarrier within " + describe_duration(timeout) + ".",
                absent);
}

void Channel::abort(const std::string& reason) noexcept {
  give_up({.reason = Standing::Reason::abandoned,
           .operation = next_number_,
           .timeout = timeout_,
           .waiting_for = {},
           .where = "the group (" + reason + ")"},
          reason);
}

// Without the mutex: whoever waits for a message is told, and may use this channel then.
void Channel::end_mail() noexcept {
  if (!parts_.mail) return;
  parts_.mail->end(std::make_exception_ptr(PeerFailure(
                       "This communicator failed earlier and cannot be used any more: " + failure_, culprits_)),
                   /*sends_too=*/true);
}

}  // namespace tutti::comm
