#include "comm/transport/tcp/group_endpoint.h"

#include <algorithm>
#include <utility>

#include "core/hash.h"

namespace tutti::comm {
namespace {

// Below it the bytes are sent at once, also where no receive waits for them.
constexpr std::uint64_t eager_bytes = 256 * 1024;

}  // namespace

GroupEndpoint::GroupEndpoint(std::shared_ptr<Endpoint> endpoint, const std::string& group, GroupHealth health, int rank)
    : endpoint_(std::move(endpoint)),
      channel_(fnv1a("send and receive: " + group)),
      health_(std::make_shared<GroupHealth>(std::move(health))),
      rank_(rank) {}

void GroupEndpoint::post(RequestPtr request) {
  request->channel = channel_;
  request->eager_bytes = eager_bytes;
  request->health = health_;
  request->caller = rank_;
  request->sources = global_ranks();
  request->failure_of_peer = [health = health_, peer = request->peer, call = request->description] {
    return health->failure_of(peer, call);
  };
  if (request->peer != any_source) request->rank = global_ranks().at(static_cast<std::size_t>(request->peer));
  endpoint_->loop().post(std::move(request));
}

std::shared_ptr<GroupEndpoint> GroupEndpoint::of(const std::vector<int>& members, const std::string& group) const {
  const auto rank = static_cast<int>(std::ranges::find(members, rank_) - members.begin());
  return std::make_shared<GroupEndpoint>(endpoint_, group, health_->for_group(members), rank);
}

}  // namespace tutti::comm
