// Which thread of the event loop handles the events of the sockets, and how they are taken.
#include <c10/util/ScopeExit.h>
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "comm/transport/tcp/event_loop.h"

namespace tutti::comm {

void EventLoop::set_handler(Handler handler) {
  const bool had_waiter = handler_ == Handler::waiter;
  handler_ = handler;
  if (had_waiter == (handler == Handler::waiter)) return;
  poller_.watch(sockets_.descriptor(), had_waiter ? std::uint32_t{EPOLLIN} : 0);
}

void EventLoop::serve(const std::function<bool()>& is_over, Deadline until) {
  Lock lock(mutex_);
  if (handler_ != Handler::none || stopping_) return;
  set_handler(Handler::waiter);
  const auto hand_back = c10::make_scope_exit([&] {
    if (!lock.owns_lock()) lock.lock();
    set_handler(Handler::none);
    if (!ready_.empty() || stopping_) wake();
    if (stopping_) changed_.notify_all();
  });
  while (!stopping_ && !is_over()) {
    const auto now = Clock::now();
    if (now >= until) return;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(std::min<Clock::duration>(until - now, max_wait));
    handle_events(lock, ready_.empty() ? left : left.zero());
  }
}

void EventLoop::wait_for_events(Lock& lock) {
  const auto timeout = time_to_wait();
  lock.unlock();
  const bool have_sockets_events = !poller_.wait(timeout).empty();
  lock.lock();
  if (handler_ != Handler::none || (!have_sockets_events && ready_.empty())) return;
  set_handler(Handler::loop);
  handle_events(lock, {});
  set_handler(Handler::none);
}

void EventLoop::handle_events(Lock& lock, std::chrono::milliseconds timeout) {
  lock.unlock();
  const auto events = sockets_.wait(timeout);
  lock.lock();
  for (const auto& connection : std::exchange(ready_, {})) handle(lock, connection, EPOLLIN);
  for (const epoll_event& event : events) {
    if (event.data.fd == listening_.socket.get()) {
      accept_connections();
      if (handler_ == Handler::waiter) wake();  // for the timer of the new connections
    } else if (const auto found = connections_.find(event.data.fd); found != connections_.end()) {
      handle(lock, ConnectionPtr(found->second), event.events);
    }
  }
}

}  // namespace tutti::comm
