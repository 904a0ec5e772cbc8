#pragma once
// Pairs of local-peer groups (local_peers.h) that send heartbeats to each other. A pair shares one counter at the
// store: each side adds to it, and the growth beyond its own additions is the other side's heartbeats. So one request
// sends a heartbeat and reads the partner's. No I/O.
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::comm {

struct HeartbeatPair {
  int lower = 0;
  int higher = 0;

  bool contains(int rank) const { return rank == lower || rank == higher; }
  int partner_of(int rank) const { return rank == lower ? higher : lower; }
  /// Of the number at the store.
  std::string key() const { return "heartbeat_pair/" + std::to_string(lower) + "-" + std::to_string(higher); }
  bool operator==(const HeartbeatPair&) const = default;
};

/// Each rank with the one in its place on the next node, or with that node's first one where that has fewer ranks. The
/// first node comes after the last one. So a rank has one pair or two, whatever the number of nodes, and those of a
/// machine that ends are missed on both sides. None where there is one node.
std::vector<HeartbeatPair> pairs_between_nodes(const std::vector<int>& node_of_rank);
/// Each rank with the next one on its node.
std::vector<HeartbeatPair> pairs_inside_nodes(const std::vector<int>& node_of_rank);

/// The pairs of both functions, for groups of local peers. A group is named by its first rank: `leader` holds that of
/// each rank's group.
std::vector<HeartbeatPair> pairs_between_leaders(const std::vector<int>& node_of_rank, const std::vector<int>& leader);

/// What a pair's number says.
class PackedCounter {
 public:
  explicit PackedCounter(std::int64_t number) : number_(number) {}

  // What is added to it.
  static constexpr std::int64_t heartbeat = 1;
  static constexpr std::int64_t update = std::int64_t{1} << 32;  ///< for all, at another place
  static constexpr std::int64_t exited = std::int64_t{1} << 48;

  std::int64_t heartbeats() const { return number_ % update; }
  std::int64_t updates() const { return number_ % exited / update; }
  bool has_exited() const { return number_ >= exited; }

 private:
  std::int64_t number_;
};

}  // namespace tutti::comm
