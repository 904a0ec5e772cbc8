#pragma once
// A rank's sign of life for the ranks of other machines, and its watch over some of them.
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/meeting/rendezvous.h"

namespace tutti::comm {

struct PulseOptions {
  int rank = 0;
  int size = 1;
  std::vector<int> watched;  ///< by this rank
  int neighbour = -1;        ///< the one of them whose process this one may see; -1 for none
  std::chrono::milliseconds patience{0};
  std::chrono::milliseconds connect_timeout{0};
};

/// One for a process and connect. Two threads, which sleep but for some requests a second. Whoever gives a rank up
/// tells all others. Thread safe.
class Pulse {
 public:
  /// Every rank of the job must make one. Throws Timeout, PeerFailure.
  Pulse(const Rendezvous& rendezvous, const PulseOptions& options);
  /// Says good-bye, so that nobody minds the silence; not where an exception is the reason. Who serves the store waits
  /// for a moment until the others have heard it.
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

  /// The ranks of the job that have been given up, ascending; nullopt while there are none. Empty where the store is
  /// silent and no rank serves it. What it once says does not change any more.
  std::optional<std::vector<int>> silent() const;
  std::chrono::milliseconds patience() const { return patience_; }

  /// Ranks of the job whose processes have ended without a good-bye, ascending. They are not waited for in vain where
  /// they are connected to: this only tells that they have left all the word that they had.
  std::vector<int> ended() const;
  /// Looks more often for a second: something has gone wrong, and it may be told already why.
  void hurry();

  using Wake = std::function<void(const std::vector<int>& silent)>;
  /// Calls `wake` once, from another thread, when silent() changes; at once where it has. It must not ask this pulse.
  /// Not any more when what is returned is gone.
  [[nodiscard]] std::shared_ptr<void> when_silent(Wake wake);

 private:
  struct Shared;
  std::chrono::milliseconds patience_;
  bool holds_store_ = false;
  std::shared_ptr<Shared> shared_;
};

/// A pulse as a group of some of the job's ranks sees it. Thread safe.
class GroupPulse {
 public:
  /// `pulse` is null where there is one machine. `job_ranks`: the members'.
  GroupPulse(std::shared_ptr<Pulse> pulse, std::vector<int> job_ranks)
      : pulse_(std::move(pulse)), job_ranks_(std::move(job_ranks)) {}

  /// The members among Pulse::ended(), by their ranks in the group.
  std::vector<int> ended() const;
  void hurry() const;

  /// Throws TransferError where members have been given up.
  void throw_if_silent() const;
  /// Whether the group cannot go on without the ranks `silent` of the job.
  bool concerns(const std::vector<int>& silent) const { return members_of(silent).has_value(); }

  const std::shared_ptr<Pulse>& pulse() const { return pulse_; }
  const std::vector<int>& job_ranks() const { return job_ranks_; }
  /// That of a group of `members` of this one.
  GroupPulse of(const std::vector<int>& members) const;

 private:
  std::vector<int> members_among(const std::vector<int>& job_ranks) const;
  std::optional<std::vector<int>> members_of(const std::vector<int>& silent) const;

  std::shared_ptr<Pulse> pulse_;
  std::vector<int> job_ranks_;
};

}  // namespace tutti::comm
