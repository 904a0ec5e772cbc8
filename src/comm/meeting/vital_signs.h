#pragma once
// A rank's signs of life at the store, and its looks at those of others.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/engine/process.h"
#include "comm/meeting/news.h"
#include "comm/meeting/pairs.h"

namespace tutti::comm {

/// For one thread. What it asks of the store takes as long as that takes to answer, and throws what the store throws.
class VitalSigns {
 public:
  /// `processes`: what own_process() says of each rank.
  VitalSigns(c10::intrusive_ptr<c10d::Store> store, int rank, const std::vector<int>& node_of_rank,
             const std::vector<std::string>& processes);

  /// Which process this is, for those of this machine.
  static std::string own_process();

  /// The ranks that this one watches: its partners, and the next one on its node. That one's process is looked at where
  /// it can be, so that it costs no request.
  const std::vector<int>& watched() const { return watched_; }

  struct Look {
    std::vector<std::int64_t> beats;  ///< of those watched: another number each time, or has_left
    std::optional<int> ended;  ///< the next rank on the node, once, when its process has ended without a good-bye
    std::optional<News> news;  ///< all of it, when there is some
  };
  /// Gives signs of life, and looks for those of others. One request for each pair.
  Look beat();
  /// Whether it is worth looking again at once.
  bool is_in_doubt() const { return looks_at_ended_ > 0 && looks_at_ended_ < looks_until_sure; }

  /// For all ranks.
  void tell(const News& news);
  void say_good_bye();

 private:
  // A good-bye may still be on its way when the process has ended already.
  static constexpr int looks_until_sure = 2;

  struct Watched {
    Pair pair;
    std::int64_t own_beats = 0;
    std::int64_t news_so_far = 0;
  };
  std::int64_t look_at_neighbour();

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int size_;
  std::vector<Pair> all_pairs_;
  std::vector<Watched> own_pairs_;
  std::vector<int> watched_;

  int next_ = -1;                          // on this node
  std::optional<ProcessWatch> neighbour_;  // its process
  std::int64_t neighbour_beats_ = 0;
  int looks_at_ended_ = 0;
};

}  // namespace tutti::comm
