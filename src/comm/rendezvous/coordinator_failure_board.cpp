// The failure reports of a group, which the coordinator passes on.
#include <algorithm>
#include <utility>

#include "comm/rendezvous/rendezvous.h"

namespace tutti::comm {
namespace {

class CoordinatorFailureBoard final : public FailureBoard {
 public:
  CoordinatorFailureBoard(Rendezvous rendezvous, PeerStatusSource status_source)
      : rendezvous_(std::move(rendezvous)), status_source_(std::move(status_source)) {}

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

  std::vector<int> exited_ranks() override {
    return status_source_.exited_ranks ? status_source_.exited_ranks() : std::vector<int>();
  }

  bool is_reachable() override {
    if (rendezvous_.job->events()->lost_reason()) return false;
    return !status_source_.is_store_reachable || status_source_.is_store_reachable();
  }

  bool answers(std::chrono::milliseconds timeout) override {
    try {
      rendezvous_.job->client()->wait({}, timeout);
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  int owner() const override { return rendezvous_.store_owner; }

 private:
  Rendezvous rendezvous_;
  PeerStatusSource status_source_;
  std::uint64_t seen_ = 0;  // the state of the events that was read last
};

}  // namespace

std::shared_ptr<FailureBoard> make_store_failure_board(const Rendezvous& rendezvous, int /*size*/,
                                                       PeerStatusSource status_source) {
  return std::make_shared<CoordinatorFailureBoard>(rendezvous, std::move(status_source));
}

}  // namespace tutti::comm
