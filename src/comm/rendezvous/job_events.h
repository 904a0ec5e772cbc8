#pragma once
// What the coordinator has told this rank about the job: failed ranks, failure reports, a deadlock. No I/O.
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/backend/transfer_error.h"
#include "coordinator/client.h"

namespace tutti::comm {

/// Why ranks have failed, by global rank.
using FailureCauses = std::map<int, coordinator::Cause>;

/// The state of the job's ranks.
struct JobStatus {
  /// Those that have exited, without having left, are here 1 s later: then calls that they had completed have ended.
  FailureCauses failed;
  /// No rank of the job can continue. After an exit it becomes true with a delay of 1 s too.
  bool is_coordinator_lost = false;
  bool is_coordinator_unreachable = false;  ///< its machine does not answer
};

/// Thread safe. The client's thread calls the handlers; others read.
class JobEvents : public std::enable_shared_from_this<JobEvents> {
 public:
  /// `owner`: the rank that runs the coordinator; -1 if a launcher does.
  explicit JobEvents(int owner) : owner_(owner) {}

  /// They keep this object.
  coordinator::ClientEvents handlers();

  int owner() const { return owner_; }
  JobStatus status() const;
  /// When status() changes next without a further event; Deadline::max() if it does not.
  Deadline next_change() const;
  /// Whether the rank has exited or left.
  bool has_ended(int rank) const;
  /// The reason, after the connection to the coordinator was lost.
  std::optional<std::string> lost_reason() const;
  /// Whether ranks have failed, or the coordinator was lost.
  bool has_failed() const;
  /// The failure reports of a group, by global rank.
  std::map<int, std::string> reports(const std::string& group) const;

  /// A number that differs after each event.
  std::uint64_t version() const;
  /// Waits while version() is `seen`, until `deadline` at most.
  void wait_for_change(std::uint64_t seen, Deadline deadline) const;

  struct Listener {
    std::function<void(const coordinator::FailedRanks&)> on_failed{};
    std::function<void(const coordinator::Deadlock&)> on_deadlock{};
    std::function<void()> on_lost{};
  };
  /// Calls the listener on the client's thread at later events. It may read this object, and must not subscribe.
  /// Destroying the returned handle removes it; then no call is in progress.
  [[nodiscard]] std::shared_ptr<void> subscribe(Listener listener);

 private:
  void on_failed(const coordinator::FailedRanks& event);
  void on_left(const std::vector<int>& ranks);
  void on_report(const std::string& group, int rank, const std::string& text);
  void on_deadlock(const coordinator::Deadlock& deadlock);
  void on_lost(std::optional<coordinator::Cause> cause, const std::string& why);
  void add_failed(int rank, coordinator::Cause cause);
  void change();

  const int owner_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::uint64_t version_ = 0;
  struct Failure {
    coordinator::Cause cause;
    Deadline acts_from;
  };
  std::map<int, Failure> failures_;  // by rank
  std::set<int> left_;               // in good order
  std::optional<std::string> lost_reason_;
  std::optional<Deadline> coordinator_lost_at_;
  bool is_coordinator_unreachable_ = false;
  std::map<std::string, std::map<int, std::string>> reports_;  // by group and global rank

  std::mutex listeners_mutex_;  // taken before mutex_
  std::list<Listener> listeners_;
};

}  // namespace tutti::comm
