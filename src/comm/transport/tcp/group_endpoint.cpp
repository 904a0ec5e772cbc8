#include "comm/transport/tcp/group_endpoint.h"

#include <algorithm>
#include <utility>

#include "core/hash.h"
#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

// Below it the bytes are sent at once, also where no receive waits for them.
constexpr std::uint64_t eager_bytes = 256 * 1024;

}  // namespace

GroupEndpoint::GroupEndpoint(std::shared_ptr<Endpoint> endpoint, const std::string& group,
                             std::vector<int> global_ranks, int rank)
    : endpoint_(std::move(endpoint)),
      channel_(fnv1a("send and receive: " + group)),
      global_ranks_(std::make_shared<std::vector<int>>(std::move(global_ranks))),
      rank_(rank) {}

void GroupEndpoint::send(RequestPtr request) {
  request->is_send = true;
  request->eager_bytes = eager_bytes;
  post(std::move(request));
}

void GroupEndpoint::receive(RequestPtr request) {
  post(std::move(request));
}

void GroupEndpoint::post(RequestPtr request) {
  request->channel = channel_;
  request->global_ranks = global_ranks_;
  const auto require_socket = [&](int member) {
    const auto& problem = endpoint_->problem_of(global_ranks_->at(static_cast<std::size_t>(member)));
    if (problem.empty()) return;
    throw PeerError(request->description + ": on rank " + std::to_string(member) + " " + problem, {member});
  };
  require_socket(rank_);
  if (request->peer != any_source) {
    require_socket(request->peer);
    request->rank = global_ranks_->at(static_cast<std::size_t>(request->peer));
  }
  endpoint_->open().post(std::move(request));
}

void GroupEndpoint::close(const std::exception_ptr& failure, bool cancel_sends) noexcept {
  try {
    if (auto* const loop = endpoint_->get_if_open())
      loop->close_channel(channel_, *global_ranks_, failure, cancel_sends);
  } catch (const std::exception&) {
    // Without memory no close frames can be sent; peers see the connections close when the process exits.
  }
}

std::shared_ptr<GroupEndpoint> GroupEndpoint::of(const std::vector<int>& members, const std::string& group) const {
  std::vector<int> global_ranks;
  for (const int member : members) global_ranks.push_back(global_ranks_->at(static_cast<std::size_t>(member)));
  const auto rank = static_cast<int>(std::ranges::find(members, rank_) - members.begin());
  return std::make_shared<GroupEndpoint>(endpoint_, group, std::move(global_ranks), rank);
}

}  // namespace tutti::comm
