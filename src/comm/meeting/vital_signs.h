#pragma once
// A crew's signs of life at the store, and what is seen there of others.
#include <cstdint>
#include <optional>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/meeting/crew.h"
#include "comm/meeting/news.h"
#include "comm/meeting/pairs.h"
#include "comm/members/sockets.h"

namespace tutti::comm {

/// For one thread of any rank of the crew. What it asks of the store takes as long as that takes to answer, and throws
/// what the store throws.
class VitalSigns {
 public:
  VitalSigns(c10::intrusive_ptr<c10d::Store> store, int rank, const std::vector<int>& node_of_rank, const Crews& crews);

  /// The crews that this one watches, by their first ranks.
  const std::vector<int>& watched() const { return watched_; }

  struct Look {
    std::vector<std::int64_t> beats;  ///< of those watched: another number each time, or has_left
    std::vector<int> ended;           ///< ranks whose processes are found to have ended without a good-bye
    std::optional<News> news;         ///< all of it, when there is some
  };
  /// Gives a sign of life, the crew's `own_beats`th, and looks for those of others. One request for each pair. If it
  /// `rings`, it also looks whether the processes of ranks that are alone in their crews are there.
  Look beat(std::uint32_t own_beats, bool rings);

  /// For all ranks.
  void tell(const News& news);
  void say_good_bye();

 private:
  struct Watched {
    Pair pair;
    std::optional<SocketAddress> bell;  // of a rank that is alone and was heard to be there
    std::int64_t news_so_far = 0;
    int refusals = 0;
  };

  c10::intrusive_ptr<c10d::Store> store_;
  int size_;
  std::vector<Pair> all_pairs_;
  std::vector<Watched> own_pairs_;
  std::vector<int> watched_;
};

}  // namespace tutti::comm
