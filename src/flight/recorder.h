#pragma once
// Writes a rank's flight record: the last operations that it called, in a file that outlives the process.
//
// An entry costs two looks at the clock and some 220 bytes written to memory: no lock, no system call. It holds what
// stands in error messages too: names of operations, shapes, sizes, times, lines of the program; no data and no
// variables.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

#include "core/file_descriptor.h"
#include "flight/layout.h"
#include "tutti/core/call_site.h"

namespace tutti::flight {

/// Where ranks keep their records: a folder. The launcher sets it; unset or empty: none are kept.
inline constexpr const char* records_variable = "TUTTI_FLIGHT_RECORDS";

/// Whose record it is.
struct RecordOwner {
  int rank = 0;
  int world_size = 1;
  int restart = 0;
};

struct OperationText {
  std::string_view text;          ///< "all_reduce(float32 [4], sum)"
  std::string_view communicator;  ///< its name, equal on all ranks
  std::uint64_t operation = 0;
  std::uint64_t bytes = 0;
  int group_size = 1;
  CallSite call_site{};  ///< in the program
};

/// Which entry; that of nothing where serial is 0.
struct EntryId {
  std::uint32_t slot = 0;
  std::uint64_t serial = 0;
};

/// Thread safe. While it lives its file is locked: so readers know that the process runs.
class Recorder {
 public:
  /// Makes rank_R.flight in `folder`, which is made too. One that an ended process left there is replaced. Throws
  /// std::system_error.
  static std::shared_ptr<Recorder> create(const std::filesystem::path& folder, const RecordOwner& owner);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// The program has called an operation.
  EntryId record_call(const OperationText& operation) noexcept;
  /// It sends, receives or waits.
  void record_start(EntryId entry) noexcept;
  void record_end(EntryId entry, EntryState state) noexcept;
  /// Later operations belong to this step of training.
  void set_step(std::int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }

 private:
  Recorder(FileDescriptor file, std::byte* memory);
  EntryId free_entry() noexcept;
  RecordEntry* find(EntryId entry) noexcept;

  FileDescriptor file_;
  std::byte* memory_;
  RecordEntry* entries_;
  std::atomic<std::uint64_t> next_entry_{0};  // entries so far
  std::atomic<std::int64_t> step_{-1};
};

/// The recorder that TUTTI_FLIGHT_RECORDS asks for; null where it does not. Where it cannot be made, a warning says
/// why, and there is none: training matters more.
std::shared_ptr<Recorder> make_recorder(const RecordOwner& owner);

}  // namespace tutti::flight
