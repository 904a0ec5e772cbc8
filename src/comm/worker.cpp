#include "comm/worker.h"

#include <deque>
#include <utility>

#include "comm/os/exit_guard.h"
#include "core/thread_name.h"
#include "device/devices.h"
#include "tutti/comm/work.h"
#include "tutti/core/error.h"

namespace tutti {

Work::Work(std::shared_ptr<comm::WorkState> state) : state_(std::move(state)) {}

void Work::wait() const {
  if (state_) state_->wait();
}

bool Work::is_completed() const {
  return !state_ || state_->is_completed();
}

std::exception_ptr Work::exception() const {
  return state_ ? state_->exception() : nullptr;
}

void Work::then(std::function<void()> continuation) const {
  if (!state_) {
    continuation();
  } else {
    state_->then(std::move(continuation));
  }
}

namespace comm {

void WorkState::end(std::exception_ptr failure) {
  std::vector<std::function<void()>> continuations;
  std::shared_ptr<CallerThreads> callers;
  {
    const std::lock_guard lock(mutex_);
    completed_ = true;
    failure_ = std::move(failure);
    continuations.swap(continuations_);
    callers = callers_;
  }
  ended_.notify_all();
  if (continuations.empty()) return;
  const CallerThreads::Task task(std::move(callers));
  for (const auto& continuation : continuations) continuation();
}

void WorkState::set_calls(std::shared_ptr<InflightCalls> calls, std::shared_ptr<CallerThreads> callers) {
  const std::lock_guard lock(mutex_);
  calls_ = std::move(calls);
  callers_ = std::move(callers);
}

void WorkState::then(std::function<void()> continuation) {
  {
    const std::lock_guard lock(mutex_);
    if (!completed_) {
      continuations_.push_back(std::move(continuation));
      return;
    }
  }
  continuation();
}

std::exception_ptr WorkState::exception() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void WorkState::wait() {
  std::unique_lock lock(mutex_);
  if (!completed_) {
    const InflightCalls::WaitingOnQueue waiting(calls_.get());
    const CallerThreads::Task task(calls_ ? nullptr : callers_);
    ended_.wait(lock, [&] { return completed_; });
  }
  if (failure_) std::rethrow_exception(failure_);
  lock.unlock();
  if (on_waited_) on_waited_();
}

void WorkState::set_on_waited(std::function<void()> on_waited) {
  on_waited_ = std::move(on_waited);
}

bool WorkState::is_completed() const {
  const std::lock_guard lock(mutex_);
  return completed_;
}

std::shared_ptr<WorkState> run_now(const std::function<void()>& task) {
  auto state = std::make_shared<WorkState>();
  try {
    task();
    state->end(nullptr);
  } catch (...) {
    state->end(std::current_exception());
  }
  return state;
}

namespace {
thread_local bool is_worker_thread = false;
}

bool Worker::is_on_worker_thread() {
  return is_worker_thread;
}

struct Worker::Queue {
  struct Entry {
    ExitGuard exit_guard{};
    std::function<void()> task;
    std::shared_ptr<WorkState> state;
    devices::CurrentDevice device{};  // of the thread that submits the task
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Entry> entries;
  bool running = false;
  bool stopping = false;

  void run() {
    is_worker_thread = true;
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return stopping || !entries.empty(); });
      if (entries.empty()) return;
      auto entry = std::move(entries.front());
      entries.pop_front();
      running = true;
      lock.unlock();
      run_entry(std::move(entry));
      lock.lock();
      running = false;
    }
  }

  // Destroy the task before its state completes: a thread that waits may rely on the release of what the task holds.
  static void run_entry(Entry entry) {
    std::exception_ptr failure;
    try {
      entry.device.make_current();
      entry.task();
    } catch (...) {
      failure = std::current_exception();
    }
    entry.task = nullptr;
    entry.state->end(std::move(failure));
  }
};

Worker::Worker() : queue_(std::make_shared<Queue>()) {}

Worker::~Worker() {
  const bool own_thread = thread_.get_id() == std::this_thread::get_id();
  std::deque<Queue::Entry> dropped;
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->stopping = true;
    if (own_thread) dropped.swap(queue_->entries);
  }
  queue_->changed.notify_all();
  for (auto& entry : dropped) {
    entry.state->end(std::make_exception_ptr(Error("The communicator was destroyed before this operation started.")));
  }
  if (own_thread) {
    thread_.detach();
  } else if (thread_.joinable()) {
    thread_.join();
  }
}

std::shared_ptr<WorkState> Worker::submit(std::function<void()> task) {
  std::unique_lock lock(queue_->mutex);
  if (thread_.get_id() == std::this_thread::get_id()) {
    lock.unlock();  // the task may submit another one
    return run_now(task);
  }
  if (!thread_.joinable())
    thread_ = std::thread([queue = queue_] {
      name_this_thread("tutti-worker");
      queue->run();
    });
  auto state = std::make_shared<WorkState>();
  queue_->entries.push_back({.task = std::move(task), .state = state});
  lock.unlock();
  queue_->changed.notify_one();
  return state;
}

bool Worker::idle() const {
  const std::lock_guard lock(queue_->mutex);
  return queue_->entries.empty() && !queue_->running;
}

bool Worker::is_starting() const {
  const std::lock_guard lock(queue_->mutex);
  return !queue_->entries.empty() && !queue_->running;
}

}  // namespace comm
}  // namespace tutti
