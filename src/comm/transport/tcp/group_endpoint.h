#pragma once
// The point-to-point messages of one group.
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/tcp/endpoint.h"
#include "comm/transport/tcp/request.h"

namespace tutti::comm {

/// Thread safe.
class GroupEndpoint {
 public:
  /// `group` is the name of the group, equal on its ranks. This rank is member `rank`.
  GroupEndpoint(std::shared_ptr<Endpoint> endpoint, const std::string& group, GroupHealth health, int rank);

  /// Begins to send or receive. Throws PeerError if this rank or the peer could not listen.
  void post(RequestPtr request);
  /// Receives end with `failure`, later ones too; sends go on unless `cancel_sends`.
  void close(const std::exception_ptr& failure, bool cancel_sends) noexcept {
    endpoint_->close_channel({channel_, bits_of(global_ranks()), failure}, cancel_sends);
  }
  /// The members' ranks in the job.
  const std::vector<int>& global_ranks() const { return health_->global_ranks(); }
  /// The messages of a group of `members` of this one, this rank among them.
  std::shared_ptr<GroupEndpoint> of(const std::vector<int>& members, const std::string& group) const;

 private:
  std::shared_ptr<Endpoint> endpoint_;
  std::uint64_t channel_;
  std::shared_ptr<const GroupHealth> health_;
  int rank_;
};

}  // namespace tutti::comm
