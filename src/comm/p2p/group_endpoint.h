#pragma once
// The point-to-point messages of one group: its global ranks, and the endpoint that all groups of a job share.
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/p2p/endpoint.h"
#include "comm/p2p/request.h"
#include "comm/rendezvous/rendezvous.h"

namespace tutti::comm {

/// The endpoint of this process, which the first message opens.
class LazyEndpoint {
 public:
  /// `host` tells the numeric address at which other ranks reach this one.
  LazyEndpoint(Rendezvous rendezvous, int rank, std::function<std::string()> host)
      : rendezvous_(std::move(rendezvous)), rank_(rank), host_(std::move(host)) {}
  /// Throws UsageError, PeerError.
  P2pEndpoint& open();
  /// Null before the first message.
  P2pEndpoint* get_if_open();

 private:
  Rendezvous rendezvous_;
  int rank_;
  std::function<std::string()> host_;
  std::mutex mutex_;
  std::unique_ptr<P2pEndpoint> endpoint_;
};

/// Thread safe.
class GroupEndpoint {
 public:
  /// `group` is the group's name, equal on its ranks; `global_ranks` its members', of which this rank is number `rank`.
  GroupEndpoint(std::shared_ptr<LazyEndpoint> lazy_endpoint, const std::string& group, std::vector<int> global_ranks,
                int rank);

  void send(RequestPtr request);
  void receive(RequestPtr request);
  /// Receives end with `failure`, and so do those that are asked for later; sends go on unless `cancel_sends`.
  void close(std::exception_ptr failure, bool cancel_sends) noexcept;
  /// The members' ranks in the job.
  const std::vector<int>& global_ranks() const { return global_ranks_; }
  /// That of a group of `members` of this one, among whom this rank is.
  std::shared_ptr<GroupEndpoint> of(const std::vector<int>& members, const std::string& group) const;

 private:
  std::shared_ptr<LazyEndpoint> lazy_endpoint_;
  std::uint64_t group_;
  std::vector<int> global_ranks_;
  int rank_;
};

}  // namespace tutti::comm
