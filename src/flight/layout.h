#pragma once
// Layout of a flight record: a header, then a circular buffer of entries, in a file or in anonymous memory (memfd).
//
// One process writes it through a shared mapping, so the content of a file survives any end of the process. Other
// processes may read concurrently: an entry is valid once its serial is set. Times are nanoseconds of the monotonic
// clock of the machine; the header holds the offset to the time of day.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tutti::flight {

inline constexpr std::array<char, 8> record_magic{'t', 'u', 't', 't', 'i', 'f', 'r', '3'};
inline constexpr std::uint32_t record_capacity = 1024;
inline constexpr const char* record_suffix = ".flight";

/// The state of an operation on this rank.
enum class EntryState : std::uint32_t {
  scheduled,  ///< called by the program; earlier operations of the communicator may still be in flight
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
  std::array<char, 24> program{};  // the program's name, without folder and arguments; ends with a zero
};

struct RecordEntry {
  std::atomic<std::uint64_t> serial;  // grows from entry to entry; 0: unused, or being written
  std::atomic<std::uint32_t> state;
  std::uint32_t group_size;
  std::uint64_t operation;  // its number on its communicator
  std::uint64_t bytes;
  std::int64_t step;  // of training; negative: unknown
  std::int64_t called;
  std::atomic<std::int64_t> started;  // 0: not yet
  std::atomic<std::int64_t> ended;    // 0: not yet
  std::array<char, 40> communicator;  // the three texts end with a zero
  std::array<char, 104> text;
  std::array<char, 44> file;  // source file of the call, without folders; empty: unknown
  std::uint32_t line;         // line in `file`; 0: unknown
};

static_assert(sizeof(RecordHeader) == 128 && sizeof(RecordEntry) == 256);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

constexpr std::size_t record_bytes(std::size_t capacity) {
  return sizeof(RecordHeader) + capacity * sizeof(RecordEntry);
}

/// Identifies an entry on its machine, together with the process that writes the record. Serial 0: no entry.
struct EntryId {
  std::uint64_t serial = 0;
  int record = -1;  ///< the record's file descriptor in that process

  std::size_t slot() const { return (serial - 1) % record_capacity; }
};

}  // namespace tutti::flight
