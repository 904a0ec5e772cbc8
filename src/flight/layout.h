#pragma once
// How a rank's flight record lies in its file: a header, then a ring of entries.
//
// One process writes it, through a mapping, so that it is whole whatever ends the process. Others read it, also while
// it is written: an entry counts once its serial stands in it. Times are nanoseconds of the clock that all processes of
// a machine share; the header says what to add to get the time of day.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tutti::flight {

inline constexpr std::array<char, 8> record_magic{'t', 'u', 't', 't', 'i', 'f', 'r', '2'};
inline constexpr std::uint32_t record_capacity = 1024;
inline constexpr const char* record_suffix = ".flight";

/// How far an operation has come on this rank.
enum class EntryState : std::uint32_t {
  scheduled,  ///< by the program; earlier ones of its channel may still be under way
  started,    ///< this rank sends, receives or waits
  completed,
  failed,
};

struct RecordHeader {
  std::array<char, 8> magic{};
  std::uint32_t entry_bytes = 0;
  std::uint32_t capacity = 0;
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  std::int32_t process = 0;
  std::int32_t restart = 0;
  std::int64_t to_wall_clock = 0;  // nanoseconds
  std::array<char, 64> host{};     // ends with a zero
  std::array<char, 24> program{};  // its name, without folder and arguments; ends with a zero
};

struct RecordEntry {
  std::atomic<std::uint64_t> serial;  // grows from entry to entry; 0: there is none, or it is being written
  std::atomic<std::uint32_t> state;
  std::uint32_t group_size;
  std::uint64_t operation;  // its number on its channel
  std::uint64_t bytes;
  std::int64_t step;  // of training; negative: not known
  std::int64_t called;
  std::atomic<std::int64_t> started;  // 0: not yet
  std::atomic<std::int64_t> ended;    // 0: not yet
  std::array<char, 40> communicator;  // the three end with a zero
  std::array<char, 80> text;
  std::array<char, 36> file;  // of the program's call, without folders; empty: not known
  std::uint32_t line;         // in it; 0: not known
};

static_assert(sizeof(RecordHeader) == 128 && sizeof(RecordEntry) == 224);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

constexpr std::size_t record_bytes(std::size_t capacity) {
  return sizeof(RecordHeader) + capacity * sizeof(RecordEntry);
}

}  // namespace tutti::flight
