// ProcessGroupTutti::reconfigure(). Each rank listens from get_reconfigure_handle() on, so that the first one of the
// new group, whichever it is, can run the coordinator.
#include <algorithm>
#include <system_error>
#include <utility>

#include "comm/backend/operation.h"
#include "core/describe.h"
#include "core/hash.h"
#include "process_group/generation.h"
#include "process_group/group_work.h"
#include "process_group/reconfigure_handle.h"
#include "tutti/core/error.h"
#include "tutti/detail/comm/internal_call.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

namespace tutti {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

std::string agreement_of(std::int64_t number, const std::vector<std::string>& handles) {
  std::string all;
  for (const auto& handle : handles) all += handle + "\n";
  return "uuid " + std::to_string(number) + " and handles with hash " + std::to_string(fnv1a(all));
}

/// Connects the new group, within options.connect_timeout.
Communicator connect_generation(comm::PeerGroup group, const std::vector<std::string>& handles,
                                const CommunicatorOptions& options, const std::string& title) {
  const auto deadline = Clock::now() + options.connect_timeout;
  const int rank = group.rank;
  const auto did_not_join = [&](const std::vector<int>& ranks) {
    return TimeoutError(title + process_group::describe_members(handles, ranks) + " did not join within " +
                            describe_duration(options.connect_timeout) +
                            ". Check that each rank of the handles lives and calls reconfigure with the same uuid and "
                            "the same handles.",
                        ranks);
  };
  try {
    auto made = comm::connect_peers(std::move(group), options);
    // No rank leaves the old group before all have joined the new one.
    auto call = comm::internal_call();
    call.timeout = std::max(milliseconds(1), std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
    made.barrier(call).wait();
    return made;
  } catch (const TimeoutError& late) {
    if (late.ranks() == std::vector<int>{rank}) throw TimeoutError(title + late.what(), late.ranks());
    throw did_not_join(late.ranks().empty() ? std::vector<int>{0} : late.ranks());
  } catch (const PeerError& lost) {
    throw PeerError(title + lost.what(), lost.ranks());
  } catch (const UsageError& error) {
    throw UsageError(title + error.what() + " Every rank must pass the same uuid, handles and options.");
  } catch (const std::system_error& error) {
    throw PeerError(title + "rank " + std::to_string(rank) + " could not connect: " + error.what(), {});
  }
}

}  // namespace

c10d::ReconfigureHandle ProcessGroupTutti::get_reconfigure_handle() const {
  const std::lock_guard lock(generation_->mutex);
  auto& place = generation_->own_place;
  if (!place) place = comm::listen_for_peers(generation_->store_host);
  return to_text(
      process_group::ReconfigureHandle{.rank = rank_,
                                       .generation = is_connected_ ? std::optional(generation_->number) : std::nullopt,
                                       .address = comm::address_of(*place)});
}

void ProcessGroupTutti::end_calls_in_flight(const std::string& reason) {
  Work last;
  {
    const std::lock_guard lock(coalescing_mutex_);
    last = std::exchange(last_collective_, Work());
    coalescing_.reset();
  }
  if (last.is_completed()) return;
  communicator_.abort(reason);
  try {
    last.wait();
  } catch (const std::exception&) {
    // The caller of the operation gets it.
  }
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::reconfigure(const c10d::ReconfigureOptions& options) {
  const auto handles = process_group::ordered_handles(options.handles);
  const auto number = options.uuid;
  const std::string title = "reconfigure to generation " + std::to_string(number) + ": ";
  auto connecting = process_group::communicator_options(*options_);
  connecting.connect_timeout = std::min(options.timeout.value_or(connecting.connect_timeout), comm::longest_timeout);
  if (connecting.connect_timeout <= milliseconds::zero()) throw UsageError(title + "the timeout must be positive.");
  const auto own = std::ranges::find(handles, get_reconfigure_handle());
  if (own == handles.end()) {
    throw UsageError(title + "the handle of this rank, rank " + std::to_string(rank_) +
                     " so far, is not among the handles. A handle serves one call of reconfigure: exchange those that "
                     "get_reconfigure_handle returns now.");
  }
  if (!generation_->used_numbers.insert(number).second) {
    throw UsageError(title + "this uuid was used already. Pass a new one to each call of reconfigure.");
  }
  end_calls_in_flight(title + "rank " + std::to_string(rank_) + " left the group with calls in flight");
  comm::PeerGroup group{.rank = static_cast<int>(own - handles.begin()),
                        .size = static_cast<int>(handles.size()),
                        .agreement = agreement_of(number, handles),
                        .address = process_group::parse_handle(handles.front()).address,
                        .store_host = generation_->store_host};
  {
    const std::lock_guard lock(generation_->mutex);
    group.own_place = *std::exchange(generation_->own_place, std::nullopt);
  }
  auto made = connect_generation(std::move(group), handles, connecting, title);
  // Ends pending receives. All ranks have ended their collectives.
  if (size_ > 1) communicator_.abort(title + "rank " + std::to_string(rank_) + " has left the earlier group");

  rank_ = made.rank();
  size_ = made.size();
  calls_ = 0;
  splits_.clear();
  generation_->number = number;
  shut_down_ = false;
  is_connected_ = true;
  communicator_ = std::move(made);
  return process_group::GroupWork::start(rank_, calls_, connecting.connect_timeout, {}, {.what = "reconfigure"});
}

}  // namespace tutti

#endif
