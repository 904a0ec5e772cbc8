#include "coordinator/client_requests.h"

#include <algorithm>
#include <utility>

#include "core/describe.h"
#include "tutti/core/error.h"

namespace tutti::coordinator {
namespace {

/// The coordinator answers other requests at once.
bool waits_for_ranks(MessageType type) {
  return type == MessageType::get || type == MessageType::wait || type == MessageType::all_gather;
}

std::string cancel_frame(std::uint64_t tag) {
  return BodyWriter().frame(MessageType::cancel, tag);
}

[[noreturn]] void throw_error(const std::string& what, const ErrorReply& error, Milliseconds timeout) {
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

}  // namespace

std::string ClientRequests::call(const std::string& what, MessageType type, const BodyWriter& body,
                                 std::optional<Milliseconds> timeout, Milliseconds longer) {
  if (body.size() > max_body_bytes) {
    throw UsageError(what + ": more than " + std::to_string(max_value_bytes) + " bytes");
  }
  std::unique_lock lock(mutex_);
  if (end_) throw_ended(what);
  const auto found = add(type, body, true);
  auto& request = found->second;
  const auto is_over = [&] { return request.is_answered || end_; };
  if (!timeout) {
    changed_.wait(lock, is_over);
  } else if (const auto end = current_time() + *timeout;
             !changed_.wait_until(lock, end, is_over) && waits_for_ranks(type)) {
    request.is_cancelled = true;
    outgoing_ += cancel_frame(found->first);
    wake_();
    changed_.wait_until(lock, end + names_timeout + longer, is_over);
  }
  auto answered = std::move(found->second);
  requests_.erase(found);
  if (answered.error) throw_error(what, *answered.error, timeout.value_or(Milliseconds(0)));
  if (answered.is_answered) return std::move(answered.reply);
  if (end_) throw_ended(what);
  throw TimeoutError(what + ": the coordinator did not answer within " + describe_duration(*timeout), {});
}

void ClientRequests::post(MessageType type, const BodyWriter& body) {
  const std::lock_guard lock(mutex_);
  add(type, body, false);
}

std::map<std::uint64_t, ClientRequests::Request>::iterator ClientRequests::add(MessageType type, const BodyWriter& body,
                                                                               bool has_caller) {
  const auto tag = next_tag_++;
  const auto added =
      requests_.emplace(tag, Request{.type = type, .frame = body.frame(type, tag), .has_caller = has_caller}).first;
  outgoing_ += added->second.frame;
  wake_();
  return added;
}

void ClientRequests::state_blocked(std::string frame) {
  const std::lock_guard lock(mutex_);
  outgoing_ += frame;
  blocked_frame_ = std::move(frame);
  wake_();
}

bool ClientRequests::wait_for_connection(Time deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return has_begun_ || end_; });
  if (end_) throw_ended("connecting to the coordinator");
  return has_begun_;
}

void ClientRequests::begin_connection() {
  const std::lock_guard lock(mutex_);
  has_begun_ = true;
  outgoing_.clear();
  for (const auto& [tag, request] : requests_) {
    if (request.is_answered) continue;
    outgoing_ += request.frame;
    if (request.is_cancelled) outgoing_ += cancel_frame(tag);
  }
  outgoing_ += blocked_frame_;
  changed_.notify_all();
}

std::string ClientRequests::take_frames() {
  const std::lock_guard lock(mutex_);
  return std::exchange(outgoing_, {});
}

std::uint64_t ClientRequests::lowest_unanswered() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [tag, request] : requests_) {
    if (request.type != MessageType::get && request.type != MessageType::wait) return tag;
  }
  return next_tag_;
}

void ClientRequests::on_answer(const FrameHeader& header, std::string_view body) {
  const std::lock_guard lock(mutex_);
  const auto found = requests_.find(header.tag);
  if (found == requests_.end()) return;
  auto& request = found->second;
  if (!request.has_caller) {
    requests_.erase(found);
    return;
  }
  if (header.message() == MessageType::reply) request.reply = body;
  if (header.message() == MessageType::error_reply) request.error = ErrorReply::from_body(body);
  request.is_answered = true;
  changed_.notify_all();
}

void ClientRequests::end(const std::string& why, bool is_usage_error) {
  const std::lock_guard lock(mutex_);
  end_ = {.why = why, .is_usage_error = is_usage_error};
  changed_.notify_all();
}

void ClientRequests::throw_ended(const std::string& what) const {
  if (end_->is_usage_error) throw UsageError(end_->why);
  throw PeerError(what + ": " + end_->why, {});
}

}  // namespace tutti::coordinator
