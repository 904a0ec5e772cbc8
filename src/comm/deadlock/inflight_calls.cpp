#include "comm/deadlock/inflight_calls.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "flight/call_text.h"

namespace tutti::comm {
namespace {

// The kernel's thread ID, because /proc tells whether such a thread still runs.
pid_t this_thread() {
  thread_local pid_t id = 0;
  // A forked child has one thread, whose ID differs from that of the thread that forked.
  [[maybe_unused]] static const int is_reset_in_child = ::pthread_atfork(nullptr, nullptr, [] { id = 0; });
  if (id == 0) id = static_cast<pid_t>(::syscall(SYS_gettid));
  return id;
}

bool has_exited(pid_t thread) {
  return ::access(("/proc/self/task/" + std::to_string(thread)).c_str(), F_OK) != 0;
}

}  // namespace

void CallerThreads::add(pid_t thread) {
  const std::lock_guard lock(mutex_);
  threads_.insert(thread);
}

std::set<pid_t> CallerThreads::running() {
  const std::lock_guard lock(mutex_);
  std::erase_if(threads_, has_exited);
  auto threads = threads_;
  threads.insert(in_task_.begin(), in_task_.end());
  return threads;
}

CallerThreads::Task::Task(std::shared_ptr<CallerThreads> threads) : threads_(std::move(threads)) {
  if (!threads_) return;
  threads_->change();
  const std::lock_guard lock(threads_->mutex_);
  threads_->in_task_.insert(this_thread());
}

CallerThreads::Task::~Task() {
  if (!threads_) return;
  threads_->change();
  const std::lock_guard lock(threads_->mutex_);
  threads_->in_task_.erase(threads_->in_task_.find(this_thread()));
}

void InflightCalls::on_call(const Operation& operation, bool on_own_thread) {
  const auto caller = this_thread();
  callers_->change();
  const std::lock_guard lock(mutex_);
  calls_ = operation.number + 1;
  if (on_own_thread || caller == last_caller_) return;
  last_caller_ = caller;
  callers_->add(caller);
}

InflightCalls::InCall::InCall(InflightCalls* calls, flight::EntryId entry) : calls_(calls), entry_(entry) {
  if (calls_ == nullptr) return;
  thread_ = this_thread();
  calls_->callers_->change();
  const std::lock_guard lock(calls_->mutex_);
  calls_->in_call_.push_back(this);
}

InflightCalls::InCall::~InCall() {
  if (calls_ == nullptr) return;
  {
    const std::lock_guard lock(calls_->mutex_);
    std::erase(calls_->in_call_, this);
  }
  calls_->callers_->change(std::memory_order_release);
}

InflightCalls::WaitingOnQueue::WaitingOnQueue(InflightCalls* calls) : calls_(calls) {
  if (calls_ == nullptr) return;
  const std::lock_guard lock(calls_->mutex_);
  calls_->waiting_on_queue_.insert(this_thread());
}

InflightCalls::WaitingOnQueue::~WaitingOnQueue() {
  if (calls_ == nullptr) return;
  calls_->callers_->change();
  const std::lock_guard lock(calls_->mutex_);
  calls_->waiting_on_queue_.erase(calls_->waiting_on_queue_.find(this_thread()));
}

void InflightCalls::set_listener(Listener* listener) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = listener;
}

InflightCalls::Snapshot InflightCalls::take_snapshot() const {
  Snapshot snapshot;
  const std::lock_guard lock(mutex_);
  snapshot.communicator = {.calls = calls_, .members = global_ranks_};
  snapshot.waiting_on_queue = {waiting_on_queue_.begin(), waiting_on_queue_.end()};
  for (const InCall* const in_call : in_call_) {
    const auto call = flight::read_entry(in_call->entry_, ::getpid());
    if (!call) {
      snapshot.is_complete = false;
      continue;
    }
    snapshot.in_call[in_call->thread_] = {
        .communicator = communicator_, .number = call->operation, .text = flight::describe_call(*call)};
  }
  return snapshot;
}

const WaitState::PendingCall* InflightCalls::Snapshot::pending_call_of(pid_t thread) const {
  const auto found = in_call.find(thread);
  if (found != in_call.end()) return &found->second;
  if (in_call.empty() || !waiting_on_queue.contains(thread)) return nullptr;
  return &std::ranges::min_element(in_call, {}, [](const auto& other) { return other.second.number; })->second;
}

}  // namespace tutti::comm
