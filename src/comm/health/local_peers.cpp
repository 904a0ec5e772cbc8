#include "comm/health/local_peers.h"

#include <charconv>
#include <cstring>
#include <new>
#include <set>
#include <sstream>
#include <system_error>
#include <type_traits>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::comm {
namespace {

static_assert(std::is_trivially_copyable_v<SegmentAddress>, "it is sent as bytes");

constexpr const char* infos_topic = "heartbeat";
constexpr const char* leaders_topic = "heartbeat/leaders";

/// nullptr where this machine gives none to share.
std::shared_ptr<SharedSegment> create_table(int size) {
  try {
    return SharedSegment::create(LivenessTable::bytes(size));
  } catch (const std::system_error&) {
    return nullptr;
  }
}

std::shared_ptr<SharedSegment> open_table(const SegmentAddress& address, int size) {
  try {
    return address.descriptor < 0 ? nullptr : SharedSegment::open(address, LivenessTable::bytes(size));
  } catch (const std::system_error&) {
    return nullptr;
  }
}

std::shared_ptr<void> memory_of(const std::shared_ptr<SharedSegment>& segment, int size) {
  if (segment) return {segment, segment->data()};
  constexpr auto alignment = std::align_val_t(64);
  const auto bytes = LivenessTable::bytes(size);
  std::shared_ptr<void> memory(::operator new(bytes, alignment),
                               [](void* pointer) { ::operator delete(pointer, alignment); });
  std::memset(memory.get(), 0, bytes);
  return memory;
}

int parse_rank(const std::string& text, int size) {
  int rank = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error == std::errc() && end == text.data() + text.size() && rank >= 0 && rank < size) return rank;
  throw PeerError("Unexpected data in the store: another program uses the same store.", {});
}

}  // namespace

std::string LocalPeerInfo::to_text() const {
  std::string text(reinterpret_cast<const char*>(&table), sizeof(table));
  if (liveness_address) text += liveness_address->host + " " + std::to_string(liveness_address->port);
  return text;
}

LocalPeerInfo LocalPeerInfo::from_text(const std::string& text) {
  LocalPeerInfo info;
  if (text.size() < sizeof(info.table)) return info;
  std::memcpy(&info.table, text.data(), sizeof(info.table));
  std::istringstream words(text.substr(sizeof(info.table)));
  SocketAddress liveness_address;
  if (words >> liveness_address.host >> liveness_address.port) info.liveness_address = liveness_address;
  return info;
}

std::vector<int> find_leaders(const std::vector<int>& node_of_rank, const std::vector<LocalPeerInfo>& infos) {
  std::vector<int> leader;
  for (std::size_t rank = 0; rank < node_of_rank.size(); ++rank) {
    std::size_t other = 0;
    const auto is_visible = [&] {
      return node_of_rank[other] == node_of_rank[rank] &&
             infos[rank].table.process.shares_pid_namespace_with(infos[other].table.process);
    };
    while (other < rank && !is_visible()) ++other;
    leader.push_back(static_cast<int>(other));
  }
  return leader;
}

int LocalPeerMap::count() const {
  return static_cast<int>(std::set<int>(leader.begin(), leader.end()).size());
}

std::vector<int> LocalPeerMap::members(int leader_rank) const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < leader.size(); ++rank) {
    if (leader[rank] == leader_rank) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

// A rank that cannot map the table of the first rank announces that, and has no local peers.
LocalPeerMap discover_local_peers(const Rendezvous& rendezvous, int rank, const std::vector<int>& node_of_rank,
                                  const std::optional<SocketAddress>& liveness_address,
                                  std::chrono::milliseconds timeout) {
  const auto size = static_cast<int>(node_of_rank.size());
  const auto own_segment = create_table(size);
  LocalPeerInfo info{.table = {.process = this_process()}, .liveness_address = liveness_address};
  if (own_segment) info.table = own_segment->address();

  LocalPeerMap local_peers;
  for (const auto& text : store_all_gather(rendezvous, infos_topic, rank, size, info.to_text(), timeout)) {
    local_peers.infos.push_back(LocalPeerInfo::from_text(text));
  }
  int leader = find_leaders(node_of_rank, local_peers.infos)[static_cast<std::size_t>(rank)];
  auto table =
      leader == rank ? own_segment : open_table(local_peers.infos[static_cast<std::size_t>(leader)].table, size);
  if (!table) {
    leader = rank;
    table = own_segment;
  }
  for (const auto& text : store_all_gather(rendezvous, leaders_topic, rank, size, std::to_string(leader), timeout)) {
    local_peers.leader.push_back(parse_rank(text, size));
  }
  if (own_segment) own_segment->close_descriptor();
  local_peers.table = std::make_shared<LivenessTable>(memory_of(table, size), size);
  return local_peers;
}

}  // namespace tutti::comm
