#pragma once
// Reads the flight record of a rank.
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "flight/layout.h"

namespace tutti::flight {

/// One operation. Times are nanoseconds since 1970.
struct RecordedOperation {
  std::string text;          ///< "all_reduce(float32 [4], sum)"
  std::string communicator;  ///< its name, equal on all ranks; "job#2" for the second group of all ranks
  std::uint64_t serial = 0;
  std::uint64_t operation = 0;  ///< its number on the communicator, equal on all ranks
  std::uint64_t bytes = 0;
  std::int64_t step = -1;  ///< of training; negative: unknown
  int group_size = 1;
  std::string call_site{};  ///< in the program: "train.cpp:42"; empty: unknown
  EntryState state = EntryState::scheduled;
  std::int64_t called = 0;
  std::int64_t started = 0;  ///< 0: not yet
  std::int64_t ended = 0;    ///< 0: not yet

  bool in_flight() const { return state == EntryState::scheduled || state == EntryState::started; }
};

struct RankRecord {
  int rank = 0;
  int world_size = 1;
  int process = 0;
  int restart = 0;
  bool running = false;  ///< true if the process that wrote the record runs
  std::string host;
  std::string program;
  std::vector<RecordedOperation> operations{};  ///< in the order of their calls
};

/// True if `file` has the name of a record.
bool is_record(const std::filesystem::path& file);

/// False also if the folder cannot be read.
bool holds_records(const std::filesystem::path& folder);

/// Reads a record, also while its rank writes it. Throws UsageError for a file that is not a record or is damaged.
RankRecord read_record(const std::filesystem::path& file);

/// Reads one entry of the record that `process` of this machine writes. Its times are of the monotonic clock. Returns
/// nullopt if the entry was replaced or cannot be read. A read during a write may mix two operations, so the result is
/// for messages only.
std::optional<RecordedOperation> read_entry(EntryId entry, pid_t process);

/// Reads all records in `folders`, sorted by rank, of the last start of the job only. Throws UsageError if a folder
/// cannot be read or holds no record, or a record is damaged. Skips records that their ranks are still making, perhaps
/// all.
std::vector<RankRecord> read_records(const std::vector<std::filesystem::path>& folders);

}  // namespace tutti::flight
