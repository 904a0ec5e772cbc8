// The methods of ProcessGroupTutti besides collectives: messages, monitored barrier, coalescing, abort, split.
#include <algorithm>
#include <string>
#include <utility>

#include "process_group/arguments.h"
#include "process_group/generation.h"
#include "process_group/group_work.h"
#include "tutti/core/error.h"
#include "tutti/process_group/process_group_tutti.h"

namespace tutti {

using process_group::GroupWork;
using process_group::require_single;

ProcessGroupTutti::WorkPtr ProcessGroupTutti::send(Tensors& tensors, int peer, int tag) {
  require_not_shut_down("send");
  const at::Tensor& tensor = require_single("send", tensors);
  process_group::Parts parts{.type = c10d::OpType::SEND, .what = "send"};
  parts.works.push_back(communicator_.send(tensor, peer, tag, call_options(c10d::kUnsetTimeout)));
  return start_message(std::move(parts), tensors);
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::recv(Tensors& tensors, int peer, int tag) {
  require_not_shut_down("receive");
  const at::Tensor& tensor = require_single("receive", tensors);
  process_group::Parts parts{.type = c10d::OpType::RECV, .what = "recv", .outputs = tensors};
  parts.works.push_back(communicator_.receive(tensor, peer, tag, call_options(c10d::kUnsetTimeout)));
  parts.source = std::make_shared<std::atomic<int>>(peer);
  return start_message(std::move(parts), tensors);
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::recvAnysource(Tensors& tensors, int tag) {
  require_not_shut_down("receive");
  const at::Tensor& tensor = require_single("receive", tensors);
  process_group::Parts parts{.type = c10d::OpType::RECVANYSOURCE, .what = "recvAnySource", .outputs = tensors};
  parts.source = std::make_shared<std::atomic<int>>(-1);
  parts.works.push_back(communicator_.receive_from_any(
      tensor, tag, [source = parts.source](int from) { *source = from; }, call_options(c10d::kUnsetTimeout)));
  return start_message(std::move(parts), tensors);
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::start_message(process_group::Parts parts, const Tensors& shown) {
  auto work = GroupWork::start(rank_, calls_, timeout_.load(), shown, std::move(parts));
  add_to_coalescing(*work);
  return work;
}

void ProcessGroupTutti::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) {
  require_not_shut_down("monitored_barrier");
  if (options.timeout == std::chrono::milliseconds::zero()) {
    throw TimeoutError("monitored_barrier: Rank " + std::to_string(rank_) +
                           " timed out in monitoredBarrier after 0 ms: the timeout is zero.",
                       {});
  }
  communicator_.monitored_barrier(wait_for_all, call_options(options.timeout));
}

void ProcessGroupTutti::startCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  coalescing_.emplace();  // replaces an open list: PyTorch does not call endCoalescing() after an exception
}

ProcessGroupTutti::WorkPtr ProcessGroupTutti::endCoalescing() {
  process_group::Parts parts{.type = c10d::OpType::COALESCED, .what = "coalesced"};
  {
    const std::lock_guard lock(coalescing_mutex_);
    if (!coalescing_) throw UsageError("endCoalescing: startCoalescing was not called.");
    parts.works = std::move(*coalescing_);
    coalescing_.reset();
  }
  return GroupWork::start(rank_, calls_, timeout_.load(), {}, std::move(parts));
}

void ProcessGroupTutti::add_to_coalescing(const c10d::Work& work) {
  const std::lock_guard lock(coalescing_mutex_);
  if (!coalescing_) return;
  const auto parts = static_cast<const GroupWork&>(work).parts();
  coalescing_->insert(coalescing_->end(), parts.begin(), parts.end());
}

void ProcessGroupTutti::require_not_shut_down(const char* what) const {
  if (!is_connected_) {
    throw UsageError(std::string(what) + ": this process group has no ranks yet: call reconfigure first.");
  }
  if (shut_down_) {
    throw UsageError(std::string(what) + ": this process group was shut down and cannot be used any more.");
  }
}

void ProcessGroupTutti::abort() {
  shut_down_ = true;
  communicator_.abort("rank " + std::to_string(rank_) + " aborted the process group");
}

void ProcessGroupTutti::shutdown() {
  shut_down_ = true;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupTutti::split(const c10::intrusive_ptr<c10d::Store>&,
                                                           const std::vector<int>& ranks,
                                                           const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  require_not_shut_down("split");
  const auto place = std::ranges::find(ranks, rank_);
  if (place == ranks.end()) return nullptr;
  const auto* const own = dynamic_cast<const Options*>(options.get());
  auto group_options = c10::make_intrusive<Options>(own ? *own : *options_);
  if (options) {
    group_options->timeout = options->timeout;
    group_options->group_name = options->group_name;
  }
  // All members of a group make the same splits with the same ranks in the same order, so their counts are equal.
  std::string name = group_options->group_name;
  for (const int rank : ranks) {
    name += ',';
    name += std::to_string(rank);
  }
  int times = 0;
  {
    const std::lock_guard lock(coalescing_mutex_);
    times = ++splits_[name];
  }
  auto group = communicator_.subgroup(ranks, name + "#" + std::to_string(times));
  return c10::intrusive_ptr<ProcessGroupTutti>::reclaim(
      new ProcessGroupTutti(std::move(group), group_options, generation_->store_host));
}

}  // namespace tutti
