#pragma once
// Writes the flight record of a rank: its last operations. `tutti inspect`, the deadlock detector and slow-operation
// warnings read it. With TUTTI_FLIGHT_RECORDS it is a file that outlives the process, else memory of the process.
//
// An entry costs three clock readings and at most 256 bytes written to memory; no lock, no system call. It holds what
// error messages hold too: names of operations, shapes, sizes, times, source lines. It holds no tensor data and no
// values of variables.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string_view>

#include "core/file_descriptor.h"
#include "flight/layout.h"
#include "tutti/detail/core/call_site.h"

namespace tutti::flight {

/// The variable with the folder of the records. The launcher sets it. Unset or empty: ranks write no files.
inline constexpr const char* records_variable = "TUTTI_FLIGHT_RECORDS";

/// The rank that a record belongs to.
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
  CallSite call_site{};  ///< in the user's program
};

/// Thread safe. Holds a lock on its file, by which readers detect that the process runs.
class Recorder {
 public:
  /// Creates `folder` if needed, and rank_R.flight in it. Replaces the record of a process that has ended. Throws
  /// std::system_error.
  static std::shared_ptr<Recorder> create(const std::filesystem::path& folder, const RecordOwner& owner);
  /// Creates a record in memory that no folder shows. Throws std::system_error.
  static std::shared_ptr<Recorder> create_in_memory(const RecordOwner& owner);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// The program has called an operation.
  EntryId record_call(const OperationText& operation) noexcept;
  /// The operation has started: it sends, receives or waits.
  void record_start(EntryId entry) noexcept;
  void record_end(EntryId entry, EntryState state) noexcept;
  /// Sets the training step of later operations.
  void set_step(std::int64_t step) noexcept { step_.store(step, std::memory_order_relaxed); }

 private:
  Recorder(FileDescriptor file, std::byte* memory);
  static std::shared_ptr<Recorder> map(FileDescriptor file, const RecordOwner& owner);
  EntryId free_entry() noexcept;
  RecordEntry* find(EntryId entry) noexcept;

  FileDescriptor file_;
  std::byte* memory_;
  RecordEntry* entries_;
  std::atomic<std::uint64_t> last_serial_{0};
  std::atomic<std::int64_t> step_{-1};
};

/// Creates the recorder, in `folder` unless that is null or empty. If creation fails, logs a warning and keeps the
/// record in memory: a missing file must not stop training. Returns null if that fails too.
std::shared_ptr<Recorder> make_recorder(const RecordOwner& owner, const char* folder = std::getenv(records_variable));

}  // namespace tutti::flight
