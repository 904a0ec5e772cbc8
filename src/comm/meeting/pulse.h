#pragma once
// The threads of a job of several machines that give signs of life and watch over others for all.
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/meeting/rendezvous.h"

namespace tutti::comm {

struct PulseOptions {
  int rank = 0;
  std::vector<int> node_of_rank;
  std::chrono::milliseconds patience{0};
  std::chrono::milliseconds connect_timeout{0};
  std::string host{};  ///< an address of this machine that others reach; may be empty
};

struct GivenUp {
  std::vector<int> ranks;  ///< of the job, ascending: not heard of for long
  /// The store has not answered for long. Then `ranks` are those of the machine that serves it, where a rank does; and
  /// nobody can go on, with them or without.
  bool store = false;
};

/// One for a process and connect. Two threads: one listens to what the crew knows and looks at the next process on the
/// node, the other one asks the store where that is this rank's turn. Whoever gives a rank up tells all others. Thread
/// safe.
class Pulse {
 public:
  /// Every rank of the job must make one. Throws Timeout, PeerFailure.
  Pulse(const Rendezvous& rendezvous, const PulseOptions& options);
  /// Says good-bye, so that nobody minds the silence; not where an exception is the reason. Who serves the store waits
  /// for a moment until the others have heard it.
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

  /// What has been given up. It only grows.
  GivenUp given_up() const;
  std::chrono::milliseconds patience() const { return patience_; }

  /// Ranks of the job whose processes have ended without a good-bye, ascending. They are not waited for in vain where
  /// they are connected to: this only tells that they have left all the word that they had.
  std::vector<int> ended() const;
  /// The whole crew looks more often for a second: something has gone wrong, and it may be told already why.
  void hurry();

  using Wake = std::function<void(const GivenUp& given_up)>;
  /// Calls `wake` from another thread whenever something is given up; at once where something was. It must not ask this
  /// pulse. Not any more when what is returned is gone.
  [[nodiscard]] std::shared_ptr<void> when_given_up(Wake wake);

 private:
  struct Shared;
  std::chrono::milliseconds patience_;
  std::shared_ptr<Shared> shared_;
};

/// A pulse as a group of some of the job's ranks sees it. Thread safe.
class GroupPulse {
 public:
  /// `pulse` is null where there is one machine. `job_ranks`: the members'.
  GroupPulse(std::shared_ptr<Pulse> pulse, std::vector<int> job_ranks)
      : pulse_(std::move(pulse)), job_ranks_(std::move(job_ranks)) {}

  /// The members among Pulse::ended(), by their ranks in the group. Hurries.
  std::vector<int> ended() const;
  bool store_answers() const { return !pulse_ || !pulse_->given_up().store; }
  void hurry() const;

  /// Throws TransferError where members have been given up.
  void throw_if_silent() const;
  /// Whether the group cannot go on.
  bool concerns(const GivenUp& given_up) const { return given_up.store || !members_among(given_up.ranks).empty(); }

  const std::shared_ptr<Pulse>& pulse() const { return pulse_; }
  const std::vector<int>& job_ranks() const { return job_ranks_; }
  /// Those of `job_ranks` that are members, by their ranks in the group.
  std::vector<int> members_among(const std::vector<int>& job_ranks) const;
  /// That of a group of `members` of this one.
  GroupPulse of(const std::vector<int>& members) const;

 private:
  std::shared_ptr<Pulse> pulse_;
  std::vector<int> job_ranks_;
};

}  // namespace tutti::comm
