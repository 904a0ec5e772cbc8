#include "comm/health/liveness_table.h"

#include <utility>

#include "comm/os/futex.h"

namespace tutti::comm {
namespace {

constexpr int bits_of_rank = 16;

std::uint64_t packed(int rank, Deadline at) {
  const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch()).count();
  return static_cast<std::uint64_t>(microseconds) << bits_of_rank | static_cast<std::uint16_t>(rank + 1);
}

LastHeartbeat unpacked(std::uint64_t number) {
  const auto rank = static_cast<std::uint16_t>(number);
  return {.rank = rank - 1, .at = Deadline(std::chrono::microseconds(number >> bits_of_rank))};
}

}  // namespace

std::size_t LivenessTable::bytes(int size) {
  return sizeof(Head) + static_cast<std::size_t>(size) * sizeof(Rank);
}

LivenessTable::LivenessTable(std::shared_ptr<void> memory, int size) : memory_(std::move(memory)), size_(size) {}

void LivenessTable::mark(const PeerStatusUpdate& update) {
  for (const int rank : update.suspected) mark(rank, suspected);
  for (const int rank : update.exited) mark(rank, exited);
  for (const int rank : update.left) mark(rank, left);
}

PeerStatusUpdate LivenessTable::status() const {
  PeerStatusUpdate status;
  for (int rank = 0; rank < size_; ++rank) {
    const auto found = marks(rank);
    if ((found & suspected) != 0) status.suspected.push_back(rank);
    if ((found & exited) != 0) status.exited.push_back(rank);
    if ((found & left) != 0) status.left.push_back(rank);
  }
  return status;
}

LastHeartbeat LivenessTable::last_heartbeat() const {
  return unpacked(head().last_heartbeat.load());
}

std::optional<std::uint32_t> LivenessTable::claim_heartbeat(int rank, Clock::duration interval, Deadline now) {
  auto seen = head().last_heartbeat.load();
  const auto last = unpacked(seen);
  if (now < next_heartbeat(last, is_sender(rank, last), interval)) return std::nullopt;
  if (!head().last_heartbeat.compare_exchange_strong(seen, packed(rank, now))) return std::nullopt;
  return head().heartbeats.fetch_add(1) + 1;
}

void LivenessTable::record_reply(const std::vector<int>& peers, const std::vector<std::int64_t>& heartbeats,
                                 Deadline now) {
  for (std::size_t i = 0; i < peers.size() && i < heartbeats.size(); ++i) of(peers[i]).heartbeats.store(heartbeats[i]);
  head().last_reply.store(now.time_since_epoch().count());
}

void LivenessTable::wake_all() {
  head().generation.fetch_add(1);
  futex_wake_all(head().generation);
}

void LivenessTable::sleep(std::uint32_t seen, Deadline end) {
  const auto time = end - Clock::now();
  if (time > Clock::duration::zero()) futex_wait(head().generation, seen, time);
}

}  // namespace tutti::comm
