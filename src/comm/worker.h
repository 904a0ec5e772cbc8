#pragma once
// A thread that runs tasks in order. The first task starts it.
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/deadlock/inflight_calls.h"

namespace tutti::comm {

/// The state that copies of a Work share. Thread safe.
class WorkState {
 public:
  void end(std::exception_ptr failure);
  /// Sets the calls that wait() waits for; null for a work that no call of a communicator completes. A thread in wait()
  /// then counts as one of `callers`, the threads that may make calls. Call before another thread waits.
  void set_calls(std::shared_ptr<InflightCalls> calls, std::shared_ptr<CallerThreads> callers);
  void wait();
  bool is_completed() const;
  /// Sets what each wait() runs on its thread after the operation succeeded. Call before another thread waits.
  void set_on_waited(std::function<void()> on_waited);
  /// The exception of a failed operation; null if the operation is in flight or succeeded.
  std::exception_ptr exception() const;
  /// See Work::then.
  void then(std::function<void()> continuation);

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool completed_ = false;
  std::exception_ptr failure_;
  std::vector<std::function<void()>> continuations_;
  std::function<void()> on_waited_;
  std::shared_ptr<InflightCalls> calls_;
  std::shared_ptr<CallerThreads> callers_;  // the thread that runs continuations is one of them meanwhile
};

/// Runs `task` on the calling thread. The returned state keeps its exception.
std::shared_ptr<WorkState> run_now(const std::function<void()>& task);

class Worker {
 public:
  Worker();
  /// Runs the tasks that are left, then joins the thread. On the worker's own thread it discards the tasks that are
  /// left: their operations end with an error.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Queues `task`, which runs with the calling thread's current device. On the worker's own thread runs it at once,
  /// because waiting for a queued task would deadlock.
  std::shared_ptr<WorkState> submit(std::function<void()> task);
  /// Whether the calling thread is the thread of a Worker.
  static bool is_on_worker_thread();
  /// Whether all submitted tasks have completed.
  bool idle() const;
  /// Whether a submitted task has not begun although no other task runs.
  bool is_starting() const;

 private:
  struct Queue;
  std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

}  // namespace tutti::comm
