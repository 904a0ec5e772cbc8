// Which thread of the event loop handles the events of the sockets, and how they are taken.
#include <c10/util/ScopeExit.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <span>
#include <system_error>
#include <utility>

#include "comm/transport/tcp/event_loop.h"

namespace tutti::comm {
namespace {

void clear_event(const FileDescriptor& event_fd) {
  std::uint64_t ignored = 0;
  (void)!::read(event_fd.get(), &ignored, sizeof(ignored));
}

void set_event(const FileDescriptor& event_fd) {
  const std::uint64_t once = 1;
  (void)!::write(event_fd.get(), &once, sizeof(once));
}

std::span<epoll_event> take_events(const FileDescriptor& epoll, std::span<epoll_event> events, int timeout) {
  const int count = ::epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), timeout);
  return events.first(static_cast<std::size_t>(std::max(0, count)));
}

}  // namespace

void EventLoop::wake() const {
  set_event(wake_fd_);
}

void EventLoop::interrupt() const {
  set_event(interrupt_fd_);
}

void EventLoop::watch(const FileDescriptor& epoll, int descriptor, std::uint32_t events) {
  epoll_event event{.events = events, .data = {.fd = descriptor}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, descriptor, &event) != 0)
    throw std::system_error(errno, std::generic_category(), "epoll");
}

void EventLoop::set_handler(Handler handler) {
  const bool had_waiter = handler_ == Handler::waiter;
  handler_ = handler;
  if (had_waiter == (handler == Handler::waiter)) return;
  epoll_event event{.events = had_waiter ? std::uint32_t{EPOLLIN} : 0, .data = {.fd = sockets_fd_.get()}};
  ::epoll_ctl(epoll_fd_.get(), EPOLL_CTL_MOD, sockets_fd_.get(), &event);
}

void EventLoop::serve(const std::function<bool()>& is_over, Deadline until) {
  Lock lock(mutex_);
  if (handler_ != Handler::none || stopping_) return;
  set_handler(Handler::waiter);
  waiter_ = std::this_thread::get_id();
  const auto hand_back = c10::make_scope_exit([&] {
    if (!lock.owns_lock()) lock.lock();
    waiter_ = {};
    set_handler(Handler::none);
    if (!ready_.empty() || stopping_) wake();
    if (stopping_) changed_.notify_all();
  });
  while (!stopping_ && !is_over()) {
    const auto now = Clock::now();
    if (now >= until) return;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
    handle_events(lock, ready_.empty() ? static_cast<int>(std::min<std::int64_t>(left, 60'000)) : 0);
  }
}

void EventLoop::wait_for_events(Lock& lock) {
  std::array<epoll_event, 2> memory{};
  const int timeout = milliseconds_to_wait();
  lock.unlock();
  const auto events = take_events(epoll_fd_, memory, timeout);
  lock.lock();
  const auto has_event = [&](const FileDescriptor& one) {
    return std::ranges::any_of(events, [&](const epoll_event& event) { return event.data.fd == one.get(); });
  };
  if (has_event(wake_fd_)) clear_event(wake_fd_);
  if (handler_ != Handler::none || (!has_event(sockets_fd_) && ready_.empty())) return;
  set_handler(Handler::loop);
  handle_events(lock, 0);
  set_handler(Handler::none);
}

void EventLoop::handle_events(Lock& lock, int timeout) {
  std::array<epoll_event, 64> memory{};
  lock.unlock();
  const auto events = take_events(sockets_fd_, memory, timeout);
  lock.lock();
  for (const auto& connection : std::exchange(ready_, {})) handle(lock, connection, EPOLLIN);
  for (const epoll_event& event : events) {
    if (event.data.fd == interrupt_fd_.get()) {
      clear_event(interrupt_fd_);
    } else if (event.data.fd == listening_.socket.get()) {
      accept_connections();
      if (handler_ == Handler::waiter) wake();  // for the timer of the new connections
    } else if (const auto found = connections_.find(event.data.fd); found != connections_.end()) {
      handle(lock, ConnectionPtr(found->second), event.events);
    }
  }
}

}  // namespace tutti::comm
