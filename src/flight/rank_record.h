#pragma once
// A rank's flight record as it was read, and reading it.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "flight/layout.h"

namespace tutti::flight {

/// One operation. Times are nanoseconds since 1970.
struct RecordedOperation {
  std::string text;          ///< "all_reduce(float32 [4], sum)"
  std::string communicator;  ///< its name, equal on all ranks
  std::uint64_t serial = 0;
  std::uint64_t operation = 0;  ///< its number on the channel, equal on all ranks
  std::uint64_t bytes = 0;
  std::int64_t step = -1;  ///< of training; negative: not known
  int group_size = 1;
  std::string call_site{};  ///< in the program: "train.cpp:42"; empty: not known
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
  bool running = false;  ///< the process that wrote it
  std::string host;
  std::string program;
  std::vector<RecordedOperation> operations{};  ///< in the order of their calls
};

/// Whether `file` has a record's name.
bool is_record(const std::filesystem::path& file);

/// Reads a record, which may be written meanwhile. Throws UsageError for a file that is none or is damaged.
RankRecord read_record(const std::filesystem::path& file);

/// Every record in `folders`, by rank; of a rank that has several those of its last start. Throws UsageError where a
/// folder cannot be read, holds none, or a record is damaged.
std::vector<RankRecord> read_records(const std::vector<std::filesystem::path>& folders);

}  // namespace tutti::flight
