#include "plan/timeline.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>
#include <set>

#include "plan/shares.h"
#include "tutti/core/error.h"

namespace tutti::plan {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();
/// Shorter times are rounding errors.
constexpr double nothing_ms = 1e-9;

/// The duration of a message whose thread never waits for a core.
double undisturbed(const Message& message) {
  return std::max(message.link_ms, message.cpu_ms);
}

class Player {
 public:
  Player(const Script& script, double cores) : script_(script), cores_(cores), arrival_(script.messages.size(), never) {
    begin_computing();
  }

  double play() {
    do {
      while (something_ended()) {
      }
    } while (advance());
    if (computing_ < script_.computing.size() || adding_ < script_.adding.size()) {
      throw Error("the script of a step has a cycle: it waits for an event that never happens");
    }
    return now_;
  }

 private:
  // Handles the events of each thread in turn. Returns true if an event may let another thread continue.
  bool something_ended() { return computing_ended() || message_left() || adding_moved(); }

  bool computing_ended() {
    if (computing_ == script_.computing.size() || computing_left_ > nothing_ms) return false;
    const Computing& part = script_.computing[computing_++];
    if (part.completes >= 0) complete_.insert(part.completes);
    sending_.insert(sending_.end(), part.sends.begin(), part.sends.end());
    begin_computing();
    return true;
  }

  void begin_computing() {
    if (computing_ < script_.computing.size()) computing_left_ = script_.computing[computing_].cpu_ms;
  }

  bool message_left() {
    if (sending_.empty() || first_message_left() > nothing_ms) return false;
    const auto number = static_cast<std::size_t>(sending_.front());
    arrival_[number] = now_ + script_.messages[number].latency_ms;
    sending_.pop_front();
    sent_of_first_ = 0;
    return true;
  }

  double first_message_left() const {
    return undisturbed(script_.messages[static_cast<std::size_t>(sending_.front())]) - sent_of_first_;
  }

  bool adding_moved() {
    if (adding_ == script_.adding.size()) return false;
    const Adding& task = script_.adding[adding_];
    if (!begun_) {
      if (task.bucket >= 0 && !complete_.contains(task.bucket)) return false;
      if (waits_until() > now_ + nothing_ms) return false;
      begun_ = true;
      busy_from_ = now_ + task.pause_ms;
      adding_left_ = task.cpu_ms;
      return true;
    }
    if (busy_from_ > now_ + nothing_ms || adding_left_ > nothing_ms) return false;
    if (task.sends >= 0) sending_.push_back(task.sends);
    begun_ = false;
    ++adding_;
    return true;
  }

  /// The time at which the message that the adding thread waits for arrives.
  double waits_until() const {
    const int message = script_.adding[adding_].message;
    return message < 0 ? now_ : arrival_[static_cast<std::size_t>(message)];
  }

  bool computes() const { return computing_ < script_.computing.size(); }
  bool adds() const { return begun_ && busy_from_ <= now_ + nothing_ms; }
  bool sends() const { return !sending_.empty(); }

  /// The speed of each thread, relative to a thread with its own core.
  struct Paces {
    double computing = 0;
    double adding = 0;
    double sending = 0;
  };
  Paces paces() const {
    double sending_demand = 0;
    if (sends()) {
      const Message& message = script_.messages[static_cast<std::size_t>(sending_.front())];
      sending_demand = message.cpu_ms / undisturbed(message);
    }
    const auto shares = fair_shares(cores_, {computes() ? 1.0 : 0.0, adds() ? 1.0 : 0.0, sending_demand});
    const double sending = sending_demand > 0 ? shares[2] / sending_demand : 1;
    return {.computing = shares[0], .adding = shares[1], .sending = sends() ? sending : 0};
  }

  /// Advances to the next event. Returns false if nothing is in flight.
  bool advance() {
    const Paces pace = paces();
    double step = never;
    if (pace.computing > 0) step = std::min(step, computing_left_ / pace.computing);
    if (pace.adding > 0) step = std::min(step, adding_left_ / pace.adding);
    if (pace.sending > 0) step = std::min(step, first_message_left() / pace.sending);
    if (adding_ < script_.adding.size()) {
      if (begun_ && busy_from_ > now_) step = std::min(step, busy_from_ - now_);
      if (!begun_ && waits_until() > now_) step = std::min(step, waits_until() - now_);
    }
    if (step == never) return false;
    now_ += step;
    computing_left_ -= step * pace.computing;
    adding_left_ -= step * pace.adding;
    sent_of_first_ += step * pace.sending;
    return true;
  }

  const Script& script_;
  double cores_;
  double now_ = 0;
  std::size_t computing_ = 0;
  double computing_left_ = 0;
  std::set<int> complete_;  // buckets
  std::size_t adding_ = 0;
  bool begun_ = false;
  double busy_from_ = 0;
  double adding_left_ = 0;
  std::deque<int> sending_;
  double sent_of_first_ = 0;
  std::vector<double> arrival_;  // by message
};

}  // namespace

double play(const Script& script, double cores) {
  return Player(script, cores).play();
}

}  // namespace tutti::plan
