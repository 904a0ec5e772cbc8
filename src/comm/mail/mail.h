#pragma once
// The mail of one group: its ranks' numbers, and the office that all groups of a job share.
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/mail/order.h"
#include "comm/mail/post_office.h"
#include "comm/meeting/rendezvous.h"

namespace tutti::comm {

/// Where the office of this process is opened with the first message.
class OfficePlace {
 public:
  /// `host` tells the numeric address at which other ranks reach this one.
  OfficePlace(Rendezvous rendezvous, int rank, std::function<std::string()> host)
      : rendezvous_(std::move(rendezvous)), rank_(rank), host_(std::move(host)) {}
  /// Throws UsageError, PeerFailure.
  PostOffice& open();
  /// Null before the first message.
  PostOffice* opened();

 private:
  Rendezvous rendezvous_;
  int rank_;
  std::function<std::string()> host_;
  std::mutex mutex_;
  std::unique_ptr<PostOffice> office_;
};

/// Thread safe.
class Mail {
 public:
  /// `group` is the group's name, equal on its ranks; `job_ranks` its members', of which this rank is number `rank`.
  Mail(std::shared_ptr<OfficePlace> place, const std::string& group, std::vector<int> job_ranks, int rank);

  void send(OrderPtr order);
  void receive(OrderPtr order);
  /// Receives end with `failure`, and so do those that are asked for later; sends go on unless `sends_too`.
  void end(std::exception_ptr failure, bool sends_too) noexcept;
  /// The members' ranks in the job.
  const std::vector<int>& job_ranks() const { return job_ranks_; }
  /// That of a group of `members` of this one, among whom this rank is.
  std::shared_ptr<Mail> of(const std::vector<int>& members, const std::string& group) const;

 private:
  std::shared_ptr<OfficePlace> place_;
  std::uint64_t group_;
  std::vector<int> job_ranks_;
  int rank_;
};

}  // namespace tutti::comm
