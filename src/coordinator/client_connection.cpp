#include "coordinator/client.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

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
constexpr auto leave_timeout = Milliseconds(2000);
// A coordinator that closes so many connections at once, before its answer, has another secret, or is no coordinator. A
// proxy does the same while rank 0 starts. (A coordinator under load closes connections that have waited:
// PendingLimit.)
constexpr int max_closed_attempts = 5;
constexpr auto closed_interval = Milliseconds(1000);
constexpr auto closed_at_once_limit = Milliseconds(100);

}  // namespace

Client::Client(const ClientOptions& options, ClientEvents events)
    : options_(options),
      events_(std::move(events)),
      key_(random_nonce()),
      connect_deadline_(current_time() + options_.connect_timeout),
      address_(options_.host, options_.port, connect_deadline_) {
  if (options_.secret != nullptr) tls_.emplace(*options_.secret, Side::client);
  thread_ = std::thread([this] {
    name_this_thread("tutti-coord");
    try {
      run();
    } catch (const std::exception& error) {  // no memory, or OpenSSL was cleaned up at the end of the process
      end(std::nullopt, "the connection to the coordinator at " + address_.describe() + " failed: " + error.what());
    }
  });
  try {
    if (requests_.wait_for_connection(connect_deadline_)) return;
  } catch (const std::exception&) {
    stop(Stop::abandoning);
    throw;
  }
  stop(Stop::abandoning);
  throw TimeoutError("the coordinator at " + address_.describe() + " did not accept rank " +
                         std::to_string(options_.member.rank) + " within " +
                         describe_duration(options_.connect_timeout) +
                         (last_error_.empty() ? "" : " (" + last_error_ + ")"),
                     {});
}

Client::~Client() {
  stop(std::uncaught_exceptions() > 0 ? Stop::abandoning : Stop::leaving);
}

void Client::stop(Stop how) {
  stop_ = how;
  poller_.wake();
  thread_.join();
}

void Client::run() {
  enter(State::waiting);
  start_attempt();
  auto last_tick = current_time();
  do {
    while (continues()) {
      if (!poller_.wait(time_until(next_tick_)).empty()) state_ == State::connecting ? on_connected() : pump();
      if (const auto now = current_time(); now >= next_tick_) {
        const bool was_late = now - std::exchange(last_tick, now) > 2 * interval_ + late_limit;
        tick_every(interval_);
        on_tick(now, was_late);
      }
      send_frames();
    }
  } while (!leave());
}

// A rank that leaves while its connection is broken connects again first. Otherwise it would count as exited.
bool Client::continues() {
  if (state_ == State::ended || stop_ == Stop::abandoning) return false;
  if (stop_ == Stop::no) return true;
  const auto now = current_time();
  if (!leave_deadline_) leave_deadline_ = now + leave_timeout;
  return has_been_open_ && state_ != State::open && now < *leave_deadline_;
}

// Each state has its socket and its time between ticks.
void Client::enter(State next) {
  switch (next) {
    case State::waiting:
      poller_.forget((stream_ ? stream_->socket() : socket_).get());
      if (state_ == State::open) broken_stream_ = std::move(stream_);
      stream_.reset();
      socket_.reset();
      tick_every(retry_interval);
      break;
    case State::connecting:
      poller_.watch(socket_.get(), EPOLLIN | EPOLLOUT);
      break;
    case State::greeting:
      stream_.emplace(std::move(socket_), tls_ ? &*tls_ : nullptr);
      stream_->accept_large_frames();
      break;
    case State::open:
      broken_stream_.reset();
      has_been_open_ = true;
      address_.keep();
      break;
    case State::ended:
      break;
  }
  state_ = next;
}

void Client::tick_every(Milliseconds interval) {
  interval_ = interval;
  next_tick_ = current_time() + interval;
}

void Client::watch_stream() {
  if (stream_) poller_.watch(stream_->socket().get(), stream_->events());
}

void Client::on_tick(Time now, bool was_late) {
  if (has_been_open_ && state_ != State::open && now - broken_since_ >= options_.timeouts.heartbeat) {
    // A coordinator that is stopped accepts connections through its kernel.
    const bool is_stopped = state_ == State::greeting && !has_unacknowledged_bytes(stream_->socket());
    if (!is_stopped) {
      return end(Cause::unreachable, "the coordinator at " + address_.describe() + " cannot be reached for " +
                                         describe_duration(options_.timeouts.heartbeat) + " (" + last_error_ + ")");
    }
    if (options_.response_timeout > Milliseconds(0)) {
      if (!was_late) return end_as_stopped();
      broken_since_ = now;
    }
  }
  if (state_ == State::waiting) return start_attempt();
  if (state_ == State::connecting && now - attempt_began_ >= std::min(attempt_timeout, options_.timeouts.heartbeat)) {
    return fail_attempt("no answer from its machine");
  }
  if (state_ != State::open) return;
  // A stopped coordinator's kernel acknowledges: only a cut leaves bytes unacknowledged. The look precedes the next
  // heartbeat, and a process that has been stopped itself does not look.
  const auto& socket = stream_->socket();
  const auto unacknowledged_for = since_last_acknowledgement(socket);
  if (!was_late && unacknowledged_for >= options_.timeouts.heartbeat / 2 && has_unacknowledged_bytes(socket)) {
    return on_broken("its machine has acknowledged nothing for " + describe_duration(unacknowledged_for),
                     now - unacknowledged_for);
  }
  if (check_response(now, was_late)) send_heartbeat();
}

bool Client::check_response(Time now, bool was_late) {
  if (options_.response_timeout == Milliseconds(0)) return true;
  if (was_late) last_heard_ = now;
  if (was_late && asked_at_) asked_at_ = now;
  if (asked_at_) {
    if (now - *asked_at_ < options_.response_timeout) return true;
    end_as_stopped();
    return false;
  }
  constexpr int asks_per_timeout = 8;
  if (now - last_heard_ < options_.response_timeout / asks_per_timeout) return true;
  asked_at_ = now;
  requests_.post(MessageType::check, BodyWriter().texts({}));
  return true;
}

void Client::end_as_stopped() {
  end(Cause::stopped, "the coordinator's process at " + address_.describe() + " has not answered for " +
                          describe_duration(options_.response_timeout));
}

void Client::start_attempt() {
  attempt_began_ = current_time();
  try {
    socket_ = address_.start_connecting();
    enter(State::connecting);
  } catch (const std::system_error& error) {
    on_connect_error(error);
  } catch (const UsageError& error) {
    refuse(error.what());
  }
}

void Client::on_connect_error(const std::system_error& error) {
  closed_attempts_ = 0;
  fail_attempt(error.code().message());
  if (has_been_open_ && error.code().value() == ECONNREFUSED) {
    end(Cause::exited, "the coordinator's process has exited (" + address_.describe() + ")");
  }
}

void Client::on_connected() {
  try {
    finish_connect(socket_);
  } catch (const std::system_error& error) {
    return on_connect_error(error);
  }
  set_keepalive(socket_, options_.timeouts.heartbeat);  // a stopped coordinator sends no answer, and no bytes wait
  enter(State::greeting);
  stream_->send(
      Hello{.member = options_.member, .key = key_, .events_seen = events_seen_, .timeouts = options_.timeouts}
          .frame());
  watch_stream();
}

void Client::fail_attempt(const std::string& why) {
  last_error_ = why;
  enter(State::waiting);
}

void Client::refuse(const std::string& why) {
  end(std::nullopt,
      "the coordinator at " + address_.describe() + " refused rank " + std::to_string(options_.member.rank) + ": " +
          why,
      !has_been_open_);
}

void Client::pump() {
  const auto stream_state = stream_->pump([this](const FrameHeader& header, std::string_view body) {
    if (state_ != State::ended && !not_yet_) on_frame(header, body);
  });
  if (stream_->has_progressed()) {  // a long answer takes longer than the response timeout
    last_heard_ = current_time();
    asked_at_.reset();
  }
  if (state_ == State::ended) return;
  if (const auto why = std::exchange(not_yet_, std::nullopt)) {  // the ranks of an earlier program are present
    fail_attempt(*why);
    return tick_every(not_yet_interval);
  }
  if (stream_state != Stream::State::open) return on_stream_end(stream_state);
  watch_stream();
}

void Client::on_stream_end(Stream::State state) {
  const std::string why = describe_end(state);
  if (state_ == State::open) return on_broken(why, current_time());
  const bool has_no_proof = state == Stream::State::unauthenticated;
  const bool is_answer = has_no_proof || state == Stream::State::damaged;
  const bool is_at_once = current_time() - attempt_began_ < closed_at_once_limit;
  const bool is_final = is_answer || (is_at_once && ++closed_attempts_ >= max_closed_attempts);
  if (!is_final || has_been_open_) {
    fail_attempt(why);
    if (is_at_once && !has_been_open_) tick_every(closed_interval);
    return;
  }
  refuse(has_no_proof ? why : why + ". Do both sides have the same secret, or none?");
}

void Client::on_broken(const std::string& why, Time since) {
  broken_since_ = since;
  fail_attempt(why);
  start_attempt();
}

void Client::on_frame(const FrameHeader& header, std::string_view body) {
  const auto type = header.message();
  if (state_ == State::greeting) return on_greeting_answer(type, body);
  switch (type) {
    case MessageType::probe:
      return send_heartbeat();
    case MessageType::reply:
    case MessageType::error_reply:
      return requests_.on_answer(header, body);
    default:
      return on_event(type, body);
  }
}

void Client::on_greeting_answer(MessageType type, std::string_view body) {
  BodyReader reader(body);
  switch (type) {
    case MessageType::welcome:
      enter(State::open);
      tick_every(Milliseconds(std::max(1U, reader.get<std::uint32_t>())));
      return requests_.begin_connection();
    case MessageType::not_yet:
      not_yet_ = reader.text();
      return;
    case MessageType::refused:
      return refuse(reader.text());
    default:
      throw DamagedFrame("no answer to a hello");
  }
}

void Client::send_frames() {
  if (state_ != State::open) return;
  const auto frames = requests_.take_frames();
  if (!frames.empty()) stream_->send(frames);
  watch_stream();
}

void Client::send_heartbeat() {
  if (stream_->wants_write()) return;  // the coordinator is stopped, and earlier bytes say as much
  stream_->send(BodyWriter().put(requests_.lowest_unanswered()).frame(MessageType::heartbeat));
}

void Client::end(std::optional<Cause> cause, const std::string& why, bool is_usage_error) {
  if (state_ == State::ended) return;
  enter(State::ended);
  requests_.end(why, is_usage_error);
  if (has_been_open_ && events_.on_lost) events_.on_lost(cause, why);
}

// The coordinator reads all that this rank has sent, then closes. Closing first could discard the last bytes.
bool Client::leave() {
  if (stop_ != Stop::leaving || state_ != State::open) return true;
  send_frames();
  stream_->send(BodyWriter().frame(MessageType::leave));
  while (current_time() < *leave_deadline_ &&
         stream_->pump([](const FrameHeader&, std::string_view) {}) == Stream::State::open) {
    watch_stream();
    poller_.wait(time_until(*leave_deadline_));
  }
  const auto stream_state = stream_->state();
  if (stream_state != Stream::State::reset && stream_state != Stream::State::network_error) return true;
  on_broken(describe_end(stream_state), current_time());
  return false;
}

}  // namespace tutti::coordinator
