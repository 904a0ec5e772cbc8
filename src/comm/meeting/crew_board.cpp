#include "comm/meeting/crew_board.h"

#include <utility>

#include "comm/engine/futex.h"

namespace tutti::comm {
namespace {

constexpr int bits_of_rank = 16;

std::uint64_t packed(int rank, Deadline at) {
  const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch()).count();
  return static_cast<std::uint64_t>(microseconds) << bits_of_rank | static_cast<std::uint16_t>(rank + 1);
}

LastBeat unpacked(std::uint64_t number) {
  const auto rank = static_cast<std::uint16_t>(number);
  return {.rank = rank - 1, .at = Deadline(std::chrono::microseconds(number >> bits_of_rank))};
}

}  // namespace

std::size_t CrewBoard::bytes(int size) {
  return sizeof(Head) + static_cast<std::size_t>(size) * sizeof(Rank);
}

CrewBoard::CrewBoard(std::shared_ptr<void> memory, int size) : memory_(std::move(memory)), size_(size) {}

void CrewBoard::mark(const News& news) {
  for (const int rank : news.silent) mark(rank, silent);
  for (const int rank : news.ended) mark(rank, ended);
  for (const int rank : news.left) mark(rank, left);
}

News CrewBoard::news() const {
  News news;
  for (int rank = 0; rank < size_; ++rank) {
    const auto found = marks(rank);
    if ((found & silent) != 0) news.silent.push_back(rank);
    if ((found & ended) != 0) news.ended.push_back(rank);
    if ((found & left) != 0) news.left.push_back(rank);
  }
  return news;
}

LastBeat CrewBoard::last_beat() const {
  return unpacked(head().last_beat.load());
}

std::optional<std::uint32_t> CrewBoard::claim_beat(int rank, Clock::duration between, Deadline now) {
  auto seen = head().last_beat.load();
  const auto last = unpacked(seen);
  if (now < next_beat(last, leads(rank, last), between)) return std::nullopt;
  if (!head().last_beat.compare_exchange_strong(seen, packed(rank, now))) return std::nullopt;
  return head().beats.fetch_add(1) + 1;
}

void CrewBoard::hear(const std::vector<int>& watched, const std::vector<std::int64_t>& beats, Deadline now) {
  for (std::size_t i = 0; i < watched.size() && i < beats.size(); ++i) of(watched[i]).beats.store(beats[i]);
  head().heard.store(now.time_since_epoch().count());
}

void CrewBoard::wake_all() {
  head().wakes.fetch_add(1);
  futex_wake_all(head().wakes);
}

void CrewBoard::sleep(std::uint32_t seen, Deadline end) {
  const auto time = end - Clock::now();
  if (time > Clock::duration::zero()) futex_wait(head().wakes, seen, time);
}

}  // namespace tutti::comm
