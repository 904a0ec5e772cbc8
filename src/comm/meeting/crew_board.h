#pragma once
// What the ranks of a crew (crew.h) know together: who gave the last sign of life, what came of it, and what is told of
// ranks of the job. It lies in memory that they share, so that a rank reads it for nothing and news wake all of them.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/engine/transfer.h"
#include "comm/meeting/news.h"
#include "comm/meeting/turns.h"

namespace tutti::comm {

/// Thread safe. Nothing in it is locked: a process that is stopped or killed meanwhile keeps nobody waiting.
class CrewBoard {
 public:
  /// How much memory it takes in a job of so many ranks; zeros are a valid board.
  static std::size_t bytes(int size);
  CrewBoard(std::shared_ptr<void> memory, int size);

  // Of a rank of the job. Marks are only ever added.
  static constexpr std::uint8_t silent = 1;  ///< given up: not heard of for long
  static constexpr std::uint8_t ended = 2;   ///< its process has ended without a good-bye
  static constexpr std::uint8_t left = 4;    ///< has said good-bye
  static constexpr std::uint8_t away = 8;    ///< gives no sign of life any more, with or without a good-bye; not told
  std::uint8_t marks(int rank) const { return of(rank).marks.load(); }
  void mark(int rank, std::uint8_t marks) { of(rank).marks.fetch_or(marks); }
  void mark(const News& news);
  News news() const;

  bool store_is_silent() const { return head().store_is_silent.load(); }
  void note_silent_store() { head().store_is_silent.store(true); }

  /// Until when all look more often.
  Deadline hurries_until() const { return Deadline(Clock::duration(head().hurries_until.load())); }
  void hurry_until(Deadline end) { head().hurries_until.store(end.time_since_epoch().count()); }

  LastBeat last_beat() const;
  /// Whether the next one is `rank`'s to give.
  bool leads(int rank) const { return leads(rank, last_beat()); }
  /// Takes it on `rank` to give a sign of life now, where that is due and nobody else does. Returns how many the crew
  /// has given with this one.
  std::optional<std::uint32_t> claim_beat(int rank, Clock::duration between, Deadline now);
  /// What the store said: of each rank of `watched` another number for each sign of life.
  void hear(const std::vector<int>& watched, const std::vector<std::int64_t>& beats, Deadline now);
  Deadline heard() const { return Deadline(Clock::duration(head().heard.load())); }
  std::int64_t beats(int rank) const { return of(rank).beats.load(); }

  /// Wakes all of the crew that sleep here.
  void wake_all();
  /// Another number after each wake_all().
  std::uint32_t wakes() const { return head().wakes.load(); }
  /// Sleeps while wakes() is `seen`, until `end` at most; it may wake earlier.
  void sleep(std::uint32_t seen, Deadline end);

 private:
  struct alignas(64) Head {
    std::atomic<std::uint32_t> wakes;
    std::atomic<std::uint32_t> beats;      // of the crew
    std::atomic<std::uint64_t> last_beat;  // whose and when, in one number
    std::atomic<std::int64_t> heard;
    std::atomic<std::int64_t> hurries_until;
    std::atomic<bool> store_is_silent;
  };
  struct Rank {
    std::atomic<std::int64_t> beats;
    std::atomic<std::uint8_t> marks;
  };

  bool leads(int rank, const LastBeat& last) const {
    return last.rank < 0 || last.rank == rank || (marks(last.rank) & (away | ended)) != 0;
  }
  Head& head() const { return *static_cast<Head*>(memory_.get()); }
  Rank& of(int rank) const { return reinterpret_cast<Rank*>(&head() + 1)[rank]; }

  std::shared_ptr<void> memory_;
  int size_;
};

}  // namespace tutti::comm
