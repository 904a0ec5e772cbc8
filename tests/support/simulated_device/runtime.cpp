#include "support/simulated_device/runtime.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace tutti::test::simulated {

Settings& settings() {
  static Settings all;
  return all;
}

namespace {

std::mutex counts_mutex;
Counts all_counts;
std::array<std::atomic<bool>, most_devices> touched_devices;

// ---- Streams.

struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> tasks;
  std::uint64_t given = 0, done = 0;
  std::exception_ptr failure;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return !tasks.empty(); });
      auto task = std::move(tasks.front());
      tasks.pop_front();
      lock.unlock();
      std::exception_ptr thrown;
      try {
        task();
      } catch (...) {
        thrown = std::current_exception();
      }
      task = nullptr;
      lock.lock();
      if (thrown && !failure) failure = thrown;
      ++done;
      changed.notify_all();
    }
  }
};

constexpr int streams_of_device = 1 + 4;

Queue& queue_of(const c10::Stream& stream) {
  // Never deleted: threads may wait in them when the process ends.
  static auto* const queues = new std::array<std::atomic<Queue*>, most_devices * streams_of_device>();
  static std::mutex making;
  auto& slot = queues->at(static_cast<std::size_t>(stream.device_index() * streams_of_device + stream.id()));
  if (Queue* known = slot) return *known;
  const std::lock_guard lock(making);
  if (Queue* known = slot) return *known;
  auto* const queue = new Queue;
  std::thread([queue] { queue->run(); }).detach();
  slot = queue;
  return *queue;
}

c10::Stream stream_of(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(type, static_cast<c10::DeviceIndex>(device)), id);
}

thread_local int this_device = 0;
thread_local std::array<c10::StreamId, most_devices> this_stream{};
std::atomic<int> next_of_pool = 0;

// ---- Events.

struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0, reached = 0;

  void wait(std::uint64_t version) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return reached >= version; });
  }
};
using Event = std::shared_ptr<EventState>;

std::uint64_t record(const Event& event, const c10::Stream& stream) {
  std::uint64_t version = 0;
  {
    const std::lock_guard lock(event->mutex);
    version = ++event->recorded;
  }
  launch(
      stream,
      [event, version] {
        {
          const std::lock_guard lock(event->mutex);
          event->reached = std::max(event->reached, version);
        }
        event->changed.notify_all();
      },
      false);
  return version;
}

// ---- Memory: one file of anonymous memory for each device, mapped twice: once without any right, which is where
// tensors believe to lie, and once for kernels.

constexpr std::size_t arena_bytes = std::size_t{8} << 30;

struct Arena {
  std::byte* of_tensors = nullptr;
  std::byte* of_kernels = nullptr;
  std::size_t used = 0;
};

struct Block {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
  c10::StreamId stream = 0;
  int device = 0;
  std::vector<std::pair<Event, std::uint64_t>> elsewhere;  // uses on other streams
  std::set<c10::StreamId> recorded;
};

std::mutex memory_mutex;
std::array<Arena, most_devices> arenas;
std::map<std::byte*, Block*> live;
std::map<std::tuple<int, c10::StreamId, std::size_t>, std::vector<Block*>> free_blocks;
std::vector<Block*> waiting;  // for their other streams

Arena& arena(int device) {
  Arena& one = arenas.at(static_cast<std::size_t>(device));
  if (one.of_tensors != nullptr) return one;
  const int file = ::memfd_create("sim device", 0);
  TORCH_CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(arena_bytes)) == 0, "sim: no memory for the device");
  const auto map = [&](int rights) {
    void* const place = ::mmap(nullptr, arena_bytes, rights, MAP_SHARED | MAP_NORESERVE, file, 0);
    TORCH_CHECK(place != MAP_FAILED, "sim: cannot map the device's memory");
    return static_cast<std::byte*>(place);
  };
  one.of_tensors = map(PROT_NONE);
  one.of_kernels = map(PROT_READ | PROT_WRITE);
  ::close(file);
  return one;
}

std::size_t rounded(std::size_t bytes) {
  std::size_t size = 512;
  while (size < bytes) size *= 2;
  return size;
}

void poison(const Block& block) {
  if (!settings().poison) return;
  launch(
      stream_of(block.device, block.stream),
      [begin = as_seen_by_kernels(block.begin), bytes = block.bytes] { std::memset(begin, 0xff, bytes); }, false);
}

bool reached(const Block& block) {
  for (const auto& [event, version] : block.elsewhere) {
    const std::lock_guard lock(event->mutex);
    if (event->reached < version) return false;
  }
  return true;
}

void put_back(Block* block) {
  block->elsewhere.clear();
  block->recorded.clear();
  poison(*block);
  free_blocks[{block->device, block->stream, block->bytes}].push_back(block);
}

void free_block(void* context) {
  auto* const block = static_cast<Block*>(context);
  const std::lock_guard lock(memory_mutex);
  live.erase(block->begin);
  if (block->recorded.empty()) return put_back(block);
  for (const c10::StreamId id : block->recorded) {
    const auto event = std::make_shared<EventState>();
    const auto version = record(event, stream_of(block->device, id));
    block->elsewhere.emplace_back(event, version);
  }
  waiting.push_back(block);
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const int device = this_device;
    const c10::Device place(type, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) return {nullptr, nullptr, &nothing, place};
    count(&Counts::allocations);
    const std::lock_guard lock(memory_mutex);
    std::erase_if(waiting, [](Block* block) {
      if (!reached(*block)) return false;
      put_back(block);
      return true;
    });
    const std::size_t size = rounded(bytes);
    const c10::StreamId stream = this_stream.at(static_cast<std::size_t>(device));
    auto& list = free_blocks[{device, stream, size}];
    Block* block = nullptr;
    if (!list.empty()) {
      block = list.back();
      list.pop_back();
    } else {
      Arena& from = arena(device);
      TORCH_CHECK_WITH(OutOfMemoryError, from.used + size <= arena_bytes, "sim: out of memory");
      block = new Block{.begin = from.of_tensors + from.used, .bytes = size, .stream = stream, .device = device};
      from.used += size;
      poison(*block);
    }
    live[block->begin] = block;
    return {block->begin, block, &free_block, place};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "sim: Allocator::copy_data touches memory of the device");
  }

 private:
  static void nothing(void*) {}
};

Allocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator);

// ---- What LibTorch asks of a device.

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return simulated::type; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    uncheckedSetDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {simulated::type, static_cast<c10::DeviceIndex>(this_device)}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < settings().devices, "sim: no device ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (!device.has_index() || device.index() == this_device) return;
    this_device = device.index();
    touched_devices.at(static_cast<std::size_t>(this_device)) = true;
  }
  c10::Stream getStream(c10::Device device) const override { return current_stream(index_of(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return default_stream(index_of(device)); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return pool_stream(index_of(device)); }
  c10::Stream getNewStream(c10::Device device, int) const override { return pool_stream(index_of(device)); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return exchange_stream(stream); }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(settings().devices); }
  bool queryStream(const c10::Stream& stream) const override { return is_idle(stream); }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for(stream, "synchronizeStream"); }
  void synchronizeDevice(c10::DeviceIndex device) const override { wait_for_device(device, "synchronizeDevice"); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_on(data.get(), stream);
  }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event(std::make_shared<EventState>());
    simulated::record(*static_cast<Event*>(*event), stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const Event state = *static_cast<Event*>(event);
    std::uint64_t version = 0;
    {
      const std::lock_guard lock(state->mutex);
      version = state->recorded;
    }
    launch(
        stream, [state, version] { state->wait(version); }, false);
  }
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    const Event& state = *static_cast<Event*>(event);
    const std::lock_guard lock(state->mutex);
    return state->reached >= state->recorded;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    count_wait("synchronizeEvent");
    const Event state = *static_cast<Event*>(event);
    state->wait(state->recorded);
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }

 private:
  static int index_of(c10::Device device) { return device.has_index() ? device.index() : this_device; }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace

std::int64_t Counts::all_waits() const {
  std::int64_t sum = 0;
  for (const auto& [why, number] : waits) sum += number;
  return sum;
}
Counts counts() {
  const std::lock_guard lock(counts_mutex);
  return all_counts;
}
void reset_counts() {
  const std::lock_guard lock(counts_mutex);
  all_counts = {};
}
void count_wait(const std::string& why) {
  const std::lock_guard lock(counts_mutex);
  ++all_counts.waits[why];
}
void count(std::int64_t Counts::*what) {
  const std::lock_guard lock(counts_mutex);
  ++(all_counts.*what);
}

bool touched(int device) {
  return touched_devices.at(static_cast<std::size_t>(device));
}
void forget_touched() {
  for (auto& one : touched_devices) one = false;
}

bool is_device_memory(const void* pointer) {
  for (const Arena& one : arenas) {
    if (one.of_tensors != nullptr && pointer >= one.of_tensors && pointer < one.of_tensors + arena_bytes) return true;
  }
  return false;
}
int device_of(const void* pointer) {
  for (std::size_t i = 0; i < arenas.size(); ++i) {
    const Arena& one = arenas[i];
    if (one.of_tensors != nullptr && pointer >= one.of_tensors && pointer < one.of_tensors + arena_bytes) {
      return static_cast<int>(i);
    }
  }
  TORCH_CHECK(false, "sim: this is no memory of a device");
}
void* as_seen_by_kernels(const void* device_pointer) {
  if (device_pointer == nullptr) return nullptr;
  const Arena& one = arenas.at(static_cast<std::size_t>(device_of(device_pointer)));
  return one.of_kernels + (static_cast<const std::byte*>(device_pointer) - one.of_tensors);
}
void record_on(const void* device_pointer, const c10::Stream& stream) {
  const std::lock_guard lock(memory_mutex);
  auto* const begin = const_cast<std::byte*>(static_cast<const std::byte*>(device_pointer));
  const auto found = live.find(begin);
  if (found != live.end() && found->second->stream != stream.id()) found->second->recorded.insert(stream.id());
}

int current_device() {
  return this_device;
}
void set_current_device(int device) {
  this_device = device;
}
c10::Stream default_stream(int device) {
  return stream_of(device, 0);
}
c10::Stream current_stream(int device) {
  return stream_of(device, this_stream.at(static_cast<std::size_t>(device)));
}
c10::Stream exchange_stream(const c10::Stream& stream) {
  const c10::Stream before = current_stream(stream.device_index());
  this_stream.at(static_cast<std::size_t>(stream.device_index())) = stream.id();
  return before;
}
c10::Stream pool_stream(int device) {
  return stream_of(device, 1 + next_of_pool++ % (streams_of_device - 1));
}

void launch(const c10::Stream& stream, std::function<void()> kernel, bool is_kernel) {
  Queue& queue = queue_of(stream);
  if (is_kernel) {
    count(&Counts::kernels);
    if (const int longer = settings().microseconds_per_kernel; longer > 0) {
      kernel = [longer, kernel = std::move(kernel)] {
        std::this_thread::sleep_for(std::chrono::microseconds(longer));
        kernel();
      };
    }
  }
  std::unique_lock lock(queue.mutex);
  queue.tasks.push_back(std::move(kernel));
  const auto ticket = ++queue.given;
  queue.changed.notify_all();
  if (settings().run_at_once && is_kernel) queue.changed.wait(lock, [&] { return queue.done >= ticket; });
}

void wait_for(const c10::Stream& stream, const std::string& why) {
  count_wait(why);
  Queue& queue = queue_of(stream);
  std::unique_lock lock(queue.mutex);
  queue.changed.wait(lock, [&, ticket = queue.given] { return queue.done >= ticket; });
  if (queue.failure) std::rethrow_exception(std::exchange(queue.failure, nullptr));
}
void wait_for_device(int device, const std::string& why) {
  count_wait(why);
  for (int id = 0; id < streams_of_device; ++id) {
    Queue& queue = queue_of(stream_of(device, id));
    std::unique_lock lock(queue.mutex);
    queue.changed.wait(lock, [&, ticket = queue.given] { return queue.done >= ticket; });
    if (queue.failure) std::rethrow_exception(std::exchange(queue.failure, nullptr));
  }
}
bool is_idle(const c10::Stream& stream) {
  Queue& queue = queue_of(stream);
  const std::lock_guard lock(queue.mutex);
  return queue.done == queue.given;
}

}  // namespace tutti::test::simulated
