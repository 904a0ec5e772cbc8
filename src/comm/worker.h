#pragma once
// A thread that runs tasks in order, started with the first one.
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/deadlock/inflight_calls.h"

namespace tutti::comm {

/// What a Work refers to. Thread safe.
class WorkState {
 public:
  void end(std::exception_ptr failure);
  /// Whose calls wait() waits for. Before anybody else has it.
  void set_inflight_calls(std::shared_ptr<InflightCalls> calls) { calls_ = std::move(calls); }
  void wait();
  bool is_completed() const;
  /// What it failed with; null while it has not ended, and where it ended well.
  std::exception_ptr exception() const;
  /// See Work::then.
  void then(std::function<void()> continuation);

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool completed_ = false;
  std::exception_ptr failure_;
  std::vector<std::function<void()>> continuations_;
  std::shared_ptr<InflightCalls> calls_;
};

/// Runs `task` now and keeps what it throws.
std::shared_ptr<WorkState> run_now(const std::function<void()>& task);

class Worker {
 public:
  Worker();
  /// Runs what was submitted, then ends. Called on the worker's own thread it gives up what is left instead.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// On the worker's own thread a task runs at once: waiting for it could never end.
  std::shared_ptr<WorkState> submit(std::function<void()> task);
  /// Whether the calling thread is a worker's.
  static bool is_on_worker_thread();
  /// Whether everything that was submitted has ended.
  bool idle() const;

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;
  std::mutex thread_mutex_;
  std::thread thread_;
};

}  // namespace tutti::comm
