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
  watch(wake_.get(), EPOLLIN);
}

void Poller::watch(int descriptor, std::uint32_t events) {
  const auto known = watched_.find(descriptor);
  const bool is_new = known == watched_.end();
  if (!is_new && known->second == events) return;
  epoll_event event{.events = events, .data = {.fd = descriptor}};
  if (::epoll_ctl(epoll_.get(), is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, descriptor, &event) != 0) {
    throw_error("epoll_ctl");
  }
  watched_[descriptor] = events;
}

void Poller::forget(int descriptor) {
  if (watched_.erase(descriptor) > 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
}

std::span<const epoll_event> Poller::wait(Milliseconds timeout) {
  const auto milliseconds = static_cast<int>(std::max(timeout, Milliseconds(0)).count());
  const int ready = ::epoll_wait(epoll_.get(), events_.data(), max_events, milliseconds);
  const auto all = std::span(events_).first(static_cast<std::size_t>(std::max(0, ready)));
  const auto woken = std::ranges::find(all, wake_.get(), [](const epoll_event& event) { return event.data.fd; });
  if (woken == all.end()) return all;
  std::uint64_t wakes = 0;
  [[maybe_unused]] const auto got = ::read(wake_.get(), &wakes, sizeof(wakes));
  *woken = all.back();
  return all.first(all.size() - 1);
}

void Poller::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
}

}  // namespace tutti::coordinator
