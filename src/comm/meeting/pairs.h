#pragma once
// Crews (crew.h) that give signs of life to one another, two and two, by one number of theirs at the store: each raises
// it, and sees by how much more it has grown than by its own hand. One request is a sign of life and a look. Pure.
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::comm {

struct Pair {
  int one = 0;
  int other = 0;

  bool has(int rank) const { return rank == one || rank == other; }
  int partner_of(int rank) const { return rank == one ? other : one; }
  /// Of the number at the store.
  std::string key() const { return "pair/" + std::to_string(one) + "-" + std::to_string(other); }
  bool operator==(const Pair&) const = default;
};

/// Each rank with the one in its place on the next node, or with that node's first one where that has fewer ranks. The
/// first node comes after the last one. So a rank has one pair or two, whatever the number of nodes, and those of a
/// machine that ends are missed on both sides. None where there is one node.
std::vector<Pair> pairs_between_nodes(const std::vector<int>& node_of_rank);
/// Each rank with the next one on its node.
std::vector<Pair> pairs_inside_nodes(const std::vector<int>& node_of_rank);

/// Both for crews, which stand under the numbers of their first ranks: `first` says whose crew each rank is in.
std::vector<Pair> pairs_of_crews(const std::vector<int>& node_of_rank, const std::vector<int>& first);

/// What a pair's number says.
class PairNumber {
 public:
  explicit PairNumber(std::int64_t number) : number_(number) {}

  // What is added to it.
  static constexpr std::int64_t beat = 1;
  static constexpr std::int64_t news = std::int64_t{1} << 32;  ///< for all, at another place
  static constexpr std::int64_t good_bye = std::int64_t{1} << 48;

  std::int64_t beats() const { return number_ % news; }
  std::int64_t news_so_far() const { return number_ % good_bye / news; }
  bool has_good_bye() const { return number_ >= good_bye; }

 private:
  std::int64_t number_;
};

}  // namespace tutti::comm
