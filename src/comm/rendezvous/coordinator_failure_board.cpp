// The failure reports of a group, which the coordinator passes on.
#include <algorithm>
#include <cstddef>
#include <utility>

#include "comm/rendezvous/rendezvous.h"

namespace tutti::comm {
namespace {

class CoordinatorFailureBoard final : public FailureBoard {
 public:
  explicit CoordinatorFailureBoard(Rendezvous rendezvous) : rendezvous_(std::move(rendezvous)) {}

  void publish(int /*rank*/, const std::string& text) override {
    rendezvous_.job->client()->report(rendezvous_.group, text);
  }

  std::vector<std::optional<std::string>> read() override {
    const auto& events = *rendezvous_.job->events();
    seen_ = events.version();
    const auto reports = events.reports(rendezvous_.group);
    std::vector<std::optional<std::string>> by_rank;
    for (const int member : rendezvous_.members) {
      const auto found = reports.find(member);
      by_rank.push_back(found == reports.end() ? std::nullopt : std::optional(found->second));
    }
    return by_rank;
  }

  void wait_for_change(Deadline deadline) override { rendezvous_.job->events()->wait_for_change(seen_, deadline); }

  // Also those that have left: they publish nothing more.
  std::vector<int> exited_ranks() override {
    std::vector<int> exited;
    for (std::size_t rank = 0; rank < rendezvous_.members.size(); ++rank) {
      if (rendezvous_.job->events()->has_ended(rendezvous_.members[rank])) exited.push_back(static_cast<int>(rank));
    }
    return exited;
  }

  bool is_reachable() override { return !rendezvous_.job->events()->lost_reason(); }

  bool answers(std::chrono::milliseconds timeout) override {
    try {
      return rendezvous_.job->client()->check({}, timeout);
    } catch (const std::exception&) {
      return false;
    }
  }

  int owner() const override {
    const auto& members = rendezvous_.members;
    const auto position = std::ranges::find(members, rendezvous_.job->events()->owner());
    return position == members.end() ? -1 : static_cast<int>(position - members.begin());
  }

 private:
  Rendezvous rendezvous_;
  std::uint64_t seen_ = 0;  // the state of the events that was read last
};

}  // namespace

std::shared_ptr<FailureBoard> make_coordinator_failure_board(const Rendezvous& rendezvous) {
  return std::make_shared<CoordinatorFailureBoard>(rendezvous);
}

}  // namespace tutti::comm
