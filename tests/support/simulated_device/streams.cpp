#include "support/simulated_device/streams.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

namespace tutti::test::simulated {
namespace {

constexpr int streams_of_a_pool = 32;
constexpr int streams_of_a_device = 1 + streams_of_a_pool;

/// The work of a stream and its thread.
class Queue {
 public:
  void add(std::function<void()> task, bool wait_for_it) {
    std::unique_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    const std::uint64_t number = ++added_;
    changed_.notify_all();
    if (wait_for_it) changed_.wait(lock, [&] { return done_ >= number; });
  }

  void wait_and_rethrow() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, number = added_] { return done_ >= number; });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return done_ == added_;
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      std::exception_ptr thrown;
      try {
        task();
      } catch (...) {
        thrown = std::current_exception();
      }
      task = nullptr;  // what the task holds is destroyed before the task counts as done
      lock.lock();
      if (thrown && !failure_) failure_ = thrown;
      ++done_;
      changed_.notify_all();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::uint64_t added_ = 0;
  std::uint64_t done_ = 0;
  std::exception_ptr failure_;
};

using Queues = std::array<std::atomic<Queue*>, most_devices * streams_of_a_device>;

// Queues are never deleted: their threads wait in them when the process ends.
Queues& queues() {
  static auto* const all = new Queues();
  return *all;
}

std::atomic<Queue*>& slot_of(int device, c10::StreamId id) {
  return queues().at(static_cast<std::size_t>(device * streams_of_a_device + id));
}

Queue& queue_of(const c10::Stream& stream) {
  static auto* const creation = new std::mutex;
  auto& slot = slot_of(stream.device_index(), stream.id());
  if (Queue* const known = slot) return *known;
  const std::lock_guard lock(*creation);
  if (Queue* const known = slot) return *known;
  auto* const queue = new Queue;
  std::thread([queue] { queue->run(); }).detach();
  slot = queue;
  return *queue;
}

thread_local int device_of_thread = 0;
thread_local std::array<c10::StreamId, most_devices> streams_of_thread{};

bool is_slow(int device) {
  const int slow_device = settings().slow_device;
  return slow_device < 0 || slow_device == device;
}

}  // namespace

c10::Stream stream_of(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(type, static_cast<c10::DeviceIndex>(device)), id);
}

int current_device() {
  return device_of_thread;
}

void set_current_device(int device) {
  if (device != device_of_thread) touch(device);
  device_of_thread = device;
}

c10::Stream default_stream(int device) {
  return stream_of(device, 0);
}

c10::Stream current_stream(int device) {
  return stream_of(device, streams_of_thread.at(static_cast<std::size_t>(device)));
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  const c10::Stream before = current_stream(stream.device_index());
  streams_of_thread.at(static_cast<std::size_t>(stream.device_index())) = stream.id();
  return before;
}

c10::Stream pool_stream(int device) {
  static std::array<std::atomic<int>, most_devices> next{};
  return stream_of(device, 1 + next.at(static_cast<std::size_t>(device))++ % streams_of_a_pool);
}

void launch(const c10::Stream& stream, std::function<void()> kernel, bool is_kernel) {
  touch(stream.device_index());
  if (is_kernel) {
    count(&Counts::kernels);
    const std::chrono::microseconds longer(settings().microseconds_per_kernel);
    if (longer.count() > 0 && is_slow(stream.device_index())) {
      kernel = [longer, kernel = std::move(kernel)] {
        std::this_thread::sleep_for(longer);
        kernel();
      };
    }
  }
  queue_of(stream).add(std::move(kernel), is_kernel && settings().run_at_once);
}

void wait_for(const c10::Stream& stream, const std::string& reason) {
  count_wait(reason);
  queue_of(stream).wait_and_rethrow();
}

void wait_for_device(int device, const std::string& reason) {
  count_wait(reason);
  for (int id = 0; id < streams_of_a_device; ++id) {
    if (Queue* const queue = slot_of(device, id)) queue->wait_and_rethrow();
  }
}

bool is_idle(const c10::Stream& stream) {
  return queue_of(stream).is_idle();
}

std::uint64_t EventState::record(const Event& event, const c10::Stream& stream) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(event->mutex_);
    number = ++event->recorded_;
  }
  launch(
      stream, [event, number] { event->reach(number); }, /*is_kernel=*/false);
  return number;
}

std::uint64_t EventState::last_record() const {
  const std::lock_guard lock(mutex_);
  return recorded_;
}

bool EventState::is_reached(std::uint64_t record) const {
  const std::lock_guard lock(mutex_);
  return reached_ >= record;
}

void EventState::wait(std::uint64_t record) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reached_ >= record; });
}

void EventState::reach(std::uint64_t record) {
  const std::lock_guard lock(mutex_);
  reached_ = std::max(reached_, record);
  changed_.notify_all();
}

}  // namespace tutti::test::simulated
