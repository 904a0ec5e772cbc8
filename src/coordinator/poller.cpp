#include "coordinator/poller.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace tutti::coordinator {
namespace {

[[noreturn]] void throw_error(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

Poller::Poller() : epoll_(::epoll_create1(EPOLL_CLOEXEC)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_.is_open()) throw_error("epoll_create1");
  if (!wake_.is_open()) throw_error("eventfd");
  watch(wake_, EPOLLIN);
}

void Poller::watch(const FileDescriptor& descriptor, std::uint32_t events) {
  const auto known = watched_.find(descriptor.get());
  const bool is_new = known == watched_.end();
  if (!is_new && known->second == events) return;
  epoll_event event{.events = events, .data = {.fd = descriptor.get()}};
  if (::epoll_ctl(epoll_.get(), is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, descriptor.get(), &event) != 0) {
    throw_error("epoll_ctl");
  }
  watched_[descriptor.get()] = events;
}

void Poller::forget(const FileDescriptor& descriptor) {
  if (watched_.erase(descriptor.get()) > 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor.get(), nullptr);
}

void Poller::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
}

void Poller::clear_wake() const {
  std::uint64_t wakes = 0;
  [[maybe_unused]] const auto got = ::read(wake_.get(), &wakes, sizeof(wakes));
}

int Poller::wait_for_events(Milliseconds timeout) {
  const auto wait = static_cast<int>(std::max(timeout, Milliseconds(0)).count());
  return ::epoll_wait(epoll_.get(), events_.data(), max_events, wait);
}

}  // namespace tutti::coordinator
