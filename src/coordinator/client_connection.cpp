#include "coordinator/client_connection.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include "coordinator/address.h"
#include "core/describe.h"
#include "core/socket.h"
#include "core/thread_name.h"
#include "tutti/core/error.h"

namespace tutti::coordinator {
namespace {

constexpr auto late_limit = Milliseconds(200);
constexpr auto retry_interval = Milliseconds(20);
constexpr auto not_yet_interval = Milliseconds(100);
// A machine that is away answers no SYN; the kernel repeats it after 1, 3, 7 s.
constexpr auto attempt_timeout = Milliseconds(3000);
constexpr auto cancel_timeout = Milliseconds(1000);  // for the names of the ranks that are missing
constexpr auto leave_timeout = Milliseconds(2000);
// A coordinator that closes so many connections before its answer has another secret, or is no coordinator.
constexpr int max_closed_attempts = 5;

ClientKey random_key() {
  ClientKey key;
  if (::getrandom(key.data(), sizeof(key), 0) != sizeof(key)) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return key;
}

FileDescriptor checked(int descriptor, const char* what) {
  if (descriptor < 0) throw std::system_error(errno, std::generic_category(), what);
  return FileDescriptor(descriptor);
}

}  // namespace

Client::Connection::Connection(const ClientOptions& options, ClientEvents events)
    : options_(options),
      events_(std::move(events)),
      key_(random_key()),
      epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      wake_(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      timer_(checked(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK), "timerfd_create")) {
  const auto deadline = current_time() + options_.connect_timeout;
  hosts_ = local_name(options_.host) ? std::vector{options_.host} : resolve_host(options_.host);
  while (hosts_.empty() && current_time() < deadline) {  // the name of a machine that is just being started
    std::this_thread::sleep_for(retry_interval);
    hosts_ = resolve_host(options_.host);
  }
  if (hosts_.empty()) throw TimeoutError("the host of the coordinator, " + options_.host + ", has no address", {});
  if (options_.secret != nullptr) tls_.emplace(*options_.secret, Side::client);
  watch(EPOLL_CTL_ADD, wake_.get(), EPOLLIN);
  watch(EPOLL_CTL_ADD, timer_.get(), EPOLLIN);
  thread_ = std::thread([this] {
    name_this_thread("tutti-coord");
    try {
      run();
    } catch (const std::exception& error) {  // no memory, or OpenSSL was cleaned up at the end of the process
      end(std::nullopt, "the connection to the coordinator at " + address() + " failed: " + error.what());
    }
  });
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return phase_ != Phase::connecting; });
  if (phase_ == Phase::running) return;
  const bool has_timed_out = phase_ == Phase::connecting;
  stop_ = Stop::abandoning;
  lock.unlock();
  wake();
  thread_.join();
  if (!has_timed_out) throw_ended("connecting to the coordinator");
  throw TimeoutError(
      "the coordinator at " + address() + " did not accept rank " + std::to_string(options_.member.rank) + " within " +
          describe_duration(options_.connect_timeout) + (connect_error_.empty() ? "" : " (" + connect_error_ + ")"),
      {});
}

Client::Connection::~Connection() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = std::uncaught_exceptions() > 0 ? Stop::abandoning : Stop::leaving;
  }
  wake();
  thread_.join();
}

std::string Client::Connection::address() const {
  return local_name(options_.host) ? options_.host : options_.host + " port " + std::to_string(options_.port);
}

// ---- the callers' side

std::string Client::Connection::call(const std::string& what, MessageType type, const BodyWriter& body,
                                     std::optional<Milliseconds> timeout) {
  if (body.size() > max_body_bytes)
    throw UsageError(what + ": more than " + std::to_string(max_value_bytes) + " bytes");
  std::unique_lock lock(mutex_);
  if (has_ended()) throw_ended(what);
  const auto tag = next_tag_++;
  const auto found = requests_.emplace(tag, Request{.frame = body.frame(type, tag)}).first;
  auto& request = found->second;
  outgoing_ += request.frame;
  wake();
  const auto is_over = [&] { return request.is_answered || has_ended(); };
  if (!timeout) {
    changed_.wait(lock, is_over);
  } else if (!changed_.wait_for(lock, *timeout, is_over)) {
    outgoing_ += BodyWriter().frame(MessageType::cancel, tag);
    wake();
    changed_.wait_for(lock, cancel_timeout, is_over);
  }
  const auto answered = std::move(request);
  requests_.erase(found);
  if (answered.error) throw_error(what, *answered.error, timeout.value_or(Milliseconds(0)));
  if (answered.is_answered) return answered.reply;
  if (has_ended()) throw_ended(what);
  throw TimeoutError(what + ": the coordinator did not answer within " + describe_duration(*timeout), {});
}

void Client::Connection::throw_error(const std::string& what, const ErrorReply& error, Milliseconds timeout) {
  switch (error.error) {
    case RequestError::usage:
      throw UsageError(what + ": " + error.text);
    case RequestError::peer_failed:
      throw PeerError(what + ": " + error.text, error.ranks);
    case RequestError::timed_out:
      break;
  }
  const auto missing = error.text.empty() ? std::string() : ": " + error.text + " missing";
  throw TimeoutError(what + " timed out after " + describe_duration(timeout) + missing, error.ranks);
}

void Client::Connection::throw_ended(const std::string& what) const {
  if (is_usage_error_) throw UsageError(why_ended_);
  throw PeerError(what + ": " + why_ended_, {});
}

void Client::Connection::post(MessageType type, const BodyWriter& body) {
  const std::lock_guard lock(mutex_);
  const auto tag = next_tag_++;
  const auto& request = requests_.emplace(tag, Request{.frame = body.frame(type, tag), .has_caller = false}).first;
  outgoing_ += request->second.frame;
  wake();
}

void Client::Connection::state_blocked(std::string frame) {
  const std::lock_guard lock(mutex_);
  outgoing_ += frame;
  blocked_frame_ = std::move(frame);
  wake();
}

void Client::Connection::send_once(const std::string& frame) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::running) outgoing_ += frame;
  wake();
}

void Client::Connection::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
}

// ---- the thread

void Client::Connection::run() {
  set_timer(retry_interval);
  start_attempt();
  auto last_tick = current_time();
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (has_ended() || stop_ != Stop::no) break;
    }
    std::array<epoll_event, 4> events{};
    const int ready = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
    bool has_ticked = false;
    bool is_socket_ready = false;
    for (int index = 0; index < ready; ++index) {
      const int descriptor = events.at(static_cast<std::size_t>(index)).data.fd;
      std::uint64_t count = 0;
      if (descriptor == wake_.get() || descriptor == timer_.get()) {
        if (::read(descriptor, &count, sizeof(count)) > 0 && descriptor == timer_.get()) has_ticked = true;
      } else {
        is_socket_ready = true;
      }
    }
    if (is_socket_ready && link_ == Link::connecting) on_connected();
    if (link_ == Link::greeting || link_ == Link::welcomed) pump();
    if (has_ticked) {
      const auto elapsed = current_time() - std::exchange(last_tick, current_time());
      on_tick(elapsed > 2 * interval_ + late_limit);
    }
    send_outgoing();
  }
  leave();
}

void Client::Connection::set_timer(Milliseconds interval) {
  interval_ = interval;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(interval);
  const timespec time{.tv_sec = seconds.count(), .tv_nsec = std::chrono::nanoseconds(interval - seconds).count()};
  const itimerspec spec{.it_interval = time, .it_value = time};
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

void Client::Connection::watch(int operation, int descriptor, std::uint32_t events) {
  epoll_event event{.events = events, .data = {.fd = descriptor}};
  if (::epoll_ctl(epoll_.get(), operation, descriptor, &event) != 0 && operation == EPOLL_CTL_ADD) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

void Client::Connection::on_tick(bool was_late) {
  const auto time = current_time();
  if (phase_ == Phase::reconnecting && time - broken_since_ >= options_.heartbeat_timeout) {
    // A coordinator that is stopped accepts connections through its kernel and is not lost.
    const bool is_stopped = link_ == Link::greeting && !has_unacknowledged_bytes(stream_->socket());
    if (!is_stopped) {
      return end(Cause::unreachable, "the coordinator at " + address() + " cannot be reached for " +
                                         describe_duration(options_.heartbeat_timeout) + " (" + last_error_ + ")");
    }
  }
  switch (link_) {
    case Link::none:
      return start_attempt();
    case Link::connecting:
      if (time - attempt_began_ >= std::min(attempt_timeout, options_.heartbeat_timeout)) {
        attempt_failed("no answer from its machine", false);
      }
      return;
    case Link::greeting:
      return;
    case Link::welcomed:
      break;
  }
  // A stopped coordinator's kernel acknowledges: only a cut leaves bytes unacknowledged. The look precedes the next
  // heartbeat, and a process that has been stopped itself does not look.
  const auto& socket = stream_->socket();
  const auto unacknowledged_for = since_last_acknowledgement(socket);
  if (!was_late && unacknowledged_for >= options_.heartbeat_timeout / 2 && has_unacknowledged_bytes(socket)) {
    return on_broken("its machine has acknowledged nothing for " + describe_duration(unacknowledged_for),
                     time - unacknowledged_for);
  }
  if (check_response(time, was_late)) send_heartbeat();
}

bool Client::Connection::check_response(Time now, bool was_late) {
  if (options_.response_timeout == Milliseconds(0)) return true;
  if (was_late) last_heard_ = now;
  const auto unheard_for = now - last_heard_;
  if (unheard_for >= options_.response_timeout) {
    end(Cause::stopped, "the coordinator's process at " + address() + " has not answered for " +
                            describe_duration(options_.response_timeout));
    return false;
  }
  constexpr int asks_per_timeout = 4;
  if (unheard_for >= options_.response_timeout / asks_per_timeout && !std::exchange(has_asked_, true)) {
    post(MessageType::check, BodyWriter().texts({}));
  }
  return true;
}

void Client::Connection::start_attempt() {
  attempt_began_ = current_time();
  const auto& host = hosts_[attempts_++ % hosts_.size()];
  try {
    if (const auto name = local_name(host)) {
      connecting_ = connect_local(*name);
      if (!is_same_user(connecting_)) return attempt_failed("a process of another user listens there", true);
    } else {
      connecting_ = connect_nonblocking({.host = host, .port = options_.port});
    }
    watch(EPOLL_CTL_ADD, connecting_.get(), EPOLLIN | EPOLLOUT);
    link_ = Link::connecting;
  } catch (const std::system_error& error) {
    on_connect_error(error);
  }
}

void Client::Connection::on_connect_error(const std::system_error& error) {
  attempt_failed(error.code().message(), false);
  if (phase_ == Phase::reconnecting && error.code().value() == ECONNREFUSED) {
    end(Cause::exited, "the coordinator's process has exited (" + address() + ")");
  }
}

void Client::Connection::on_connected() {
  try {
    finish_connect(connecting_);
  } catch (const std::system_error& error) {
    return on_connect_error(error);
  }
  link_ = Link::greeting;
  awaits_writable_ = true;
  stream_.emplace(std::move(connecting_), tls_ ? &*tls_ : nullptr);
  stream_->accept_large_frames();
  stream_->send(Hello{.member = options_.member,
                      .key = key_,
                      .events_seen = events_seen_,
                      .heartbeat_timeout = options_.heartbeat_timeout,
                      .deadlock_timeout = options_.deadlock_timeout}
                    .frame());
}

void Client::Connection::attempt_failed(const std::string& why, bool is_final) {
  connecting_.reset();
  stream_.reset();
  link_ = Link::none;
  last_error_ = why;
  if (is_final)
    return end(std::nullopt,
               "the coordinator at " + address() + " refused rank " + std::to_string(options_.member.rank) + ": " + why,
               phase_ == Phase::connecting);
  const std::lock_guard lock(mutex_);
  connect_error_ = why;
}

void Client::Connection::pump() {
  const auto state = stream_->pump([this](const FrameHeader& header, std::string_view body) {
    if (!has_ended() && !not_yet_) on_frame(header, body);
  });
  if (has_ended()) return;
  if (const auto why = std::exchange(not_yet_, std::nullopt)) {  // the ranks of an earlier program are present
    set_timer(not_yet_interval);
    return attempt_failed(*why, false);
  }
  if (state != Stream::State::open) {
    const bool has_no_proof = state == Stream::State::unauthenticated;
    const std::string why = has_no_proof                      ? "it does not know this rank's secret"
                            : state == Stream::State::closed  ? "it closed the connection"
                            : state == Stream::State::reset   ? "it reset the connection"
                            : state == Stream::State::damaged ? "it sent bytes that no coordinator sends"
                                                              : "the network failed";
    if (link_ == Link::welcomed) return on_broken(why, current_time());
    const bool is_answer = has_no_proof || state == Stream::State::damaged;
    const bool is_final = is_answer || ++closed_attempts_ >= max_closed_attempts;
    return attempt_failed(is_final && !has_no_proof ? why + ". Do both sides have the same secret, or none?" : why,
                          is_final && phase_ == Phase::connecting);
  }
  if (awaits_writable_ != stream_->wants_write()) {
    awaits_writable_ = stream_->wants_write();
    watch(EPOLL_CTL_MOD, stream_->socket().get(), awaits_writable_ ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
}

void Client::Connection::on_broken(const std::string& why, Time since) {
  watch(EPOLL_CTL_DEL, stream_->socket().get(), 0);
  broken_stream_ = std::move(stream_);
  stream_.reset();
  last_error_ = why;
  broken_since_ = since;
  closed_attempts_ = 0;
  {
    const std::lock_guard lock(mutex_);
    phase_ = Phase::reconnecting;
  }
  set_timer(retry_interval);
  start_attempt();
}

void Client::Connection::on_welcome(const Welcome& welcome) {
  link_ = Link::welcomed;
  broken_stream_.reset();
  closed_attempts_ = 0;
  set_timer(Milliseconds(std::max(1U, welcome.heartbeat_interval_ms)));
  const std::lock_guard lock(mutex_);
  // What was not answered is sent again; the coordinator does not do it twice.
  outgoing_.clear();
  for (const auto& [tag, request] : requests_) {
    if (!request.is_answered) outgoing_ += request.frame;
  }
  outgoing_ += blocked_frame_;
  phase_ = Phase::running;
  changed_.notify_all();
}

void Client::Connection::on_frame(const FrameHeader& header, std::string_view body) {
  const auto type = header.message();
  last_heard_ = current_time();
  has_asked_ = false;
  if (link_ == Link::greeting) {
    if (type == MessageType::welcome) return on_welcome(Welcome::from_body(body));
    if (type == MessageType::not_yet) {
      not_yet_ = BodyReader(body).text();
      return;
    }
    if (type != MessageType::refused) throw DamagedFrame("no answer to a hello");
    return end(std::nullopt,
               "the coordinator at " + address() + " refused rank " + std::to_string(options_.member.rank) + ": " +
                   BodyReader(body).text(),
               phase_ == Phase::connecting);
  }
  switch (type) {
    case MessageType::probe:
      return send_heartbeat();
    case MessageType::reply:
    case MessageType::error_reply: {
      const std::lock_guard lock(mutex_);
      const auto found = requests_.find(header.tag);
      if (found == requests_.end()) return;
      if (!found->second.has_caller) {
        requests_.erase(found);
        return;
      }
      found->second.is_answered = true;
      if (type == MessageType::reply) found->second.reply = body;
      if (type == MessageType::error_reply) found->second.error = ErrorReply::from_body(body);
      changed_.notify_all();
      return;
    }
    default:
      ++events_seen_;
      return on_event(type, body);
  }
}

void Client::Connection::on_event(MessageType type, std::string_view body) {
  const int self = options_.member.rank;
  BodyReader reader(body);
  switch (type) {
    case MessageType::failed: {
      auto failed = failed_ranks_from(body);
      const bool names_self = std::erase(failed.ranks, self) > 0;
      if (!failed.ranks.empty() && events_.on_failed) events_.on_failed(failed);
      if (names_self && !failed.is_warning) {
        end(std::nullopt, "the coordinator has judged that this rank (" + std::to_string(self) +
                              ") has failed: it sent no heartbeat " + "for " +
                              describe_duration(options_.heartbeat_timeout));
      }
      return;
    }
    case MessageType::left:
      if (events_.on_left) events_.on_left(reader.ranks());
      return;
    case MessageType::failure_report: {
      const auto rank = reader.get<std::int32_t>();
      const auto group = reader.text();
      if (rank != self && events_.on_report) events_.on_report(group, rank, reader.text());
      return;
    }
    case MessageType::deadlock:
      if (events_.on_deadlock) events_.on_deadlock(deadlock_from(body));
      return;
    case MessageType::job_ended:
      return end(std::nullopt, reader.text(), true);
    default:
      throw DamagedFrame("an unknown type of message");
  }
}

void Client::Connection::send_outgoing() {
  if (link_ != Link::welcomed || has_ended()) return;
  std::string frames;
  {
    const std::lock_guard lock(mutex_);
    frames.swap(outgoing_);
  }
  if (!frames.empty()) stream_->send(frames);
  if (stream_->wants_write() && !awaits_writable_) {
    awaits_writable_ = true;
    watch(EPOLL_CTL_MOD, stream_->socket().get(), EPOLLIN | EPOLLOUT);
  }
}

void Client::Connection::send_heartbeat() {
  if (stream_->wants_write()) return;  // the coordinator is stopped, and earlier bytes say as much
  std::uint64_t lowest = 0;
  {
    const std::lock_guard lock(mutex_);
    lowest = requests_.empty() ? next_tag_ : requests_.begin()->first;
  }
  stream_->send(BodyWriter().put(lowest).frame(MessageType::heartbeat));
}

void Client::Connection::end(std::optional<Cause> cause, const std::string& why, bool is_usage_error) {
  bool had_started = false;
  {
    const std::lock_guard lock(mutex_);
    if (has_ended()) return;
    had_started = phase_ != Phase::connecting;
    phase_ = Phase::ended;
    why_ended_ = why;
    is_usage_error_ = is_usage_error;
    changed_.notify_all();
  }
  if (had_started && events_.on_lost) events_.on_lost(cause, why);
}

// The coordinator reads all that this rank has sent, then closes. Closing first could discard the last bytes.
void Client::Connection::leave() {
  bool leaves = false;
  {
    const std::lock_guard lock(mutex_);
    leaves = stop_ == Stop::leaving && phase_ == Phase::running;
  }
  if (!leaves || link_ != Link::welcomed) return;
  send_outgoing();
  stream_->send(BodyWriter().frame(MessageType::leave));
  const auto deadline = current_time() + leave_timeout;
  set_timer(retry_interval);
  while (current_time() < deadline &&
         stream_->pump([](const FrameHeader&, std::string_view) {}) == Stream::State::open) {
    watch(EPOLL_CTL_MOD, stream_->socket().get(), stream_->wants_write() ? EPOLLIN | EPOLLOUT : EPOLLIN);
    epoll_event event{};
    std::uint64_t count = 0;
    ::epoll_wait(epoll_.get(), &event, 1, static_cast<int>(leave_timeout.count()));
    if (event.data.fd == wake_.get() || event.data.fd == timer_.get()) {
      [[maybe_unused]] const auto got = ::read(event.data.fd, &count, sizeof(count));
    }
  }
}

}  // namespace tutti::coordinator
