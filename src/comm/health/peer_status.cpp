#include "comm/health/peer_status.h"

#include <algorithm>
#include <sstream>

namespace tutti::comm {
namespace {

constexpr char suspected_code = 's';
constexpr char exited_code = 'e';
constexpr char left_code = 'l';

std::string encode_ranks(char code, const std::vector<int>& ranks) {
  std::string entries;
  for (const int rank : ranks) entries += code + std::to_string(rank) + "\n";
  return entries;
}

void sort_unique(std::vector<int>& ranks) {
  std::ranges::sort(ranks);
  const auto duplicates = std::ranges::unique(ranks);
  ranks.erase(duplicates.begin(), duplicates.end());
}

}  // namespace

std::string PeerStatusUpdate::encode() const {
  return encode_ranks(suspected_code, suspected) + encode_ranks(exited_code, exited) + encode_ranks(left_code, left);
}

PeerStatusUpdate PeerStatusUpdate::decode(const std::string& entries, int world_size) {
  PeerStatusUpdate update;
  std::istringstream in(entries);
  char code = 0;
  for (int rank = 0; in >> code >> rank;) {
    if (rank < 0 || rank >= world_size) continue;
    if (code == suspected_code) update.suspected.push_back(rank);
    if (code == exited_code) update.exited.push_back(rank);
    if (code == left_code) update.left.push_back(rank);
  }
  for (auto* ranks : {&update.suspected, &update.exited, &update.left}) sort_unique(*ranks);
  return update;
}

}  // namespace tutti::comm
