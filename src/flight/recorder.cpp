#include "flight/recorder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "core/allocate_pages.h"
#include "tutti/core/logging.h"

namespace tutti::flight {
namespace {

constexpr int max_records_per_rank = 100;

std::int64_t now() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

[[noreturn]] void throw_errno(const std::string& what, int error = errno) {
  throw std::system_error(error, std::generic_category(), what);
}

// Truncates the text to the array; always ends it with a zero.
template <std::size_t Size>
void copy_text(std::string_view from, std::array<char, Size>& to) {
  const std::size_t length = std::min(from.size(), Size - 1);
  std::memcpy(to.data(), from.data(), length);
  to[length] = '\0';
}

// The process that writes the file holds an exclusive lock. Readers ask with a shared one, so that two readers do not
// exclude each other. That of an ended process is replaced, not overwritten: a reader may have it open.
FileDescriptor open_record(const std::filesystem::path& folder, int rank) {
  std::string name = "rank_" + std::to_string(rank);
  const std::string first = name;
  for (int copy = 2; copy <= max_records_per_rank; ++copy) {
    const auto path = folder / (name + record_suffix);
    const FileDescriptor old(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    const bool in_use = old.is_open() && ::flock(old.get(), LOCK_SH | LOCK_NB) != 0;
    if (!in_use) {
      if (old.is_open() && ::unlink(path.c_str()) != 0 && errno != ENOENT) throw_errno(path.string());
      FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
      if (!file.is_open()) throw_errno(path.string());
      if (::flock(file.get(), LOCK_EX) != 0) throw_errno(path.string());
      return file;
    }
    name = first + "-" + std::to_string(copy);  // a process may connect more than once
  }
  throw_errno(folder.string() + ": the folder already holds the maximum number of records of this rank", EEXIST);
}

void fill(RecordHeader& header, const RecordOwner& owner) {
  header.entry_bytes = sizeof(RecordEntry);
  header.capacity = record_capacity;
  header.rank = owner.rank;
  header.world_size = owner.world_size;
  header.restart = owner.restart;
  header.process = ::getpid();
  header.to_wall_clock =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count() -
      now();
  ::gethostname(header.host.data(), header.host.size() - 1);
  copy_text(program_invocation_short_name, header.program);
  header.magic = record_magic;
}

}  // namespace

std::shared_ptr<Recorder> Recorder::create(const std::filesystem::path& folder, const RecordOwner& owner) {
  std::filesystem::create_directories(folder);
  return map(open_record(folder, owner.rank), owner);
}

std::shared_ptr<Recorder> Recorder::create_in_memory(const RecordOwner& owner) {
  FileDescriptor memory(::memfd_create("tutti_flight", MFD_CLOEXEC));
  if (!memory.is_open()) throw_errno("memfd_create");
  return map(std::move(memory), owner);
}

std::shared_ptr<Recorder> Recorder::map(FileDescriptor file, const RecordOwner& owner) {
  constexpr std::size_t bytes = record_bytes(record_capacity);
  if (const int error = allocate_pages(file.get(), 0, bytes); error != 0) {
    throw_errno(std::string("allocating a flight record"), error);
  }
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
  if (memory == MAP_FAILED) throw_errno("mmap of a flight record");
  std::shared_ptr<Recorder> recorder(new Recorder(std::move(file), static_cast<std::byte*>(memory)));
  fill(*reinterpret_cast<RecordHeader*>(recorder->memory_), owner);
  return recorder;
}

Recorder::Recorder(FileDescriptor file, std::byte* memory)
    : file_(std::move(file)),
      memory_(memory),
      entries_(reinterpret_cast<RecordEntry*>(memory + sizeof(RecordHeader))) {}

Recorder::~Recorder() {
  ::munmap(memory_, record_bytes(record_capacity));
}

// The oldest entry is replaced, but not one in flight: a failure needs that one.
EntryId Recorder::free_entry() noexcept {
  EntryId id{.serial = 0, .record = file_.get()};
  for (std::uint32_t tries = 0; tries <= record_capacity; ++tries) {
    id.serial = last_serial_.fetch_add(1, std::memory_order_relaxed) + 1;
    const RecordEntry& entry = entries_[id.slot()];
    const auto state = static_cast<EntryState>(entry.state.load(std::memory_order_relaxed));
    const bool used = entry.serial.load(std::memory_order_acquire) != 0;
    if (!used || state == EntryState::completed || state == EntryState::failed) break;
  }
  return id;
}

RecordEntry* Recorder::find(EntryId id) noexcept {
  if (id.serial == 0) return nullptr;
  RecordEntry& entry = entries_[id.slot()];
  return entry.serial.load(std::memory_order_relaxed) == id.serial ? &entry : nullptr;
}

EntryId Recorder::record_call(const OperationText& operation) noexcept {
  const EntryId id = free_entry();
  RecordEntry& entry = entries_[id.slot()];
  entry.serial.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  entry.state.store(static_cast<std::uint32_t>(EntryState::scheduled), std::memory_order_relaxed);
  entry.group_size = static_cast<std::uint32_t>(operation.group_size);
  entry.operation = operation.operation;
  entry.bytes = operation.bytes;
  entry.step = step_.load(std::memory_order_relaxed);
  entry.called = now();
  entry.started.store(0, std::memory_order_relaxed);
  entry.ended.store(0, std::memory_order_relaxed);
  copy_text(operation.communicator, entry.communicator);
  copy_text(operation.text, entry.text);
  copy_text(operation.call_site.file, entry.file);
  entry.line = static_cast<std::uint32_t>(operation.call_site.line);
  entry.serial.store(id.serial, std::memory_order_release);
  return id;
}

void Recorder::record_start(EntryId id) noexcept {
  RecordEntry* entry = find(id);
  if (entry == nullptr || entry->started.load(std::memory_order_relaxed) != 0) return;
  entry->started.store(now(), std::memory_order_relaxed);
  entry->state.store(static_cast<std::uint32_t>(EntryState::started), std::memory_order_relaxed);
}

void Recorder::record_end(EntryId id, EntryState state) noexcept {
  RecordEntry* entry = find(id);
  if (entry == nullptr) return;
  entry->ended.store(now(), std::memory_order_relaxed);
  entry->state.store(static_cast<std::uint32_t>(state), std::memory_order_relaxed);
}

std::shared_ptr<Recorder> make_recorder(const RecordOwner& owner, const char* folder) {
  const bool in_memory = folder == nullptr || *folder == '\0';
  try {
    return in_memory ? Recorder::create_in_memory(owner) : Recorder::create(folder, owner);
  } catch (const std::system_error& error) {
    const std::string place = in_memory ? "" : std::string(records_variable) + "=" + folder + ": ";
    Logger(owner.rank).warning("this rank keeps no flight record: " + place + error.what());
    return in_memory ? nullptr : make_recorder(owner, nullptr);
  }
}

}  // namespace tutti::flight
