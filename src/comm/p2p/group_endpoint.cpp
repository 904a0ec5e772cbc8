#include "comm/p2p/group_endpoint.h"

#include <algorithm>
#include <utility>

#include "core/hash.h"

namespace tutti::comm {

P2pEndpoint& LazyEndpoint::open() {
  const std::lock_guard lock(mutex_);
  if (!endpoint_) endpoint_ = std::make_unique<P2pEndpoint>(rendezvous_, rank_, host_());
  return *endpoint_;
}

P2pEndpoint* LazyEndpoint::get_if_open() {
  const std::lock_guard lock(mutex_);
  return endpoint_.get();
}

GroupEndpoint::GroupEndpoint(std::shared_ptr<LazyEndpoint> lazy_endpoint, const std::string& group,
                             std::vector<int> global_ranks, int rank)
    : lazy_endpoint_(std::move(lazy_endpoint)),
      group_(fnv1a(group)),
      global_ranks_(std::move(global_ranks)),
      rank_(rank) {}

void GroupEndpoint::send(RequestPtr request) {
  const int peer = global_ranks_.at(static_cast<std::size_t>(request->peer));
  const MessageHeader header{.tag = request->tag, .group = group_, .source = rank_, .bytes = request->memory.size()};
  lazy_endpoint_->open().send(peer, header, std::move(request));
}

void GroupEndpoint::receive(RequestPtr request) {
  lazy_endpoint_->open().receive(group_, std::move(request));
}

void GroupEndpoint::close(std::exception_ptr failure, bool cancel_sends) noexcept {
  try {
    if (auto* const endpoint = lazy_endpoint_->get_if_open())
      endpoint->close_group(group_, rank_, global_ranks_, std::move(failure), cancel_sends);
  } catch (const std::exception&) {
    // Without memory no close frames can be sent; peers see the connections close when the process exits.
  }
}

std::shared_ptr<GroupEndpoint> GroupEndpoint::of(const std::vector<int>& members, const std::string& group) const {
  std::vector<int> global_ranks;
  for (const int member : members) global_ranks.push_back(global_ranks_.at(static_cast<std::size_t>(member)));
  const auto rank = static_cast<int>(std::ranges::find(members, rank_) - members.begin());
  return std::make_shared<GroupEndpoint>(lazy_endpoint_, group, std::move(global_ranks), rank);
}

}  // namespace tutti::comm
