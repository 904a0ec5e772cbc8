#include "comm/shared/bulletin.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tutti::comm {
namespace {

class SharedBulletin final : public Bulletin {
 public:
  explicit SharedBulletin(std::shared_ptr<SharedNode> node) : node_(std::move(node)) {}

  void post(int rank, const std::string& text) override {
    SharedRank& own = node_->of(rank);
    const auto length = static_cast<std::uint32_t>(std::min(text.size(), sizeof(own.last_word)));
    std::copy_n(text.data(), length, own.last_word);
    own.last_word_length.store(length, std::memory_order_release);
  }
  std::vector<std::optional<std::string>> read() override {
    std::vector<std::optional<std::string>> words(static_cast<std::size_t>(node_->size()));
    for (int rank = 0; rank < node_->size(); ++rank) {
      const SharedRank& other = node_->of(rank);
      const auto length =
          std::min<std::size_t>(other.last_word_length.load(std::memory_order_acquire), sizeof(other.last_word));
      if (length > 0) words[static_cast<std::size_t>(rank)].emplace(other.last_word, length);
    }
    return words;
  }
  int holder() const override { return -1; }

 private:
  std::shared_ptr<SharedNode> node_;
};

}  // namespace

std::shared_ptr<Bulletin> make_shared_bulletin(std::shared_ptr<SharedNode> node) {
  return std::make_shared<SharedBulletin>(std::move(node));
}

}  // namespace tutti::comm
