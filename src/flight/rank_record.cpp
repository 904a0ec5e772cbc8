#include "flight/rank_record.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <system_error>

#include "core/file_descriptor.h"
#include "tutti/core/error.h"
#include "tutti/detail/core/call_site.h"

namespace tutti::flight {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t largest_capacity = 1U << 20U;
constexpr int largest_group = 1 << 20;

[[noreturn]] void refuse(const fs::path& file, const std::string& why) {
  throw UsageError(file.string() + " is not a flight record that this version of tutti reads: " + why + ".");
}

// The file is untrusted: a terminating zero may be missing, and the text is printed to a terminal.
template <std::size_t Size>
std::string text_of(const std::array<char, Size>& bytes) {
  std::string text(bytes.begin(), std::ranges::find(bytes, '\0'));
  std::ranges::replace_if(
      text, [](unsigned char character) { return character < ' ' || character == 0x7f; }, '?');
  return text;
}

std::string read_bytes(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  constexpr std::size_t most = record_bytes(largest_capacity);
  std::error_code error;
  const auto size = fs::file_size(file, error);
  if (!stream || error) throw UsageError("cannot read " + file.string() + ".");
  if (size > most) refuse(file, "it is too long");
  std::string bytes(size, '\0');
  stream.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!stream) throw UsageError("cannot read " + file.string() + ".");
  return bytes;
}

RecordHeader header_of(const std::string& bytes, const fs::path& file) {
  RecordHeader header;
  if (bytes.size() < sizeof(header)) refuse(file, "it is too short");
  std::memcpy(&header, bytes.data(), sizeof(header));
  // The last character counts the formats.
  const auto end_of_name = record_magic.end() - 1;
  if (!std::equal(record_magic.begin(), end_of_name, header.magic.begin())) refuse(file, "wrong magic number");
  if (header.magic != record_magic || header.entry_bytes != sizeof(RecordEntry) || header.capacity > largest_capacity)
    refuse(file, "another version of tutti wrote it");
  if (bytes.size() != record_bytes(header.capacity)) refuse(file, "its length does not match its number of entries");
  if (header.world_size < 1 || header.world_size > largest_group || header.rank < 0 ||
      header.rank >= header.world_size) {
    refuse(file, "its rank is not below its world size");
  }
  return header;
}

std::string call_site_of(const RecordEntry& entry) {
  const std::string file = text_of(entry.file);
  return CallSite{file.c_str(), static_cast<int>(entry.line)}.describe();
}

// The copy is this process's own: no other process writes it.
RecordedOperation operation_of(const RecordEntry& entry, std::int64_t to_wall_clock) {
  const auto wall = [&](std::int64_t time) { return time == 0 ? 0 : time + to_wall_clock; };
  return {.text = text_of(entry.text),
          .communicator = text_of(entry.communicator),
          .serial = entry.serial.load(),
          .operation = entry.operation,
          .bytes = entry.bytes,
          .step = entry.step,
          .group_size = static_cast<int>(std::clamp<std::uint32_t>(entry.group_size, 1, largest_group)),
          .call_site = call_site_of(entry),
          .state = static_cast<EntryState>(entry.state.load()),
          .called = wall(entry.called),
          .started = wall(entry.started.load()),
          .ended = wall(entry.ended.load())};
}

/// "#2" for rank_0-2.flight, which tells the second group of all ranks that a process makes from the first one. All
/// such groups have the same name, and ranks make them in the same order.
std::string group_suffix(const fs::path& file, int rank) {
  const std::string stem = file.stem().string();
  const std::string first = "rank_" + std::to_string(rank) + "-";
  return stem.starts_with(first) ? "#" + stem.substr(first.size()) : "";
}

/// False from the creation of a record until its rank has written the header.
bool has_header(const fs::path& file) {
  std::array<char, record_magic.size()> magic{};
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return true;  // read_record() reports it
  stream.read(magic.data(), magic.size());
  return magic != std::array<char, record_magic.size()>{};
}

bool is_locked(const fs::path& file) {
  const FileDescriptor descriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  return descriptor.is_open() && ::flock(descriptor.get(), LOCK_SH | LOCK_NB) != 0;
}

}  // namespace

bool is_record(const fs::path& file) {
  return file.extension() == record_suffix;
}

bool holds_records(const fs::path& folder) {
  std::error_code error;
  return std::ranges::any_of(fs::directory_iterator(folder, error),
                             [](const fs::directory_entry& entry) { return is_record(entry.path()); });
}

RankRecord read_record(const fs::path& file) {
  const bool running = is_locked(file);
  const std::string bytes = read_bytes(file);
  const RecordHeader header = header_of(bytes, file);
  RankRecord record{.rank = header.rank,
                    .world_size = header.world_size,
                    .process = header.process,
                    .restart = header.restart,
                    .running = running,
                    .host = text_of(header.host),
                    .program = text_of(header.program)};
  const std::string suffix = group_suffix(file, header.rank);
  for (std::uint32_t slot = 0; slot < header.capacity; ++slot) {
    RecordEntry entry{};
    std::memcpy(static_cast<void*>(&entry), bytes.data() + record_bytes(slot), sizeof(entry));
    if (entry.serial.load() == 0 || entry.state.load() > static_cast<std::uint32_t>(EntryState::failed)) continue;
    record.operations.push_back(operation_of(entry, header.to_wall_clock));
    record.operations.back().communicator += suffix;
  }
  std::ranges::sort(record.operations, {}, &RecordedOperation::serial);
  return record;
}

std::optional<RecordedOperation> read_entry(EntryId id, pid_t process) {
  if (id.serial == 0) return std::nullopt;
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(id.record);
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  std::array<char, record_magic.size()> magic{};
  RecordEntry entry{};
  const auto offset = static_cast<off_t>(record_bytes(id.slot()));
  if (!file.is_open() || ::pread(file.get(), magic.data(), sizeof(magic), 0) != sizeof(magic) ||
      magic != record_magic || ::pread(file.get(), &entry, sizeof(entry), offset) != sizeof(entry) ||
      entry.serial.load() != id.serial) {
    return std::nullopt;
  }
  return operation_of(entry, 0);
}

std::vector<RankRecord> read_records(const std::vector<fs::path>& folders) {
  std::vector<RankRecord> records;
  for (const auto& folder : folders) {
    std::error_code error;
    bool found = false;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      if (!is_record(entry.path())) continue;
      found = true;
      if (has_header(entry.path())) records.push_back(read_record(entry.path()));
    }
    if (error) throw UsageError("cannot read the folder " + folder.string() + ": " + error.message() + ".");
    if (!found) {
      throw UsageError("found no flight records in " + folder.string() +
                       ": start the job with `tutti launch`, or set TUTTI_FLIGHT_RECORDS to a folder on all ranks.");
    }
  }
  if (records.empty()) return records;
  const auto last_start = std::ranges::max(records, {}, &RankRecord::restart).restart;
  std::erase_if(records, [&](const RankRecord& record) { return record.restart != last_start; });
  std::ranges::stable_sort(records, {}, &RankRecord::rank);
  return records;
}

}  // namespace tutti::flight
