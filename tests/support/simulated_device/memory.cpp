// The memory of the simulated devices, and an allocator with the rules of CUDA's caching allocator.
//
// Each device has an arena: anonymous memory that is mapped twice. Tensors point to a mapping without access rights, so
// that any access by the host is a fault. Kernels use the other mapping.
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "support/simulated_device/streams.h"

namespace tutti::test::simulated {
namespace {

constexpr std::size_t arena_bytes = std::size_t{16} << 30;  // addresses; settings().memory_bytes limits the memory

struct Arena {
  std::atomic<std::byte*> for_tensors = nullptr;
  std::byte* for_kernels = nullptr;
  std::size_t addresses_used = 0;

  bool contains(const void* pointer) const {
    const std::byte* const begin = for_tensors;
    return begin != nullptr && pointer >= begin && pointer < begin + arena_bytes;
  }
};

struct Block {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
  c10::StreamId stream = 0;
  int device = 0;
  std::set<c10::StreamId> recorded_streams{};
  std::vector<std::pair<Event, std::uint64_t>> uses_elsewhere{};  // on recorded_streams, since the block was freed

  bool is_used_elsewhere() const {
    for (const auto& [event, record] : uses_elsewhere) {
      if (!event->is_reached(record)) return true;
    }
    return false;
  }
};

struct Memory {
  std::mutex mutex;
  std::array<Arena, most_devices> arenas;
  std::array<std::size_t, most_devices> held_bytes{};  // in use, or cached
  std::map<const std::byte*, Block*> live;
  std::map<std::tuple<int, c10::StreamId, std::size_t>, std::vector<Block*>> cached;  // by device, stream and size
  std::vector<Block*> freed_but_used_elsewhere;
  std::map<std::pair<int, std::size_t>, std::vector<Block*>> returned;  // not held; by device and size
};

Memory& memory() {
  static auto* const all = new Memory;  // never deleted: tensors may outlive static objects
  return *all;
}

Arena& arena(int device) {
  Arena& one = memory().arenas.at(static_cast<std::size_t>(device));
  if (one.for_tensors != nullptr) return one;
  const int file = ::memfd_create("simulated device", 0);
  TORCH_CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(arena_bytes)) == 0, "sim: cannot create the memory");
  const auto map = [file](int rights) {
    void* const begin = ::mmap(nullptr, arena_bytes, rights, MAP_SHARED | MAP_NORESERVE, file, 0);
    TORCH_CHECK(begin != MAP_FAILED, "sim: cannot map the memory");
    return static_cast<std::byte*>(begin);
  };
  one.for_kernels = map(PROT_READ | PROT_WRITE);
  one.for_tensors = map(PROT_NONE);
  ::close(file);
  return one;
}

std::size_t rounded(std::size_t bytes) {
  std::size_t size = 512;
  while (size < bytes) size *= 2;
  return size;
}

/// Fills the block with NaN, on its stream.
void poison(const Block& block) {
  if (!settings().poison) return;
  launch(
      stream_of(block.device, block.stream),
      [begin = as_seen_by_kernels(block.begin), bytes = block.bytes] { std::memset(begin, 0xff, bytes); },
      /*is_kernel=*/false);
}

// The functions below need memory().mutex.

void put_into_cache(Block* block) {
  block->uses_elsewhere.clear();
  block->recorded_streams.clear();
  poison(*block);
  memory().cached[{block->device, block->stream, block->bytes}].push_back(block);
}

void collect_freed_blocks() {
  std::erase_if(memory().freed_but_used_elsewhere, [](Block* block) {
    if (block->is_used_elsewhere()) return false;
    put_into_cache(block);
    return true;
  });
}

Block* take(std::vector<Block*>& blocks) {
  if (blocks.empty()) return nullptr;
  Block* const block = blocks.back();
  blocks.pop_back();
  return block;
}

/// Memory that the allocator does not hold yet; nullptr if the device has none.
Block* new_block(int device, std::size_t bytes, c10::StreamId stream) {
  std::size_t& held = memory().held_bytes.at(static_cast<std::size_t>(device));
  if (held + bytes > settings().memory_bytes) return nullptr;
  Block* block = take(memory().returned[{device, bytes}]);
  if (block == nullptr) {
    Arena& from = arena(device);
    if (from.addresses_used + bytes > arena_bytes) return nullptr;
    block = new Block{.begin = from.for_tensors + from.addresses_used, .bytes = bytes, .device = device};
    from.addresses_used += bytes;
  }
  held += bytes;
  block->stream = stream;
  poison(*block);
  return block;
}

void free_block(void* context) {
  auto* const block = static_cast<Block*>(context);
  const std::lock_guard lock(memory().mutex);
  memory().live.erase(block->begin);
  if (block->recorded_streams.empty()) return put_into_cache(block);
  for (const c10::StreamId id : block->recorded_streams) {
    const auto event = std::make_shared<EventState>();
    const std::uint64_t record = EventState::record(event, stream_of(block->device, id));
    block->uses_elsewhere.emplace_back(event, record);
  }
  memory().freed_but_used_elsewhere.push_back(block);
}

// The functions below lock memory().mutex.

/// Gives cached blocks back to their devices. Waits for the streams that used them: their last work may be queued
/// still.
void empty_cache() {
  count(&Counts::emptied_caches);
  std::vector<Block*> blocks;
  std::set<std::pair<int, c10::StreamId>> streams;
  {
    const std::lock_guard lock(memory().mutex);
    collect_freed_blocks();
    for (auto& [key, cached] : memory().cached) {
      blocks.insert(blocks.end(), cached.begin(), cached.end());
      if (!cached.empty()) streams.emplace(std::get<0>(key), std::get<1>(key));
      cached.clear();
    }
  }
  for (const auto& [device, id] : streams) wait_for(stream_of(device, id), "emptyCache");
  const std::lock_guard lock(memory().mutex);
  for (Block* const block : blocks) {
    memory().held_bytes.at(static_cast<std::size_t>(block->device)) -= block->bytes;
    memory().returned[{block->device, block->bytes}].push_back(block);
  }
}

/// A block of the current stream of `device`; nullptr if the device has no memory.
Block* try_to_allocate(int device, std::size_t bytes) {
  const c10::StreamId stream = current_stream(device).id();
  const std::lock_guard lock(memory().mutex);
  collect_freed_blocks();
  Block* block = take(memory().cached[{device, stream, bytes}]);
  if (block == nullptr) block = new_block(device, bytes, stream);
  if (block != nullptr) memory().live[block->begin] = block;
  return block;
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const int device = current_device();
    const c10::Device place(type, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) return {nullptr, nullptr, [](void*) {}, place};
    count(&Counts::allocations);
    touch(device);
    Block* block = try_to_allocate(device, rounded(bytes));
    if (block == nullptr) {
      empty_cache();
      block = try_to_allocate(device, rounded(bytes));
    }
    TORCH_CHECK_WITH(OutOfMemoryError, block != nullptr, "sim: out of memory: ", place, " has no ", bytes,
                     " bytes that are free");
    return {block->begin, block, &free_block, place};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "sim: Allocator::copy_data would access memory of the device on the host");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override { empty_cache(); }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override { record_on(data.get(), stream); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const std::lock_guard lock(memory().mutex);
    const std::size_t total = settings().memory_bytes;
    return {total - memory().held_bytes.at(static_cast<std::size_t>(device)), total};
  }
};

Allocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator)

}  // namespace

bool is_device_memory(const void* pointer) {
  for (const Arena& one : memory().arenas) {
    if (one.contains(pointer)) return true;
  }
  return false;
}

int device_of(const void* pointer) {
  for (std::size_t i = 0; i < memory().arenas.size(); ++i) {
    if (memory().arenas[i].contains(pointer)) return static_cast<int>(i);
  }
  TORCH_CHECK(false, "sim: the address is not in the memory of a device");
}

void* as_seen_by_kernels(const void* device_pointer) {
  if (device_pointer == nullptr) return nullptr;
  const Arena& one = memory().arenas.at(static_cast<std::size_t>(device_of(device_pointer)));
  return one.for_kernels + (static_cast<const std::byte*>(device_pointer) - one.for_tensors);
}

void record_on(const void* device_pointer, const c10::Stream& stream) {
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().live.find(static_cast<const std::byte*>(device_pointer));
  if (found == memory().live.end() || found->second->stream == stream.id()) return;
  found->second->recorded_streams.insert(stream.id());
}

}  // namespace tutti::test::simulated
