#include "comm/shm/failure_board.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::comm {
namespace {

class ShmFailureBoard final : public FailureBoard {
 public:
  explicit ShmFailureBoard(std::shared_ptr<NodeState> node) : node_(std::move(node)) {}

  void publish(int rank, const std::string& text) override {
    RankState& state = node_->of(rank);
    const auto length = static_cast<std::uint32_t>(std::min(text.size(), sizeof(state.failure_message)));
    std::copy_n(text.data(), length, state.failure_message);
    state.failure_message_length.store(length, std::memory_order_release);
  }
  std::vector<std::optional<std::string>> read() override {
    std::vector<std::optional<std::string>> messages(static_cast<std::size_t>(node_->size()));
    for (int rank = 0; rank < node_->size(); ++rank) {
      const RankState& state = node_->of(rank);
      const auto length = std::min<std::size_t>(state.failure_message_length.load(std::memory_order_acquire),
                                                sizeof(state.failure_message));
      if (length > 0) messages[static_cast<std::size_t>(rank)].emplace(state.failure_message, length);
    }
    return messages;
  }
  // A rank publishes its report before it closes the communicator.
  std::vector<int> exited_ranks() override {
    std::vector<int> closed;
    for (int rank = 0; rank < node_->size(); ++rank) {
      if (node_->of(rank).closed.load()) closed.push_back(rank);
    }
    return closed;
  }

 private:
  std::shared_ptr<NodeState> node_;
};

}  // namespace

std::shared_ptr<FailureBoard> make_shm_failure_board(std::shared_ptr<NodeState> node) {
  return std::make_shared<ShmFailureBoard>(std::move(node));
}

}  // namespace tutti::comm
